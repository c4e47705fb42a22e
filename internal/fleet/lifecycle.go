package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/store"
)

// A session that rests costs less and less: its sandbox is frozen when the turn ends, stopped after a while (its
// processes end, its files stay on this host as the layers of its newest checkpoint), and dropped later (only
// the durable checkpoint is left). The next turn makes a sandbox of whatever there is, with the same verb.
//
// Stopping is: the row says stopping; what changed since the last checkpoint becomes one, and the log says in
// the same commit that the machine is gone, why, and what comes back; the machine is destroyed; the row says
// stopped. A process killed before the commit leaves a session with its machine, and one killed after it a
// machine that the log no longer names, which the reaper destroys. Dropping is one row: layers that no row needs
// are garbage.

// lifecycle is what holds for an environment.
func (f *Fleet) lifecycle(env outboard.EnvConfig) outboard.Lifecycle {
	return env.Lifecycle.Or(f.cfg.Lifecycle)
}

// due says why a sandbox is to be stopped now, or "".
func due(l outboard.Lifecycle, rested, age time.Duration) string {
	over := func(sec int64, d time.Duration) bool { return sec > 0 && d >= time.Duration(sec)*time.Second }
	switch {
	case over(l.MaxAgeSec, age):
		return fmt.Sprintf("it was stopped, being older than %v; its files were kept",
			time.Duration(l.MaxAgeSec)*time.Second)
	case over(l.StopAfterSec, rested):
		return fmt.Sprintf("it was stopped after %v without a turn; its files were kept",
			time.Duration(l.StopAfterSec)*time.Second)
	case over(l.DropAfterSec, rested):
		return dropping(l)
	}
	return ""
}

// dropping is why a sandbox is stopped that nothing but its time to be dropped has stopped.
func dropping(l outboard.Lifecycle) string {
	return fmt.Sprintf("it was dropped after %v without a turn; its files were kept",
		time.Duration(l.DropAfterSec)*time.Second)
}

// rest stops and drops the sandboxes of this host that were left alone for long enough. What fails for one is
// tried again the next time.
func (f *Fleet) rest(ctx context.Context) error {
	rows, err := f.cfg.Store.Sandboxes(ctx, f.cfg.Host, "")
	if err != nil {
		return err
	}
	for _, row := range rows {
		if row.Session == "" || !f.made(row) || ctx.Err() != nil {
			continue
		}
		err := f.restOne(ctx, row)
		if err != nil && !errors.Is(err, errUsed) && ctx.Err() == nil {
			f.log.Warn("letting a sandbox rest", "sandbox", row.ID, "err", err)
		}
	}
	return ctx.Err()
}

func (f *Fleet) restOne(ctx context.Context, row outboard.Sandbox) error {
	h, err := f.cfg.Store.Session(ctx, row.Session)
	if err != nil || h.Phase != outboard.PhaseIdle {
		return err
	}
	cfg, err := f.cfg.Store.SessionConfig(ctx, row.Session)
	if err != nil {
		return err
	}
	l, now := f.lifecycle(cfg.Env), f.now()
	switch row.State {
	case stateLive:
		over := func(row outboard.Sandbox, h outboard.Header) string {
			return due(l, now.Sub(h.LastAt), now.Sub(row.CreatedAt))
		}
		if over(row, h) != "" {
			return f.stop(ctx, row.ID, timer, over)
		}
	case stateStopping: // whoever began it was killed
		return f.stop(ctx, row.ID, By{}, because(cmp.Or(row.Why, "it was stopped; its files were kept")))
	case stateStopped:
		rest := l.DropAfterSec
		switch { // it has rested for a while when it was stopped
		case l.StopAfterSec > 0:
			rest -= l.StopAfterSec
		case row.Why == dropping(l):
			rest = 0
		}
		if l.DropAfterSec > 0 && now.Sub(row.UpdatedAt) >= time.Duration(rest)*time.Second {
			return f.dropStopped(ctx, row)
		}
	}
	return nil
}

// errUsed: the sandbox is in use, by a turn or by another process.
var errUsed = outboard.Errorf(outboard.Conflict, "the sandbox is in use").
	WithHint("wait until the turn, or who is there with ssh, is done; outboard sandbox kill waits for nobody and " +
		"keeps only what is saved")

