package guest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Limits of the call table.
const (
	// maxLive bounds calls that run or wait for their shell. A turn runs at most 16 at a time.
	maxLive = 256
	// maxReceipts bounds the receipts of one generation; at some 300 bytes each they stay far below the memory
	// of any sandbox.
	maxReceipts = 1 << 20
	// maxKey bounds a call key and a digest.
	maxKey = 512
	// quickCall is how long the answer to Start waits for the call's end: most calls are over by then, and their
	// outcome needs no second exchange. Calls of one shell are started one after the other, so it must not be
	// felt.
	quickCall = 10 * time.Millisecond
	// inlineOutput is the largest output kept in the journal, durable with the outcome. Larger output is a file.
	inlineOutput = 2 << 10
	// maxKept bounds the bytes of output files that stay after Ack because their call's result names them. The
	// oldest go first.
	maxKept = 256 << 20
	// logSuffix ends the names of output files.
	logSuffix = ".log"
)

// outcome is what a receipt keeps of a finished call.
type outcome struct {
	Cause      string
	ExitCode   *int
	DurationUs int64
	Limit      int    // bytes of output to return
	Total      int64  // bytes of output the call produced
	Inline     []byte // all of it, when small
	File       bool   // it is in the call's file
}

// call is one entry of the table.
type call struct {
	key    string
	digest string
	ready  chan struct{}           // closed when the receipt is durable, or failed
	done   chan struct{}           // closed when the call does not run, or not any more, in this process
	ctx    context.Context         // of the run
	kill   context.CancelCauseFunc // ends the run; nil when there never is one
	said   progress                // while it runs

	// Guarded by table.mu.
	failed error // the journal failed on this call: nothing may be said about it
	state  string
	res    *outcome
	acked  bool
}

// Causes for which a run is cancelled.
var (
	errKilled   = errors.New("killed")
	errStopping = errors.New("the guest is stopping")
)

// preparer takes a call's place in line, at once; what it returns runs the call to its end. That may get ready
// for the call, but not begin it, before durable is closed, and not at all when ctx has ended by then. It tells
// said what the call writes.
type preparer func(s Start, said *progress) func(ctx context.Context, durable <-chan struct{}) outcome

// table is the set of receipts, and what runs.
type table struct {
	gen     string
	prepare preparer
	outputs string // directory of the calls' output files

	compacting sync.RWMutex // read-held from a journal write to its sync; taken before mu
	journal    *journal

	mu     sync.Mutex
	max    int64 // highest epoch seen
	maxOff int64 // where the journal holds it: to be synced before an answer
	calls  map[string]*call
	live   int
	kept   []*call // acknowledged, with a file that stays; the oldest first
	keptN  int64   // bytes of those files

	ctx  context.Context // ends the runs with the server
	wg   sync.WaitGroup  // of the runs
	over atomic.Bool     // no new runs
}

// openTable reads the receipts in state, which are volatile or not as the journal says. Runs end with ctx.
func openTable(ctx context.Context, state string, volatile bool, outputs, gen string,
	prepare preparer) (*table, error) {
	t := &table{gen: gen, outputs: outputs, calls: make(map[string]*call), ctx: ctx, prepare: prepare}
	j, err := openJournal(state, volatile, t.replay)
	if err != nil {
		return nil, err
	}
	t.journal = j
	return t, nil
}

// replay applies one record at start-up.
func (t *table) replay(r record) {
	if r.Type == recEpoch {
		t.max = max(t.max, r.Epoch)
		return
	}
	c := t.calls[r.Key]
	if c == nil {
		c = &call{key: r.Key, digest: r.Digest, state: StateAccepted, ready: closed, done: closed}
		t.calls[r.Key] = c
	}
	switch r.Type {
	case recKilled:
		c.state = StateKilled
	case recDone:
		c.state, c.res = StateDone, r.Done
	case recAcked:
		c.acked = true
	}
}

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// fenceLocked refuses a stale epoch and records a higher one, which durable makes durable.
func (t *table) fenceLocked(epoch int64) error {
	if epoch < t.max {
		return &Error{Code: Fenced, Message: fmt.Sprintf("epoch %d is below %d", epoch, t.max)}
	}
	if epoch > t.max {
		off, err := t.journal.write(record{Type: recEpoch, Epoch: epoch}, 0)
		if err != nil {
			return internal(err)
		}
		t.max, t.maxOff = epoch, off
	}
	return nil
}

