package store

import (
	"context"
	"time"

	"github.com/outboard-dev/outboard"
)

// LoginRenewal is what a login is renewed with: sealed, so that this package cannot open it.
type LoginRenewal struct {
	Key    outboard.KeyID
	Until  time.Time // no renewal reaches further
	Sealed outboard.Sealed
}

const lockKeySQL = `SELECT id FROM keys WHERE id = ?`

const putRenewalSQL = `INSERT INTO login_renewals (key, until, key_id, sealed, claimed) VALUES (?, ?, ?, ?, 0)
	ON CONFLICT (key) DO UPDATE SET key_id = excluded.key_id, sealed = excluded.sealed`

// PutLoginRenewal stores it, or its new value; Until stays what it was at first, and so does who is at it. That
// of a login which has ended meanwhile becomes a Withdrawal at once. ErrRotated: it is sealed under a key that
// is no more, and must be sealed anew. NotFound if there is no such login.
func (s *Store) PutLoginRenewal(ctx context.Context, r LoginRenewal) error {
	return s.update(ctx, "storing what a login is renewed with", func(t tx) error {
		// it ends before or after
		there, err := collectTx(ctx, t, scanKeyID, lockKeySQL+s.d.locking(false), string(r.Key))
		if err != nil {
			return err
		}
		if len(there) == 0 {
			return notFound("login", r.Key)
		}
		if err := underKey(ctx, t, r.Key, r.Sealed); err != nil {
			return err
		}
		if _, err := t.exec(ctx, putRenewalSQL, string(r.Key), micros(r.Until), r.Sealed.Key,
			append([]byte{}, r.Sealed.Data...)); err != nil {
			return err
		}
		return s.withdraw(ctx, t, "the login had ended", renewalEnded, string(r.Key))
	})
}

func scanRenewal(sc scanner) (LoginRenewal, error) {
	var r LoginRenewal
	var until int64
	err := sc.Scan(&r.Key, &until, &r.Sealed.Key, &r.Sealed.Data)
	r.Until = timeOf(until)
	return r, err
}

const renewalSQL = `SELECT key, until, key_id, sealed FROM login_renewals WHERE key = ?`

// LoginRenewal returns it; NotFound for a login that cannot be renewed.
func (s *Store) LoginRenewal(ctx context.Context, id outboard.KeyID) (LoginRenewal, error) {
	return one(ctx, s, "renewal of login", id, scanRenewal, renewalSQL, string(id))
}

const claimLoginSQL = `UPDATE login_renewals SET claimed = ? WHERE key = ? AND claimed < ?`

// ClaimLoginRenewal reports whether the caller is the one who may renew a login, until a time. A provider may
// take a token that is used twice for a stolen one.
func (s *Store) ClaimLoginRenewal(ctx context.Context, id outboard.KeyID, now, until time.Time) (won bool, err error) {
	err = s.update(ctx, "claiming the renewal of a login", func(t tx) error {
		n, err := t.exec(ctx, claimLoginSQL, micros(until), string(id), micros(now))
		won = n == 1
		return err
	})
	return won, err
}

const releaseLoginSQL = `UPDATE login_renewals SET claimed = 0 WHERE key = ?`

// ReleaseLoginRenewal lets the next one try.
func (s *Store) ReleaseLoginRenewal(ctx context.Context, id outboard.KeyID) error {
	return s.update(ctx, "releasing the renewal of a login", func(t tx) error {
		_, err := t.exec(ctx, releaseLoginSQL, string(id))
		return err
	})
}

const extendLoginSQL = `UPDATE keys SET expires_at = ? WHERE id = ? AND kind = 'login' AND revoked_at = 0`

// ExtendLogin moves the end of a login. NotFound if it was revoked meanwhile.
func (s *Store) ExtendLogin(ctx context.Context, id outboard.KeyID, until time.Time) (outboard.Key, error) {
	var n int64
	err := s.update(ctx, "renewing a login", func(t tx) (err error) {
		n, err = t.exec(ctx, extendLoginSQL, micros(until), string(id))
		return err
	})
	if err == nil && n == 0 {
		err = outboard.Errorf(outboard.NotFound, "login %q has ended", id)
	}
	if err != nil {
		return outboard.Key{}, err
	}
	return s.Key(ctx, id)
}
