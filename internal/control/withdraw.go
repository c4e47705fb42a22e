package control

import (
	"context"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/vault"
)

// What a login was renewed with goes back to the identity provider when the login ends (RFC 7009), however it
// ends. The transaction that ends it leaves a row, so neither a provider that is away nor the death of this
// process loses the token, and nobody waits for either: every process that runs looks for rows that are due.
// Only who logs out, or is not renewed, waits a little for the first attempt.

// auditWithdrawDropped: a token was not given back, and is not tried again.
const auditWithdrawDropped = "token.revoke_dropped"

const (
	// withdrawLook is how late an attempt may be that nobody waits for.
	withdrawLook = 5 * time.Second
	// withdrawTime bounds one attempt: the provider's description, and the request.
	withdrawTime = time.Minute
	// withdrawLease is how long a token that was taken is nobody else's: an attempt, and a minute and a half by
	// which the clocks of two servers may differ.
	withdrawLease = 3 * time.Minute
	// withdrawFirst and withdrawMost bound the waits between attempts, which double.
	withdrawFirst, withdrawMost = 30 * time.Second, 6 * time.Hour
	// maxDoublings is after how many of them there is nothing more to double.
	maxDoublings = 16
	// withdrawSettle bounds how long the outcome of an attempt takes to be stored.
	withdrawSettle = 20 * time.Second
	// maxWithdrawals bounds those who wait for an attempt of their own at the same time.
	maxWithdrawals = 8
	// withdrawPatience bounds how long whoever logs out waits for the provider to take a token back.
	withdrawPatience = 5 * time.Second
)

// withdrawals is what a Control does by itself.
type withdrawals struct {
	ctx    context.Context // ends with Stop
	cancel context.CancelFunc
	wake   chan struct{} // capacity 1: something may be due
	slots  chan struct{} // capacity maxWithdrawals

	mu  sync.Mutex // run does not grow any more once ctx has ended
	run sync.WaitGroup
}

func newWithdrawals() *withdrawals {
	ctx, cancel := context.WithCancel(context.Background())
	return &withdrawals{ctx: ctx, cancel: cancel, wake: make(chan struct{}, 1),
		slots: make(chan struct{}, maxWithdrawals)}
}

// start runs something until Stop; false after it.
func (w *withdrawals) start(fn func(ctx context.Context)) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx.Err() != nil {
		return false
	}
	w.run.Go(func() { fn(w.ctx) })
	return true
}

// ring says that something is due.
func (w *withdrawals) ring() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Start begins to give tokens of logins that have ended back to the identity provider, until Stop. It may be
// called once.
func (c *Control) Start() {
	c.withdrawals.start(func(ctx context.Context) {
		tick := time.NewTicker(withdrawLook)
		defer tick.Stop()
		for {
			if err := c.withdrawDue(ctx); err != nil && ctx.Err() == nil {
				c.log.Warn("looking for tokens to give back", "err", err)
			}
			select {
			case <-tick.C:
			case <-c.withdrawals.wake:
			case <-ctx.Done():
				return
			}
		}
	})
}

// Stop ends what Start began. What is under way is cut, and comes again in some process. It may be called twice,
// and without Start.
func (c *Control) Stop() {
	w := c.withdrawals
	w.mu.Lock()
	w.cancel()
	w.mu.Unlock()
	w.run.Wait()
	c.recording.Wait()
}

