package runner

import (
	"context"
	"errors"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// KillSwitch says whether a subject may have an effect. Find returns the kill that covers it, or nil; an error
// means that nobody knows, which counts as a pause. Known is the same by what was read last, and waits for
// nothing.
type KillSwitch interface {
	Find(ctx context.Context, who outboard.KillSubject) (*outboard.Kill, error)
	Known(who outboard.KillSubject) (*outboard.Kill, error)
}

// errKilled ends a turn where it stands. The session is claimed again, and then dealt with by the level of the kill.
var errKilled = outboard.Errorf(outboard.Canceled, "the kill switch is thrown")

// killed returns the kill that covers the session, nil when none does. What cannot be read is a pause.
func (t *turn) killed(ctx context.Context) *outboard.Kill {
	if t.cfg.Kill == nil {
		return nil
	}
	return t.asPause(t.cfg.Kill.Find(ctx, t.subject))
}

func (t *turn) asPause(k *outboard.Kill, err error) *outboard.Kill {
	if err != nil {
		t.log.Error("nobody knows whether the kill switch is thrown, so it counts as thrown", "err", err)
		return &outboard.Kill{Scope: outboard.KillAll, Level: outboard.KillPause,
			Reason: "the kill switch cannot be read"}
	}
	return k
}

// alive is asked right before an effect.
func (t *turn) alive(ctx context.Context) error {
	if t.killed(ctx) != nil {
		return errKilled
	}
	return nil
}

// parted keeps the leases of paused sessions, so that they are not claimed in a circle.
type parted struct {
	lease outboard.Header
	who   outboard.KillSubject
}

// underKill deals with a claimed session that a kill covers, and reports whether one does. A paused one keeps
// its lease until Recheck finds it alive; of a stopped one everything open is closed, whatever waits for it is
// flushed, and it rests.
func (t *turn) underKill(ctx context.Context, h outboard.Header) bool {
	k := t.killed(ctx)
	if k == nil {
		return false
	}
	if k.ID == "" { // nobody knows: it is asked again soon
		t.pause(ctx, retryPause)
		t.endLease(ctx)
		return true
	}
	if k.Level.Rank() < outboard.KillStop.Rank() {
		t.mu.Lock()
		if t.paused == nil {
			t.paused = map[outboard.SessionID]parted{}
		}
		t.paused[t.id] = parted{h, t.subject}
		t.mu.Unlock()
		t.log.Warn("the session is paused by the kill switch", "kill", k.ID)
		return true
	}
	t.log.Warn("the session is stopped by the kill switch", "kill", k.ID, "level", k.Level)
	t.staged, t.rows, t.acct.unknown = nil, rows{}, true
	t.closed = k.Closes(t.now())
	t.look()
	for t.held {
		appended, err := t.Append(ctx, func(s *outboard.State) []outboard.Event { return ending(s, k) })
		if err == nil && !appended { // it rests already
			t.endLease(ctx)
			return true
		}
		if err != nil {
			if !errors.Is(err, store.ErrFenced) && !errors.Is(err, errStopping) {
				t.log.Error("ending a killed turn", "err", err)
				t.pause(ctx, retryPause)
				t.endLease(ctx)
			}
			return true
		}
	}
	return true
}

// ending are the events that end what is going on in a session because of a kill.
func ending(s *outboard.State, k *outboard.Kill) []outboard.Event {
	if len(s.Waiting) == 0 && !s.InTurn {
		return nil
	}
	if s.InTurn || len(s.Waiting) > flushAtOnce {
		return closing(s, "The turn was ended: "+k.Error()+".")
	}
	var events []outboard.Event
	for _, in := range s.Waiting {
		events = append(events, outboard.NewEvent(s.Thread,
			&outboard.InputProcessed{Input: in.Event.ID, Of: in.Event.Type}))
	}
	return events
}

// Recheck asks the kill switch about everything this process drives: turns that it covers end where they stand,
// and paused sessions that it does not cover any more go on. It returns the sessions whose turns it cut.
func (r *Runner) Recheck(ctx context.Context) []outboard.SessionID {
	if r.cfg.Kill == nil {
		return nil
	}
	r.mu.Lock()
	turns := make([]*turn, 0, len(r.turns))
	for t := range r.turns {
		turns = append(turns, t)
	}
	paused := make([]parted, 0, len(r.paused))
	for _, p := range r.paused {
		paused = append(paused, p)
	}
	r.mu.Unlock()
	var cut []outboard.SessionID
	for _, t := range turns {
		if t.asPause(r.cfg.Kill.Known(t.subject)) != nil {
			t.cancel(errKilled)
			cut = append(cut, t.id)
		}
	}
	for _, p := range paused {
		k, err := r.cfg.Kill.Known(p.who)
		if err != nil || k != nil && k.Level.Rank() < outboard.KillStop.Rank() {
			continue
		}
		if err := r.cfg.Store.Release(ctx, p.lease.ID, p.lease.Epoch); err != nil && !errors.Is(err, store.ErrFenced) &&
			outboard.KindOf(err) != outboard.NotFound {
			r.log.Warn("a paused session does not go on yet", "session", p.lease.ID, "err", err)
			continue
		}
		r.mu.Lock()
		delete(r.paused, p.lease.ID)
		r.mu.Unlock()
	}
	return cut
}

// track notes a turn that is being driven, until the returned function is called.
func (r *Runner) track(t *turn) (forget func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.turns == nil {
		r.turns = map[*turn]struct{}{}
	}
	r.turns[t] = struct{}{}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.turns, t)
	}
}
