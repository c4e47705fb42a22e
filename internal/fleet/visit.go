package fleet

import (
	"context"
	"errors"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// visitTries is how often a visit begins anew when the session moved under it: each time a turn has begun, which
// then has the machine.
const visitTries = 5

// VisitSession connects a person to a session's sandbox, beside its turns: it is thawed, and where the session
// rests and has none, made as its next turn would make it; may is asked before that. While the visit lasts the
// sandbox is neither frozen nor stopped. Release ends it. Conflict while a turn is about to make or replace the
// sandbox, Unavailable where it is on another host.
func (f *Fleet) VisitSession(ctx context.Context, id outboard.SessionID,
	may func(context.Context) error) (*Lease, error) {
	if f.cfg.Provider == nil {
		return nil, f.noProvider()
	}
	for range visitTries {
		b, err := f.visit(ctx, id, may)
		if !errors.Is(err, store.ErrMoved) {
			return b, err
		}
	}
	return nil, outboard.Errorf(outboard.Conflict, "session %s does not rest for long enough to be visited", id)
}

func (f *Fleet) visit(ctx context.Context, id outboard.SessionID, may func(context.Context) error) (*Lease, error) {
	h, err := f.cfg.Store.Session(ctx, id)
	if err != nil {
		return nil, err
	}
	if h.Phase == outboard.PhaseTerminated {
		return nil, outboard.Errorf(outboard.Conflict, "session %s was stopped (archived) and gets no sandbox any more",
			id).
			WithHint("outboard fork %s goes on in a new session, with its conversation and its files", id)
	}
	cfg, err := f.cfg.Store.SessionConfig(ctx, id)
	if err != nil {
		return nil, err
	}
	r := Request{Session: id, Config: cfg}
	if r.Current, err = f.ready(ctx, id); err != nil {
		return nil, err
	}
	if err := f.elsewhere(ctx, r.Current); err != nil {
		return nil, err
	}
	if h.Phase != outboard.PhaseIdle || h.Runnable(f.now()) {
		return f.join(ctx, r) // the machine is the turn's to make and to lose
	}
	if r.Checkpoint, err = f.savedAt(ctx, id); err != nil {
		return nil, err
	}
	if r.Current == nil {
		if err := may(ctx); err != nil {
			return nil, err
		}
	}
	b, err := f.Acquire(ctx, r)
	if err != nil {
		return nil, err
	}
	if err := f.say(ctx, h, b); err != nil {
		f.dismiss(ctx, b)
		return nil, err
	}
	return b, nil
}

// say writes to the log what a visit did to the session's machine, if no turn has begun since the header was read.
func (f *Fleet) say(ctx context.Context, h outboard.Header, b *Lease) error {
	var events []outboard.Event
	if b.Lost != nil {
		events = append(events, outboard.NewEvent(h.Thread, b.Lost))
	}
	if b.New {
		events = append(events, outboard.NewEvent(h.Thread, &b.Ready))
	}
	if len(events) == 0 {
		return nil
	}
	_, err := f.cfg.Store.Commit(ctx, store.Commit{Session: h.ID, Expect: h.Head, Events: events})
	return err
}

// dismiss gives a machine back that the log does not name: the reaper's, now.
func (f *Fleet) dismiss(ctx context.Context, b *Lease) {
	ctx = context.WithoutCancel(ctx)
	err := f.Release(ctx, b)
	if err = errors.Join(err, f.Tidy(ctx, b.session)); err != nil {
		f.log.Warn("a sandbox that a visit made is left to the reaper", "session", b.session, "sandbox",
			b.Ready.Sandbox, "err", err)
	}
}

// join connects to the machine of a session that is in a turn.
func (f *Fleet) join(ctx context.Context, r Request) (*Lease, error) {
	busy := outboard.Errorf(outboard.Conflict, "a turn of session %s is about to make its sandbox", r.Session).
		WithHint("try again in a moment")
	if r.Current == nil {
		return nil, busy
	}
	s, err := f.enter(ctx, r.Session)
	if err != nil {
		return nil, err
	}
	defer f.leave(r.Session, s)
	if s.cur == nil || s.cur.machine.ID() != r.Current.Sandbox || s.cur.machine.Generation() != r.Current.Generation ||
		!s.cur.machine.usable() {
		u, reason, err := f.open(ctx, *r.Current)
		if err != nil {
			return nil, err
		}
		if reason != "" {
			return nil, busy
		}
		s.cur = u
		if f.networked(r.Config.Env.Networking) {
			f.cfg.Network.Attach(r.Current.Sandbox, r.Session, r.Config)
		}
	}
	b := &Lease{session: r.Session, use: s.cur, Ready: *r.Current, Sandbox: s.cur.machine}
	b.use.users++
	f.own(b.use.machine.ID(), r.Config.Subject(r.Session))
	return b, nil
}

// ready returns the machine that the session's log names, or nil.
func (f *Fleet) ready(ctx context.Context, id outboard.SessionID) (*outboard.SandboxReady, error) {
	q := store.EventQuery{Desc: true, Limit: 8, Types: []outboard.EventType{outboard.TypeSandboxReady,
		outboard.TypeSandboxLost,
		outboard.TypeSessionRewound, outboard.TypeSessionForked}}
	for {
		events, err := f.cfg.Store.Events(ctx, id, q)
		if err != nil {
			return nil, err
		}
		for i := range events {
			p, err := events[i].Decode()
			if err != nil {
				return nil, err
			}
			switch p := p.(type) {
			case *outboard.SandboxReady:
				return p, nil
			case *outboard.SessionRewound:
				if p.Machine {
					return nil, nil
				}
			default: // lost, or its parent's before the fork
				return nil, nil
			}
		}
		if len(events) < q.Limit {
			return nil, nil
		}
		q.Before = events[len(events)-1].Seq
	}
}

// elsewhere refuses a machine that lives on another host: a turn there may need it, so a visit does not count it
// as lost.
func (f *Fleet) elsewhere(ctx context.Context, cur *outboard.SandboxReady) error {
	if cur == nil {
		return nil
	}
	row, err := f.cfg.Store.Sandbox(ctx, cur.Sandbox)
	if outboard.KindOf(err) == outboard.NotFound && err != nil {
		return nil
	}
	if err == nil && row.Host != f.cfg.Host && row.State != stateDestroyed && row.State != stateStopped {
		err = outboard.Errorf(outboard.Unavailable, "the sandbox of the session is on another host, %s", row.Host).
			WithHint("ask the server there")
	}
	return err
}
