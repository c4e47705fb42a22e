package store

import (
	"context"
	"errors"
	"hash/maphash"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
)

// Limits of the writer.
const (
	// maxGroup bounds the commits that share one transaction, and so how long the first of them waits for the last.
	maxGroup = 256
	// queueSize bounds commits waiting for the writer; senders block beyond it.
	queueSize = 1024
	// commitWait bounds one group's transaction, against a database that hangs.
	commitWait = 60 * time.Second
)

// Commit is one atomic change of one session.
type Commit struct {
	Session    outboard.SessionID
	Epoch      int64 // the lease's epoch; 0 for appends that need no lease (inputs, updates, archive)
	Expect     int64 // the head it was decided on; Any to append wherever the head is
	Events     []outboard.Event
	Release    bool                    // give up the lease in the same transaction
	Checkpoint *outboard.Checkpoint    // row to insert; its Seq is set to where the events name it, or to the new head
	Files      []outboard.File         // rows to insert
	Config     *outboard.SessionConfig // replaces the stored config (after session.updated)
	Approvals  []outboard.Approval     // rows to insert, of calls that ask
	Answers    []outboard.Answer       // of persons, to pending approvals of the session
	Closed     []Closing               // pending approvals of calls that ended without one
	Charge     *Charge                 // what it uses up of the budgets over the session
	Budget     *outboard.Budget        // of the session: to be set to its limits, or removed when it has none
}

// pending is a commit on its way through a writer. The sender owns it until it is queued and after done is closed.
type pending struct {
	commit Commit
	events []outboard.Event // as stored
	head   int64            // of the session after it
	now    int64            // µs; when it was planned
	err    error
	done   chan struct{}
	own    bool // its sender commits it, and so waits for nobody
}

// Append is the plain form of Commit. It returns the events as stored, with Seq and Time.
func (s *Store) Append(ctx context.Context, id outboard.SessionID, epoch, expectSeq int64,
	events ...outboard.Event) ([]outboard.Event, error) {
	return s.Commit(ctx, Commit{Session: id, Epoch: epoch, Expect: expectSeq, Events: events})
}

// Commit applies c, or nothing. Errors: ErrFenced, ErrMoved, ErrTerminated, ErrDuplicate, NotFound, Unavailable,
// TooLarge or Invalid for events that cannot be stored, Exhausted when the inbox is full. A commit whose ctx
// ends while it is queued may still become durable; callers that care read the log.
func (s *Store) Commit(ctx context.Context, c Commit) ([]outboard.Event, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if err := s.reserve.refuses(ctx); err != nil {
		return nil, err
	}
	events, err := s.commit(ctx, c)
	if s.reserve.drops(ctx, err) {
		return s.commit(ctx, c)
	}
	return events, err
}

func (s *Store) commit(ctx context.Context, c Commit) ([]outboard.Event, error) {
	p := &pending{commit: c, done: make(chan struct{})}
	q := s.queues[s.queueOf(c.Session)]
	if done, err := s.commitAtOnce(ctx, q, p); done {
		return p.events, err
	}
	select {
	case q.waiting <- p:
	case <-s.closing:
		return nil, errClosed
	case <-ctx.Done():
		return nil, s.fail("appending", ctx.Err())
	}
	select {
	case <-p.done:
		return p.events, p.err
	case <-ctx.Done():
		return nil, s.fail("appending", ctx.Err())
	case <-s.stopped: // the writer is gone; p was done, or nobody took it
		select {
		case <-p.done:
			return p.events, p.err
		default:
			return nil, errClosed
		}
	}
}

// check refuses what no state of the session would allow.
func (c *Commit) check() error {
	if len(c.Events) > outboard.MaxAppend {
		return outboard.Errorf(outboard.TooLarge, "an append of %d events is over the limit of %d", len(c.Events),
			outboard.MaxAppend)
	}
	for i := range c.Events {
		switch e := &c.Events[i]; {
		case e.ID == "" || e.Type == "" || len(e.Data) == 0:
			return outboard.Errorf(outboard.Invalid, "event %d of the append lacks an id, a type or data", i)
		case len(e.Data) > e.Type.MaxData():
			return outboard.Errorf(outboard.TooLarge, "the data of event %s (%s) is %d bytes, over the limit of %d",
				e.ID, e.Type, len(e.Data), e.Type.MaxData())
		}
	}
	return nil
}

