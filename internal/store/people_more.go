package store

import (
	"context"

	"github.com/outboard-dev/outboard"
)

const changeUserSQL = `UPDATE users SET name = ?, role = ?, removed_at = ?, issuer = CASE ? WHEN '' THEN '' ELSE issuer END,
	subject = CASE ? WHEN '' THEN '' ELSE subject END WHERE id = ?`

const bindUserSQL = `UPDATE users SET issuer = ?, subject = ? WHERE id = ? AND subject = ''`

const revokeKeysOfSQL = `UPDATE keys SET revoked_at = ? WHERE person = ? AND revoked_at = 0`

const revokeRightsOfSQL = `UPDATE grants SET revoked_at = ? WHERE revoked_at = 0 AND (human IN (SELECT id FROM keys WHERE person = ?)
	OR approved_by IN (SELECT id FROM keys WHERE person = ?))`

const closeApprovalsOfSQL = `UPDATE approvals SET state = 'closed' WHERE state = 'pending' AND session IN (SELECT id FROM sessions WHERE person = ?)`

// ChangeUser stores a person's name, role and removal. With ends everything that they hold ends in the same transaction: their keys, SSH keys,
// the grants they have or gave, and the approvals their sessions wait for; what their logins could be renewed with becomes withdrawals. It
// returns their sessions that live.
func (s *Store) ChangeUser(ctx context.Context, u outboard.User, ends bool) (sessions []outboard.SessionID, err error) {
	now := micros(s.now())
	err = s.update(ctx, "changing a user", func(t tx) error {
		n, err := t.exec(ctx, changeUserSQL, u.Name, u.Role, micros(u.RemovedAt), u.Subject, u.Subject, string(u.ID))
		if err == nil && n == 0 {
			err = notFound("user", u.ID)
		}
		if err != nil || !ends {
			return err
		}
		id := string(u.ID)
		if _, err := t.exec(ctx, revokeRightsOfSQL, now, id, id); err != nil {
			return err
		}
		if _, err := t.exec(ctx, revokeKeysOfSQL, now, id); err != nil {
			return err
		}
		if _, err := t.exec(ctx, revokeSSHKeysOfSQL, now, id); err != nil {
			return err
		}
		why := "the person has less rights"
		if !u.RemovedAt.IsZero() {
			why = "the person was removed"
		}
		if err := s.withdraw(ctx, t, why, renewalsOf, id); err != nil {
			return err
		}
		if _, err := t.exec(ctx, closeApprovalsOfSQL, id); err != nil {
			return err
		}
		sessions, err = collectTx(ctx, t, scanSessionID, sessionsOfSQL, id)
		return err
	})
	return sessions, err
}

const sessionsOfSQL = `SELECT id FROM sessions WHERE person = ? AND person <> '' AND deleted_at = 0 AND archived_at = 0`

func scanSessionID(sc scanner) (id outboard.SessionID, err error) { return id, sc.Scan(&id) }

// BindUser makes an identity of an identity provider the person's, unless they have one. ErrDuplicate if it is another's.
func (s *Store) BindUser(ctx context.Context, id outboard.UserID, issuer, subject string) error {
	return s.update(ctx, "binding a user", func(t tx) error {
		n, err := t.exec(ctx, bindUserSQL, issuer, subject, string(id))
		if s.d.unique(err) || err == nil && n == 0 {
			return ErrDuplicate
		}
		return err
	})
}

const revocationsSQL = `SELECT (SELECT COALESCE(MAX(revoked_at), 0) + COUNT(*) FROM keys WHERE revoked_at <> 0)
	+ (SELECT COUNT(*) FROM ssh_keys WHERE revoked_at <> 0)`

// Revocations is a number that changes whenever somebody loses their key, one of SSH too, and a look at it is cheap. It is no plain count:
// one that is deleted while another is revoked would leave that as it was. Rows of SSH keys are never deleted.
func (s *Store) Revocations(ctx context.Context) (n int64, err error) {
	err = s.queryRow(ctx, revocationsSQL).Scan(&n)
	return n, s.fail("looking for revoked keys", err)
}

const revokeOrgKeysSQL = `UPDATE keys SET revoked_at = ? WHERE org = ? AND revoked_at = 0`

// Giver implements policy.Source. A key that is over or signed out takes back no grant; one that was revoked, or a person who was
// removed, does.
func (s *Store) Giver(ctx context.Context, id outboard.KeyID) (outboard.Caller, error) {
	k, err := s.Key(ctx, id)
	if err != nil {
		return outboard.Caller{}, err
	}
	var u outboard.User
	if k.User != "" {
		if u, err = s.User(ctx, k.User); err != nil {
			return outboard.Caller{}, err
		}
	}
	if !u.RemovedAt.IsZero() || !k.RevokedAt.IsZero() && k.Kind != outboard.KeyLogin {
		return outboard.Caller{}, outboard.Errorf(outboard.Denied, "key %s has no say any more", id)
	}
	return k.Caller(u), nil
}

// Holder implements policy.Source: whom a session acts for, as they are now. A machine's key is a user without an address.
func (s *Store) Holder(ctx context.Context, o outboard.Owner) (outboard.User, error) {
	if o.User != "" {
		return s.User(ctx, o.User)
	}
	k, err := s.Key(ctx, o.Key)
	if outboard.KindOf(err) == outboard.NotFound && err != nil {
		return outboard.User{Org: o.Org}, nil // of a session that is older than its key's row, or imported
	}
	return outboard.User{Org: k.Org, Role: k.Role, Name: k.Name}, err
}
