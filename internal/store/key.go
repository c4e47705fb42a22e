package store

import (
	"context"
	"time"

	"github.com/outboard-dev/outboard"
)

const (
	// loginGrace is how long a login that is over is kept: it may have answered an approval that is acted on
	// later, and its sign-in must not be repeated while the provider's token is young.
	loginGrace = 30 * 24 * time.Hour
	// loginsAtOnce is how many of them one statement deletes: it holds the writer.
	loginsAtOnce = 500
)

const keyCols = `id, name, hash, role, created_at, revoked_at, org, kind, person, scopes, environment, expires_at, maker, made_with`

func scanKey(sc scanner) (outboard.Key, error) {
	var k outboard.Key
	var created, revoked, expires int64
	var scopes string
	err := sc.Scan(&k.ID, &k.Name, &k.Hash, &k.Role, &created, &revoked, &k.Org, &k.Kind, &k.User, &scopes,
		&k.Environment, &expires, &k.Maker, &k.MadeWith)
	if err != nil {
		return k, err
	}
	k.CreatedAt, k.RevokedAt, k.ExpiresAt = timeOf(created), timeOf(revoked), timeOf(expires)
	return k, fromJSON(scopes, &k.Scopes)
}

const insertKeySQL = `INSERT INTO keys (` + keyCols + `) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

const lockMakerSQL = `UPDATE keys SET revoked_at = revoked_at WHERE id = ? AND revoked_at = 0`

// PutKey inserts a key. ErrDuplicate if its id or hash exists; Unauthenticated if the key that it is made with
// has been revoked: who ends that one and what was made with it would not see this one.
func (s *Store) PutKey(ctx context.Context, k outboard.Key) error {
	if k.Kind == "" {
		k.Kind = outboard.KeyAPI
	}
	return s.update(ctx, "storing key", func(t tx) error {
		if k.MadeWith != "" {
			n, err := t.exec(ctx, lockMakerSQL, string(k.MadeWith))
			if err != nil {
				return err
			}
			if n == 0 {
				return outboard.Errorf(outboard.Unauthenticated, "key %s has been revoked", k.MadeWith)
			}
		}
		_, err := t.exec(ctx, insertKeySQL, string(k.ID), k.Name, k.Hash, k.Role, micros(k.CreatedAt),
			micros(k.RevokedAt), orgText(k.Org),
			string(k.Kind), string(k.User), jsonText(k.Scopes), string(k.Environment), micros(k.ExpiresAt), k.Maker, string(k.MadeWith))
		if s.d.unique(err) {
			return ErrDuplicate
		}
		return err
	})
}

const keyByHashSQL = `SELECT ` + keyCols + ` FROM keys WHERE hash = ? AND revoked_at = 0`

// KeyByHash returns the living key with this hash. NotFound also for a revoked one; the error does not repeat
// the hash. Whether it is over is the caller's to look at.
func (s *Store) KeyByHash(ctx context.Context, hash string) (outboard.Key, error) {
	return one(ctx, s, "key", "with this secret", scanKey, keyByHashSQL, hash)
}

const keySQL = `SELECT ` + keyCols + ` FROM keys WHERE id = ?`

// Key returns a key by its id, revoked ones too.
func (s *Store) Key(ctx context.Context, id outboard.KeyID) (outboard.Key, error) {
	return one(ctx, s, "key", id, scanKey, keySQL, string(id))
}

// Keys returns one page of keys, newest first; p.IncludeArchived shows the revoked ones.
func (s *Store) Keys(ctx context.Context, p Page) ([]outboard.Key, error) {
	return s.keys(ctx, p, nil)
}

// KeysOf is Keys of a person and one key more, which may be of nobody.
func (s *Store) KeysOf(ctx context.Context, p Page, person outboard.UserID,
	key outboard.KeyID) ([]outboard.Key, error) {
	return s.keys(ctx, p,
		func(w *where) { w.add(`(id = ? OR person = ? AND person <> '')`, string(key), string(person)) })
}

func (s *Store) keys(ctx context.Context, p Page, narrow func(*where)) ([]outboard.Key, error) {
	w, err := s.list(ctx, "keys", p)
	if err != nil {
		return nil, err
	}
	if narrow != nil {
		narrow(&w)
	}
	if !p.IncludeArchived {
		w.add(`revoked_at = 0`)
	}
	query := `SELECT ` + keyCols + ` FROM keys` + w.String() + order("created_at, id", false) + ` LIMIT ?`
	return collect(ctx, s, "listing keys", scanKey, query, append(w.args, limitOr(p.Limit, defaultPage))...)
}

const madeWithSQL = `SELECT ` + keyCols + ` FROM keys WHERE made_with = ? AND revoked_at = 0 ORDER BY created_at, id`

// MadeWith returns the living keys that were made with a key, oldest first.
func (s *Store) MadeWith(ctx context.Context, id outboard.KeyID) ([]outboard.Key, error) {
	return collect(ctx, s, "listing keys", scanKey, madeWithSQL, string(id))
}

const operatorKeysSQL = `SELECT COUNT(*) FROM keys WHERE kind = 'operator' AND revoked_at = 0`

// OperatorKeys counts the living keys of who runs the server.
func (s *Store) OperatorKeys(ctx context.Context) (n int64, err error) {
	err = s.queryRow(ctx, operatorKeysSQL).Scan(&n)
	return n, s.fail("counting keys", err)
}

const livingOperatorKeysSQL = `SELECT ` + keyCols +
	` FROM keys WHERE kind = 'operator' AND revoked_at = 0 ORDER BY created_at, id`

// LivingOperatorKeys returns the living keys of the people who run the server, oldest first.
func (s *Store) LivingOperatorKeys(ctx context.Context) ([]outboard.Key, error) {
	return collect(ctx, s, "listing the operator's keys", scanKey, livingOperatorKeysSQL)
}

const revokeKeySQL = `UPDATE keys SET revoked_at = ? WHERE id = ? AND revoked_at = 0`

// RevokeKey ends a key at once; what it could be renewed with becomes a Withdrawal. Revoking twice keeps the
// first time.
func (s *Store) RevokeKey(ctx context.Context, id outboard.KeyID, at time.Time) (outboard.Key, error) {
	err := s.update(ctx, "revoking a key",
		func(t tx) error { return s.revokeKey(ctx, t, id, "the login was ended", at) })
	if err != nil {
		return outboard.Key{}, err
	}
	return s.Key(ctx, id)
}

func (s *Store) revokeKey(ctx context.Context, t tx, id outboard.KeyID, why string, at time.Time) error {
	if _, err := t.exec(ctx, revokeKeySQL, micros(at), string(id)); err != nil {
		return err
	}
	return s.withdraw(ctx, t, why, renewalOf, string(id))
}

// A login is kept while something still asks for it by its id: a grant that it has or gave and that is in force,
// or a living session of its person from its time, which a kill may name by it.
const tidyLoginsSQL = `DELETE FROM keys WHERE id IN (SELECT id FROM keys k WHERE kind = 'login' AND expires_at > 0 AND expires_at < ?
	AND NOT EXISTS (SELECT 1 FROM grants g WHERE (g.human = k.id OR g.approved_by = k.id) AND g.revoked_at = 0 AND g.expires_at > ?)
	AND NOT EXISTS (SELECT 1 FROM sessions s WHERE s.person = k.person AND s.deleted_at = 0 AND s.archived_at = 0
		AND s.created_at >= k.created_at AND s.created_at <= k.expires_at)
	ORDER BY expires_at LIMIT ?)`

// TidyLogins deletes the keys of people who signed in that were over at a time, but for those that something
// still names, and returns how many. What logins cannot be renewed with any more becomes withdrawals. Who held
// one is in the audit's record of the sign-in.
func (s *Store) TidyLogins(ctx context.Context, over time.Time) (n int64, err error) {
	err = s.update(ctx, "deleting logins that are over", func(t tx) (err error) {
		if err := s.withdraw(ctx, t, "the login cannot be renewed any more", renewalsOver,
			micros(s.now())); err != nil {
			return err
		}
		n, err = t.exec(ctx, tidyLoginsSQL, micros(over), micros(s.now()), loginsAtOnce)
		return err
	})
	return n, err
}
