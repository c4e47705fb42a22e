package store

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/audit"
)

const auditCols = `at, org, actor, action, resource, decision, rule, detail`

const insertAuditInto = `INSERT INTO audit (num, ` + auditCols + `, proof, hashes) `

const insertAuditSQL = insertAuditInto + `VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

// maxAuditText bounds each text of an audit row: a name or path that is longer is evidence enough when cut.
const maxAuditText = 4 << 10

// auditing is a record on its way. The sender owns it until it is queued and after it was told to go on.
type auditing struct {
	record outboard.AuditRecord
	while  Mark
	moved  bool // while is so no longer: the record was not written
	salt   []byte
	fields audit.Digests // of record and salt: the sender computes them, beside other senders
	err    error
	// capacity 1: true = write the next group, this record in it; false = it was written, or err says why not
	turn chan bool
}

// auditQueue is the records that wait. One of their senders writes them, all in one transaction: a goroutine of
// its own for that would cost each request two more hand-overs, before and after the disk.
type auditQueue struct {
	mu      sync.Mutex
	waiting []*auditing
	writing bool          // somebody does
	group   int           // how many were in the last group
	likely  int           // how many come together
	passed  time.Time     // when the last group was written
	want    int           // the writer waits for so many; 0 = it does not
	enough  chan struct{} // capacity 1: they have come
	closed  bool
	senders sync.WaitGroup // admitted and not yet answered
}

// Mark is a session's log at one moment: its newest event has the number Head. The zero Mark is of no session,
// and always so.
type Mark struct {
	Session outboard.SessionID
	Head    int64
}

// Audit makes a record durable, and returns only then: whoever gets an error must not do what the record is
// about. Records that wait at the same time share a transaction. Texts that are too long are cut; a detail over
// outboard.MaxEventData is TooLarge.
func (s *Store) Audit(ctx context.Context, r outboard.AuditRecord) error {
	return s.AuditWhile(ctx, r, Mark{})
}

// AuditWhile is Audit of a record that is true only while a log is as it was when something was decided by it.
// Where it is not, nothing is written and the error is ErrMoved. To look costs next to nothing beside the write,
// where reading the log's head before it is a read of its own.
func (s *Store) AuditWhile(ctx context.Context, r outboard.AuditRecord, while Mark) error {
	if len(r.Detail) > outboard.MaxEventData {
		return outboard.Errorf(outboard.TooLarge, "the detail of an audit record is %d bytes, over the limit of %d",
			len(r.Detail), outboard.MaxEventData)
	}
	if r.At.IsZero() {
		r.At = s.now()
	}
	if len(r.Detail) > 0 { // in the one form that every reader of JSON writes again
		b, err := json.Marshal(r.Detail)
		if err != nil {
			return outboard.Errorf(outboard.Invalid, "the detail of an audit record is not JSON: %w", err)
		}
		r.Detail = b
	}
	for _, text := range []*string{&r.Org, &r.Actor, &r.Action, &r.Resource, &r.Decision, &r.Rule} {
		*text = auditText(*text)
	}
	if ctx.Err() != nil {
		return s.fail("writing an audit record", ctx.Err())
	}
	if err := s.reserve.refuses(ctx); err != nil {
		return err
	}
	err := s.record(r, while)
	if s.reserve.drops(ctx, err) {
		err = s.record(r, while)
	}
	if err == nil {
		Unchanged(ctx)
	}
	return err
}

type trailKey struct{}

// Trail returns a context for one request. accounted then reports whether a record was written with it, or Unchanged
// was called: a change of which neither is true has left no trace.
func Trail(ctx context.Context) (_ context.Context, accounted func() bool) {
	seen := new(atomic.Bool)
	return context.WithValue(ctx, trailKey{}, seen), seen.Load
}

// Unchanged says that a request changes nothing which the audit records.
func Unchanged(ctx context.Context) {
	if seen, ok := ctx.Value(trailKey{}).(*atomic.Bool); ok {
		seen.Store(true)
	}
}

// record writes a record.
func (s *Store) record(r outboard.AuditRecord, while Mark) error {
	a := &auditing{record: r, while: while, salt: audit.Salt(), turn: make(chan bool, 1)}
	a.fields = audit.DigestsOf(&a.record, a.salt)
	write, err := s.audits.enter(a)
	if err != nil {
		return err
	}
	defer s.audits.senders.Done()
	if write || <-a.turn {
		defer s.audits.pass()
		s.auditGroup(s.audits.gather())
	}
	return a.err
}

// enter queues a record. write says that its sender is to write the next group.
func (q *auditQueue) enter(a *auditing) (write bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false, errClosed
	}
	q.senders.Add(1)
	q.waiting = append(q.waiting, a)
	write = !q.writing
	q.writing = true
	if q.want > 0 && len(q.waiting) >= q.want {
		q.want = 0
		q.enough <- struct{}{} // at most once for each want
	}
	return write, nil
}

const (
	// comeBack is how long a writer waits for the next of those who are likely to come: a tenth of what a commit takes.
	comeBack = 20 * time.Microsecond
	// fewSenders wait for the disk most of the time, and the next commit should begin at once. More of them keep
	// the processors busy meanwhile, and a commit costs as much as six requests: then it waits for most of them,
	// for at most longWait, in which they come where they come at all.
	fewSenders = 8
	longWait   = 2 * time.Millisecond
)

// gather takes what waits, the writer's own first. The members of the last group have just been told to go on,
// and where many write all the time they are back soon: a group with them is one commit instead of several that
// take turns. Who writes alone waits for nobody.
func (q *auditQueue) gather() []*auditing {
	if !q.crowd() {
		n, likely := q.count()
		for since := time.Now(); n < likely && time.Since(since) < comeBack; {
			runtime.Gosched()
			if now, _ := q.count(); now > n {
				n, since = now, time.Now()
			}
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.waiting), maxGroup)
	group := q.waiting[:n:n]
	q.waiting = append([]*auditing(nil), q.waiting[n:]...)
	q.group = n
	return group
}

// crowd waits for most of those who are likely to come, where they are many. false says that they are few.
func (q *auditQueue) crowd() bool {
	q.mu.Lock()
	if time.Since(q.passed) > longWait {
		q.likely = 0 // whoever they were, they do not write all the time
	}
	most := min(q.likely-q.likely/4, quickRows)
	many, here := q.likely > fewSenders, len(q.waiting) >= most
	if many && !here {
		q.want = most
	}
	q.mu.Unlock()
	if !many || here {
		return many
	}
	t := time.NewTimer(longWait)
	defer t.Stop()
	select {
	case <-q.enough:
		return true
	case <-t.C:
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.want == 0 { // they came at the last moment
		<-q.enough
	}
	q.want = 0
	return true
}

func (q *auditQueue) count() (waiting, likely int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting), min(q.likely, maxGroup)
}

// pass lets the first of those who came meanwhile write, and on this processor at once: all who wait, wait for
// the next commit, which should not wait for what this writer does with its own record.
func (q *auditQueue) pass() {
	if q.next() {
		runtime.Gosched()
	}
}

// next tells the next writer to go on, if there is one. Likely to come are those of the last group and those who
// waited meanwhile; of a crowd, which a commit may not have waited for, nearly as many as before.
func (q *auditQueue) next() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	likely := q.group + len(q.waiting)
	if q.likely > fewSenders { // a group that was written early says little about how many there are
		likely = max(likely, q.likely-(q.likely+7)/8)
	}
	q.likely, q.passed = likely, time.Now()
	if q.writing = len(q.waiting) > 0; q.writing {
		q.waiting[0].turn <- true
	}
	return q.writing
}

// close lets nobody enter, and waits for those who have.
func (q *auditQueue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.senders.Wait()
}

// auditText cuts a text and makes it one that both databases store.
func auditText(s string) string { return auditTextOf(s, maxAuditText) }

func auditTextOf(s string, most int) string {
	if len(s) > most {
		s = s[:most]
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// auditGroup makes a group durable as the next records of the log. The first of it is the caller's own.
func (s *Store) auditGroup(group []*auditing) {
	ctx, cancel := context.WithTimeout(context.Background(), commitWait)
	defer cancel()
	var err error = outboard.Errorf(outboard.Internal, "writing audit records did not come to an end")
	defer func() { // after a panic as well: nobody waits for ever
		for i, a := range group {
			if a.err = err; err == nil && a.moved {
				a.err = ErrMoved
			}
			if i > 0 {
				a.turn <- false
			}
		}
	}()
	if err = s.auditSeal(); err == nil {
		err = s.appendAudit(ctx, group)
	}
}

// appendAudit writes a group and moves the tail. Where the log does not end as this process left it, or one of
// the marks may have moved, it looks again under the lock.
func (s *Store) appendAudit(ctx context.Context, group []*auditing) error {
	const doing = "writing audit records"
	next := s.tail
	if marks, one := marksOf(group); one && next.tree.Size() > 0 {
		ok, err := s.d.quickAudit(ctx, s.tail, marks, next.add(group))
		if ok {
			s.tail = next
		}
		if ok || err != nil {
			return s.fail(doing, err)
		}
	}
	err := s.tryUpdate(ctx, doing, func(t tx) (err error) {
		if next, err = s.auditTail(ctx, t); err != nil {
			return err
		}
		left, err := unmoved(ctx, t, group)
		if err != nil || len(left) == 0 {
			return err
		}
		return s.d.insertAudit(ctx, t, next.add(left))
	})
	if err == nil {
		s.tail = next
	}
	return err
}

// marksOf returns the heads that the records of a group want, by session; nil for none. false says that two want
// different ones.
func marksOf(group []*auditing) (map[outboard.SessionID]int64, bool) {
	var marks map[outboard.SessionID]int64
	for _, a := range group {
		m := a.while
		if m == (Mark{}) {
			continue
		}
		if marks == nil {
			marks = map[outboard.SessionID]int64{}
		}
		if head, ok := marks[m.Session]; ok && head != m.Head {
			return nil, false
		}
		marks[m.Session] = m.Head
	}
	return marks, true
}

// unmoved returns the records of a group whose marks hold, and notes with the others that theirs do not. It may
// be called again.
func unmoved(ctx context.Context, t tx, group []*auditing) (left []*auditing, err error) {
	heads := map[outboard.SessionID]int64{}
	for _, a := range group {
		if id := a.while.Session; a.while != (Mark{}) {
			head, ok := heads[id]
			if !ok {
				err := t.queryRow(ctx, headSQL, string(id)).Scan(&head)
				if errors.Is(err, sql.ErrNoRows) {
					head, err = -1, nil // a session that was deleted
				}
				if err != nil {
					return nil, err
				}
				heads[id] = head
			}
			if a.moved = head != a.while.Head; a.moved {
				continue
			}
		}
		left = append(left, a)
	}
	return left, nil
}

// auditRow is a record as it is stored.
type auditRow struct {
	record        *outboard.AuditRecord
	proof, hashes []byte
}

// auditTail is the end of the log as this process knows it: what the next record continues.
type auditTail struct {
	tree   audit.Tree
	hashes []byte // of the last record
}

// add makes the rows of new records.
func (l *auditTail) add(group []*auditing) []auditRow {
	rows := make([]auditRow, len(group))
	for i, a := range group {
		r := &a.record
		r.Num, r.At = l.tree.Size()+1, timeOf(micros(r.At)) // as it will be read
		l.hashes = l.tree.Add(audit.LeafOf(r, &a.fields))
		rows[i] = auditRow{r, a.salt, l.hashes}
	}
	return rows
}

const auditLastSQL = `SELECT num, hashes FROM audit ORDER BY num DESC LIMIT 1`

// auditTail returns the end of the log, which nobody else moves before t ends. Where another process has moved
// it, the tree is read from the rows. A log that has become shorter, or ends in another record than the one that
// this process wrote there, is not continued.
func (s *Store) auditTail(ctx context.Context, t tx) (auditTail, error) {
	if err := s.d.lockAudit(ctx, t.Tx); err != nil {
		return auditTail{}, err
	}
	var num int64
	var hashes []byte
	if err := t.queryRow(ctx, auditLastSQL).Scan(&num, &hashes); err != nil && !errors.Is(err, sql.ErrNoRows) {
		return auditTail{}, err
	}
	size := s.tail.tree.Size()
	switch {
	case num == size && bytes.Equal(hashes, s.tail.hashes):
		return s.tail, nil
	case num <= size:
		return auditTail{}, sealed(&audit.Tampered{Why: fmt.Sprintf("it ends at record %d, and this server has "+
			"written %d", num, size)})
	}
	tree, err := audit.TreeOf(num, func(n int64) (b []byte, err error) {
		err = t.queryRow(ctx, auditHashSQL, n).Scan(&b)
		return b, err
	})
	if errors.Is(err, sql.ErrNoRows) {
		err = sealed(&audit.Tampered{Why: "records are missing in it"})
	}
	return auditTail{tree, hashes}, err
}

const auditHashSQL = `SELECT hashes FROM audit WHERE num = ?`

// SealAudit makes every Audit from now on fail with why: nothing more is done that has to be recorded.
func (s *Store) SealAudit(why error) {
	err := sealed(why)
	s.sealed.Store(&err)
}

func (s *Store) auditSeal() error {
	if err := s.sealed.Load(); err != nil {
		return *err
	}
	return nil
}

func sealed(why error) error {
	return outboard.Errorf(outboard.Unavailable, "nothing can be recorded, so nothing is done: %w", why).
		WithHint("run 'outboard audit verify' to see what differs; docs/reference/audit.md says how to go on")
}

// AuditQuery selects audit records.
type AuditQuery struct {
	Org      string // "" = every organization
	Actor    string // "" = everybody
	Action   string // "" = every action
	Decision string // "" = any
	Text     string // only records that have it in a field; "" = any
	Since    time.Time
	Until    time.Time
	After    int64 // only records with a higher number
	Before   int64 // only records with a lower number, 0 = no bound
	Newest   bool  // newest first
	Limit    int   // 0 = a default
}

// AuditEntries returns one page.
func (s *Store) AuditEntries(ctx context.Context, q AuditQuery) ([]audit.Entry, error) {
	w := where{conds: []string{`num > ?`}, args: []any{q.After}}
	if q.Before > 0 {
		w.add(`num < ?`, q.Before)
	}
	if q.Org != "" {
		w.add(`org = ?`, q.Org)
	}
	if q.Actor != "" {
		w.add(`actor = ?`, q.Actor)
	}
	if q.Action != "" {
		w.add(`action = ?`, q.Action)
	}
	if q.Decision != "" {
		w.add(`decision = ?`, q.Decision)
	}
	if q.Text != "" {
		like := "%" + likeEscape.Replace(q.Text) + "%"
		w.add(`(actor LIKE ? ESCAPE '!' OR resource LIKE ? ESCAPE '!' OR rule LIKE ? ESCAPE '!' OR detail LIKE ? ESCAPE '!')`, like, like, like, like)
	}
	if !q.Since.IsZero() {
		w.add(`at >= ?`, micros(q.Since))
	}
	if !q.Until.IsZero() {
		w.add(`at < ?`, micros(q.Until))
	}
	query := `SELECT num, ` + auditCols + `, proof, hashes FROM audit` + w.String() + order("num", !q.Newest) +
		` LIMIT ?`
	return collect(ctx, s, "reading audit records", scanEntry, query, append(w.args, limitOr(q.Limit, defaultPage))...)
}

var likeEscape = strings.NewReplacer("!", "!!", "%", "!%", "_", "!_")

// AuditRecords is AuditEntries without what ties the records to the log.
func (s *Store) AuditRecords(ctx context.Context, q AuditQuery) ([]outboard.AuditRecord, error) {
	list, err := s.AuditEntries(ctx, q)
	out := make([]outboard.AuditRecord, len(list))
	for i := range list {
		out[i] = list[i].AuditRecord
	}
	return out, err
}

const auditSizeSQL = `SELECT COALESCE(MAX(num), 0) FROM audit`

// AuditSize implements audit.Log.
func (s *Store) AuditSize(ctx context.Context) (n int64, err error) {
	err = s.queryRow(ctx, auditSizeSQL).Scan(&n)
	return n, s.fail("reading the size of the audit", err)
}

const auditHashesSQL = `SELECT hashes FROM audit WHERE num > ? ORDER BY num LIMIT ?`

// AuditHashes implements audit.Log.
func (s *Store) AuditHashes(ctx context.Context, after int64, limit int) ([][]byte, error) {
	return collect(ctx, s, "reading hashes of the audit", func(sc scanner) (b []byte, err error) {
		err = sc.Scan(&b)
		return b, err
	}, auditHashesSQL, after, limit)
}

func scanEntry(sc scanner) (audit.Entry, error) {
	var e audit.Entry
	var at int64
	var detail string
	err := sc.Scan(&e.Num, &at, &e.Org, &e.Actor, &e.Action, &e.Resource, &e.Decision, &e.Rule, &detail, &e.Proof,
		&e.Hashes)
	e.At = timeOf(at)
	if detail != "" {
		e.Detail = outboard.Raw(detail)
	}
	return e, err
}

const auditCountSQL = `SELECT COUNT(*) FROM audit WHERE actor = ? AND action = ? AND decision = ? AND at >= ?`

// CountAudit returns how many records an actor has of one action and decision since a time.
func (s *Store) CountAudit(ctx context.Context, actor, action, decision string, since time.Time) (n int64, err error) {
	err = s.queryRow(ctx, auditCountSQL, actor, action, decision, micros(since)).Scan(&n)
	return n, s.fail("counting audit records", err)
}
