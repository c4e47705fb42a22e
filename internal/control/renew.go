package control

import (
	"cmp"
	"context"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/login"
	"github.com/outboard-dev/outboard/internal/store"
)

// A login is renewed by asking the identity provider, with the refresh token it gave at the sign-in, whether the
// person is still there. That token is sealed in the vault and used by the server only: who signed in never has
// it. A provider that says no ends the login at once, and so does one that names somebody else, or whom no rule
// lets in any more.

const (
	// renewPatience bounds one renewal, which goes on without whoever asked: a token that was used and not
	// stored would be lost.
	renewPatience = 30 * time.Second
	// renewEvery is how often somebody looks whether another process is done with the same renewal.
	renewEvery = 250 * time.Millisecond
)

// loginLasts is how long a login lasts, and a renewal of it.
func (c *Control) loginLasts() time.Duration {
	if c.login.Lasts <= 0 {
		return defaultLogin
	}
	return min(c.login.Lasts, MaxLogin)
}

// keepRenewal stores what a login is renewed with. Without it the login is as good as others, only not for longer.
func (c *Control) keepRenewal(ctx context.Context, k outboard.Key, with outboard.Secret) outboard.Key {
	if with.IsZero() || c.login.Renew <= 0 || c.vault == nil {
		return k
	}
	r := store.LoginRenewal{Key: k.ID, Until: k.CreatedAt.Add(min(c.login.Renew, MaxLogin))}
	if err := c.putRenewal(ctx, k.Org, r, with); err != nil {
		c.log.Warn("a login cannot be renewed", "key", k.ID, "err", err)
		return k
	}
	return c.renewAfter(k, r.Until)
}

// putRenewal seals and stores what a login is renewed with.
func (c *Control) putRenewal(ctx context.Context, org outboard.OrgID, r store.LoginRenewal,
	with outboard.Secret) error {
	return c.vault.For(org).KeepValue(ctx, store.LoginUse(r.Key), with, func(s outboard.Sealed) error {
		r.Sealed = s
		return c.store.PutLoginRenewal(ctx, r)
	})
}

// renewAfter says when a login that can be renewed until a time should be: half its time before its end, unless
// nothing is gained by it.
func (c *Control) renewAfter(k outboard.Key, until time.Time) outboard.Key {
	if k.ExpiresAt.Before(until) {
		k.RenewAfter = k.ExpiresAt.Add(-c.loginLasts() / 2)
	}
	return k
}

// RenewLogin moves the end of the login with a secret, which may be over already. It needs no caller: the secret
// is one. Who asks early is told what is there. Unauthenticated: they must sign in again.
func (c *Control) RenewLogin(ctx context.Context, secret string) (outboard.User, outboard.Key, error) {
	p, err := c.provider()
	if err != nil {
		return outboard.User{}, outboard.Key{}, err
	}
	for again := time.NewTicker(renewEvery); ; {
		d, err := c.dueLogin(ctx, secret)
		if err != nil || !d.due {
			return d.user, d.key, err
		}
		now := c.clock()
		won, err := c.store.ClaimLoginRenewal(ctx, d.key.ID, now, now.Add(renewPatience))
		if err != nil {
			return d.user, d.key, err
		}
		if won {
			return c.renewClaimed(ctx, p, d.key.ID, secret)
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return d.user, d.key, outboard.Errorf(outboard.Canceled, "waiting for a renewal: %w", context.Cause(ctx))
		}
	}
}

// loginRenewal is what a renewal of a login begins with.
type loginRenewal struct {
	user outboard.User
	key  outboard.Key
	with store.LoginRenewal
	due  bool // else it is early
}

// dueLogin returns the login with a secret, and whether it is due to be renewed.
func (c *Control) dueLogin(ctx context.Context, secret string) (d loginRenewal, err error) {
	if d.key, d.user, err = c.loginOf(ctx, secret); err != nil {
		return d, err
	}
	d.with, err = c.store.LoginRenewal(ctx, d.key.ID)
	now := c.clock()
	switch off := c.login.Renew <= 0; {
	case off && now.Before(d.key.ExpiresAt): // it was made before that was turned off
		return d, nil
	case off:
		return d, signInAgain("logins are not renewed here any more")
	case outboard.KindOf(err) == outboard.NotFound && err != nil, err == nil && !now.Before(d.with.Until):
		return d, signInAgain("your login cannot be renewed any more")
	case err != nil:
		return d, wrapLookup("login", string(d.key.ID), err)
	}
	d.key = c.renewAfter(d.key, d.with.Until)
	d.due = !d.key.ExpiresAt.After(now) || !d.key.RenewAfter.IsZero() && !now.Before(d.key.RenewAfter)
	return d, nil
}

// renewClaimed is for whoever has claimed the renewal of a login. What was read before the claim may be older
// than a renewal that somebody else has made: then the login is not due any more, and what it was renewed with
// has been used.
func (c *Control) renewClaimed(ctx context.Context, p *login.Provider, id outboard.KeyID,
	secret string) (outboard.User, outboard.Key, error) {
	d, err := c.dueLogin(ctx, secret)
	if err == nil && d.due {
		return c.renew(ctx, p, d.user, d.key, d.with)
	}
	if failed := c.store.ReleaseLoginRenewal(context.WithoutCancel(ctx), id); failed != nil {
		c.log.Warn("the next renewal of a login has to wait", "key", id, "err", failed)
	}
	return d.user, d.key, err
}

