package egress

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/outboard-dev/outboard"
)

// Of what a sandbox is refused it may have refusalBurst records at once, and one more every refusalEvery. What
// was allowed has a budget, and a refusal costs its sender nothing: without a bound, a loop inside a sandbox
// fills the disk with records that nobody can ever take away.
const (
	refusalBurst = 1000
	refusalEvery = time.Second
)

// refusalRate says which refusals of a sandbox become records, and counts the others.
type refusalRate struct {
	full time.Time // when the whole burst is there again
	out  int64     // left out since the last record
}

// take reports whether there is room for one more record, and how many refusals were left out before it.
func (t *refusalRate) take(now time.Time) (out int64, ok bool) {
	const most = refusalBurst * refusalEvery
	if t.full.Before(now) || t.full.After(now.Add(most)) { // after it: the clock went back
		t.full = now
	}
	if t.full.Sub(now) > most-refusalEvery {
		t.out++
		return 0, false
	}
	t.full = t.full.Add(refusalEvery)
	out, t.out = t.out, 0
	return out, true
}

// refused puts a refusal on record, unless the sandbox has had too many of late: then it is counted, and the
// next record says how many.
func (p *port) refused(ctx context.Context, req Request, rule string, d detail) {
	p.mu.Lock()
	out, ok := p.refusalRate.take(p.g.now())
	p.mu.Unlock()
	if !ok {
		return
	}
	d.LeftOut = out
	if err := p.audit(ctx, req, outboard.Refused, rule, d); err != nil {
		p.mu.Lock()
		p.refusalRate.out += out
		p.mu.Unlock()
		p.log(slog.LevelError, "a refusal was not recorded", "err", err)
	}
}

// tellLeftOut puts on record how many refusals were left out since the last one that was recorded, when no other
// will come.
func (p *port) tellLeftOut() {
	p.mu.Lock()
	out := p.refusalRate.out
	p.refusalRate.out = 0
	p.mu.Unlock()
	if out == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), takeTimeout)
	defer cancel()
	d := detail{Reason: fmt.Sprintf("%d more requests were refused, faster than each is recorded", out), LeftOut: out}
	if err := p.audit(ctx, Request{Subject: p.subject, Method: "*"}, outboard.Refused, "many", d); err != nil {
		p.log(slog.LevelError, "a refusal was not recorded", "err", err)
	}
}
