package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/fleet"
	"github.com/outboard-dev/outboard/internal/harness"
	"github.com/outboard-dev/outboard/internal/live"
	"github.com/outboard-dev/outboard/internal/llm"
	"github.com/outboard-dev/outboard/internal/store"
)

// turn is one claimed session: what a harness works with. Its methods are called from the goroutine that drives
// it; only the calls of a RunCalls and the watcher of an Interrupted run beside it, and they touch none of its
// fields that change.
type turn struct {
	*Runner
	ctx    context.Context // of the whole claim: lost lease, shutdown
	cancel context.CancelCauseFunc
	id     outboard.SessionID
	epoch  int64
	log    *slog.Logger

	durable *outboard.State // the fold of the log
	view    *outboard.State // the same with what is staged; durable itself when nothing is
	staged  []outboard.Event
	rows    rows // to be committed with what is staged
	acct    account
	subject outboard.KillSubject
	held    bool
	closed  *outboard.Answer // what the approvals that end from now on without an answer say: a kill ended them

	lease   *fleet.Lease      // once a call needed it
	mounts  map[string]string // where mounts are in a generation of the sandbox, links followed
	unacked []string          // keys of calls that box may forget, and has not been told so
	acks    sync.WaitGroup    // acknowledgements under way on box

	silent outboard.EventID // the model call about whose response the judge did not answer in time

	woken   <-chan struct{} // commits to the session
	unwatch func()
	watcher sync.WaitGroup // of the newest Interrupted; it may still be ending when that was canceled
	missed  bool           // the watcher was woken and has not looked to the end; for it, and after watcher.Wait
	cut     int64          // the interrupt that the watcher has found; likewise
}

var _ harness.Turn = (*turn)(nil)

// rows are what goes into the commit of the outcomes they belong to, and what may be done only after it.
type rows struct {
	checkpoint *outboard.Checkpoint
	files      []outboard.File
	acks       []string // call keys
	large      bool     // one of them has left a large file of output
}

// maxUnacked bounds the calls whose outcome is durable and that the guest has not been told about. To tell it
// takes about as long as a small call, and while a turn runs that time is taken from the turn. A process that
// dies leaves the output of as many in the sandbox.
const maxUnacked = 32

// longLog is from how many events on a log is asked for its rewinds and its newest summary before it is folded.
// A shorter one is folded from its beginning, and again when it turns out to have been rewound, which is cheaper
// than to ask for each session.
const longLog = 1000

// open folds the log of a session that was just claimed. tail are its newest events, as far as they are known.
func (r *Runner) open(ctx context.Context, h outboard.Header, tail []outboard.Event) (*turn, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	t := &turn{Runner: r, ctx: ctx, cancel: cancel, id: h.ID, epoch: h.Epoch, held: true,
		durable: r.states.take(ctx, h.ID),
		log:     r.log.With("session", h.ID)}
	t.view = t.durable
	t.woken, t.unwatch = r.cfg.Store.Watch(h.ID) // before the log is read, so that nothing falls between
	var err error
	if t.durable.Head == 0 && h.Head > longLog {
		err = t.startOver(ctx)
	}
	if err == nil {
		err = t.catchUp(ctx, h.Head, tail)
	}
	if err != nil {
		t.close(false)
		return nil, fmt.Errorf("folding the log: %w", err)
	}
	// a process that died began the turn; what others append moves LastAt, and charges nothing
	if t.durable.Phase == outboard.PhaseRunning {
		t.acct.clocked = t.durable.LastAt
	}
	return t, nil
}

// catchUp brings a kept fold to the head that was claimed. When the tail does, the log need not be read: what
// may have come since is found by the first append, with which every turn begins.
func (t *turn) catchUp(ctx context.Context, head int64, tail []outboard.Event) error {
	for i := range tail {
		if tail[i].Seq != t.durable.Head+1 {
			continue
		}
		if err := t.durable.Apply(&tail[i]); err != nil {
			return err
		}
	}
	if t.durable.Head < head {
		return t.Sync(ctx)
	}
	t.look()
	return nil
}

// close ends what the turn holds in this process. After a turn that came to its end the sandbox lingers.
func (t *turn) close(done bool) {
	t.acks.Wait()
	if done && t.lease != nil {
		k := keptLease{lease: t.lease, unacked: t.unacked, epoch: t.epoch}
		if t.lease = t.keepAlive.keep(t.id, k); t.lease != k.lease {
			t.unacked = nil
		}
	}
	t.acknowledge()
	t.acks.Wait()
	t.cancel(errStopping)
	t.watcher.Wait()
	t.dropBox()
	t.unwatch()
}

// dropBox lets the sandbox go, after what was still to be acknowledged.
func (t *turn) dropBox() {
	t.acknowledge()
	t.acks.Wait()
	if t.lease == nil {
		return
	}
	t.release(t.ctx, t.lease)
	t.lease = nil
}

