package store

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboard-dev/outboard"
)

// Limits of notifications.
const (
	// notifyEvery is the least time between two rings of a process: NOTIFY takes a lock of the whole database at
	// its commit.
	notifyEvery = 10 * time.Millisecond
	// notifyNames bounds the sessions one ring names; PostgreSQL takes 8000 bytes. Beyond it, listeners look at
	// all theirs.
	notifyNames = 200
	// listenPause is how long a broken listener waits before it connects again; meanwhile the poller finds everything.
	listenPause = time.Second
)

// notifyChannel is the channel of NOTIFY.
const notifyChannel = "outboard"

// notify collects the sessions that changed since the last ring. A ring is sent after the commit it tells of, from a
// transaction of its own, and may get lost: it only saves the wait for the poller.
type notify struct {
	self string // not our own ring
	due  chan struct{}

	mu    sync.Mutex
	heads map[outboard.SessionID]int64
	work  bool // some session became runnable
}

func newNotify() notify {
	return notify{self: outboard.NewID[string]("bell"), due: make(chan struct{}, 1),
		heads: map[outboard.SessionID]int64{}}
}

// ring implements dialect.
func (d *postgresDialect) ring(rows map[outboard.SessionID]*row) {
	b := &d.notify
	b.mu.Lock()
	b.work = b.work || rows == nil
	for id, r := range rows {
		b.heads[id] = r.Head
		b.work = b.work || r.Worker == "" && r.readyAt > 0
	}
	b.mu.Unlock()
	select {
	case b.due <- struct{}{}:
	default: // it will ring anyway
	}
}

// message takes what was collected: who rings, "w" for work or "-", then "id:head" for each session, or "*".
func (b *notify) message() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	words := []string{b.self, "-"}
	if b.work {
		words[1] = "w"
	}
	if len(b.heads) > notifyNames {
		words = append(words, "*")
	} else {
		for id, head := range b.heads {
			words = append(words, string(id)+":"+strconv.FormatInt(head, 36))
		}
	}
	clear(b.heads)
	b.work = false
	return strings.Join(words, " ")
}

// start implements dialect.
func (d *postgresDialect) start(run context.Context, s *Store) {
	s.loops.Go(func() { d.ringer(run, s) })
	s.loops.Go(func() { d.listener(run, s) })
}

// A ring need not be durable. set_config is local to this statement's transaction.
const notifySQL = `SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)`

// ringer rings when something is due, at most every notifyEvery.
func (d *postgresDialect) ringer(ctx context.Context, s *Store) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-d.notify.due:
		case <-ctx.Done():
			return
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return
		}
		if _, err := d.pool.Exec(ctx, notifySQL, notifyChannel, d.notify.message()); err != nil && ctx.Err() == nil {
			s.log.Warn("ringing for other processes", "err", err)
		}
		pause.Reset(notifyEvery)
	}
}

// listener hears the rings of other processes, and connects again when its connection breaks.
func (d *postgresDialect) listener(ctx context.Context, s *Store) {
	for {
		err := d.listen(ctx, s)
		if ctx.Err() != nil {
			return
		}
		s.log.Warn("listening for other processes", "err", err)
		select {
		case <-time.After(listenPause):
		case <-ctx.Done():
			return
		}
	}
}

// listen holds one connection of its own until it breaks or ctx ends.
func (d *postgresDialect) listen(ctx context.Context, s *Store) error {
	conn, err := pgx.ConnectConfig(ctx, d.pool.Config().ConnConfig)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, `LISTEN `+notifyChannel); err != nil {
		return err
	}
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		d.heard(ctx, s, n.Payload)
	}
}

// heard wakes those of this process whom a ring concerns.
func (d *postgresDialect) heard(ctx context.Context, s *Store, payload string) {
	words := strings.Fields(payload)
	if len(words) < 2 || words[0] == d.notify.self {
		return
	}
	if words[1] == "w" {
		s.hub.wakeClaimers()
	}
	for _, w := range words[2:] {
		if w == "*" {
			if err := s.pollAll(ctx); err != nil && ctx.Err() == nil {
				s.log.Warn("looking for commits of other processes", "err", err)
			}
			return
		}
		id, head, _ := strings.Cut(w, ":")
		n, _ := strconv.ParseInt(head, 36, 64) // 0 at worst, which wakes for nothing
		s.hub.wake(outboard.SessionID(id), n, nil)
	}
}