// withdrawDue gives back what is due, one after the other. After a failure the others wait for the next look: a
// provider that is away is not asked about each.
func (c *Control) withdrawDue(ctx context.Context) error {
	issuer := ""
	if c.login.Provider != nil && c.vault != nil {
		issuer = c.login.Provider.Issuer()
	}
	for goes := true; goes; {
		deadline, cancel := context.WithTimeout(ctx, withdrawTime) // from before the lease begins
		now := c.clock()
		w, found, err := c.store.TakeWithdrawal(ctx, issuer, now, now.Add(withdrawLease))
		if goes = found && err == nil; goes {
			goes = c.withdraw(deadline, w)
		}
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// endLogin revokes a login, and waits a little until what it was renewed with is given back. why is for the record.
func (c *Control) endLogin(ctx context.Context, id outboard.KeyID, why string) (outboard.Key, error) {
	select {
	case c.withdrawals.slots <- struct{}{}:
	default: // so many wait already
		k, err := c.store.RevokeKey(ctx, id, c.clock())
		c.withdrawals.ring()
		return k, err
	}
	attempt, cancel := context.WithTimeout(c.withdrawals.ctx, withdrawTime) // from before the lease begins
	now := c.clock()
	k, w, found, err := c.store.EndLogin(ctx, id, why, now, now.Add(withdrawLease))
	over := make(chan struct{})
	begun := found && c.withdrawals.start(func(context.Context) {
		defer close(over)
		defer func() { cancel(); <-c.withdrawals.slots }()
		c.withdraw(attempt, w)
	})
	if !begun {
		cancel()
		<-c.withdrawals.slots
		return k, err
	}
	patience := time.NewTimer(withdrawPatience)
	defer patience.Stop()
	select {
	case <-over:
	case <-patience.C:
	case <-ctx.Done():
	}
	return k, err
}

// withdraw gives back what was taken, once, and reports whether that is the end of it. ctx ends before the lease does.
func (c *Control) withdraw(ctx context.Context, w store.Withdrawal) (over bool) {
	why := c.sendBack(ctx, w)
	if why != nil && c.withdrawals.ctx.Err() != nil {
		return false // this process ends: somebody tries again after the lease
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawSettle)
	defer cancel()
	over, err := c.settleWithdrawal(ctx, w, why)
	if err != nil { // likewise
		c.log.Error("what came of giving a token back was not stored", "key", w.Key, "err", err)
	}
	return over && err == nil
}

// sendBack asks the provider, on record. Unavailable: it is worth another attempt. NotFound: the provider takes
// nothing back.
func (c *Control) sendBack(ctx context.Context, w store.Withdrawal) error {
	if c.vault == nil || c.login.Provider == nil || c.login.Provider.Issuer() != w.Issuer {
		return outboard.Errorf(outboard.Unavailable, "people do not sign in at %q here", w.Issuer)
	}
	with, err := c.vault.For(w.Org).OpenValue(ctx, store.LoginUse(w.Key), func() (outboard.Sealed, error) {
		now, err := c.store.Withdrawal(ctx, w.Key)
		return now.Sealed, err
	})
	if err != nil {
		return outboard.Errorf(outboard.KindOf(err), "what the login was renewed with cannot be opened: %w", err)
	}
	return c.login.Provider.Revoke(ctx, with, func(address string) error {
		return c.recordWithdrawal(ctx, &w, vault.AuditWithdraw, map[string]any{"what": "POST " + address})
	})
}

func (c *Control) recordWithdrawal(ctx context.Context, w *store.Withdrawal, action string,
	detail map[string]any) error {
	detail["key"], detail["token"], detail["why"] = w.Key, "refresh_token", w.Why
	return c.record(ctx, loginCaller(w.Org), action, string(w.User), detail)
}

// settleWithdrawal records and stores what came of an attempt. The record is first: a token is not forgotten
// without one.
func (c *Control) settleWithdrawal(ctx context.Context, w store.Withdrawal, why error) (over bool, err error) {
	next := c.nextWithdrawal(&w, why)
	switch {
	case why == nil:
		err = c.recordWithdrawal(ctx, &w, vault.AuditWithdrawn, map[string]any{})
	case outboard.KindOf(why) == outboard.NotFound:
		c.log.Debug("the identity provider takes no tokens back", "key", w.Key)
	case next.IsZero():
		c.log.Error("what a login was renewed with was not revoked at the identity provider; no more attempts", "key",
			w.Key, "attempts", w.Tries, "err", why)
		err = c.recordWithdrawal(ctx, &w, auditWithdrawDropped, map[string]any{"what": why.Error(),
			"attempts": w.Tries})
	default:
		c.log.Warn("what a login was renewed with was not revoked at the identity provider; trying again", "key", w.Key,
			"attempts", w.Tries, "at", next, "err", why)
		err = c.recordWithdrawal(ctx, &w, vault.AuditWithdrawFailed, map[string]any{"what": why.Error(), "again": next})
	}
	switch {
	case err != nil:
		return false, err
	case next.IsZero():
		return true, c.store.EndWithdrawal(ctx, w)
	}
	return false, c.store.SetWithdrawal(ctx, w, next)
}

// nextWithdrawal is when a token is tried again after an attempt; zero = not any more. The last attempt is when
// its time is over.
func (c *Control) nextWithdrawal(w *store.Withdrawal, why error) time.Time {
	now := c.clock()
	if why == nil || !now.Before(w.Until) {
		return time.Time{}
	}
	if kind := outboard.KindOf(why); kind == outboard.NotFound || kind == outboard.Denied {
		return time.Time{}
	}
	next := now.Add(min(withdrawFirst<<min(w.Tries-1, maxDoublings), withdrawMost))
	if next.After(w.Until) {
		return w.Until
	}
	return next
}
