package runner

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/fleet"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/harness"
	"github.com/outboard-dev/outboard/internal/policy"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/tool"
	"github.com/outboard-dev/outboard/internal/tool/registry"
)

const (
	// maxRounds bounds how often one RunCalls gets a sandbox anew, so that one which dies under every call
	// cannot hold a turn.
	maxRounds = 4
	// maxAttempts bounds the intents of one pure or idempotent call.
	maxAttempts = 3
	// callGrace is what a call may take beyond its own timeout before its machine counts as hung: the guest
	// enforces the timeout.
	callGrace = 30 * time.Second
	// killTime bounds the killing of one call, waiting for its end included.
	killTime = 20 * time.Second
	// maxIntents bounds the calls of one commit: each may take an outcome, and the machine two events more.
	maxIntents = 60
	// maxFiles bounds the harvested files of one commit.
	maxFiles = 40
)

// job is one call on its way to its outcome.
type job struct {
	call   *outboard.Call
	def    tool.Def
	input  outboard.Raw
	last   outboard.Raw           // for a tool with a Run: the input of the newest call of it that ended well
	sent   *outboard.CallStarted  // the intent it runs under
	thread outboard.ThreadID      // whose shell it uses
	limits outboard.SandboxLimits // of its sandbox
	head   int64                  // the log's last event when it was sent

	cut time.Time // when no budget pays for more; zero = never

	refused error // why it may not be sent now, once that was asked
	asked   bool
	opens   string         // of a file tool: the path it opens, links followed; of web_fetch the address
	failed  string         // why it can come to nothing: its path leads nowhere
	request policy.Request // as it was permitted

	// Calls of one shell reach the guest in the order the model made them.
	after <-chan struct{} // closed when the call before it has been started; nil = at once
	begun chan struct{}   // closed when this one has been, or will not be

	// A call that a person allowed runs by itself: after those before it have ended, and before those after it begin.
	allowed bool
	waits   []<-chan struct{}
	ended   chan struct{}
}

func (j *job) local() bool { return j.def.Place == registry.InControl }

// fresh reports whether the call runs a command that a person allowed. It gets a shell that has run nothing:
// functions, aliases, PATH and the directory of the thread's shell, which the agent may have prepared, do not
// decide what it does.
func (j *job) fresh() bool {
	var in struct {
		Command string `json:"command"`
	}
	return j.allowed && j.def.Shell && json.Unmarshal(j.input, &in) == nil && in.Command != ""
}

// moved reports whether links lead to another path than the call names.
func (j *job) moved() bool {
	named := j.call.Requested.Opens
	return named != "" && j.opens != "" && j.opens != named
}

// RunCalls implements harness.Turn. Each round gets the sandbox, makes the intents durable, sends the calls and
// collects their outcomes. Calls that lost their machine come back in the next round, which decides by their
// class.
func (t *turn) RunCalls(ctx context.Context) error {
	if err := t.offer(ctx); err != nil {
		return err
	}
	for range maxRounds {
		jobs, err := t.jobs(ctx)
		if err != nil || len(jobs) == 0 {
			return err
		}
		if err := t.round(ctx, jobs); err != nil {
			return err
		}
	}
	jobs, err := t.jobs(ctx)
	if err != nil || len(jobs) == 0 {
		return err
	}
	return outboard.Errorf(outboard.Unavailable, "the sandbox was lost %d times while %d calls ran", maxRounds,
		len(jobs))
}

func stopped(ctx context.Context) bool { return errors.Is(context.Cause(ctx), harness.ErrInterrupted) }

