package store

import (
	"context"
	"time"

	"github.com/outboard-dev/outboard"
)

const sshKeyCols = `id, org, person, holder, name, public, fingerprint, role, scopes, created_at, expires_at, revoked_at`

func scanSSHKey(sc scanner) (outboard.SSHKey, error) {
	var k outboard.SSHKey
	var created, expires, revoked int64
	var scopes string
	err := sc.Scan(&k.ID, &k.Org, &k.User, &k.Key, &k.Name, &k.Public, &k.Fingerprint, &k.Role, &scopes, &created,
		&expires, &revoked)
	if err != nil {
		return k, err
	}
	k.CreatedAt, k.ExpiresAt, k.RevokedAt = timeOf(created), timeOf(expires), timeOf(revoked)
	return k, fromJSON(scopes, &k.Scopes)
}

const insertSSHKeySQL = `INSERT INTO ssh_keys (` + sshKeyCols + `) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

// AddSSHKey inserts a public key. ErrDuplicate if its holder has it already.
func (s *Store) AddSSHKey(ctx context.Context, k outboard.SSHKey) error {
	return s.update(ctx, "storing an SSH key", func(t tx) error {
		_, err := t.exec(ctx, insertSSHKeySQL, string(k.ID), orgText(k.Org), string(k.User), string(k.Key), k.Name,
			k.Public, k.Fingerprint,
			k.Role, jsonText(k.Scopes), micros(k.CreatedAt), micros(k.ExpiresAt), micros(k.RevokedAt))
		if s.d.unique(err) {
			return ErrDuplicate
		}
		return err
	})
}

const sshKeySQL = `SELECT ` + sshKeyCols + ` FROM ssh_keys WHERE id = ?`

// SSHKey returns a public key by its id, revoked ones too.
func (s *Store) SSHKey(ctx context.Context, id outboard.SSHKeyID) (outboard.SSHKey, error) {
	return one(ctx, s, "SSH key", id, scanSSHKey, sshKeySQL, string(id))
}

// MaxSSHHolders bounds the holders of one public key that are looked at when somebody shows it.
const MaxSSHHolders = 100

const sshKeysBySQL = `SELECT ` + sshKeyCols +
	` FROM ssh_keys WHERE org = ? AND fingerprint = ? AND revoked_at = 0 ORDER BY created_at, id LIMIT ?`

// SSHKeysBy returns the rows of an organization with a public key that are not revoked, oldest first. Whether
// one is over is the caller's to look at.
func (s *Store) SSHKeysBy(ctx context.Context, org outboard.OrgID, fingerprint string) ([]outboard.SSHKey, error) {
	return collect(ctx, s, "reading SSH keys", scanSSHKey, sshKeysBySQL, orgText(org), fingerprint, MaxSSHHolders)
}

// SSHKeys returns one page of public keys, newest first; p.IncludeArchived shows the revoked ones.
func (s *Store) SSHKeys(ctx context.Context, p Page) ([]outboard.SSHKey, error) {
	return s.sshKeys(ctx, p, nil)
}

// SSHKeysOf is SSHKeys of a person, and of the holder of a key.
func (s *Store) SSHKeysOf(ctx context.Context, p Page, person outboard.UserID,
	key outboard.KeyID) ([]outboard.SSHKey, error) {
	return s.sshKeys(ctx, p, func(w *where) {
		w.add(`(holder = ? AND holder <> '' OR person = ? AND person <> '')`, string(key), string(person))
	})
}

func (s *Store) sshKeys(ctx context.Context, p Page, narrow func(*where)) ([]outboard.SSHKey, error) {
	w, err := s.list(ctx, "ssh_keys", p)
	if err != nil {
		return nil, err
	}
	if narrow != nil {
		narrow(&w)
	}
	if !p.IncludeArchived {
		w.add(`revoked_at = 0`)
	}
	query := `SELECT ` + sshKeyCols + ` FROM ssh_keys` + w.String() + order("created_at, id", false) + ` LIMIT ?`
	return collect(ctx, s, "listing SSH keys", scanSSHKey, query, append(w.args, limitOr(p.Limit, defaultPage))...)
}

const countSSHKeysSQL = `SELECT COUNT(*) FROM ssh_keys WHERE org = ? AND revoked_at = 0 AND person = ? AND holder = ?`

// CountSSHKeys counts the public keys of one holder that are not revoked.
func (s *Store) CountSSHKeys(ctx context.Context, k outboard.SSHKey) (n int, err error) {
	err = s.queryRow(ctx, countSSHKeysSQL, orgText(k.Org), string(k.User), string(k.Key)).Scan(&n)
	return n, s.fail("counting SSH keys", err)
}

const revokeSSHKeySQL = `UPDATE ssh_keys SET revoked_at = ? WHERE id = ? AND revoked_at = 0`

// RevokeSSHKey ends a public key at once. Revoking twice keeps the first time.
func (s *Store) RevokeSSHKey(ctx context.Context, id outboard.SSHKeyID, at time.Time) (outboard.SSHKey, error) {
	err := s.update(ctx, "revoking an SSH key", func(t tx) error {
		_, err := t.exec(ctx, revokeSSHKeySQL, micros(at), string(id))
		return err
	})
	if err != nil {
		return outboard.SSHKey{}, err
	}
	return s.SSHKey(ctx, id)
}

const (
	revokeSSHKeysOfSQL  = `UPDATE ssh_keys SET revoked_at = ? WHERE person = ? AND person <> '' AND revoked_at = 0`
	revokeSSHKeysOrgSQL = `UPDATE ssh_keys SET revoked_at = ? WHERE org = ? AND revoked_at = 0`
)