// timer is By when a session has rested for long enough, or its sandbox is too old.
var timer = By{Actor: "server", Rule: "the environment's lifecycle"}

// reason says why a sandbox is to be stopped, of its newest row and its session's newest header; "" = it is not
// any more.
type reason func(row outboard.Sandbox, h outboard.Header) string

func because(why string) reason { return func(outboard.Sandbox, outboard.Header) string { return why } }

// recordRest writes to the audit what is about to happen to a session's sandbox. When that fails, nothing
// happens to it.
func (f *Fleet) recordRest(ctx context.Context, row *outboard.Sandbox, org outboard.OrgID, by By, action,
	why string) error {
	detail, err := json.Marshal(map[string]string{"session": string(row.Session), "why": why})
	if err != nil {
		return outboard.Errorf(outboard.Internal, "encoding an audit record: %w", err)
	}
	err = f.cfg.Store.Audit(ctx, outboard.AuditRecord{At: f.now(), Org: string(org), Actor: by.Actor, Action: action,
		Resource: string(row.ID), Decision: outboard.Allowed, Rule: by.Rule, Detail: detail})
	if err != nil {
		return outboard.Errorf(outboard.KindOf(err), "writing the audit: %w", err)
	}
	return nil
}

// StopSandbox ends the processes of a session's sandbox and keeps its files; by says who wants it, and has
// recorded it. Conflict while a turn uses it.
func (f *Fleet) StopSandbox(ctx context.Context, id outboard.SandboxID, by string) (outboard.Sandbox, error) {
	row, err := f.rowHere(ctx, id)
	if err != nil {
		return row, err
	}
	switch row.State {
	case stateLive, stateStopping:
		again := time.Now().Add(stopPatience)
		for err = errUsed; errors.Is(err, errUsed) && ctx.Err() == nil && time.Now().Before(again); {
			if err = f.stop(ctx, id, By{}, because("it was stopped by "+by+"; its files were kept")); errors.Is(err,
				errUsed) {
				time.Sleep(stopLook) // whoever lets it go does not tell
			}
		}
		if err != nil {
			return row, fmt.Errorf("stopping sandbox %s: %w", id, err)
		}
	case stateStopped:
	default:
		return row, outboard.Errorf(outboard.Conflict, "sandbox %s is %s", id, row.State)
	}
	return f.cfg.Store.Sandbox(ctx, id)
}

// rowHere returns the row of a session's sandbox on this host.
func (f *Fleet) rowHere(ctx context.Context, id outboard.SandboxID) (outboard.Sandbox, error) {
	row, err := f.cfg.Store.Sandbox(ctx, id)
	switch {
	case err != nil:
		return row, err
	case f.cfg.Provider == nil:
		return row, f.noProvider()
	case row.Host != f.cfg.Host:
		return row, f.away(ctx, "sandbox "+string(id), row.Host, "outboard sandbox kill "+string(id))
	case !f.made(row):
		return row, outboard.Errorf(outboard.Unavailable, "sandbox %s is on host %s, made by %s", id, row.Host,
			row.Provider)
	case row.Session == "":
		return row, outboard.Errorf(outboard.Invalid, "sandbox %s belongs to a box", id).WithHint("outboard box ls")
	}
	return row, nil
}

// claim takes a sandbox that nobody uses, with its newest row and its session's header. release gives it back.
func (f *Fleet) claim(ctx context.Context,
	id outboard.SandboxID) (row outboard.Sandbox, h outboard.Header, release func(), err error) {
	if row, err = f.cfg.Store.Sandbox(ctx, id); err != nil {
		return row, h, nil, err
	}
	s, err := f.enter(ctx, row.Session)
	if err != nil {
		return row, h, nil, err
	}
	unlock, ok := f.unused(id)
	release = func() {
		if ok {
			unlock()
		}
		f.leave(row.Session, s)
	}
	if !ok || s.cur != nil {
		err = errUsed
	}
	if err == nil {
		row, err = f.cfg.Store.Sandbox(ctx, id)
	}
	if err == nil {
		h, err = f.cfg.Store.Session(ctx, row.Session)
	}
	if err == nil && (h.Phase != outboard.PhaseIdle || h.Runnable(f.now())) {
		err = errUsed
	}
	if err != nil {
		release()
	}
	return row, h, release, err
}

