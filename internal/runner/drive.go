package runner

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// drive takes one claimed session as far as it goes, and gives it up. tail are the newest events of its log, as
// far as they are known.
func (w *worker) drive(ctx context.Context, h outboard.Header, tail []outboard.Event) {
	t, err := w.open(ctx, h, tail)
	if err != nil {
		w.unreadable(ctx, h, err)
		return
	}
	t.subject = t.durable.Config.Subject(t.id)
	forget := w.track(t) // before the kill switch is asked, so that a kill which comes later finds it
	if t.underKill(ctx, h) {
		forget()
		t.close(false)
		return
	}
	err = t.run()
	forget()
	t.close(err == nil)
	if err == nil && t.held {
		w.states.keep(t.id, t.durable)
	}
	t.part(ctx, err)
}

// run is the one place where a panic of a turn ends.
func (t *turn) run() (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = asPanic(v)
		}
	}()
	return t.cfg.Harness.Run(t.ctx, t)
}

// panicked is a recovered panic, of the turn or of one of its calls.
type panicked struct {
	value any
	stack []byte
}

// Error says what was panicked with; the stack is for the log.
func (p *panicked) Error() string { return fmt.Sprintf("panic: %v", p.value) }

func asPanic(v any) *panicked {
	if p, ok := v.(*panicked); ok {
		return p // of a call, handed on
	}
	return &panicked{v, debug.Stack()}
}

// part gives up the lease in the way that the end of the turn asks for. The worker's ctx has ended where the
// worker stopped the turn.
func (t *turn) part(worker context.Context, err error) {
	ctx, cut := context.WithoutCancel(worker), context.Cause(worker)
	switch {
	case err == nil && !t.held, errors.Is(err, store.ErrFenced), errors.Is(cut, store.ErrFenced):
		if err != nil && cut == nil {
			t.fenced(ctx)
		}
		return
	case err == nil, cut != nil, errors.Is(err, errStopping), errors.Is(err, store.ErrTerminated), errors.Is(err,
		errKilled):
	case outboard.KindOf(err) == outboard.NotFound && t.gone(ctx):
		return
	case outboard.KindOf(err) == outboard.Unavailable, outboard.KindOf(err) == outboard.Canceled:
		t.log.Error("the turn cannot go on; it will be tried again", "err", err)
		t.pause(ctx, retryPause)
	default:
		if t.abort(ctx, err) {
			return
		}
		t.pause(ctx, retryPause)
	}
	t.endLease(worker)
}

// fenced tells the two ways of being fenced apart. When the lease is still ours it was the sandbox that refused:
// it has seen a later lease than the database gives. Then the lease is kept, because no other process could do
// better, until somebody has looked.
func (t *turn) fenced(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, partingTime)
	defer cancel()
	h, err := t.cfg.Store.Session(ctx, t.id)
	if err == nil && h.Epoch == t.epoch && h.Worker != "" {
		t.log.Error("the sandbox has seen a later lease than the database knows: was an older database restored?",
			"epoch", t.epoch)
		return
	}
	t.log.Info("the turn was taken over", "epoch", t.epoch)
}

// gone reports whether the session was deleted.
func (t *turn) gone(ctx context.Context) bool {
	_, err := t.cfg.Store.Session(ctx, t.id)
	return outboard.KindOf(err) == outboard.NotFound
}

// endLease ends the lease of a session that is not at rest.
func (t *turn) endLease(worker context.Context) {
	t.giveUpLease(worker, t.id, t.epoch)
}

// giveUpLease ends the lease of a session, so that it can be claimed again. While the database cannot be reached
// it tries again: the worker lives, and with it a lease that nobody uses. Where the worker ends, the lease ends
// with it.
func (r *Runner) giveUpLease(worker context.Context, id outboard.SessionID, epoch int64) {
	for wait := retryPause; ; wait = min(2*wait, maxPause) {
		err := r.cfg.fault("release")
		if err == nil {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(worker), partingTime)
			err = r.cfg.Store.Release(ctx, id, epoch)
			cancel()
		}
		if err == nil || errors.Is(err, store.ErrFenced) || outboard.KindOf(err) == outboard.NotFound {
			return
		}
		if worker.Err() != nil || r.isStopping() {
			r.log.Warn("lease not given up; it ends with the worker's", "session", id, "err", err)
			return
		}
		r.log.Warn("lease not given up yet", "session", id, "err", err, "again_in", wait)
		r.pause(worker, wait)
	}
}