// jobs lists the calls to run now: all that are runnable, or once interrupted those that were started.
func (t *turn) jobs(ctx context.Context) ([]*job, error) {
	var jobs []*job
	for _, c := range t.view.Calls {
		if !c.Runnable() || c.Requested.Kind == "custom" || stopped(ctx) && c.Started == nil ||
			len(jobs) == maxIntents {
			continue
		}
		input, err := t.input(c)
		if err != nil {
			return nil, err
		}
		j := &job{call: c, input: input, thread: t.durable.Thread, limits: t.durable.Config.Env.Limits,
			allowed: c.Requested.Decision == outboard.Ask || c.Requested.Grant != ""}
		j.limits.Pids = cmp.Or(j.limits.Pids, sandbox.DefaultPids)
		def, ok := t.tool(c.Requested.Name)
		if !ok {
			t.Stage(t.event(new(tool.Failed(c.ID, outboard.OutcomeError,
				"the tool "+c.Requested.Name+" is not available"))))
			continue
		}
		if j.def = def; def.Place == registry.InControl {
			j.opens = c.Requested.Opens
		}
		if def.Run != nil {
			if j.last, err = t.last(def.Name); err != nil {
				return nil, err
			}
		}
		if c.Started != nil {
			j.opens, j.allowed = c.Started.Opens, j.allowed || c.Started.Allowed
			j.request = *t.requestOf(ctx, j)
		}
		jobs = append(jobs, j)
	}
	return jobs, nil
}

func (t *turn) event(p outboard.Payload) outboard.Event {
	return outboard.NewEvent(t.durable.Thread, p)
}

// round takes every job one step: to an outcome, or to the loss of its machine.
func (t *turn) round(ctx context.Context, jobs []*job) error {
	refusal, err := t.acquire(ctx, jobs)
	if err != nil {
		return err
	}
	for _, j := range jobs {
		if j.call.Started == nil && !j.asked && !stopped(ctx) {
			if err := t.locate(t.ctx, j); err != nil {
				return t.lostBefore(err)
			}
			if j.refused, j.asked = t.permit(t.ctx, j), true; outboard.KindOf(j.refused) == outboard.Unavailable &&
				j.refused != nil {
				return j.refused
			}
		}
	}
	if len(t.staged)+2*len(jobs) > outboard.MaxAppend {
		if _, err := t.Append(t.ctx, nil); err != nil {
			return err
		}
	}
	var run []*job
	intend := func(s *outboard.State) []outboard.Event {
		var events []outboard.Event
		run, events = t.intents(jobs, refusal, stopped(ctx) || interruptWaits(s))
		return events
	}
	if len(intend(t.view)) > 0 || len(t.staged) > 0 {
		if _, err := t.Append(t.ctx, intend); err != nil {
			return err
		}
	}
	if len(run) == 0 {
		return nil
	}
	return t.collect(ctx, run)
}

// lostBefore deals with a sandbox that could not say what a path leads to. If it is gone, the next round has
// another one.
func (t *turn) lostBefore(err error) error {
	if t.ctx.Err() != nil {
		return context.Cause(t.ctx)
	}
	if isGone(err) {
		t.dropBox()
		return nil
	}
	return outboard.Errorf(outboard.Unavailable, "asking the sandbox what a path leads to: %w", err)
}

// acquire gets the sandbox if a job needs it, and stages what happened to the one before. A refusal is why there
// is none.
func (t *turn) acquire(ctx context.Context, jobs []*job) (refusal, err error) {
	if t.lease != nil && !t.lease.Usable() { // known before anything is promised: no outcome need be unknown
		t.dropBox()
	}
	if t.lease != nil || !slices.ContainsFunc(jobs, func(j *job) bool { return !j.local() }) {
		return nil, nil
	}
	// Making one takes a while: the response is shown, and safe, before. And a checkpoint to restore from must
	// be durable.
	if (t.view.Sandbox == nil || t.rows.checkpoint != nil) && len(t.staged) > 0 {
		if _, err := t.Append(t.ctx, nil); err != nil {
			return nil, err
		}
	}
	if stopped(ctx) {
		ctx = t.ctx // a started call must be asked about even so
	}
	if t.view.Sandbox == nil {
		err := t.mayCreate(ctx)
		if err != nil && outboard.KindOf(err) == outboard.Unavailable {
			return nil, err // nobody could decide: the turn is tried again
		}
		if err != nil {
			return err, nil
		}
	}
	lease, err := t.cfg.Fleet.Acquire(ctx, fleet.Request{Session: t.id, Config: t.durable.Config,
		Current:    t.view.Sandbox,
		Checkpoint: t.view.Checkpoint, Epoch: t.epoch})
	switch {
	case t.ctx.Err() != nil:
		if err == nil {
			t.lease = lease // for close
		}
		return nil, context.Cause(t.ctx)
	case errors.Is(err, store.ErrFenced):
		return nil, err
	case err != nil && stopped(ctx):
		return harness.ErrInterrupted, nil
	case err != nil:
		t.log.Error("no sandbox", "err", err)
		return err, t.giveUpOn(ctx, jobs, err)
	}
	t.lease, t.unacked = lease, append(t.unacked, t.keepAlive.takeUnacked(t.id)...)
	if lease.Lost != nil {
		t.Stage(t.event(lease.Lost))
	}
	if lease.New {
		t.Stage(t.event(&lease.Ready))
	}
	return nil, nil
}

