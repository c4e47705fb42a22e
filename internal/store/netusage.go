package store

import (
	"context"

	"github.com/outboard-dev/outboard"
)

// NetUse is a part of what a session, or a sandbox without one, may send out.
type NetUse struct{ Requests, Bytes int64 }

type netRow struct{ requests, bytes, hosts int64 }

func scanNetRow(sc scanner) (r netRow, err error) { return r, sc.Scan(&r.requests, &r.bytes, &r.hosts) }

// The row is locked by whoever takes of it, until they have.
const lockNetUsageSQL = `INSERT INTO net_usage (id, requests, bytes, hosts, updated_at) VALUES (?, 0, 0, 0, ?)
	ON CONFLICT (id) DO UPDATE SET updated_at = excluded.updated_at RETURNING requests, bytes, hosts`

const knownHostSQL = `SELECT COUNT(*) FROM net_hosts WHERE id = ? AND host = ?`

const putHostSQL = `INSERT INTO net_hosts (id, host) VALUES (?, ?)`

const takeNetSQL = `UPDATE net_usage SET requests = requests + ?, bytes = bytes + ?, hosts = hosts + ? WHERE id = ?`

// TakeNet takes of a budget up to what is wanted, of each as much as is left, and counts a host unless it is ""
// or was counted before. What is taken counts as used from then on, whatever becomes of the caller. room is
// false, and nothing is taken, when the host would be one more than the limit. Of any number of callers at the
// same time, in whatever process, no two get the same part.
func (s *Store) TakeNet(ctx context.Context, id string, limit outboard.NetBudget, want NetUse,
	host string) (got NetUse, room bool, err error) {
	err = s.update(ctx, "counting what is sent", func(t tx) error {
		rows, err := collectTx(ctx, t, scanNetRow, lockNetUsageSQL, id, micros(s.now()))
		if err != nil {
			return err
		}
		used, fresh := rows[0], int64(0)
		if host != "" {
			n, err := collectTx(ctx, t, scanCount, knownHostSQL, id, host)
			if err != nil {
				return err
			}
			fresh = 1 - n[0]
		}
		got = NetUse{min(want.Requests, max(0, limit.Requests-used.requests)),
			min(want.Bytes, max(0, limit.Bytes-used.bytes))}
		if room = fresh == 0 || used.hosts < int64(limit.Hosts); !room {
			got = NetUse{}
			return nil
		}
		if fresh == 1 {
			if _, err := t.exec(ctx, putHostSQL, id, host); err != nil {
				return err
			}
		}
		_, err = t.exec(ctx, takeNetSQL, got.Requests, got.Bytes, fresh, id)
		return err
	})
	if err != nil {
		return NetUse{}, false, err
	}
	return got, room, nil
}

// GiveNet gives back what was taken and not used.
func (s *Store) GiveNet(ctx context.Context, id string, unused NetUse) error {
	return s.update(ctx, "giving back what was not sent", func(t tx) error {
		_, err := t.exec(ctx, takeNetSQL, -unused.Requests, -unused.Bytes, 0, id)
		return err
	})
}

const netUsageSQL = `SELECT requests, bytes, hosts FROM net_usage WHERE id = ?`

// NetUsage returns what was taken of a budget, zero for what has sent nothing.
func (s *Store) NetUsage(ctx context.Context, id string) (outboard.NetBudget, error) {
	list, err := collect(ctx, s, "reading what was sent", scanNetRow, netUsageSQL, id)
	if err != nil || len(list) == 0 {
		return outboard.NetBudget{}, err
	}
	return outboard.NetBudget{Requests: list[0].requests, Bytes: list[0].bytes, Hosts: int(list[0].hosts)}, nil
}

const forgetNetUsageSQL = `DELETE FROM net_usage WHERE id = ?`

const forgetNetHostsSQL = `DELETE FROM net_hosts WHERE id = ?`

// ForgetNet removes the counters of something that will never send again.
func (s *Store) ForgetNet(ctx context.Context, id string) error {
	return s.update(ctx, "removing counters of what was sent", func(t tx) error {
		if _, err := t.exec(ctx, forgetNetHostsSQL, id); err != nil {
			return err
		}
		_, err := t.exec(ctx, forgetNetUsageSQL, id)
		return err
	})
}
