// Package runner drives sessions. It claims runnable sessions under leases, folds their logs, hands
// each to the harness as a Turn, and makes what the harness decides durable. Tool calls are sent
// from here and nowhere else.
//
// Invariants:
//   - An intent (call.started) is durable before its call is sent, an outcome (call.finished)
//     before the guest can forget it.
//   - A call of class effect is sent under one intent, into one generation of one sandbox. If that
//     is gone before the outcome was read, the outcome is unknown and stays so.
//   - Every append carries the lease's epoch. A fenced runner stops the turn where it stands: it
//     starts, kills and releases nothing.
//   - A session that waits costs no goroutine here and, once its last turn is some seconds old, no
//     memory. One that runs costs one goroutine, plus one per call.
//   - Any process can continue a session after any append, and a process can be killed at any
//     instant.
//
// It never decides by itself what a call can do: package policy does.
//
// Start reading at Runner, then at drive.go and turn.go.
package runner

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/blob"
	"github.com/outboard-dev/outboard/internal/fleet"
	"github.com/outboard-dev/outboard/internal/harness"
	"github.com/outboard-dev/outboard/internal/live"
	"github.com/outboard-dev/outboard/internal/llm"
	"github.com/outboard-dev/outboard/internal/policy"
	"github.com/outboard-dev/outboard/internal/schema"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/tool"
)

const (
	// DefaultSlots is how many sessions one process drives at a time. Each is mostly waiting for a model; the
	// bound keeps open streams and sandboxes within what one machine has file descriptors and memory for.
	DefaultSlots = 256
	// maxClaim bounds one claim, so that several processes that wake together share the work.
	maxClaim = 32
	// DefaultGrace is how long Stop lets turns come to their next append. A model call that takes longer is made
	// again elsewhere.
	DefaultGrace = 5 * time.Second
	// retryPause is the wait after the store, or something else a turn needs, was unavailable.
	retryPause = time.Second
	// maxPause bounds that wait where it grows, as on a full disk: the log is not filled, and work goes on soon
	// after the repair.
	maxPause = 30 * time.Second
	// turnStack is more than half of the stack that a turn comes to, most of it in SQLite; stacks are powers of two.
	turnStack = 20 << 10
	// partingTime bounds the writes of a process that is leaving.
	partingTime = 5 * time.Second
)

// Config makes a Runner. Store, Blob, Fleet, Models and Live are required.
type Config struct {
	Store   *store.Store
	Blob    blob.Store
	Fleet   *fleet.Fleet
	Models  *llm.Registry
	Live    *live.Hub
	Harness harness.Harness // nil = the built-in loop
	Fetcher *tool.Fetcher   // nil = web_fetch answers that it is not available
	Policy  *policy.Engine  // nil = the platform's own rules and nothing else
	Kill    KillSwitch      // nil = there is none
	Judge   string          // the model that judges calls under the permission auto; "" = none, and they ask
	Logger  *slog.Logger    // nil = discard
	Host    string          // name of this machine in the workers table
	Slots   int             // sessions driven at a time; 0 = DefaultSlots
	// OrgPercent is how many hundredths of Slots one organization may have, where there are several; 0 = the default
	OrgPercent int
	Grace      time.Duration    // of Stop; 0 = DefaultGrace
	Now        func() time.Time // nil = the store's

	// fault is asked before and after each write; its error is used in place of the write's. Only tests set it,
	// to die there.
	fault func(point string) error
	// silence is how long a judgement may take; 0 = judgeTime. Only tests set it.
	silence time.Duration
}

// Runner claims and drives sessions from Start to Stop.
type Runner struct {
	cfg   Config
	log   *slog.Logger
	tools []tool.Def // the built-in ones

	schemas   schema.Cache // of custom tools
	states    stateCache
	keepAlive keepAlive

	mu       sync.Mutex
	turns    map[*turn]struct{}            // being driven
	paused   map[outboard.SessionID]parted // by the kill switch, with their leases
	started  bool
	stopping chan struct{} // closed by Stop: no more claims, turns end at their next append
	done     chan struct{} // closed when everything Start began has ended
}

