package store

import (
	"context"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
)

// pollBatch bounds the sessions one query of the poller asks for.
const pollBatch = 500

// Limits of what the hub keeps for one follower until it looks. One that is behind by more reads the log.
const (
	keepEvents = 256
	keepBytes  = 256 << 10
)

// hub wakes those of this process who wait for a session or for work. A follower finds the events that this
// process has committed here, and need not read them from the log; whoever misses something reads the log.
type hub struct {
	mu     sync.Mutex
	topics map[outboard.SessionID]*topic
	work   chan struct{} // closed and replaced when a session became runnable
	missed bool          // that happened while nobody waited
	idle   int           // waiters for work
}

// topic is a session somebody of this process waits for.
type topic struct {
	head int64 // the newest they were woken for; 0 = none yet
	subs map[*subscriber]struct{}
}

// subscriber is one who waits for a session. Its fields but woken are guarded by hub.mu.
type subscriber struct {
	woken chan struct{} // capacity 1
	keeps bool          // events are kept for it

	events []outboard.Event // committed since it looked, without a gap between them
	size   int              // bytes of their data
	look   bool             // there is something that events do not tell
}

func (h *hub) init() {
	h.topics = map[outboard.SessionID]*topic{}
	h.work = make(chan struct{})
}

// subscribe returns a subscriber whose channel gets a value after each change of the session, or after several.
func (h *hub) subscribe(id outboard.SessionID, keeps bool) (*subscriber, func()) {
	sub := &subscriber{woken: make(chan struct{}, 1), keeps: keeps}
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[id]
	if t == nil {
		t = &topic{subs: map[*subscriber]struct{}{}}
		h.topics[id] = t
	}
	t.subs[sub] = struct{}{}
	return sub, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(t.subs, sub)
		if len(t.subs) == 0 && h.topics[id] == t {
			delete(h.topics, id)
		}
	}
}

// wake signals the session's waiters. events are its newest up to head, as far as they are known here.
func (h *hub) wake(id outboard.SessionID, head int64, events []outboard.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.topics[id]; t != nil {
		t.wake(head, events)
	}
}

func (t *topic) wake(head int64, events []outboard.Event) {
	t.head = max(t.head, head)
	for sub := range t.subs {
		if sub.keeps {
			sub.keep(head, events)
		}
		select {
		case sub.woken <- struct{}{}:
		default: // it has not looked since the last one, and will see this as well
		}
	}
}

// keep adds events that end with head, or notes that the log has to be read.
func (s *subscriber) keep(head int64, events []outboard.Event) {
	if n := len(events); n == 0 || events[n-1].Seq != head {
		s.look = true
		return
	}
	if n := len(s.events); n > 0 && s.events[n-1].Seq+1 != events[0].Seq {
		s.look = true
	}
	for i := range events {
		s.size += len(events[i].Data)
	}
	if s.look || len(s.events)+len(events) > keepEvents || s.size > keepBytes {
		s.events, s.size, s.look = nil, 0, true
		return
	}
	s.events = append(s.events, events...)
}

// take returns the events after a position that were kept, and whether the log has to be read after them.
func (h *hub) take(s *subscriber, after int64) (events []outboard.Event, look bool) {
	h.mu.Lock()
	events, look = s.events, s.look
	s.events, s.size, s.look = nil, 0, false
	h.mu.Unlock()
	for len(events) > 0 && events[0].Seq <= after {
		events = events[1:]
	}
	if len(events) > 0 && events[0].Seq != after+1 {
		return nil, true
	}
	return events, look
}

// wakeClaimers lets WaitRunnable return: the calls that wait now, or else the next one.
func (h *hub) wakeClaimers() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.idle == 0 {
		h.missed = true
		return
	}
	close(h.work)
	h.work = make(chan struct{})
}

// waitWork registers a waiter for work, or returns nil when some was missed.
func (h *hub) waitWork() (ch <-chan struct{}, stop func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.missed {
		h.missed = false
		return nil, nil
	}
	h.idle++
	return h.work, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.idle--
	}
}

// used reports whether anybody waits for a session.
func (h *hub) used() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.topics) > 0
}

// watched returns the sessions with waiters, in batches.
func (h *hub) watched() [][]any {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out [][]any
	for id := range h.topics {
		if n := len(out); n == 0 || len(out[n-1]) == pollBatch {
			out = append(out, make([]any, 0, min(pollBatch, len(h.topics))))
		}
		n := len(out) - 1
		out[n] = append(out[n], string(id))
	}
	return out
}

// advance wakes the waiters of a session whose head the database says has moved.
func (h *hub) advance(id outboard.SessionID, head int64, deleted bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.topics[id]; t != nil && (head > t.head || deleted) {
		t.wake(head, nil)
	}
}

// poll is the one fallback of a process for lost or missing wake-ups: every PollFallback, if another process may have
// committed, it asks for the heads of all sessions somebody waits for.
func (s *Store) poll(ctx context.Context) {
	tick := time.NewTicker(outboard.PollFallback)
	defer tick.Stop()
	owing := false // the last look failed
	for {
		select {
		case <-tick.C:
			err := s.pollOnce(ctx, owing)
			if owing = err != nil; owing && ctx.Err() == nil {
				s.log.Warn("looking for commits of other processes", "err", err)
			}
		case <-ctx.Done():
			return
		}
	}
}

// pollOnce looks, if anybody waits and somebody may have committed, or always when a look is owing.
func (s *Store) pollOnce(ctx context.Context, owing bool) error {
	if !s.hub.used() {
		return nil
	}
	moved, err := s.d.changed(ctx)
	if err != nil || !moved && !owing {
		return err
	}
	return s.pollAll(ctx)
}

// pollAll asks for the heads of all sessions somebody waits for.
func (s *Store) pollAll(ctx context.Context) error {
	for _, ids := range s.hub.watched() {
		if err := s.pollHeads(ctx, ids); err != nil {
			return err
		}
	}
	return nil
}

const headsSQL = `SELECT id, head, deleted_at FROM sessions WHERE id IN (`

func (s *Store) pollHeads(ctx context.Context, ids []any) error {
	rows, err := s.query(ctx, headsSQL+marks(len(ids))+`)`, ids...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		var head, deleted int64
		if err := rows.Scan(&id, &head, &deleted); err != nil {
			return err
		}
		s.hub.advance(outboard.SessionID(id), head, deleted != 0)
	}
	return rows.Err()
}
