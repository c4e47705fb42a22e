package store

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/outboard-dev/outboard"
)

const registerSQL = `INSERT INTO workers (id, host, started_at, lease_until) VALUES (?, ?, ?, ?)`

// Register makes worker known, with a lease of LeaseTTL; call it once per process before Claim. Conflict if it
// is known.
func (s *Store) Register(ctx context.Context, w outboard.WorkerID, host string) error {
	now := s.now()
	return s.update(ctx, "registering worker", func(t tx) error {
		_, err := t.exec(ctx, registerSQL, string(w), host, micros(now), micros(now.Add(outboard.LeaseTTL)))
		if s.d.unique(err) {
			return outboard.Errorf(outboard.Conflict, "worker %s is registered already", w)
		}
		return err
	})
}

const renewSQL = `UPDATE workers SET lease_until = ? WHERE id = ? AND lease_until > ?`

// Renew extends the worker's lease, one statement for all its sessions. ErrFenced: it had expired and its
// sessions may be gone; the process must stop its turns and Register again under a new id.
func (s *Store) Renew(ctx context.Context, w outboard.WorkerID) error {
	now := s.now()
	return s.update(ctx, "renewing lease", func(t tx) error {
		n, err := t.exec(ctx, renewSQL, micros(now.Add(outboard.LeaseTTL)), string(w), micros(now))
		if err == nil && n == 0 {
			return ErrFenced
		}
		return err
	})
}

// Deregister gives up all leases of the worker at once. An unknown worker has none.
func (s *Store) Deregister(ctx context.Context, w outboard.WorkerID) error {
	err := s.update(ctx, "ending worker", func(t tx) error { return s.end(ctx, t, w) })
	s.cache.clear()
	if err == nil {
		s.workFreed()
	}
	return err
}

// Wake lets WaitRunnable of this process return: it has room again for what it had left.
func (s *Store) Wake() { s.hub.wakeClaimers() }

// workFreed wakes the claimers of all processes.
func (s *Store) workFreed() {
	s.hub.wakeClaimers()
	s.d.ring(nil)
}

const pickHeldSQL = `WITH held AS MATERIALIZED (SELECT num FROM sessions WHERE worker = ? AND worker <> '' ORDER BY num`

const freeHeldSQL = `) UPDATE sessions SET worker = '' WHERE num IN (SELECT num FROM held)`

const deleteWorkerSQL = `DELETE FROM workers WHERE id = ?`

// end deletes a worker and then frees its sessions. The deletion waits for a claim of the worker that is under way, so
// the sessions of that claim are freed too. Epochs stay: the next claim raises them.
func (s *Store) end(ctx context.Context, t tx, w outboard.WorkerID) error {
	if _, err := t.exec(ctx, deleteWorkerSQL, string(w)); err != nil {
		return err
	}
	_, err := t.exec(ctx, pickHeldSQL+s.d.locking(false)+freeHeldSQL, string(w))
	return err
}

const expiredSQL = `SELECT id FROM workers WHERE lease_until <= ? ORDER BY id`

const liveSQL = `SELECT lease_until FROM workers WHERE id = ? AND lease_until > ?`

const pickReadySQL = `WITH ready AS MATERIALIZED (SELECT num FROM sessions
	WHERE ready_at > 0 AND worker = '' AND ready_at <= ? AND deleted_at = 0 ORDER BY ready_at LIMIT ?`

const pickOrgSQL = `WITH ready AS MATERIALIZED (SELECT num FROM sessions
	WHERE ready_at > 0 AND worker = '' AND ready_at <= ? AND org = ? AND deleted_at = 0 ORDER BY ready_at LIMIT ?`