// giveUpOn deals with started calls whose machine cannot be reached. Until the deadline of one has passed the
// turn is tried again, since the machine may answer yet; after that, or when the user does not want to wait, it
// counts as lost.
func (t *turn) giveUpOn(ctx context.Context, jobs []*job, cause error) error {
	started := false
	for _, j := range jobs {
		if j.local() || j.call.Started == nil {
			continue
		}
		started = true
		if !stopped(ctx) && t.now().Before(j.call.Started.Deadline) {
			return outboard.Errorf(outboard.Unavailable, "reaching the sandbox of running calls: %w", cause)
		}
	}
	if at := t.view.Sandbox; started && at != nil {
		t.Stage(t.event(&outboard.SandboxLost{Sandbox: at.Sandbox, Generation: at.Generation,
			Reason:  "it could not be reached",
			Restore: t.view.Checkpoint}))
	}
	return nil
}

// intents decides what becomes of each job now: it runs under a new intent or the one it has, or it ends here.
// With stop, nothing new is started.
func (t *turn) intents(jobs []*job, refusal error, stop bool) (run []*job, events []outboard.Event) {
	end := func(j *job, outcome outboard.Outcome, text string) {
		events = append(events, t.event(new(tool.Failed(j.call.ID, outcome, text))))
	}
	for _, j := range jobs {
		was := j.call.Started
		here := was != nil && !j.local() && t.lease != nil && was.Generation == t.lease.Generation()
		again := was != nil && was.Class != outboard.ClassEffect
		switch {
		case here:
			j.sent = was
			run = append(run, j)
		case was == nil && stop:
		case was == nil && j.failed != "":
			end(j, outboard.OutcomeError, j.failed)
		case was == nil && j.refused != nil:
			end(j, outboard.OutcomeDenied, notExecuted(j.refused))
		case was != nil && stop && j.local():
			end(j, outboard.OutcomeCanceled, "Canceled by an interrupt of the user.")
		case was != nil && (!again || stop):
			end(j, outboard.OutcomeUnknown, unknownText(t.id, j))
		case again && was.Attempt >= maxAttempts:
			end(j, outboard.OutcomeError, fmt.Sprintf("This call was cut off %d times, by the loss of whatever ran it.",
				was.Attempt))
		case !j.local() && t.lease == nil:
			end(j, outboard.OutcomeError, refusalText(refusal))
		default:
			j.sent = t.intent(j, was)
			events = append(events, t.event(j.sent))
			run = append(run, j)
		}
	}
	return run, events
}

// intent makes the call.started of a job.
func (t *turn) intent(j *job, was *outboard.CallStarted) *outboard.CallStarted {
	s := &outboard.CallStarted{
		Call:     j.call.ID,
		Key:      outboard.CallKey(t.id, j.call.ID),
		Digest:   tool.Digest(j.def.Name, j.input),
		Class:    j.def.Class,
		Opens:    j.opens,
		Allowed:  j.allowed,
		Epoch:    t.epoch,
		Attempt:  1,
		Deadline: t.now().Add(j.def.Timeout(j.input) + callGrace),
	}
	if was != nil {
		s.Attempt = was.Attempt + 1
	}
	if !j.local() {
		s.Sandbox, s.Generation = t.lease.ID(), t.lease.Generation()
	}
	return s
}