// find fences and looks a call up; it waits until the call's receipt is durable. The call is nil when the key is
// unknown.
func (t *table) find(ctx context.Context, key string, epoch int64) (*call, error) {
	t.compacting.RLock()
	t.mu.Lock()
	err := t.fenceLocked(epoch)
	c, off := t.calls[key], t.maxOff
	t.mu.Unlock()
	if err == nil {
		err = internal(t.journal.sync(off))
	}
	t.compacting.RUnlock()
	if err != nil || c == nil {
		return nil, err
	}
	select {
	case <-c.ready:
		return c, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// enter fences and looks a call up, or makes its receipt durable: that of a call to run, or with tombstone of
// one that never may.
func (t *table) enter(ctx context.Context, s Start, tombstone bool) (c *call, err error) {
	if s.Key == "" || len(s.Key) > maxKey || len(s.Digest) > maxKey {
		return nil, &Error{Code: Invalid, Message: "a call needs a key and a digest of at most 512 bytes"}
	}
	fresh := false
	t.compacting.RLock()
	t.mu.Lock()
	off := t.maxOff
	if err = t.fenceLocked(s.Epoch); err == nil {
		off = t.maxOff
		if c = t.calls[s.Key]; c == nil {
			c, off, err = t.makeLocked(s, tombstone)
			fresh = err == nil
		}
	}
	t.mu.Unlock()
	if err == nil {
		err = internal(t.journal.sync(off))
	}
	t.compacting.RUnlock()
	if fresh {
		t.receive(c, err)
	}
	if err != nil {
		return nil, err
	}
	select {
	case <-c.ready:
		return c, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// makeLocked enters a new call, writes its receipt, and lets it get ready while the receipt becomes durable.
func (t *table) makeLocked(s Start, tombstone bool) (*call, int64, error) {
	if t.live >= maxLive || len(t.calls) >= maxReceipts || t.over.Load() {
		return nil, 0, &Error{Code: Busy, Message: fmt.Sprintf("%d calls under way, %d receipts", t.live, len(t.calls))}
	}
	c := &call{key: s.Key, digest: s.Digest, ready: make(chan struct{}), done: closed, state: StateAccepted}
	r, promise := record{Type: recAccepted, Key: s.Key, Digest: s.Digest}, int64(maxRecord)
	if tombstone {
		c.state, r.Type, promise = StateKilled, recKilled, 0
	}
	off, err := t.journal.write(r, promise)
	if err != nil {
		return nil, 0, internal(err)
	}
	t.calls[s.Key] = c
	if !tombstone {
		t.live++
		c.done = make(chan struct{})
		c.ctx, c.kill = context.WithCancelCause(t.ctx)
		run := t.prepare(s, &c.said)
		t.wg.Go(func() { t.run(c, run) })
	}
	return c, off, nil
}

// receive tells everybody who waits whether a call's receipt is durable.
func (t *table) receive(c *call, err error) {
	t.mu.Lock()
	c.failed = err
	if c.kill != nil && err == nil {
		c.state = StateRunning
	}
	t.mu.Unlock()
	if c.kill != nil && err != nil {
		c.kill(err)
	}
	close(c.ready)
}

// run runs a call, and makes its outcome durable before it tells it.
func (t *table) run(c *call, run func(context.Context, <-chan struct{}) outcome) {
	defer c.kill(nil)
	began := time.Now()
	o := run(c.ctx, c.ready)
	o.DurationUs = time.Since(began).Microseconds()
	c.said.forget()
	<-c.ready
	t.mu.Lock()
	err := c.failed
	t.mu.Unlock()
	if err == nil {
		err = t.record(c, &o)
	}
	t.mu.Lock()
	if err != nil {
		c.failed = internal(err)
	} else {
		c.state, c.res = StateDone, &o
	}
	t.live--
	t.mu.Unlock()
	close(c.done)
}

// record makes an outcome durable.
func (t *table) record(c *call, o *outcome) error {
	t.compacting.RLock()
	defer t.compacting.RUnlock()
	off, err := t.journal.write(record{Type: recDone, Key: c.key, Done: o}, -maxRecord)
	if err != nil {
		return err
	}
	return t.journal.sync(off)
}

// start is Start of the protocol.
func (t *table) start(ctx context.Context, s Start) (Result, error) {
	if s.Generation != t.gen {
		return Result{}, &Error{Code: WrongGeneration, Message: "this sandbox is of generation " + t.gen}
	}
	c, err := t.enter(ctx, s, false)
	if err != nil {
		return Result{}, err
	}
	t.mu.Lock()
	other := c.digest != s.Digest && c.state != StateKilled
	t.mu.Unlock()
	if other {
		return Result{}, &Error{Code: Conflict, Message: "key " + s.Key + " belongs to another call"}
	}
	quick := time.NewTimer(quickCall)
	defer quick.Stop()
	select {
	case <-c.done:
	case <-quick.C:
	case <-ctx.Done():
		return Result{}, context.Cause(ctx)
	}
	return t.answer(c)
}

// wait is Wait of the protocol. With say, it tells the call's newest line while it runs.
func (t *table) wait(ctx context.Context, key string, epoch int64, say func(string) bool) (Result, error) {
	c, err := t.find(ctx, key, epoch)
	if err != nil {
		return Result{}, err
	}
	if c == nil {
		return Result{}, &Error{Code: NotFound, Message: "no call " + key}
	}
	if say != nil {
		c.said.tell(ctx, c.done, say)
	}
	select {
	case <-c.done:
		return t.answer(c)
	case <-ctx.Done():
		return Result{}, context.Cause(ctx)
	}
}

// stop is Kill of the protocol. It returns when the call has ended.
func (t *table) stop(ctx context.Context, a keyArg) (Result, error) {
	c, err := t.enter(ctx, Start{Key: a.Key, Epoch: a.Epoch}, true)
	if err != nil {
		return Result{}, err
	}
	if c.kill != nil {
		c.kill(errKilled)
	}
	select {
	case <-c.done:
		return t.answer(c)
	case <-ctx.Done():
		return Result{}, context.Cause(ctx)
	}
}

// ack is Ack of the protocol. It need not be durable: what an acknowledgement lost in a crash leaves behind is
// only space.
func (t *table) ack(ctx context.Context, a keyArg) error {
	c, err := t.find(ctx, a.Key, a.Epoch)
	if err != nil {
		return err
	}
	if c == nil {
		return &Error{Code: NotFound, Message: "no call " + a.Key}
	}
	t.mu.Lock()
	if c.state == StateRunning {
		t.mu.Unlock()
		return &Error{Code: Conflict, Message: "call " + a.Key + " is running"}
	}
	first := !c.acked
	c.acked = true
	if first {
		t.dropLocked(c)
	}
	t.mu.Unlock()
	if !first {
		return nil
	}
	t.compacting.RLock()
	_, err = t.journal.write(record{Type: recAcked, Key: c.key}, 0)
	t.compacting.RUnlock()
	if err == nil && t.journal.large() {
		err = t.compact()
	}
	return internal(err)
}

// dropLocked lets go of an acknowledged call's output. A file that the call's result names stays, while there is room.
func (t *table) dropLocked(c *call) {
	if c.res == nil {
		return
	}
	o := *c.res
	o.Inline = nil
	c.res = &o
	if !o.File {
		return
	}
	if o.Total <= int64(o.Limit) {
		os.Remove(t.path(c.key))
		return
	}
	t.kept = append(t.kept, c)
	t.keptN += min(o.Total, maxStored)
	for t.keptN > maxKept {
		old := t.kept[0]
		t.kept = t.kept[1:]
		t.keptN -= min(old.res.Total, maxStored)
		os.Remove(t.path(old.key))
	}
}

// compact drops acknowledged output from the journal. Every record kept is one that a restart would read.
func (t *table) compact() error {
	t.compacting.Lock()
	defer t.compacting.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.maxOff = 0
	return t.journal.compact(func(yield func(record) bool) {
		if !yield(record{Type: recEpoch, Epoch: t.max}) {
			return
		}
		for _, c := range t.calls {
			if !c.records(yield) {
				return
			}
		}
	})
}

// records yields what a restart has to know about a call.
func (c *call) records(yield func(record) bool) bool {
	r := record{Type: recAccepted, Key: c.key, Digest: c.digest}
	if c.state == StateKilled {
		r.Type = recKilled
	}
	ok := yield(r)
	if ok && c.res != nil {
		ok = yield(record{Type: recDone, Key: c.key, Done: c.res})
	}
	if ok && c.acked {
		ok = yield(record{Type: recAcked, Key: c.key})
	}
	return ok
}

// answer describes a call as it is now, with its output once it is done and not yet acknowledged.
func (t *table) answer(c *call) (Result, error) {
	t.mu.Lock()
	r, o, acked, err := Result{Key: c.key, State: c.state}, c.res, c.acked, c.failed
	t.mu.Unlock()
	if err != nil {
		return Result{}, err
	}
	if o == nil {
		return r, nil
	}
	r.Cause, r.ExitCode, r.DurationUs = o.Cause, o.ExitCode, o.DurationUs
	r.Truncated = o.Total > int64(o.Limit)
	if r.Truncated {
		r.FullPath = t.path(c.key)
	}
	if !acked {
		r.Output = o.render(t.path(c.key))
	}
	return r, nil
}

// path is where a call's output is, when it is a file.
func (t *table) path(key string) string {
	name := strings.ReplaceAll(key, "/", ".")
	plain := func(r rune) bool {
		return r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '_' || r == '-' || r == '/'
	}
	if len(name) > 200 || strings.ContainsFunc(key, func(r rune) bool { return !plain(r) }) {
		name = fmt.Sprintf("%x", sha256.Sum256([]byte(key)))
	}
	return filepath.Join(t.outputs, name+logSuffix)
}

// internal wraps an error that is the guest's own.
func internal(err error) error {
	if err == nil {
		return nil
	}
	return &Error{Code: Internal, Message: err.Error()}
}