// readyOrgsSQL goes from one organization to the next by the index: it costs the same however many sessions wait.
const readyOrgsSQL = `WITH RECURSIVE waiting(org) AS (
	SELECT (SELECT org FROM sessions WHERE ready_at > 0 AND worker = '' ORDER BY org LIMIT 1)
	UNION ALL SELECT (SELECT s.org FROM sessions AS s WHERE s.ready_at > 0 AND s.worker = '' AND s.org > waiting.org
		ORDER BY s.org LIMIT 1) FROM waiting WHERE waiting.org IS NOT NULL)
	SELECT org FROM waiting WHERE org IS NOT NULL AND EXISTS (SELECT 1 FROM sessions AS s
		WHERE s.ready_at > 0 AND s.worker = '' AND s.org = waiting.org AND s.ready_at <= ? AND s.deleted_at = 0)`

// Room is how many sessions of an organization a worker has room for.
type Room struct {
	Org      outboard.OrgID
	Sessions int
}

const claimSQL = `) UPDATE sessions SET epoch = epoch + 1, worker = ? WHERE num IN (SELECT num FROM ready) RETURNING ` +
	headerCols

// Claim takes up to max runnable sessions that no live worker holds, those that wait longest first: it raises
// their epoch and makes w their owner. The headers returned carry the new epoch. ErrFenced: w's own lease is
// over.
func (s *Store) Claim(ctx context.Context, w outboard.WorkerID, limit int) ([]outboard.Header, error) {
	return s.ClaimFair(ctx, w, limit, nil)
}

// ClaimFair is Claim where organizations share the worker. rooms says how many sessions of which of them to
// take, and in which order; it is asked about those that have some to take, perhaps more than once. nil = the
// oldest, whose they are.
func (s *Store) ClaimFair(ctx context.Context, w outboard.WorkerID, limit int,
	rooms func([]outboard.OrgID) []Room) ([]outboard.Header, error) {
	if limit <= 0 {
		return nil, nil
	}
	now := micros(s.now())
	if idle, err := s.nothingToClaim(ctx, now, rooms); err != nil || idle {
		return nil, err
	}
	var claimed []row
	err := s.update(ctx, "claiming", func(t tx) error {
		claimed = nil // of an attempt that was rolled back
		if err := s.reap(ctx, t, now); err != nil {
			return err
		}
		var until int64
		// locked, so that nobody reaps w meanwhile
		err := t.queryRow(ctx, liveSQL+s.d.locking(false), string(w), now).Scan(&until)
		if errors.Is(err, sql.ErrNoRows) {
			return ErrFenced
		}
		if err != nil {
			return err
		}
		claimed, err = s.claim(ctx, t, w, now, min(limit, maxPage), rooms)
		return err
	})
	if err != nil {
		if len(claimed) > 0 && Away(err) {
			s.giveUp(w, claimed)
		}
		return nil, err
	}
	s.commits.Add(1)
	out := make([]outboard.Header, len(claimed))
	for i, r := range claimed {
		out[i] = r.Header
		s.cache.put(map[outboard.SessionID]*row{r.ID: &r})
	}
	return out, nil
}

// giveUp releases sessions whose claim has an unknown outcome because the connection broke. Otherwise the worker would
// hold them without knowing it: its lease goes on, and nobody would drive them. It tries until the database answers.
func (s *Store) giveUp(w outboard.WorkerID, claimed []row) {
	s.loops.Go(func() {
		for _, r := range claimed {
			for s.giveBack(w, r) != nil {
				select {
				case <-time.After(listenPause):
				case <-s.closing: // the worker has left, or its lease ends
					return
				}
			}
		}
	})
}

const giveBackSQL = `UPDATE sessions SET worker = '' WHERE id = ? AND epoch = ? AND worker = ?`

// giveBack releases a session if the worker holds it with the claim's epoch: without the claim, another worker can have
// the same epoch.
func (s *Store) giveBack(w outboard.WorkerID, r row) error {
	ctx, cancel := context.WithTimeout(context.Background(), commitWait)
	defer cancel()
	err := s.update(ctx, "releasing", func(t tx) error {
		_, err := t.exec(ctx, giveBackSQL, string(r.ID), r.Epoch, string(w))
		return err
	})
	s.cache.drop(r.ID)
	if err == nil {
		s.workFreed()
	}
	return err
}