func signInAgain(why string) error {
	return outboard.Errorf(outboard.Unauthenticated, "%s", why).WithHint("sign in again: outboard login")
}

// loginOf returns the login with a secret, and its person: over or not, but not ended.
func (c *Control) loginOf(ctx context.Context, secret string) (outboard.Key, outboard.User, error) {
	if secret == "" || len(secret) > maxSecret {
		return outboard.Key{}, outboard.User{}, badKey()
	}
	k, err := c.store.KeyByHash(ctx, HashSecret(secret))
	if err != nil && outboard.KindOf(err) != outboard.NotFound {
		return k, outboard.User{}, outboard.Errorf(outboard.KindOf(err), "checking the login: %w", err)
	}
	if err != nil || k.Kind != outboard.KeyLogin || k.User == "" {
		return k, outboard.User{}, signInAgain("this is no login, or it was ended")
	}
	living := k
	living.ExpiresAt = time.Time{}
	if _, err := c.holder(ctx, &living); err != nil {
		return k, outboard.User{}, err
	}
	u, err := c.store.User(ctx, k.User)
	return k, u, wrapLookup("user", string(k.User), err)
}

// renew asks the provider, for whoever has claimed it.
func (c *Control) renew(ctx context.Context, p *login.Provider, u outboard.User, k outboard.Key,
	r store.LoginRenewal) (outboard.User, outboard.Key, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), renewPatience)
	defer cancel()
	who, err := c.askAgain(ctx, p, u.Subject, &r)
	if err == nil && (who.Issuer != u.Issuer || who.Subject != u.Subject) {
		err = signInAgain("the identity provider names somebody else")
	}
	if err == nil {
		if u, err = c.enter(ctx, &who, u); err != nil {
			err = c.turnedAway(ctx, &who, err)
		}
	}
	switch kind := outboard.KindOf(err); {
	case err == nil:
	case kind == outboard.Unauthenticated || kind == outboard.Denied:
		return u, k, c.notRenewed(ctx, k, err)
	default:
		if err := c.store.ReleaseLoginRenewal(ctx, k.ID); err != nil {
			c.log.Warn("the next renewal of a login has to wait", "key", k.ID, "err", err)
		}
		return u, k, err
	}
	until := c.clock().Add(c.loginLasts())
	if until.After(r.Until) {
		until = r.Until
	}
	if err := c.record(ctx, loginCaller(u.Org), "login.renew", string(u.ID),
		map[string]any{"key": k.ID, "email": u.Email, "role": u.Role, "until": until}); err != nil {
		return u, k, err
	}
	k, err = c.store.ExtendLogin(ctx, k.ID, until)
	if outboard.KindOf(err) == outboard.NotFound && err != nil {
		return u, k, signInAgain("your login has ended meanwhile")
	}
	if err != nil {
		return u, k, err
	}
	return u, c.renewAfter(k, r.Until), c.store.ReleaseLoginRenewal(ctx, k.ID)
}

// askAgain asks the provider, and stores what it is to be asked with next time before anything else.
func (c *Control) askAgain(ctx context.Context, p *login.Provider, subject string,
	r *store.LoginRenewal) (who login.Person, err error) {
	done, err := c.exchanging()
	if err != nil {
		return who, err
	}
	defer done()
	k, err := c.store.Key(ctx, r.Key)
	if err != nil {
		return who, err
	}
	with, err := c.vault.For(k.Org).OpenValue(ctx, store.LoginUse(k.ID), func() (outboard.Sealed, error) {
		now, err := c.store.LoginRenewal(ctx, k.ID)
		return now.Sealed, err
	})
	if err != nil {
		return who, outboard.Errorf(outboard.KindOf(err), "what this login is renewed with cannot be opened: %w", err)
	}
	who, err = p.Renew(ctx, subject, with)
	if who.Renew.IsZero() || who.Renew.Reveal() == with.Reveal() {
		return who, err
	}
	failed := c.putRenewal(ctx, k.Org, *r, who.Renew)
	return who, cmp.Or(err, failed)
}

// notRenewed revokes a login that the provider does not renew. It ends whether or not that can be recorded.
func (c *Control) notRenewed(ctx context.Context, k outboard.Key, why error) error {
	if err := c.record(ctx, loginCaller(k.Org), "login.end", string(k.User),
		map[string]any{"key": k.ID, "why": why.Error()}); err != nil {
		c.log.Error("the end of a login was not recorded", "key", k.ID, "err", err)
	}
	if _, err := c.endLogin(ctx, k.ID, "the login was not renewed"); err != nil {
		return outboard.Errorf(outboard.KindOf(err), "ending a login: %w", err)
	}
	return outboard.Errorf(outboard.Unauthenticated, "your login has ended: %w", why).
		WithHint("sign in again: outboard login")
}