// unknownText tells the model what cannot be known.
func unknownText(session outboard.SessionID, j *job) string {
	return fmt.Sprintf("OUTCOME UNKNOWN. The sandbox was lost while this %s call ran, before its result could be "+
		"read. It ran at most "+
		"once, perhaps only in part, and was not repeated. Files are as they were at the last checkpoint; effects "+
		"outside the sandbox "+
		"may or may not have happened. Check before doing it again. If the command passed OUTBOARD_CALL_KEY on, its "+
		"value was %s.",
		j.def.Name, outboard.CallKey(session, j.call.ID))
}

// refusalText tells the model, and through it the user, why there is no sandbox.
func refusalText(err error) string {
	text := "This call did not run: no sandbox could be made"
	if err == nil {
		return text + "."
	}
	e, ok := errors.AsType[*outboard.Error](err)
	if !ok || e.Kind == outboard.Internal {
		return text + " because of an internal error; the server's log has the details."
	}
	text += " (" + outboard.PublicOf(err) + ")."
	if hint := outboard.HintOf(err); hint != "" {
		text += " The operator can fix it: " + hint + "."
	}
	return text
}

// result is what became of one job.
type result struct {
	job   *job
	fin   *outboard.CallFinished
	lost  bool  // the machine or the connection is gone: ask again
	err   error // the turn cannot go on
	panic *panicked
}

// collect sends the jobs and records their outcomes as they come. The last ones are staged, the others committed
// at once. When the turn cannot go on it waits for the calls' goroutines, not for the calls: those go on in the
// sandbox.
func (t *turn) collect(ctx context.Context, jobs []*job) error {
	ctx, cancel := context.WithCancelCause(ctx)
	results := make(chan result, len(jobs)) // holds all, so no sender ever waits
	slots := make(chan struct{}, outboard.MaxParallelCalls)
	lease, sets := t.lease, t.durable.Config.Agent.Tools
	var senders sync.WaitGroup
	defer senders.Wait()
	defer cancel(errStopping)
	order(jobs)
	for _, j := range jobs {
		j.head = t.durable.Head
		if at := t.acct.cutAt(t.now(), j); !at.IsZero() {
			j.cut = time.Now().Add(at.Sub(t.now()))
		}
	}
	sendAll := func() {
		for _, j := range jobs {
			slots <- struct{}{} // taken in order, so that a call never waits for one without a slot
			senders.Go(func() {
				defer func() { <-slots }()
				results <- t.perform(ctx, lease, j, sets)
			})
		}
	}
	if len(jobs) == 1 { // there is nothing to do beside it, and to hand it to a goroutine and back takes time
		results <- t.perform(ctx, lease, jobs[0], sets)
	} else {
		senders.Go(sendAll)
	}
	lost := false
	for left := len(jobs); left > 0; {
		batch := []result{<-results}
		for len(results) > 0 {
			batch = append(batch, <-results)
		}
		left -= len(batch)
		for _, r := range batch {
			if r.panic != nil {
				panic(r.panic)
			}
			if r.err != nil {
				return r.err
			}
			lost = lost || r.lost
		}
		unsaved, err := t.record(batch)
		if err != nil {
			return err
		}
		lost = lost || unsaved
		if left > 0 && len(t.staged) > 0 {
			if _, err := t.Append(t.ctx, nil); err != nil {
				return err
			}
		}
	}
	if lost {
		t.dropBox()
	}
	return nil
}

// order chains the calls that share a shell, and sets apart those that a person allowed.
func order(jobs []*job) {
	var last, apart <-chan struct{}
	for i, j := range jobs {
		j.begun, j.ended = make(chan struct{}), make(chan struct{})
		if j.waits = nil; apart != nil {
			j.waits = append(j.waits, apart)
		}
		if j.allowed {
			for _, before := range jobs[:i] {
				j.waits = append(j.waits, before.ended)
			}
			apart = j.ended
		}
		if j.def.Shell {
			j.after, last = last, j.begun
		}
	}
}

