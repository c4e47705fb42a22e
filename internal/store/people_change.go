package store

import (
	"context"
	"slices"

	"github.com/outboard-dev/outboard"
)

const changeUserSQL = `UPDATE users SET name = ?, role = ?, removed_at = ?, issuer = CASE ? WHEN '' THEN '' ELSE issuer END,
	subject = CASE ? WHEN '' THEN '' ELSE subject END WHERE id = ?`

const bindUserSQL = `UPDATE users SET issuer = ?, subject = ? WHERE id = ? AND subject = ''`

const revokeKeysOfSQL = `UPDATE keys SET revoked_at = ? WHERE person = ? AND revoked_at = 0`

// What they made for programs and for others ends with them, for they have seen its secret: all of it, or, of
// somebody who is only demoted, what may more than they may now. Their own keys are not among it. The keys
// themselves end last: the other statements look for those in force.
const madeBy = `SELECT id FROM keys WHERE maker = ? AND person <> ? AND revoked_at = 0 AND role IN (?, ?, ?)`

const revokeMadeSQL = `UPDATE keys SET revoked_at = ? WHERE id IN (` + madeBy + `)`

const revokeMadeSSHKeysSQL = `UPDATE ssh_keys SET revoked_at = ? WHERE revoked_at = 0 AND holder IN (` + madeBy + `)`

const revokeMadeRightsSQL = `UPDATE grants SET revoked_at = ? WHERE revoked_at = 0 AND (human IN (` + madeBy +
	`) OR approved_by IN (` + madeBy + `))`

// What the sessions of others wait for stays: those act for them, whatever key it was.
const closeMadeApprovalsSQL = `UPDATE approvals SET state = 'closed' WHERE state = 'pending' AND owner IN (` + madeBy +
	` AND person = '')`

const revokeRightsOfSQL = `UPDATE grants SET revoked_at = ? WHERE revoked_at = 0 AND (human = ? OR human IN (SELECT id FROM keys WHERE person = ?)
	OR approved_by IN (SELECT id FROM keys WHERE person = ?))`

const closeApprovalsOfSQL = `UPDATE approvals SET state = 'closed' WHERE state = 'pending' AND session IN (SELECT id FROM sessions WHERE person = ?)`

// ChangeUser stores a person's name, role and removal. With ends everything that they hold ends in the same
// transaction: their keys, SSH keys, the grants they have or gave, and the approvals their sessions wait for;
// what their logins could be renewed with becomes withdrawals. So do the keys that they made for programs and
// for others; of somebody who was not removed, those of a higher role than theirs. It returns their sessions
// that live.
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
		why := "the person has less rights"
		if !u.RemovedAt.IsZero() {
			why = "the person was removed"
		}
		id := string(u.ID)
		if err := s.endKeysOf(ctx, t, id, why, now); err != nil {
			return err
		}
		if err := endMade(ctx, t, u, now); err != nil {
			return err
		}
		if _, err := t.exec(ctx, closeApprovalsOfSQL, id); err != nil {
			return err
		}
		sessions, err = collectTx(ctx, t, scanSessionID, sessionsOfSQL, id)
		return err
	})
	if err != nil || !ends {
		return sessions, err
	}
	programs, err := collect(ctx, s, "listing sessions of keys that have ended", scanSessionID, sessionsOfMadeSQL,
		orgText(u.Org), string(u.ID), string(u.ID), now)
	return append(sessions, programs...), err
}

// EndKeysOf ends a person's keys, SSH keys and the grants they have or gave; what their logins could be renewed
// with becomes withdrawals. They stay a member and can sign in again.
func (s *Store) EndKeysOf(ctx context.Context, id outboard.UserID) error {
	return s.update(ctx, "ending the keys of a user", func(t tx) error {
		return s.endKeysOf(ctx, t, string(id), "the kill switch has ended what the person held", micros(s.now()))
	})
}

func (s *Store) endKeysOf(ctx context.Context, t tx, id, why string, now int64) error {
	if _, err := t.exec(ctx, revokeRightsOfSQL, now, id, id, id); err != nil {
		return err
	}
	if _, err := t.exec(ctx, revokeKeysOfSQL, now, id); err != nil {
		return err
	}
	if _, err := t.exec(ctx, revokeSSHKeysOfSQL, now, id); err != nil {
		return err
	}
	return s.withdraw(ctx, t, why, renewalsOf, id)
}

