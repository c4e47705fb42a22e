package store

import (
	"context"
	"time"

	"github.com/outboard-dev/outboard"
)

const sandboxCols = `id, session, environment, owner, person, provider, host, generation, state, why, checkpoint, created_at, updated_at`

func scanSandbox(sc scanner) (outboard.Sandbox, error) {
	var b outboard.Sandbox
	var created, updated int64
	err := sc.Scan(&b.ID, &b.Session, &b.Environment, &b.Owner, &b.Person, &b.Provider, &b.Host, &b.Generation,
		&b.State, &b.Why, &b.Checkpoint,
		&created, &updated)
	b.CreatedAt, b.UpdatedAt = timeOf(created), timeOf(updated)
	return b, err
}

const putSandboxSQL = `INSERT INTO sandboxes (` + sandboxCols + `) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
	ON CONFLICT (id) DO UPDATE SET session = excluded.session, environment = excluded.environment, owner = excluded.owner, person = excluded.person,
	why = excluded.why, provider = excluded.provider, host = excluded.host,
	generation = excluded.generation, state = excluded.state, checkpoint = excluded.checkpoint,
	created_at = excluded.created_at, updated_at = excluded.updated_at`

// PutSandbox inserts or replaces a sandbox row.
func (s *Store) PutSandbox(ctx context.Context, b outboard.Sandbox) error {
	return s.update(ctx, "storing sandbox", func(t tx) error { return putSandbox(ctx, t, b) })
}

func putSandbox(ctx context.Context, t tx, b outboard.Sandbox) error {
	_, err := t.exec(ctx, putSandboxSQL, string(b.ID), string(b.Session), string(b.Environment), string(b.Owner),
		string(b.Person), b.Provider, b.Host,
		b.Generation, b.State, b.Why, string(b.Checkpoint), micros(b.CreatedAt), micros(b.UpdatedAt))
	return err
}

// Quota bounds the sandboxes of one environment and of one owner that are alive. An owner is a person, with all
// their keys, or a program's key. 0 or less is no bound.
type Quota struct {
	Environment, Owner int
	Own                bool // Environment is what the environment says itself, not the server's configuration
}

// key is the name of the limit where who reads the refusal can change it.
func (q Quota) key(what string) string {
	if what == "environment" && q.Own {
		return "config.outboard.lifecycle.max_sandboxes of the environment"
	}
	return "sandbox.max_sandboxes_per_" + what + " of the server's configuration"
}

// full is the refusal of one sandbox more than a limit.
func (q Quota) full(what, id string, alive int64, most int) error {
	noun := "sandboxes"
	if alive == 1 {
		noun = "sandbox"
	}
	return outboard.Errorf(outboard.Exhausted, "%s %s has %d %s alive, and may have %d (%s)", what, id, alive, noun,
		most, q.key(what)).
		WithHint("outboard sandbox ls shows them and whether their host is there, outboard sandbox stop ends one " +
			"and keeps its files")
}

const lockQuotaSQL = `INSERT INTO quotas (name) VALUES (?) ON CONFLICT (name) DO UPDATE SET name = excluded.name`

// A session has one sandbox. Other rows of it are what it left behind, on hosts that may be down: they must not
// keep it, or others, from going on, so it counts once, and for itself not at all.
const countAlive = `SELECT count(DISTINCT CASE WHEN session = '' THEN id ELSE session END)`

const countEnvironmentSQL = countAlive +
	` FROM sandboxes WHERE environment = ? AND state IN ('creating', 'live', 'stopping') AND (session = '' OR session <> ?)`

const countOwnerSQL = countAlive +
	` FROM sandboxes WHERE owner = ? AND state IN ('creating', 'live', 'stopping') AND (session = '' OR session <> ?)`

const countPersonSQL = countAlive +
	` FROM sandboxes WHERE person = ? AND state IN ('creating', 'live', 'stopping') AND (session = '' OR session <> ?)`

// AddSandbox inserts a sandbox that is about to be made, if there is room for one more beside those of others:
// what a session has left behind does not count. Exhausted, with the limit's name, if not: of any number of
// callers at the same time, no more than there is room for succeed.
func (s *Store) AddSandbox(ctx context.Context, b outboard.Sandbox, q Quota) error {
	owner, countOwner := string(b.Owner), countOwnerSQL
	if b.Person != "" {
		owner, countOwner = string(b.Person), countPersonSQL
	}
	return s.update(ctx, "storing sandbox", func(t tx) error {
		for _, l := range []struct {
			what, id, count string
			most            int
		}{{"environment", string(b.Environment), countEnvironmentSQL, q.Environment}, {"owner", owner, countOwner,
			q.Owner}} {
			if l.most <= 0 || l.id == "" {
				continue
			}
			if _, err := t.exec(ctx, lockQuotaSQL, l.what+" "+l.id); err != nil {
				return err
			}
			n, err := collectTx(ctx, t, scanCount, l.count, l.id, string(b.Session))
			if err != nil {
				return err
			}
			if n[0] >= int64(l.most) {
				return q.full(l.what, l.id, n[0], l.most)
			}
		}
		return putSandbox(ctx, t, b)
	})
}

const sandboxSQL = `SELECT ` + sandboxCols + ` FROM sandboxes WHERE id = ?`

// Sandbox returns one row.
func (s *Store) Sandbox(ctx context.Context, id outboard.SandboxID) (outboard.Sandbox, error) {
	return one(ctx, s, "sandbox", id, scanSandbox, sandboxSQL, string(id))
}

