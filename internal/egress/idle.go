package egress

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/outboard-dev/outboard"
)

// errIdle ends a stream that has carried nothing for Config.Idle. A stream that nobody uses keeps a connection
// on both sides, and a thousand of them keep the server's.
var errIdle = errors.New("no byte has come or gone for too long")

// effect is a request under way: from its permission to the last byte of its answer, whatever it has become (a
// WebSocket, a stream of events, a long poll). It is the context of what is done for the request.
type effect struct {
	context.Context
	cancel context.CancelCauseFunc
	now    func() time.Time
	client *http.ResponseController // of its answer; set once it is active
	reach  atomic.Pointer[reach]    // what it was judged by; nil before
	// of what allowed it, and of its credentials; nil = none is asked
	still atomic.Pointer[func(context.Context) error]
	grant atomic.Pointer[granted] // that it was allowed by; nil = by none
	late  *time.Timer             // closes its client's connection; set once it was ended
	// when the last byte of a body came or went, in Unix nanoseconds; first when it began
	last atomic.Int64
}

// touch notes that bytes have moved.
func (e *effect) touch() {
	if e != nil {
		e.last.Store(e.now().UnixNano())
	}
}

func (e *effect) idle(now time.Time) time.Duration {
	return time.Duration(now.UnixNano() - e.last.Load())
}

type effectKey struct{}

// newEffect returns one that parent ends, or its own cancel.
func newEffect(parent context.Context, now func() time.Time) *effect {
	ctx, cancel := context.WithCancelCause(parent)
	return &effect{Context: ctx, cancel: cancel, now: now}
}

// Value implements context.Context.
func (e *effect) Value(key any) any {
	if key == (effectKey{}) {
		return e
	}
	return e.Context.Value(key)
}

// effectOf returns the effect that ctx is of, nil outside of one.
func effectOf(ctx context.Context) *effect {
	e, _ := ctx.Value(effectKey{}).(*effect)
	return e
}

// begin registers a request of ctx, which end cancels. Over the limit of one sandbox there is a refusal instead.
func (p *port) begin(ctx context.Context, w http.ResponseWriter) (*effect, *refusal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.active) >= p.g.cfg.Streams {
		return nil, refuse(http.StatusTooManyRequests, "streams",
			"this sandbox has %d requests under way, as many as it may", len(p.active))
	}
	e := newEffect(ctx, p.g.now)
	e.touch()
	e.client = http.NewResponseController(w)
	p.active[e] = struct{}{}
	return e, nil
}

// end cancels an active effect. A client that does not read, or is frozen, would keep it under way for as long
// as it likes: soon nobody waits for it. What there is to say to one that reads is said by then. Of HTTP/2 the
// deadline is for the stream, whose end waits behind what the connection has not taken yet: a connection that
// takes nothing is closed, with its other streams. The port's mu is held.
func (e *effect) end(cause error) {
	e.cancel(cause)
	_ = e.client.SetWriteDeadline(time.Now().Add(endWait)) // a dead socket fails when it is used
	if f, ok := e.Value(flowKey{}).(*flow); ok && e.late == nil {
		e.late = time.AfterFunc(2*endWait, func() { f.end.Reset(0) })
	}
}

// done ends an effect.
func (p *port) done(e *effect) {
	e.cancel(nil)
	p.mu.Lock()
	delete(p.active, e)
	if e.late != nil {
		e.late.Stop()
	}
	p.mu.Unlock()
}

// endIdle cancels the requests under way that have been idle for d, and returns how many there were.
func (p *port) endIdle(now time.Time, d time.Duration) (ended int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for e := range p.active {
		if e.idle(now) >= d {
			e.end(errIdle)
			ended++
		}
	}
	return ended
}

// granted is a request that a grant allowed.
type granted struct {
	by  outboard.NetGrantID
	req Request
}

// errTakenBack ends what a grant allowed that somebody has ended.
var errTakenBack = errors.New("what let this session reach the host was taken back")

// endTakenBack cancels the requests under way whose grant was ended and that no other one allows, and returns
// how many there were. While the grants cannot be read, what was allowed goes on.
func (p *port) endTakenBack(ctx context.Context) (ended int) {
	p.mu.Lock()
	by := map[*effect]*granted{}
	for e := range p.active {
		if g := e.grant.Load(); g != nil {
			by[e] = g
		}
	}
	p.mu.Unlock()
	if len(by) == 0 {
		return 0
	}
	there, err := p.g.cfg.Store.NetGrantIDs(ctx, p.subject.Session)
	grants, err2 := p.grants(ctx)
	if err = errors.Join(err, err2); err != nil {
		p.log(slog.LevelWarn, "the grants of a session cannot be read", "err", err)
		return 0
	}
	for e, g := range by {
		if slices.Contains(there, g.by) || slices.ContainsFunc(grants,
			func(o outboard.NetGrant) bool { return o.Uses < 0 && covers(o, g.req) }) {
			continue
		}
		p.mu.Lock()
		if _, ok := p.active[e]; ok {
			e.end(errTakenBack)
			ended++
		}
		p.mu.Unlock()
	}
	return ended
}

// endRevoked cancels the requests under way that are no longer allowed, or whose credentials are no longer for
// them, and returns how many there were. A WebSocket that was opened with a credential is a use of it for as
// long as it lasts.
func (p *port) endRevoked(ctx context.Context) (ended int) {
	p.mu.Lock()
	with := make([]*effect, 0, len(p.active))
	for e := range p.active {
		if e.still.Load() != nil {
			with = append(with, e)
		}
	}
	p.mu.Unlock()
	for _, e := range with {
		err := (*e.still.Load())(ctx)
		p.mu.Lock()
		if _, ok := p.active[e]; ok && err != nil {
			e.end(err)
			ended++
		}
		p.mu.Unlock()
	}
	return ended
}

// answered is what an answer's body is read through, so that its bytes count.
func (e *effect) answered(resp *http.Response) {
	e.touch()
	if e == nil || resp.Body == nil || resp.Body == http.NoBody {
		return
	}
	if rw, ok := resp.Body.(io.ReadWriteCloser); ok { // it has switched protocols
		resp.Body = &lively{rw, e}
		return
	}
	resp.Body = &livelyBody{resp.Body, e}
}

// livelyBody is the body of an answer.
type livelyBody struct {
	io.ReadCloser
	effect *effect
}

// Read notes that bytes have come.
func (b *livelyBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.effect.touch()
	}
	return n, err
}

// lively is a connection that has switched protocols.
type lively struct {
	io.ReadWriteCloser
	effect *effect
}

// Read notes that bytes have come.
func (l *lively) Read(p []byte) (int, error) {
	n, err := l.ReadWriteCloser.Read(p)
	if n > 0 {
		l.effect.touch()
	}
	return n, err
}

// CloseWrite passes the end of what the client says on.
func (l *lively) CloseWrite() error { return closeWrite(l.ReadWriteCloser) }

// Write notes that bytes have gone.
func (l *lively) Write(p []byte) (int, error) {
	n, err := l.ReadWriteCloser.Write(p)
	if n > 0 {
		l.effect.touch()
	}
	return n, err
}