// record stages the outcomes of a batch, the checkpoint they leave behind and the files they delivered. It
// reports whether the machine was lost before its state was saved: then the calls that may have changed it have
// no outcome yet.
func (t *turn) record(batch []result) (lost bool, err error) {
	changing := func(r result) bool { return !r.job.local() && r.job.def.MayChange }
	var changed []*outboard.CallFinished
	for _, r := range batch {
		if r.fin != nil && changing(r) {
			changed = append(changed, r.fin)
		}
	}
	var after []outboard.Event
	if len(changed) > 0 {
		if after, lost, err = t.save(changed); err != nil {
			return false, err
		}
	}
	for _, r := range batch {
		if r.fin == nil || lost && changing(r) {
			continue
		}
		r.fin.Taint = t.taint(r.job)
		if err := t.spill(r.fin); err != nil {
			return false, err
		}
		t.Stage(t.event(r.fin))
		if !r.job.local() {
			t.rows.acks = append(t.rows.acks, r.job.sent.Key)
			t.rows.large = t.rows.large || r.fin.Truncated
		}
	}
	t.Stage(after...)
	return lost, nil
}

// save checkpoints the workspace after the calls and harvests its outputs. When the machine or the connection is
// lost meanwhile nothing is recorded: if the machine lives, its receipts tell the outcomes again; if it died,
// their effects went with it.
func (t *turn) save(calls []*outboard.CallFinished) (events []outboard.Event, lost bool, err error) {
	last := calls[len(calls)-1].Call
	ck, err := t.cfg.Fleet.Checkpoint(t.ctx, t.lease, t.id, t.epoch, t.view.Checkpoint, last)
	switch {
	case t.ctx.Err() != nil:
		return nil, false, context.Cause(t.ctx)
	case isFenced(err):
		return nil, false, store.ErrFenced
	case isGone(err):
		return nil, true, nil
	case err != nil:
		t.log.Error("no checkpoint was made; if the sandbox dies, changes are lost", "call", last, "err", err)
		return nil, false, nil
	}
	at := t.view.Checkpoint
	if ck != nil {
		at = ck.ID
	}
	for _, fin := range calls {
		fin.Checkpoint = at
	}
	if ck == nil {
		return nil, false, nil
	}
	t.rows.checkpoint = ck
	events = append(events, t.event(&outboard.CheckpointCreated{Checkpoint: ck.ID, Call: last, Bytes: ck.Delta.Size}))
	return append(events, t.harvest(last)...), false, nil
}

// harvest takes in what calls left in the outputs directory.
func (t *turn) harvest(last outboard.CallID) []outboard.Event {
	files, err := t.cfg.Fleet.Harvest(t.ctx, t.lease, t.id)
	if err != nil && t.ctx.Err() == nil {
		t.log.Error("outputs were not harvested", "call", last, "err", err)
	}
	if len(files) > maxFiles { // the rest is found by the harvest after the next change
		t.log.Warn("more outputs than one commit takes", "files", len(files), "taken", maxFiles)
		files = files[:maxFiles]
	}
	t.rows.files = files
	var events []outboard.Event
	for _, f := range files {
		events = append(events, t.event(&outboard.FileHarvested{File: f.ID, Path: f.Path}))
	}
	return events
}

// spill moves large text of a result to blobs.
func (t *turn) spill(fin *outboard.CallFinished) error {
	for i, c := range fin.Content {
		if b, _ := json.Marshal(c.Text); c.Type != "text" || len(b) <= outboard.MaxInlineContent {
			continue
		}
		ref, err := t.Spill(t.ctx, []byte(c.Text))
		if err != nil {
			return fmt.Errorf("storing the output of call %s: %w", fin.Call, err)
		}
		fin.Content[i].Text, fin.Content[i].Blob = "", &ref
	}
	return nil
}

// isGone reports whether an error says that the machine is lost, or that another one answers in its place.
func isGone(err error) bool {
	if e, ok := errors.AsType[*guest.Error](err); ok && e.Code == guest.WrongGeneration {
		return true
	}
	return sandbox.Gone(err) || errors.Is(err, guest.ErrDisconnected)
}

// isFenced reports whether the guest has seen a higher epoch: this lease is over.
func isFenced(err error) bool {
	e, ok := errors.AsType[*guest.Error](err)
	return errors.Is(err, store.ErrFenced) || ok && e.Code == guest.Fenced
}