// queue is what waits for one writer. Who holds committing commits: the writer, or a caller who found nobody before it.
type queue struct {
	waiting    chan *pending
	committing sync.Mutex
	size       int // of the last group; guarded by committing
}

// commitAtOnce makes the caller its own writer where nobody else commits: to hand one append to another
// goroutine and to be woken by it takes longer than the statements. It is for a database that is a file; one
// behind a network may make ctx end first.
func (s *Store) commitAtOnce(ctx context.Context, q *queue, p *pending) (done bool, err error) {
	if len(s.queues) > 1 || len(q.waiting) > 0 || ctx.Err() != nil || !q.committing.TryLock() {
		return false, nil
	}
	select {
	case <-s.closing:
		q.committing.Unlock()
		return true, errClosed
	default:
	}
	p.own = true
	s.tell(s.commitNext(q, p))
	return true, p.err
}

// commitNext commits a group that begins with first, and returns what there is to tell of. The caller holds
// q.committing, and no more when it returns: a turn that the group has begun appends at once, and would find
// somebody before it.
func (s *Store) commitNext(q *queue, first *pending) []committed {
	defer q.committing.Unlock()
	group := gather(q.waiting, first, q.size, len(s.queues) > 1, runtime.Gosched)
	q.size = len(group)
	return s.commitGroup(group)
}

// queueOf is the queue of a session's commits. All of a session are in one, so that no two writers work on the
// same row.
func (s *Store) queueOf(id outboard.SessionID) int {
	if len(s.queues) == 1 {
		return 0
	}
	return int(maphash.String(s.seed, string(id)) % uint64(len(s.queues)))
}

// writer commits what is queued, in groups, until the store closes and the queue is empty. SQLite has one of it.
// With PostgreSQL there are two: while the database works on the group of one, this process makes the other's.
func (s *Store) writer(q *queue) {
	for {
		var first *pending
		select {
		case first = <-q.waiting:
		case <-s.closing:
			select {
			case first = <-q.waiting:
			default:
				q.committing.Lock() // for good: a caller that commits has ended by then
				return
			}
		}
		q.committing.Lock()
		s.tell(s.commitNext(q, first))
	}
}

// gather takes what waits behind first, up to a group. The members of the last group have only just been told,
// and those that go on at once are about to append again: it lets them, since a group that begins without them
// makes them wait for two commits. Where there are several writers, whose groups keep the processors busy
// anyway, they come on top of those who have waited meanwhile. A lone writer waits for no more than the last
// group had: whoever it leaves behind gets ready while it commits.
func gather(queue chan *pending, first *pending, last int, several bool, yield func()) []*pending {
	group := drain(queue, []*pending{first})
	want := last
	if several && last+len(group) > 2 {
		want = min(last+len(group), maxGroup)
	}
	for n := 0; n < len(group) && len(group) < want; {
		n = len(group)
		yield()
		group = drain(queue, group)
	}
	return group
}

// drain adds what is queued to a group, without waiting.
func drain(queue chan *pending, group []*pending) []*pending {
	for len(group) < maxGroup {
		select {
		case p := <-queue:
			group = append(group, p)
		default:
			return group
		}
	}
	return group
}

// committed is a group of which the members know the outcome, and nobody else yet.
type committed struct {
	group []*pending
	rows  map[outboard.SessionID]*row // nil when it failed
	yield bool                        // somebody goes on with it who was just told
}

