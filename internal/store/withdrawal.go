package store

import (
	"context"
	"time"

	"github.com/outboard-dev/outboard"
)

// withdrawFor is how long an identity provider that does not answer is asked to take a token back: over a weekend.
const withdrawFor = 72 * time.Hour

// Withdrawal is what a login that has ended was renewed with, on its way back to the identity provider: sealed,
// so that this package cannot open it. It is there from the transaction that ended the login until
// EndWithdrawal.
type Withdrawal struct {
	Key    outboard.KeyID // the login, whose row may be gone
	Org    outboard.OrgID
	User   outboard.UserID
	Issuer string // it goes to nobody else
	Why    string // the login has ended
	Sealed outboard.Sealed
	Until  time.Time // it is given up then
	Tries  int       // how often it was taken, this time included
}

const withdrawalCols = `key, org, person, issuer, why, key_id, sealed, until, tries`

func scanWithdrawal(sc scanner) (Withdrawal, error) {
	var w Withdrawal
	var until int64
	err := sc.Scan(&w.Key, &w.Org, &w.User, &w.Issuer, &w.Why, &w.Sealed.Key, &w.Sealed.Data, &until, &w.Tries)
	w.Until = timeOf(until)
	return w, err
}

// What login_renewals has of some logins: of one, of a person's, of an organization's, of one if it has ended,
// and of all that have ended or cannot be renewed any more.
const (
	renewalOf    = ` FROM login_renewals WHERE key = ?`
	renewalsOf   = ` FROM login_renewals WHERE key IN (SELECT id FROM keys WHERE person = ?)`
	renewalsIn   = ` FROM login_renewals WHERE key IN (SELECT id FROM keys WHERE org = ?)`
	renewalEnded = ` FROM login_renewals WHERE key = ? AND ` + loginEnded
	renewalsOver = ` FROM login_renewals WHERE until < ? OR ` + loginEnded

	loginEnded = `EXISTS (SELECT 1 FROM keys LEFT JOIN users ON users.id = keys.person LEFT JOIN orgs ON orgs.id = keys.org
		WHERE keys.id = login_renewals.key AND (keys.revoked_at <> 0 OR users.removed_at > 0 OR orgs.archived_at > 0))`
)

// A login that was renewed while it ended leaves a newer token, and the provider has made the older one void.
const withdrawSQL = `INSERT INTO login_withdrawals (` + withdrawalCols + `, next_at)
	SELECT k.id, k.org, k.person, COALESCE(u.issuer, ''), ?, r.key_id, r.sealed, ?, 0, ? FROM login_renewals r JOIN keys k ON k.id = r.key
	LEFT JOIN users u ON u.id = k.person WHERE r.key IN (SELECT key`

const replaceWithdrawalSQL = `) ON CONFLICT (key) DO UPDATE SET key_id = excluded.key_id, sealed = excluded.sealed, until = excluded.until,
	next_at = excluded.next_at, tries = login_withdrawals.tries + 1`

// withdraw makes withdrawals of what some logins were renewed with, due at once. which is one of the above.
func (s *Store) withdraw(ctx context.Context, t tx, why, which string, args ...any) error {
	locked, err := collectTx(ctx, t, scanKeyID, `SELECT key`+which+s.d.locking(false), args...)
	if err != nil || len(locked) == 0 {
		return err
	}
	now := s.now()
	values := append([]any{why, micros(now.Add(withdrawFor)), micros(now)}, args...)
	if _, err := t.exec(ctx, withdrawSQL+which+replaceWithdrawalSQL, values...); err != nil {
		return err
	}
	_, err = t.exec(ctx, `DELETE`+which, args...)
	return err
}

func scanKeyID(sc scanner) (id outboard.KeyID, err error) { return id, sc.Scan(&id) }

const dueWithdrawalSQL = `SELECT key FROM login_withdrawals WHERE next_at <= ? AND (issuer = ? OR until <= ?) ORDER BY next_at, key LIMIT 1`

const takeWithdrawalSQL = `UPDATE login_withdrawals SET next_at = ?, tries = tries + 1 WHERE key = (`

// TakeWithdrawal takes one withdrawal that is due: one for an issuer, or one that is to be given up, whoever it
// is for. Until a time nobody else gets it. false: none is due.
func (s *Store) TakeWithdrawal(ctx context.Context, issuer string, now,
	until time.Time) (w Withdrawal, found bool, err error) {
	args := []any{micros(now), issuer, micros(now)}
	due, err := collect(ctx, s, "looking for tokens to give back", scanKeyID, dueWithdrawalSQL, args...)
	if err != nil || len(due) == 0 { // which costs no write
		return w, false, err
	}
	err = s.update(ctx, "taking a token to give back", func(t tx) error {
		got, err := collectTx(ctx, t, scanWithdrawal,
			takeWithdrawalSQL+dueWithdrawalSQL+s.d.locking(true)+`) RETURNING `+withdrawalCols, append([]any{micros(until)}, args...)...)
		if found = len(got) == 1; found {
			w = got[0]
		}
		return err
	})
	return w, found && err == nil, err
}

const setWithdrawalSQL = `UPDATE login_withdrawals SET next_at = ? WHERE key = ? AND tries = ?`

// SetWithdrawal says when the next attempt of what was taken is due. It does nothing if somebody else has taken
// it since.
func (s *Store) SetWithdrawal(ctx context.Context, w Withdrawal, next time.Time) error {
	return s.update(ctx, "storing when a token is given back", func(t tx) error {
		_, err := t.exec(ctx, setWithdrawalSQL, micros(next), string(w.Key), w.Tries)
		return err
	})
}

const endWithdrawalSQL = `DELETE FROM login_withdrawals WHERE key = ? AND tries = ?`

// EndWithdrawal forgets what was taken, and the token with it. It does nothing if somebody else has taken it since.
func (s *Store) EndWithdrawal(ctx context.Context, w Withdrawal) error {
	return s.update(ctx, "forgetting a token that was given back", func(t tx) error {
		_, err := t.exec(ctx, endWithdrawalSQL, string(w.Key), w.Tries)
		return err
	})
}

const withdrawalSQL = `SELECT ` + withdrawalCols + ` FROM login_withdrawals WHERE key = ?`

// Withdrawal returns that of a login; NotFound: nothing is on its way.
func (s *Store) Withdrawal(ctx context.Context, id outboard.KeyID) (Withdrawal, error) {
	return one(ctx, s, "token on its way back of login", id, scanWithdrawal, withdrawalSQL, string(id))
}

const takeOneWithdrawalSQL = `UPDATE login_withdrawals SET next_at = ?, tries = tries + 1 WHERE key = ? AND next_at <= ? RETURNING ` + withdrawalCols

// EndLogin is RevokeKey for a login, and takes what it was renewed with in the same transaction: until a time
// nobody else gets it. false: there is nothing to give back, or somebody else is at it. why is for the record.
func (s *Store) EndLogin(ctx context.Context, id outboard.KeyID, why string, at,
	until time.Time) (k outboard.Key, w Withdrawal, found bool, err error) {
	err = s.update(ctx, "ending a login", func(t tx) error {
		if err := s.revokeKey(ctx, t, id, why, at); err != nil {
			return err
		}
		got, err := collectTx(ctx, t, scanWithdrawal, takeOneWithdrawalSQL, micros(until), string(id), micros(s.now()))
		if found = len(got) == 1; found {
			w = got[0]
		}
		return err
	})
	if err == nil {
		k, err = s.Key(ctx, id)
	}
	return k, w, found && err == nil, err
}