// unreadable deals with a session whose log could not be folded. A broken log would be broken again: the turn
// ends, and its client is told. Where it is not known to be broken, or what another version wrote, the lease is
// kept, so that the session is not claimed in a circle, until somebody has looked and the process ends.
func (w *worker) unreadable(ctx context.Context, h outboard.Header, err error) {
	kind := outboard.KindOf(err)
	if ctx.Err() != nil || kind == outboard.NotFound {
		return
	}
	w.log.Error("a session's log cannot be read", "session", h.ID, "head", h.Head, "err", err)
	e, ok := errors.AsType[*outboard.Error](err)
	switch {
	case ok && e.Code == outboard.CodeEventDamaged:
		if err := w.endDamaged(ctx, h, "The session cannot go on: "+outboard.PublicOf(err)+"."); err != nil {
			w.log.Error("ending the turn of a session whose log is damaged", "session", h.ID, "err", err)
			return
		}
	case kind == outboard.Internal:
		return
	default:
		w.pause(ctx, retryPause)
	}
	w.giveUpLease(ctx, h.ID, h.Epoch)
}

// endDamaged ends the turn of a session whose log cannot be folded, and takes what waits out of its inbox: a
// session that nothing can be done in must not count as running, and can be deleted. Calls that are open stay as
// they are.
func (w *worker) endDamaged(ctx context.Context, h outboard.Header, message string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), partingTime)
	defer cancel()
	var events []outboard.Event
	if h.Phase != outboard.PhaseRunning {
		events = append(events, outboard.NewEvent(h.Thread, &outboard.TurnResumed{}))
	}
	for {
		waiting, err := w.cfg.Store.Waiting(ctx, h.ID)
		if err != nil {
			return err
		}
		s := &outboard.State{Header: h}
		for _, e := range waiting {
			s.Waiting = append(s.Waiting, outboard.Input{Event: e})
		}
		events = append(events, closing(s, message)...)
		if _, err := w.cfg.Store.Append(ctx, h.ID, h.Epoch, store.Any, events...); err != nil {
			return err
		}
		if events[len(events)-1].Type == outboard.TypeTurnEnded {
			return nil
		}
		events = nil
	}
}

// abort ends a turn that failed in a way that would repeat itself: a panic, or an error that is our fault. It
// reports whether the session now rests.
func (t *turn) abort(ctx context.Context, cause error) bool {
	if p, ok := errors.AsType[*panicked](cause); ok {
		t.log.Error("the turn panicked", "panic", p.value, "stack", string(p.stack))
	} else {
		t.log.Error("the turn failed", "err", cause)
	}
	ctx, cancel := context.WithTimeout(ctx, partingTime)
	defer cancel()
	t.staged, t.rows, t.acct.unknown = nil, rows{}, true
	t.look()
	for t.held {
		if _, err := t.Append(ctx,
			func(s *outboard.State) []outboard.Event { return closing(s, internalError) }); err != nil {
			t.log.Error("ending the failed turn", "err", err)
			return false
		}
	}
	return true
}

// flushAtOnce bounds the inputs one append of closing takes out of the inbox.
const flushAtOnce = 100

// internalError is what a session is told of one.
const internalError = "An internal error ended the turn; the server's log has the details."

// closing returns the events that end a turn for good whatever state it is in: everything open is closed, what
// waits is flushed.
func closing(s *outboard.State, message string) []outboard.Event {
	var events []outboard.Event
	add := func(p outboard.Payload) { events = append(events, outboard.NewEvent(s.Thread, p)) }
	for _, in := range s.Waiting[:min(len(s.Waiting), flushAtOnce)] {
		add(&outboard.InputProcessed{Input: in.Event.ID, Of: in.Event.Type})
	}
	if len(s.Waiting) > flushAtOnce {
		return events
	}
	if s.Request != "" {
		add(&outboard.ModelFailed{Request: s.Request, Error: outboard.Failure{Message: message}})
	}
	for _, c := range s.Calls {
		if c.Finished != nil {
			continue
		}
		fin := &outboard.CallFinished{Call: c.ID, Outcome: outboard.OutcomeCanceled, IsError: true,
			Content: []outboard.Content{outboard.Text(message + " This call had not run.")}}
		if c.Started != nil {
			fin.Outcome, fin.Content = outboard.OutcomeUnknown, []outboard.Content{outboard.Text(
				message + " This call was running. OUTCOME UNKNOWN: it ran at most once, perhaps only in part.")}
		}
		add(fin)
	}
	add(&outboard.TurnFailed{Turn: s.Turn, Error: outboard.Failure{Type: "unknown_error", Message: message,
		Retry: "exhausted"}})
	add(&outboard.TurnEnded{Turn: s.Turn, Stop: outboard.StopReason{Type: "retries_exhausted"}})
	return events
}