// Sandboxes returns the rows of a host that are not destroyed, oldest first; host "" means all hosts, session ""
// all sessions.
func (s *Store) Sandboxes(ctx context.Context, host string, session outboard.SessionID) ([]outboard.Sandbox, error) {
	w := where{conds: []string{`state <> 'destroyed'`}}
	if host != "" {
		w.add(`host = ?`, host)
	}
	if session != "" {
		w.add(`session = ?`, string(session))
	}
	query := `SELECT ` + sandboxCols + ` FROM sandboxes` + w.String() + order("created_at, id", true)
	return collect(ctx, s, "listing sandboxes", scanSandbox, query, w.args...)
}

const sandboxHostsSQL = `SELECT DISTINCT host FROM sandboxes WHERE state <> 'destroyed'`

// SandboxHosts returns the hosts that have rows which are not destroyed.
func (s *Store) SandboxHosts(ctx context.Context) ([]string, error) {
	return collect(ctx, s, "listing hosts", scanText[string], sandboxHostsSQL)
}

const insertedCheckpointCols = `id, session, seq, call, parent, depth, digest, size, created_at, prior, host, durable_at`

const checkpointCols = insertedCheckpointCols + `, thinned_at`

const insertCheckpointSQL = `INSERT INTO checkpoints (` + insertedCheckpointCols + `)
	VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

// checkpointArgs are the values of insertCheckpointSQL.
func checkpointArgs(k *outboard.Checkpoint, session outboard.SessionID, seq int64) []any {
	return []any{string(k.ID), string(session), seq, string(k.Call), string(k.Parent), k.Depth, k.Delta.Digest,
		k.Delta.Size,
		micros(k.CreatedAt), string(k.Prior), k.Host, micros(k.DurableAt)}
}

func scanCheckpoint(sc scanner) (outboard.Checkpoint, error) {
	var k outboard.Checkpoint
	var created, durable, thinned int64
	err := sc.Scan(&k.ID, &k.Session, &k.Seq, &k.Call, &k.Parent, &k.Depth, &k.Delta.Digest, &k.Delta.Size, &created,
		&k.Prior, &k.Host,
		&durable, &thinned)
	k.CreatedAt, k.DurableAt = timeOf(created), timeOf(durable)
	if thinned > 0 {
		k.ThinnedAt = timeOf(thinned)
	}
	return k, err
}

const checkpointSQL = `SELECT ` + checkpointCols + ` FROM checkpoints WHERE id = ?`

// Checkpoint returns one row.
func (s *Store) Checkpoint(ctx context.Context, id outboard.CheckpointID) (outboard.Checkpoint, error) {
	return one(ctx, s, "checkpoint", id, scanCheckpoint, checkpointSQL, string(id))
}

const checkpointsSQL = `SELECT ` + checkpointCols +
	` FROM checkpoints WHERE session = ? AND seq <= ? ORDER BY seq, created_at`

// Checkpoints returns a session's checkpoints, oldest first. A fork has those of its ancestors from before it,
// under their names.
func (s *Store) Checkpoints(ctx context.Context, session outboard.SessionID) ([]outboard.Checkpoint, error) {
	l, err := s.lookup(ctx, session)
	if err != nil {
		return nil, err
	}
	var out []outboard.Checkpoint
	for _, p := range l.parts {
		more, err := collect(ctx, s, "listing checkpoints", scanCheckpoint, checkpointsSQL, string(p.session), p.upto)
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
	}
	return out, nil
}

const localCheckpointsSQL = `SELECT ` + checkpointCols +
	` FROM checkpoints WHERE host = ? AND host <> '' ORDER BY created_at, id LIMIT 1000`

// LocalCheckpoints returns the checkpoints that a host has still to make durable, oldest first, at most 1000.
func (s *Store) LocalCheckpoints(ctx context.Context, host string) ([]outboard.Checkpoint, error) {
	return collect(ctx, s, "listing checkpoints", scanCheckpoint, localCheckpointsSQL, host)
}

const settleCheckpointSQL = `UPDATE checkpoints SET host = '', parent = CASE WHEN parent = ? THEN parent ELSE '' END,
	digest = ?, size = ?, durable_at = ? WHERE id = ? AND host <> ''`

// SettleCheckpoint says that a host's checkpoint is durable as delta on top of parent ("" = delta is everything,
// whatever the row said so far), or, with a delta without a digest, that it never will be: its layers are gone
// or, where the delta has a size, it is larger than that. It changes a checkpoint once; later calls do nothing.
func (s *Store) SettleCheckpoint(ctx context.Context, id, parent outboard.CheckpointID, delta outboard.BlobRef,
	at time.Time) error {
	durable := int64(0)
	if delta.Digest != "" {
		durable = micros(at)
	}
	return s.update(ctx, "settling checkpoint", func(t tx) error {
		_, err := t.exec(ctx, settleCheckpointSQL, string(parent), delta.Digest, delta.Size, durable, string(id))
		return err
	})
}

// awaitEvery is how often AwaitDurable looks: what it waits for takes about that long.
const awaitEvery = 50 * time.Millisecond

// AwaitDurable returns a checkpoint once it is durable. Unavailable: it never will be, or ctx ended first.
func (s *Store) AwaitDurable(ctx context.Context, id outboard.CheckpointID) (outboard.Checkpoint, error) {
	tick := time.NewTicker(awaitEvery)
	defer tick.Stop()
	for {
		k, err := s.Checkpoint(ctx, id)
		if err != nil || k.Durable() {
			return k, err
		}
		if err := k.Lost(); err != nil {
			return k, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return k, outboard.Errorf(outboard.Unavailable, "checkpoint %s is not durable yet: host %s has it", id,
				k.Host)
		}
	}
}
