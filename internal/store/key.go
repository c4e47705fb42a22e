package store

import (
	"context"

	"github.com/outboard-dev/outboard"
)

const keyCols = `id, name, hash, role, created_at, revoked_at`

func scanKey(sc scanner) (outboard.Key, error) {
	var k outboard.Key
	var created, revoked int64
	err := sc.Scan(&k.ID, &k.Name, &k.Hash, &k.Role, &created, &revoked)
	k.CreatedAt, k.RevokedAt = timeOf(created), timeOf(revoked)
	return k, err
}

const insertKeySQL = `INSERT INTO keys (` + keyCols + `) VALUES (?, ?, ?, ?, ?, ?)`

// PutKey inserts a key. ErrDuplicate if its id or hash exists.
func (s *Store) PutKey(ctx context.Context, k outboard.Key) error {
	return s.update(ctx, "storing key", func(t tx) error {
		_, err := t.exec(ctx, insertKeySQL, string(k.ID), k.Name, k.Hash, k.Role, micros(k.CreatedAt), micros(k.RevokedAt))
		if s.d.unique(err) {
			return ErrDuplicate
		}
		return err
	})
}

const keyByHashSQL = `SELECT ` + keyCols + ` FROM keys WHERE hash = ? AND revoked_at = 0`

// KeyByHash returns the live key with this hash. NotFound also for a revoked one; the error does not repeat the hash.
func (s *Store) KeyByHash(ctx context.Context, hash string) (outboard.Key, error) {
	return one(ctx, s, "key", "with this secret", scanKey, keyByHashSQL, hash)
}

const keySQL = `SELECT ` + keyCols + ` FROM keys WHERE id = ?`

// Key returns a key by its id, revoked ones too.
func (s *Store) Key(ctx context.Context, id outboard.KeyID) (outboard.Key, error) {
	return one(ctx, s, "key", id, scanKey, keySQL, string(id))
}

const keysSQL = `SELECT ` + keyCols + ` FROM keys ORDER BY created_at, id`

// Keys returns all keys.
func (s *Store) Keys(ctx context.Context) ([]outboard.Key, error) {
	return collect(ctx, s, "listing keys", scanKey, keysSQL)
}