// claim takes the sessions of one Claim, in its transaction.
func (s *Store) claim(ctx context.Context, t tx, w outboard.WorkerID, now int64, limit int,
	rooms func([]outboard.OrgID) []Room) ([]row, error) {
	if rooms == nil {
		return collectTx(ctx, t, scanHeader, pickReadySQL+s.d.locking(true)+claimSQL, now, limit, string(w))
	}
	orgs, err := collectTx(ctx, t, scanText[outboard.OrgID], readyOrgsSQL, now)
	if err != nil {
		return nil, err
	}
	var claimed []row
	for _, r := range rooms(orgs) {
		n := min(r.Sessions, limit-len(claimed))
		if n <= 0 {
			continue
		}
		rows, err := collectTx(ctx, t, scanHeader, pickOrgSQL+s.d.locking(true)+claimSQL, now, string(r.Org), n,
			string(w))
		if err != nil {
			return nil, err
		}
		claimed = append(claimed, rows...)
	}
	return claimed, nil
}

const claimableSQL = `SELECT EXISTS (SELECT 1 FROM sessions WHERE ready_at > 0 AND worker = '' AND ready_at <= ? AND deleted_at = 0)
	OR EXISTS (SELECT 1 FROM workers WHERE lease_until <= ?)`

const anyExpiredSQL = `SELECT EXISTS (SELECT 1 FROM workers WHERE lease_until <= ?)`

// nothingToClaim looks before Claim writes, so that an idle server does not, nor one that has no room for what waits.
func (s *Store) nothingToClaim(ctx context.Context, now int64, rooms func([]outboard.OrgID) []Room) (bool, error) {
	var some bool
	if rooms != nil {
		orgs, err := collect(ctx, s, "looking for work", scanText[outboard.OrgID], readyOrgsSQL, now)
		if err != nil || len(rooms(orgs)) > 0 {
			return false, err
		}
		err = s.queryRow(ctx, anyExpiredSQL, now).Scan(&some)
		return !some, s.fail("looking for work", err)
	}
	err := s.queryRow(ctx, claimableSQL, now, now).Scan(&some)
	return !some, s.fail("looking for work", err)
}

// reap frees the sessions of workers whose lease is over. The workers learn of it from Renew.
func (s *Store) reap(ctx context.Context, t tx, now int64) error {
	dead, err := collectTx(ctx, t, scanText[outboard.WorkerID], expiredSQL+s.d.locking(true), now)
	if err != nil {
		return err
	}
	for _, w := range dead {
		s.log.Warn("a worker's lease is over; its sessions are free", "worker", w)
		if err := s.end(ctx, t, w); err != nil {
			return err
		}
	}
	return nil
}

// scanText reads a single text column.
func scanText[T ~string](sc scanner) (T, error) {
	var v string
	err := sc.Scan(&v)
	return T(v), err
}

const releaseSQL = `UPDATE sessions SET worker = '' WHERE id = ? AND epoch = ? AND deleted_at = 0`

const existsSQL = `SELECT num FROM sessions WHERE id = ? AND deleted_at = 0`

// Release gives up one lease, if epoch still holds it; else ErrFenced, or NotFound.
func (s *Store) Release(ctx context.Context, id outboard.SessionID, epoch int64) error {
	err := s.update(ctx, "releasing", func(t tx) error {
		n, err := t.exec(ctx, releaseSQL, string(id), epoch)
		if err != nil || n > 0 {
			return err
		}
		var num int64
		err = t.queryRow(ctx, existsSQL, string(id)).Scan(&num)
		if errors.Is(err, sql.ErrNoRows) {
			return notFound("session", id)
		}
		if err == nil {
			err = ErrFenced
		}
		return err
	})
	s.cache.drop(id)
	if err == nil {
		s.workFreed()
	}
	return err
}