// New returns a runner that does nothing yet.
func New(cfg Config) *Runner {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = cfg.Store.Now
	}
	if cfg.Harness == nil {
		cfg.Harness = &harness.Builtin{Now: cfg.Now}
	}
	if cfg.Slots <= 0 {
		cfg.Slots = DefaultSlots
	}
	if cfg.Grace <= 0 {
		cfg.Grace = DefaultGrace
	}
	if cfg.Policy == nil {
		engine, err := policy.New(policy.Config{Logger: cfg.Logger, Now: cfg.Now})
		if err != nil {
			panic("runner: the built-in policies: " + err.Error()) // they are a constant
		}
		cfg.Policy = engine
	}
	if cfg.fault == nil {
		cfg.fault = func(string) error { return nil }
	}
	return &Runner{cfg: cfg, log: cfg.Logger, tools: tool.Builtins(), stopping: make(chan struct{}),
		done: make(chan struct{})}
}

// errStopping ends turns at their next append when the process is shutting down.
var errStopping = outboard.Errorf(outboard.Canceled, "the runner is stopping")

// Start registers this process as a worker and begins to claim. It returns once registered; ctx bounds only that.
func (r *Runner) Start(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.started || r.isStopping() {
		return outboard.Errorf(outboard.Conflict, "the runner was started or stopped before")
	}
	w := r.newWorker()
	if err := r.cfg.Store.Register(ctx, w.id, r.cfg.Host); err != nil {
		return err
	}
	r.started = true
	go r.run(context.WithoutCancel(ctx), w)
	return nil
}

// Stop ends claiming, lets each turn come to its next append within the grace time, cuts off what is still
// running then, and gives up all leases. Calls that run in sandboxes go on there; whoever claims next picks them
// up. Stop may be called twice, and before Start.
func (r *Runner) Stop() {
	r.mu.Lock()
	if !r.isStopping() {
		close(r.stopping)
		if !r.started {
			close(r.done)
		}
	}
	r.mu.Unlock()
	<-r.done
}

func (r *Runner) isStopping() bool {
	select {
	case <-r.stopping:
		return true
	default:
		return false
	}
}

// run lives as one worker after another: a worker whose lease was lost is never used again.
func (r *Runner) run(ctx context.Context, w *worker) {
	defer close(r.done)
	for {
		w.live(ctx)
		wait := retryPause
		for w = nil; w == nil; {
			if r.isStopping() {
				return
			}
			next := r.newWorker()
			err := r.cfg.fault("register")
			if err == nil {
				err = r.cfg.Store.Register(ctx, next.id, r.cfg.Host)
			}
			if err != nil {
				r.log.Error("cannot register as a worker", "err", err, "again_in", wait)
				r.pause(ctx, wait)
				wait = min(2*wait, maxPause)
				continue
			}
			w = next
		}
	}
}

// pause waits, but not beyond ctx or Stop.
func (r *Runner) pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	case <-r.stopping:
	}
}

// worker is one registration of this process.
type worker struct {
	*Runner
	id       outboard.WorkerID
	slots    chan struct{} // one token per session being driven
	orgs     orgs          // whose they are
	sessions sync.WaitGroup
}

func (r *Runner) newWorker() *worker {
	return &worker{Runner: r, id: outboard.NewID[outboard.WorkerID](outboard.PrefixWorker),
		slots: make(chan struct{}, r.cfg.Slots),
		orgs:  newOrgs(outboard.OrgShare(r.cfg.Slots, r.cfg.OrgPercent))}
}

// live claims until the lease is lost or the runner stops, and returns when all its sessions have ended.
func (w *worker) live(ctx context.Context) {
	ctx, cancel := context.WithCancelCause(ctx) // of the turns
	claiming, stopClaiming := context.WithCancelCause(ctx)
	var loops sync.WaitGroup
	loops.Go(func() { w.renew(ctx, cancel) })
	loops.Go(func() { w.tidy(ctx) })
	loops.Go(func() {
		select {
		case <-w.stopping:
			stopClaiming(errStopping)
		case <-claiming.Done():
		}
	})
	stopInlineClaim := w.inlineClaim(ctx)
	err := w.claim(claiming, ctx)
	stopInlineClaim()
	lost := !errors.Is(err, errStopping)
	if lost {
		w.log.Warn("the worker's lease is lost; its turns stop", "worker", w.id, "err", err)
		cancel(err)
	}
	grace := time.AfterFunc(w.cfg.Grace, func() { cancel(errStopping) })
	w.sessions.Wait()
	grace.Stop()
	cancel(errStopping)
	stopClaiming(errStopping)
	loops.Wait() // renew, and tidy with all that lingers
	if !lost {
		w.leave(context.WithoutCancel(ctx))
	}
}