// stop does what StopSandbox says, if the reason still holds when nobody else can use the sandbox. by is
// recorded; none = somebody else has done that.
func (f *Fleet) stop(ctx context.Context, id outboard.SandboxID, by By, still reason) error {
	ctx, cancel := context.WithTimeout(ctx, MakeTimeout)
	defer cancel()
	row, h, release, err := f.claim(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	cur, _, err := f.current(ctx, row.Session)
	if err != nil {
		return err
	}
	if row.State != stateLive && row.State != stateStopping || cur != id && row.State == stateLive {
		return nil // somebody was faster, or it is the reaper's
	}
	why := still(row, h)
	if why == "" {
		return nil // a turn came and went meanwhile
	}
	if cur == id {
		if by.Actor != "" {
			if err := f.recordRest(ctx, &row, h.Org, by, "sandbox.stop", why); err != nil {
				return err
			}
		}
		row.Why = why
		if err := f.put(ctx, &row, stateStopping); err != nil {
			return err
		}
		if err := f.part(ctx, row, &h); err != nil {
			row.Why = ""
			return errors.Join(err, f.put(context.WithoutCancel(ctx), &row, stateLive))
		}
	}
	f.log.Info("sandbox stopped", "session", row.Session, "sandbox", id, "why", row.Why)
	return f.destroyTo(ctx, row, stateStopped)
}

// part saves what changed since the last checkpoint, and says in the same commit that the machine is gone.
func (f *Fleet) part(ctx context.Context, row outboard.Sandbox, h *outboard.Header) error {
	at, err := f.savedAt(ctx, row.Session)
	if err != nil {
		return err
	}
	said := &outboard.SandboxLost{Sandbox: row.ID, Generation: row.Generation, Reason: row.Why, Restore: at}
	c, err := f.lastWords(ctx, row, max(h.Epoch, 1), at)
	if sandbox.Gone(err) {
		said.Reason = goneBy(err)
	} else if err != nil {
		return err
	}
	commit := store.Commit{Session: row.Session, Expect: h.Head, Checkpoint: c}
	if c != nil {
		said.Restore = c.ID
		commit.Events = append(commit.Events, outboard.NewEvent(h.Thread,
			&outboard.CheckpointCreated{Checkpoint: c.ID, Bytes: c.Delta.Size}))
	}
	commit.Events = append(commit.Events, outboard.NewEvent(h.Thread, said))
	_, err = f.cfg.Store.Commit(ctx, commit)
	if errors.Is(err, store.ErrMoved) {
		return errUsed // a turn has begun
	}
	return err
}

// lastWords makes a checkpoint of a machine that nobody uses.
func (f *Fleet) lastWords(ctx context.Context, row outboard.Sandbox, epoch int64,
	parent outboard.CheckpointID) (*outboard.Checkpoint, error) {
	octx, cancel := context.WithTimeout(ctx, OpenTimeout)
	defer cancel()
	sb, err := f.cfg.Provider.Open(octx, row.ID)
	if err != nil {
		return nil, err
	}
	defer sb.Close()
	if sb.Generation() != row.Generation {
		return nil, outboard.Errorf(outboard.NotFound, "sandbox %s was replaced", row.ID)
	}
	m := newMachine(sb)
	if f.cfg.Provider.Capabilities().Freeze {
		if err := m.Thaw(ctx); err != nil {
			return nil, err
		}
	}
	return f.Checkpoint(ctx, &Lease{Sandbox: m, session: row.Session, use: &use{machine: m}}, row.Session, epoch,
		parent, "")
}

// dropStopped gives up the files of a stopped sandbox on this host, once they are stored.
func (f *Fleet) dropStopped(ctx context.Context, row outboard.Sandbox) error {
	row, h, release, err := f.claim(ctx, row.ID)
	if err != nil {
		return err
	}
	defer release()
	at, err := f.savedAt(ctx, row.Session)
	if err != nil || row.State != stateStopped {
		return err
	}
	if at != "" {
		c, err := f.cfg.Store.Checkpoint(ctx, at)
		if err != nil || !c.Durable() {
			return err // later
		}
	}
	if err := f.recordRest(ctx, &row, h.Org, timer, "sandbox.drop",
		"it was stopped long ago; checkpoint "+cmp.Or(string(at), "none")+" is kept"); err != nil {
		return err
	}
	f.log.Info("sandbox dropped", "session", row.Session, "sandbox", row.ID, "checkpoint", at)
	return f.forgetStopped(ctx, row)
}

// forgetStopped ends the row of a stopped sandbox.
func (f *Fleet) forgetStopped(ctx context.Context, row outboard.Sandbox) error {
	if err := f.put(ctx, &row, stateDestroyed); err != nil {
		return err
	}
	f.removeLock(row.ID) // who looks whether it is in use makes it again
	return nil
}

// KillSandbox removes a session's sandbox with every process and every file newer than the last checkpoint,
// whoever uses it. One of a host that no server runs on is removed from the record; a server that comes back
// there removes the rest.
func (f *Fleet) KillSandbox(ctx context.Context, id outboard.SandboxID, by string) error {
	row, err := f.rowHere(ctx, id)
	if err != nil && row.Session != "" && row.Host != f.cfg.Host && f.cfg.Provider != nil {
		if unserved, uerr := f.Unserved(ctx); uerr == nil && unserved(row.Host) {
			err = nil
		}
	}
	if err != nil {
		return err
	}
	s, err := f.enter(ctx, row.Session)
	if err != nil {
		return err
	}
	defer f.leave(row.Session, s)
	if row, err = f.cfg.Store.Sandbox(ctx, id); err != nil {
		return err
	}
	if row.State == stateDestroyed {
		return outboard.Errorf(outboard.NotFound, "sandbox %s is gone already", id)
	}
	row.Why = "it was killed by " + by // the next turn reads it from here
	if err := f.put(ctx, &row, row.State); err != nil {
		return err
	}
	f.log.Info("sandbox killed", "session", row.Session, "sandbox", id, "by", by)
	return f.destroyTo(ctx, row, stateDestroyed)
}

// destroyTo removes a machine, then says so in its row.
func (f *Fleet) destroyTo(ctx context.Context, row outboard.Sandbox, state string) error {
	if err := f.destroyMachine(ctx, row.ID); err != nil {
		return err
	}
	return f.put(ctx, &row, state)
}

// reapStopped looks at the row of a stopped sandbox, which goes when its session has another or is no more.
func (f *Fleet) reapStopped(ctx context.Context, row outboard.Sandbox) error {
	h, err := f.cfg.Store.Session(ctx, row.Session)
	if err != nil && outboard.KindOf(err) != outboard.NotFound {
		return err
	}
	over := err != nil || h.Phase == outboard.PhaseTerminated
	if !over {
		cur, _, err := f.current(ctx, row.Session)
		if err != nil || cur == "" {
			return err
		}
	}
	return f.forgetStopped(ctx, row)
}

// savedTypes are the events that say what state the workspace is in.
var savedTypes = []outboard.EventType{outboard.TypeCallFinished, outboard.TypeCheckpointCreated,
	outboard.TypeSandboxLost,
	outboard.TypeSessionRewound, outboard.TypeSessionForked}

// savedAt returns the newest saved state of a session's workspace, or "".
func (f *Fleet) savedAt(ctx context.Context, id outboard.SessionID) (outboard.CheckpointID, error) {
	q := store.EventQuery{Desc: true, Limit: 50, Types: savedTypes}
	for {
		events, err := f.cfg.Store.Events(ctx, id, q)
		if err != nil {
			return "", err
		}
		for i := range events {
			p, err := events[i].Decode()
			if err != nil {
				return "", err
			}
			switch p := p.(type) {
			case *outboard.CallFinished:
				if p.Checkpoint != "" {
					return p.Checkpoint, nil
				}
			case *outboard.CheckpointCreated:
				return p.Checkpoint, nil
			case *outboard.SandboxLost:
				return p.Restore, nil
			case *outboard.SessionForked:
				return p.Checkpoint, nil
			case *outboard.SessionRewound:
				if p.Machine {
					return p.Checkpoint, nil
				}
			}
		}
		if len(events) < q.Limit {
			return "", nil
		}
		q.Before = events[len(events)-1].Seq
	}
}