// commitGroup makes the group durable and wakes those who wait for the outcome. A member that is refused does
// not touch its neighbours; should the database refuse the whole, each member is tried alone.
func (s *Store) commitGroup(group []*pending) []committed {
	if s.d.claimsInline() {
		s.claimsMu.Lock()
		defer s.claimsMu.Unlock()
	}
	if slices.ContainsFunc(group, func(p *pending) bool { return p.commit.Charge != nil }) {
		s.charging.Lock() // two groups would wait for each other's budgets
		defer s.charging.Unlock()
	}
	return s.commitLocked(group)
}

// commitLocked is commitGroup with s.claimsMu held, where there are inline claims.
func (s *Store) commitLocked(group []*pending) (done []committed) {
	k := s.takingLocked()
	rows, err := s.tryGroup(group, k)
	if err != nil && len(group) > 1 && s.d.unique(err) {
		k.settle(nil, nil)
		for _, p := range group {
			done = append(done, s.commitLocked([]*pending{p})...)
		}
		return done
	}
	if err != nil && s.d.unique(err) {
		err = ErrDuplicate
	}
	for _, p := range group {
		if err != nil {
			p.events, p.err = nil, s.fail("appending to "+string(p.commit.Session), err)
		}
		if p.err == nil {
			s.commits.Add(1)
		}
		if p.commit.Budget != nil {
			s.unbudgeted.set()
		}
	}
	k.settle(group, rows)
	for _, p := range group {
		close(p.done)
	}
	if err != nil {
		rows = nil
	}
	return []committed{{group, rows, len(group) == 1 && (!group[0].own || k.took())}}
}

// tell wakes those who wait for a session or for work.
func (s *Store) tell(done []committed) {
	for _, c := range done {
		if c.yield {
			runtime.Gosched() // the one who waited goes on at once; to tell the others takes longer than to let it
		}
		if c.rows != nil {
			s.announce(c.rows, c.group...)
		}
		if p := c.group[0]; p.own && p.commit.Release {
			// who waited for the end of a turn goes on at once; what is left of the turn is to tidy up
			runtime.Gosched()
		}
	}
}

// errStale says that a header a group was planned on was not the database's any more. Nothing was written.
var errStale = errors.New("a cached header is out of date")

// tryGroup runs the transaction: first on cached headers, again on fresh ones where those were stale, and again
// where it lost against another transaction.
func (s *Store) tryGroup(group []*pending, k *taking) (map[outboard.SessionID]*row, error) {
	ctx, cancel := context.WithTimeout(context.Background(), commitWait)
	defer cancel()
	var err error
	for try := range maxRetries {
		known := make(map[outboard.SessionID]*row, len(group))
		k.again()
		for _, p := range group {
			p.events, p.err = nil, nil
			if try == 0 {
				s.cache.copyTo(known, p.commit.Session)
			}
		}
		var rows map[outboard.SessionID]*row
		if rows, err = s.d.commit(ctx, group, known, k, s.now()); err == nil {
			s.cache.put(rows)
			return rows, nil
		}
		for _, p := range group {
			s.cache.drop(p.commit.Session)
		}
		// fresh headers tell who is to blame
		retry := errors.Is(err, errStale) || s.d.again(err) || try == 0 && s.d.unique(err)
		if !retry {
			break
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = outboard.Errorf(outboard.Unavailable, "database %s did not answer for %v", s.d.where(), commitWait)
	}
	return nil, err
}

// announce tells followers, claimers and other processes what was committed, by the members of a group or otherwise.
func (s *Store) announce(rows map[outboard.SessionID]*row, group ...*pending) {
	events, followed := map[outboard.SessionID][]outboard.Event{}, s.hub.used()
	for _, p := range group {
		if followed && p.err == nil && len(p.events) > 0 {
			events[p.commit.Session] = append(slices.Clip(events[p.commit.Session]), p.events...)
		}
	}
	runnable := false
	for id, r := range rows {
		if r == nil || !r.dirty {
			delete(rows, id)
			continue
		}
		s.hub.wake(id, r.Head, events[id])
		runnable = runnable || r.Worker == "" && r.readyAt > 0
	}
	if runnable {
		s.hub.wakeClaimers()
	}
	if len(rows) > 0 {
		s.d.ring(rows)
	}
}