// leave gives up the worker's leases at once, so that others need not wait for them to end.
func (w *worker) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, partingTime)
	defer cancel()
	err := w.cfg.fault("deregister")
	if err == nil {
		err = w.cfg.Store.Deregister(ctx, w.id)
	}
	if err != nil {
		w.log.Warn("leases not given up; they end by themselves", "worker", w.id, "err", err)
	}
}

// renew keeps the lease alive. When it is lost, or could not be renewed for its whole length, all turns are told
// to stop: the epoch keeps them harmless, this keeps them from working for nothing.
func (w *worker) renew(ctx context.Context, cancel context.CancelCauseFunc) {
	tick := time.NewTicker(outboard.RenewEvery)
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := w.cfg.Store.Renew(ctx, w.id)
		switch {
		case err == nil:
			last = time.Now()
		case errors.Is(err, store.ErrFenced), time.Since(last) > outboard.LeaseTTL:
			cancel(store.ErrFenced)
			return
		case ctx.Err() == nil:
			w.log.Warn("renewing the lease", "worker", w.id, "err", err)
		}
	}
}

// claim takes sessions while there are free slots. It returns why it stopped: errStopping, or the loss of the
// lease. turns is the context of what it claims.
func (w *worker) claim(ctx, turns context.Context) error {
	for {
		select {
		case w.slots <- struct{}{}: // waits here while all are taken
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		room := 1
		for room < maxClaim && w.reserve() {
			room++
		}
		var claimed []outboard.Header
		err := w.cfg.fault("claim")
		if err == nil {
			claimed, err = w.cfg.Store.ClaimFair(ctx, w.id, room, w.orgs.fair(w.cfg.Store.Shared(ctx)))
		}
		for _, h := range claimed {
			w.orgs.take(h.Org)
			w.begin(turns, h, nil)
		}
		for range room - len(claimed) {
			<-w.slots
		}
		if err == nil && len(claimed) == 0 {
			err = w.cfg.Store.WaitRunnable(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, store.ErrFenced):
			return err
		case err != nil:
			w.log.Error("claiming sessions", "worker", w.id, "err", err)
			w.pause(ctx, retryPause)
		}
	}
}

// reserve takes a slot if one is free.
func (w *worker) reserve() bool {
	select {
	case w.slots <- struct{}{}:
		return true
	default:
		return false
	}
}

// begin drives a claimed session, for which a slot was reserved and counted. tail are the newest events of its
// log, as far as they are known.
func (w *worker) begin(turns context.Context, h outboard.Header, tail []outboard.Event) {
	w.sessions.Go(func() {
		defer func() {
			<-w.slots
			if w.orgs.give(h.Org) {
				w.cfg.Store.Wake()
			}
		}()
		growStack(0)
		w.drive(turns, h, tail)
	})
}

// growStack makes the stack of a new goroutine as large as a turn needs. It would come to that by itself in
// several steps, each of which copies what is there in the midst of a commit.
//
//go:noinline
func growStack(i int) byte {
	var room [turnStack]byte
	return room[i]
}

// inlineClaim lets the store claim for this worker what a commit of this process makes runnable, together with
// that commit.
func (w *worker) inlineClaim(turns context.Context) (stop func()) {
	return w.cfg.Store.AddInlineClaim(&store.InlineClaim{
		Worker: w.id,
		Reserve: func(org outboard.OrgID) bool {
			if turns.Err() != nil || w.isStopping() || w.cfg.fault("claim") != nil || !w.orgs.reserve(org) {
				return false
			}
			if w.reserve() {
				return true
			}
			w.orgs.give(org)
			return false
		},
		Cancel: func(org outboard.OrgID) {
			<-w.slots
			if w.orgs.give(org) {
				w.cfg.Store.Wake()
			}
		},
		Take: func(h outboard.Header, tail []outboard.Event) { w.begin(turns, h, tail) },
	})
}
