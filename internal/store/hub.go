package store

import (
	"context"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
)

// pollBatch bounds the sessions one query of the poller asks for.
const pollBatch = 500

// hub wakes those of this process who wait for a session or for work. It holds no events: whoever is woken reads the log.
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
	subs map[chan struct{}]struct{}
}

func (h *hub) init() {
	h.topics = map[outboard.SessionID]*topic{}
	h.work = make(chan struct{})
}

// subscribe returns a channel of capacity 1 that gets a value after each change of the session, or after several.
func (h *hub) subscribe(id outboard.SessionID) (chan struct{}, func()) {
	ch := make(chan struct{}, 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[id]
	if t == nil {
		t = &topic{subs: map[chan struct{}]struct{}{}}
		h.topics[id] = t
	}
	t.subs[ch] = struct{}{}
	return ch, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(t.subs, ch)
		if len(t.subs) == 0 && h.topics[id] == t {
			delete(h.topics, id)
		}
	}
}

// wake signals the session's waiters.
func (h *hub) wake(id outboard.SessionID, head int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.topics[id]; t != nil {
		t.wake(head)
	}
}

func (t *topic) wake(head int64) {
	t.head = max(t.head, head)
	for ch := range t.subs {
		select {
		case ch <- struct{}{}:
		default: // it has not looked since the last one, and will see this as well
		}
	}
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
		t.wake(head)
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