// State implements harness.Turn.
func (t *turn) State() *outboard.State { return t.view }

// Held implements harness.Turn.
func (t *turn) Held() bool { return t.held }

// Sync implements harness.Turn. It pages through the log from where the fold is; nothing is read twice, unless
// the conversation was rewound since.
func (t *turn) Sync(ctx context.Context) error {
	err := t.read(ctx)
	for errors.Is(err, outboard.ErrRewound) {
		if err = t.startOver(ctx); err == nil {
			err = t.read(ctx)
		}
	}
	if err == nil {
		t.look()
	}
	return err
}

// read folds what the log has beyond the fold.
func (t *turn) read(ctx context.Context) error {
	for e, err := range t.cfg.Store.Read(ctx, t.id, t.durable.Head) {
		if err == nil {
			err = t.durable.Apply(&e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// startOver begins the fold again, from the newest summary and with the rewinds that the log has.
func (t *turn) startOver(ctx context.Context) error {
	s, err := t.cfg.Store.FoldStart(ctx, t.id)
	if err == nil {
		t.durable = s
	}
	return err
}

// look makes the view from the fold and what is staged.
func (t *turn) look() {
	t.view = t.durable
	if len(t.staged) == 0 {
		return
	}
	t.view = t.durable.Clone()
	for _, e := range t.staged {
		t.view.Assume(e)
	}
}

// Stage implements harness.Turn.
func (t *turn) Stage(events ...outboard.Event) {
	if len(events) == 0 {
		return
	}
	if len(t.staged) == 0 {
		t.view = t.durable.Clone()
	}
	for _, e := range events {
		t.view.Assume(e)
	}
	t.staged = append(t.staged, events...)
}

// Append implements harness.Turn. The commit after which the session has nothing to do gives up the lease.
func (t *turn) Append(ctx context.Context, plan func(*outboard.State) []outboard.Event) (bool, error) {
	for {
		if err := context.Cause(ctx); err != nil {
			return false, err
		}
		events, planned := t.staged, false
		if plan != nil {
			more := plan(t.view)
			if planned = len(t.staged)+len(more) <= outboard.MaxAppend || len(t.staged) == 0; planned {
				events = slices.Concat(t.staged, more)
			}
		}
		if len(events) == 0 {
			return false, nil
		}
		err := t.commit(ctx, events)
		if errors.Is(err, store.ErrMoved) {
			if err := t.Sync(ctx); err != nil {
				return false, err
			}
			continue
		}
		if err == nil && t.held && t.isStopping() {
			err = errStopping
		}
		return err == nil, err
	}
}

// commit appends events, which begin with what is staged, and folds them.
func (t *turn) commit(ctx context.Context, events []outboard.Event) error {
	after := t.view.Header
	for _, e := range events[len(t.staged):] {
		e.Seq = after.Head + 1
		if err := outboard.Project(&after, &e); err != nil {
			return err
		}
	}
	c := store.Commit{Session: t.id, Epoch: t.epoch, Expect: t.durable.Head, Events: events,
		Release:    !after.Runnable(t.cfg.Now()),
		Checkpoint: t.rows.checkpoint, Files: t.rows.files}
	if err := t.addApprovals(&c); err != nil {
		return err
	}
	now := t.now()
	var err error
	if c.Charge, err = t.charge(ctx, events, now); err != nil {
		return err
	}
	err = t.cfg.fault("before commit")
	if err != nil {
		return err
	}
	if c.Release {
		defer t.states.leave(t.id)()
	}
	stored, err := t.cfg.Store.Commit(ctx, c)
	if err == nil {
		err = t.cfg.fault("after commit")
	}
	if err != nil {
		return err
	}
	if err := t.settle(stored); err != nil {
		return err
	}
	t.charged(c.Charge, now)
	large := t.rows.large
	t.unacked = append(t.unacked, t.rows.acks...)
	t.staged, t.rows, t.held = nil, rows{}, !c.Release
	t.look()
	if c.Release { // the next turn may begin before this one has tidied up
		t.states.keep(t.id, t.durable)
	}
	if large || len(t.unacked) >= maxUnacked {
		t.acknowledge()
	}
	return nil
}

// settle folds what was just committed. What was staged is folded in the view already, just as it is in the log
// but for the times, and those are in the header alone.
func (t *turn) settle(stored []outboard.Event) error {
	n := len(t.staged)
	if n > 0 {
		h := t.durable.Header
		for i := range stored[:n] {
			if err := outboard.Project(&h, &stored[i]); err != nil {
				return err
			}
		}
		t.durable = t.view
		t.durable.Header = h
	}
	for i := range stored[n:] {
		if err := t.durable.Apply(&stored[n+i]); err != nil {
			return err
		}
	}
	return nil
}

// acknowledge begins to tell the guest which outcomes are durable, so that it can drop their output.
func (t *turn) acknowledge() {
	lease, keys := t.lease, t.unacked
	if t.unacked = nil; lease == nil || len(keys) == 0 {
		return
	}
	t.acks.Go(func() { t.forget(t.ctx, keptLease{lease: lease, unacked: keys, epoch: t.epoch}) })
}

// Model implements harness.Turn.
func (t *turn) Model() (llm.Model, error) {
	m, err := t.cfg.Models.Resolve(t.durable.Config.Agent.Model.ID)
	if err != nil {
		return nil, err
	}
	return llm.Metered(m, t.log), nil
}

// Load implements harness.Turn.
func (t *turn) Load(ctx context.Context, ref outboard.BlobRef) ([]byte, error) {
	if ref.Size > outboard.MaxBody {
		return nil, outboard.Errorf(outboard.TooLarge, "content of %d bytes is over the %d a model can be given",
			ref.Size, outboard.MaxBody)
	}
	r, err := t.cfg.Blob.Open(ctx, ref)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(r, outboard.MaxBody+1))
	return b, errors.Join(err, r.Close())
}

// Spill implements harness.Turn.
func (t *turn) Spill(ctx context.Context, b []byte) (outboard.BlobRef, error) {
	return t.cfg.Blob.Put(ctx, bytes.NewReader(b), 0)
}

// Emit implements harness.Turn.
func (t *turn) Emit(id outboard.EventID, kind outboard.EventType, start bool, text string) {
	t.cfg.Live.Publish(live.Delta{Session: t.id, Thread: t.durable.Thread, Event: id, Kind: kind, After: t.durable.Head,
		Start: start, Text: text})
}

// Interrupted implements harness.Turn. It also ends the whole claim when the session is archived or deleted, or
// its lease taken.
func (t *turn) Interrupted(ctx context.Context) (context.Context, context.CancelFunc) {
	ictx, cancel := context.WithCancelCause(ctx)
	if interruptWaits(t.view) {
		cancel(harness.ErrInterrupted)
		return ictx, func() {}
	}
	t.watcher.Wait()            // the one before, so that there is one reader of woken
	if t.cut > t.durable.Head { // found within this step: it ends all the judgements of a response, not the one it met
		cancel(harness.ErrInterrupted)
		return ictx, func() {}
	}
	after := t.durable.Head
	t.watcher.Add(1)
	begin := time.AfterFunc(lookAfter, func() {
		defer t.watcher.Done()
		t.watch(ictx, cancel, after)
	})
	return ictx, func() { // to wait for the watcher here would cost a hand-over in every step of a turn
		if begin.Stop() {
			t.watcher.Done()
		}
		cancel(context.Canceled)
	}
}

// lookAfter is the wait between a commit to a running session and the look for an interrupt in it, and before
// the first look. Most commits are the turn's own, and most of what runs is over by then; nobody notices that an
// interrupt takes this much longer.
const lookAfter = 10 * time.Millisecond

// watch looks for an interrupt after commits to the session, those of the last lookAfter included.
func (t *turn) watch(ctx context.Context, cancel context.CancelCauseFunc, after int64) {
	q := store.EventQuery{After: after, Types: []outboard.EventType{outboard.TypeInputInterrupt,
		outboard.TypeSessionArchived}, Limit: 1}
	wait := time.Duration(0)
	for {
		if !t.missed {
			select {
			case <-ctx.Done():
				return
			case <-t.woken:
				t.missed = true
			}
		}
		if !sleep(ctx, wait) {
			return
		}
		found, err := t.cfg.Store.Events(t.ctx, t.id, q) // not ctx: to break off a query costs more than to let it end
		wait, t.missed = lookAfter, err != nil
		switch {
		case t.ctx.Err() != nil:
			return
		case outboard.KindOf(err) == outboard.NotFound:
			t.cancel(err)
			return
		case err != nil:
			t.log.Warn("looking for an interrupt", "err", err)
			wait = retryPause
		case len(found) > 0 && found[0].Type == outboard.TypeSessionArchived:
			t.cancel(store.ErrTerminated)
			return
		case len(found) > 0:
			t.cut = found[0].Seq
			cancel(harness.ErrInterrupted)
			return
		}
	}
}

// sleep waits, and reports whether ctx lasted as long.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func interruptWaits(s *outboard.State) bool {
	return slices.ContainsFunc(s.Waiting,
		func(in outboard.Input) bool { return in.Event.Type == outboard.TypeInputInterrupt })
}

// now is the store's clock, as the log keeps time.
func (t *turn) now() time.Time { return t.cfg.Now().UTC().Truncate(time.Microsecond) }
