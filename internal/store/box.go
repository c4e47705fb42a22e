package store

import (
	"context"
	"time"

	"github.com/outboard-dev/outboard"
)

const insertBoxSQL = `INSERT INTO boxes (id, host, state, machine, end_at, created_at, body, org, person) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`

// AddBox inserts a box. ErrDuplicate if its id exists.
func (s *Store) AddBox(ctx context.Context, b outboard.Box) error {
	return s.update(ctx, "storing box", func(t tx) error {
		_, err := t.exec(ctx, insertBoxSQL, string(b.ID), b.Host, string(b.State), string(b.Machine), micros(b.EndAt),
			micros(b.CreatedAt), mustJSON(b), orgText(b.Org),
			string(b.Person))
		if s.d.unique(err) {
			return ErrDuplicate
		}
		return err
	})
}

const boxCols = `body, org, person`

func scanBox(sc scanner) (outboard.Box, error) {
	var b outboard.Box
	var body string
	var org outboard.OrgID
	var person outboard.UserID
	if err := sc.Scan(&body, &org, &person); err != nil {
		return b, err
	}
	err := fromJSON(body, &b)
	b.Org, b.Person = org, person
	return b, err
}

const lockBoxSQL = `SELECT ` + boxCols + ` FROM boxes WHERE id = ?`

const updateBoxSQL = `UPDATE boxes SET state = ?, machine = ?, end_at = ?, body = ? WHERE id = ?`

// ChangeBox changes a box by a function of its newest row, which may run more than once, and returns the result.
// NotFound when it was deleted meanwhile; an error of change changes nothing.
func (s *Store) ChangeBox(ctx context.Context, id outboard.BoxID,
	change func(*outboard.Box) error) (outboard.Box, error) {
	var b outboard.Box
	err := s.update(ctx, "changing box", func(t tx) error {
		list, err := collectTx(ctx, t, scanBox, lockBoxSQL+s.d.locking(false), string(id))
		if err != nil {
			return err
		}
		if len(list) == 0 {
			return notFound("box", id)
		}
		b = list[0]
		if err := change(&b); err != nil {
			return err
		}
		b.Version++
		_, err = t.exec(ctx, updateBoxSQL, string(b.State), string(b.Machine), micros(b.EndAt), mustJSON(b), string(id))
		return err
	})
	return b, err
}

// Box returns one.
func (s *Store) Box(ctx context.Context, id outboard.BoxID) (outboard.Box, error) {
	return one(ctx, s, "box", id, scanBox, lockBoxSQL, string(id))
}

const boxOfSQL = `SELECT ` + boxCols + ` FROM boxes WHERE machine = ?`

// BoxOf returns the box whose machine this is.
func (s *Store) BoxOf(ctx context.Context, machine outboard.SandboxID) (outboard.Box, error) {
	return one(ctx, s, "box with machine", machine, scanBox, boxOfSQL, string(machine))
}

const boxesSQL = `SELECT ` + boxCols + ` FROM boxes ORDER BY created_at DESC, id DESC LIMIT ?`

// MaxBoxes bounds the boxes of one installation that a list shows: every one is a machine, or its files.
const MaxBoxes = 10_000

// Boxes returns the boxes, newest first.
func (s *Store) Boxes(ctx context.Context) ([]outboard.Box, error) {
	return collect(ctx, s, "listing boxes", scanBox, boxesSQL, MaxBoxes)
}

// BoxCount is how many boxes there are.
type BoxCount struct{ All, Running, OrgAll, OrgRunning int }

const countBoxesSQL = `SELECT COUNT(*), COALESCE(SUM(CASE WHEN state = 'running' THEN 1 ELSE 0 END), 0), COALESCE(SUM(CASE WHEN org = ? THEN 1 ELSE 0 END), 0),
	COALESCE(SUM(CASE WHEN org = ? AND state = 'running' THEN 1 ELSE 0 END), 0) FROM boxes`

// CountBoxes counts the boxes of the installation and those of an organization.
func (s *Store) CountBoxes(ctx context.Context, org outboard.OrgID) (n BoxCount, err error) {
	err = s.queryRow(ctx, countBoxesSQL, orgText(org), orgText(org)).Scan(&n.All, &n.Running, &n.OrgAll, &n.OrgRunning)
	return n, s.fail("counting boxes", err)
}

const dueBoxesSQL = `SELECT ` + boxCols +
	` FROM boxes WHERE host = ? AND state = 'running' AND end_at <= ? ORDER BY end_at LIMIT ?`