// The key that a session acts for is in its configuration alone. It is looked for after the change, which holds
// the writer.
const sessionsOfMadeSQL = `SELECT s.id FROM sessions AS s JOIN session_configs AS c ON c.session = s.num WHERE s.org = ? AND s.person = '' AND s.deleted_at = 0
	AND s.archived_at = 0 AND EXISTS (SELECT 1 FROM keys AS k WHERE k.maker = ? AND k.person <> ? AND k.revoked_at = ? AND c.config LIKE '%"key":"' || k.id || '"%')`

// endMade ends the keys that a person made for programs and for others, and what those hold.
func endMade(ctx context.Context, t tx, u outboard.User, now int64) error {
	made := []any{string(u.ID), string(u.ID)}
	for _, role := range outboard.Roles {
		if u.RemovedAt.IsZero() && outboard.AtLeast(u.Role, role) {
			role = "" // of no key
		}
		made = append(made, role)
	}
	at := []any{now}
	if _, err := t.exec(ctx, revokeMadeRightsSQL, slices.Concat(at, made, made)...); err != nil {
		return err
	}
	if _, err := t.exec(ctx, revokeMadeSSHKeysSQL, slices.Concat(at, made)...); err != nil {
		return err
	}
	if _, err := t.exec(ctx, closeMadeApprovalsSQL, made...); err != nil {
		return err
	}
	_, err := t.exec(ctx, revokeMadeSQL, slices.Concat(at, made)...)
	return err
}

const sessionsOfSQL = `SELECT id FROM sessions WHERE person = ? AND person <> '' AND deleted_at = 0 AND archived_at = 0`

func scanSessionID(sc scanner) (id outboard.SessionID, err error) { return id, sc.Scan(&id) }

// BindUser makes an identity of an identity provider the person's, unless they have one. ErrDuplicate if it is
// another's of the same organization.
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

// Revocations is a number that changes whenever somebody loses their key, one of SSH too, and a look at it is
// cheap. It is no plain count: one that is deleted while another is revoked would leave that as it was. Rows of
// SSH keys are never deleted.
func (s *Store) Revocations(ctx context.Context) (n int64, err error) {
	err = s.queryRow(ctx, revocationsSQL).Scan(&n)
	return n, s.fail("looking for revoked keys", err)
}

const revokeOrgKeysSQL = `UPDATE keys SET revoked_at = ? WHERE org = ? AND revoked_at = 0`

// Giver implements policy.Source. A key that is over or signed out takes back no grant; one that was revoked, or
// a person who was removed, does.
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

// Holder implements policy.Source: whom a session or a box acts for, as they are now. A machine's key is a user
// without an address, and is gone with who made it. In an organization that has ended everybody is.
func (s *Store) Holder(ctx context.Context, o outboard.Owner) (outboard.User, error) {
	u, err := s.holder(ctx, o)
	// the default one cannot end
	if err != nil || o.Org == "" || o.Org == outboard.DefaultOrg || !u.RemovedAt.IsZero() {
		return u, err
	}
	org, err := s.Org(ctx, string(o.Org))
	if outboard.KindOf(err) == outboard.NotFound && err != nil {
		return u, nil
	}
	u.RemovedAt = org.ArchivedAt
	return u, err
}

func (s *Store) holder(ctx context.Context, o outboard.Owner) (outboard.User, error) {
	if o.User != "" {
		return s.User(ctx, o.User)
	}
	k, err := s.Key(ctx, o.Key)
	if outboard.KindOf(err) == outboard.NotFound && err != nil {
		return outboard.User{Org: o.Org}, nil // of a session that is older than its key's row, or imported
	}
	u := outboard.User{Org: k.Org, Role: k.Role, Name: k.Name}
	for _, id := range []string{string(k.User), k.Maker} { // boxes name the key alone
		if err != nil || !u.RemovedAt.IsZero() || !outboard.ValidID(outboard.PrefixUser, id) {
			continue
		}
		var person outboard.User
		person, err = s.User(ctx, outboard.UserID(id))
		if outboard.KindOf(err) == outboard.NotFound && err != nil {
			err = nil // rows of people stay: there was never one to remove
		}
		u.RemovedAt = person.RemovedAt
	}
	return u, err
}
