package egress

import (
	"context"
	"log/slog"
	"time"
)

// maxLines bounds the lines that one sandbox has the server log in a second: what it does is in the audit, and
// must not fill a disk besides.
const maxLines = 10

// logRate counts the lines about a sandbox.
type logRate struct {
	since time.Time
	lines int
	mute  int // left out since the last one
}

// log logs what a sandbox did, unless it has filled the second; the next line says how many were left out.
func (p *port) log(level slog.Level, msg string, args ...any) {
	now := p.g.now()
	p.mu.Lock()
	v := &p.logRate
	if d := now.Sub(v.since); d >= time.Second || d < 0 {
		v.since, v.lines = now, 0
	}
	v.lines++
	if v.lines > maxLines {
		v.mute++
		p.mu.Unlock()
		return
	}
	if v.mute > 0 {
		args = append(args, "left_out", v.mute)
		v.mute = 0
	}
	p.mu.Unlock()
	who := []any{"session", p.subject.Session, "sandbox", p.subject.Sandbox}
	p.g.log.Log(context.Background(), level, msg, append(who, args...)...)
}