// DueBoxes returns running boxes of a host whose time is over, the longest first.
func (s *Store) DueBoxes(ctx context.Context, host string, now time.Time) ([]outboard.Box, error) {
	return collect(ctx, s, "listing due boxes", scanBox, dueBoxesSQL, host, micros(now), defaultPage)
}

const deleteBoxSQL = `DELETE FROM boxes WHERE id = ?`

// DeleteBox removes a box. NotFound if there is none.
func (s *Store) DeleteBox(ctx context.Context, id outboard.BoxID) error {
	return s.delete(ctx, "box", string(id), deleteBoxSQL)
}

const deleteDueBoxSQL = `DELETE FROM boxes WHERE id = ? AND state = 'running' AND end_at <= ?`

// DeleteDueBox removes a running box whose time is over. NotFound if there is none: it may have been given more time.
func (s *Store) DeleteDueBox(ctx context.Context, id outboard.BoxID, now time.Time) error {
	return s.update(ctx, "deleting box", func(t tx) error {
		n, err := t.exec(ctx, deleteDueBoxSQL, string(id), micros(now))
		if err == nil && n == 0 {
			err = notFound("due box", id)
		}
		return err
	})
}

// BoxVaultPrefix begins what the credential of a box has in the place of a vault's id; the box's id follows.
const BoxVaultPrefix = "box_"

// BoxCredential is a credential that was made for a box.
type BoxCredential struct {
	ID  outboard.CredentialID
	Box outboard.BoxID
	Org outboard.OrgID
}

const boxCredentialsSQL = `SELECT id, substr(vault, 5), org FROM credentials WHERE substr(vault, 1, 4) = 'box_' AND created_at < ? LIMIT ?`

// BoxCredentials returns credentials of boxes that were made before a time, whether or not the box is there.
func (s *Store) BoxCredentials(ctx context.Context, before time.Time) ([]BoxCredential, error) {
	return collect(ctx, s, "listing the credentials of boxes", func(sc scanner) (c BoxCredential, err error) {
		return c, sc.Scan(&c.ID, &c.Box, &c.Org)
	}, boxCredentialsSQL, micros(before), MaxBoxes)
}

const dropSnapshotSQL = `DELETE FROM box_snapshots WHERE org = ? AND name = ? AND name <> ''`

const insertSnapshotSQL = `INSERT INTO box_snapshots (id, name, created_at, body, org) VALUES (?, ?, ?, ?, ?)`

// PutSnapshot inserts a snapshot. One of the same name is replaced.
func (s *Store) PutSnapshot(ctx context.Context, n outboard.BoxSnapshot) error {
	return s.update(ctx, "storing snapshot", func(t tx) error {
		if _, err := t.exec(ctx, dropSnapshotSQL, orgText(n.Org), n.Name); err != nil {
			return err
		}
		_, err := t.exec(ctx, insertSnapshotSQL, string(n.ID), n.Name, micros(n.CreatedAt), mustJSON(n), orgText(n.Org))
		return err
	})
}

const snapshotSQL = `SELECT body, org FROM box_snapshots WHERE org = ? AND (id = ? OR (name = ? AND name <> ''))`

func scanSnapshot(sc scanner) (outboard.BoxSnapshot, error) {
	return scanIn(sc, func(n *outboard.BoxSnapshot) *outboard.OrgID { return &n.Org })
}

// Snapshot returns an organization's by its id or name.
func (s *Store) Snapshot(ctx context.Context, org outboard.OrgID, ref string) (outboard.BoxSnapshot, error) {
	return one(ctx, s, "snapshot", ref, scanSnapshot, snapshotSQL, orgText(org), ref, ref)
}

const snapshotsSQL = `SELECT body, org FROM box_snapshots WHERE org = ? ORDER BY created_at DESC, id DESC LIMIT ?`

// Snapshots returns an organization's, newest first.
func (s *Store) Snapshots(ctx context.Context, org outboard.OrgID) ([]outboard.BoxSnapshot, error) {
	return collect(ctx, s, "listing snapshots", scanSnapshot, snapshotsSQL, orgText(org), MaxBoxes)
}

const deleteSnapshotSQL = `DELETE FROM box_snapshots WHERE id = ?`

// DeleteSnapshot removes a snapshot. NotFound if there is none.
func (s *Store) DeleteSnapshot(ctx context.Context, id outboard.SnapshotID) error {
	return s.delete(ctx, "snapshot", string(id), deleteSnapshotSQL)
}
