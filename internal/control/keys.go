package control

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// maxSecret bounds what is hashed for one authentication attempt.
const maxSecret = 4096

// Authenticate returns who holds the secret, or Unauthenticated. The store is asked by hash, so the time it
// takes says nothing about a stored secret. Nothing is cached: a key that was revoked, and whoever was removed
// or demoted, is so from the next request on.
func (c *Control) Authenticate(ctx context.Context, secret string) (outboard.Caller, error) {
	if secret == "" {
		return outboard.Caller{}, outboard.Errorf(outboard.Unauthenticated, "no API key was given").
			WithHint("send it as X-Api-Key or as Authorization: Bearer")
	}
	if len(secret) > maxSecret {
		return outboard.Caller{}, badKey()
	}
	k, err := c.store.KeyByHash(ctx, HashSecret(secret))
	switch {
	case err == nil:
		return c.holder(ctx, &k)
	case outboard.KindOf(err) == outboard.NotFound:
		return outboard.Caller{}, badKey()
	}
	return outboard.Caller{}, outboard.Errorf(outboard.KindOf(err), "checking the API key: %w", err)
}

// IsKey reports whether a text is the secret of a key of this server, of one as well that opens nothing any more
// or not yet again: its holder may be let in once more.
func (c *Control) IsKey(ctx context.Context, text string) (bool, error) {
	if !strings.HasPrefix(text, keyPrefix) || len(text) > maxSecret {
		return false, nil
	}
	_, err := c.store.KeyByHash(ctx, HashSecret(text))
	if outboard.KindOf(err) == outboard.NotFound {
		return false, nil
	}
	if err != nil {
		return false, outboard.Errorf(outboard.KindOf(err), "looking for an API key: %w", err)
	}
	return true, nil
}

// holder returns who holds a key now.
func (c *Control) holder(ctx context.Context, k *outboard.Key) (outboard.Caller, error) {
	if !k.Alive(c.now()) {
		return outboard.Caller{}, badKey()
	}
	var user outboard.User
	var err error
	if k.User != "" {
		if user, err = c.store.User(ctx, k.User); err == nil && !user.RemovedAt.IsZero() {
			return outboard.Caller{}, badKey()
		}
	}
	// who knows the secret; it may have been made while they were removed
	if err == nil && k.Maker != string(k.User) && outboard.ValidID(outboard.PrefixUser, k.Maker) {
		var maker outboard.User
		if maker, err = c.store.User(ctx, outboard.UserID(k.Maker)); err == nil && !maker.RemovedAt.IsZero() {
			return outboard.Caller{}, badKey()
		}
		if outboard.KindOf(err) == outboard.NotFound && err != nil {
			err = nil // rows of people stay: there was never one to remove
		}
	}
	if err == nil && k.Org != outboard.DefaultOrg { // which cannot be archived
		var org outboard.Organization
		if org, err = c.store.Org(ctx, string(k.Org)); err == nil && !org.ArchivedAt.IsZero() {
			return outboard.Caller{}, badKey()
		}
	}
	if err != nil {
		return outboard.Caller{}, outboard.Errorf(outboard.KindOf(err), "checking the API key: %w", err)
	}
	return k.Caller(user), nil
}

// ActIn makes the caller one of another organization, by its id or name. Only who runs the server may. ""
// changes nothing.
func (c *Control) ActIn(ctx context.Context, by outboard.Caller, org string) (outboard.Caller, error) {
	if org == "" || org == string(by.In()) {
		return by, nil
	}
	if !by.Operator() || len(org) > maxName || strings.ContainsRune(org, 0) {
		return by, notFound("organization", org)
	}
	o, err := c.store.Org(ctx, org)
	if err != nil {
		return by, wrapLookup("organization", org, err)
	}
	by.Org = o.ID
	return by, nil
}

func badKey() error {
	return outboard.Errorf(outboard.Unauthenticated, "the API key is not valid here").
		WithHint("the server wrote its admin key to admin.key in its data directory")
}

// firstStart is the audit's reason for the first key.
const firstStart = "the first start makes an administrator's key"

// EnsureAdminKey makes the first key of a store, and reports whether it did. save gets the secret before the key
// exists in the store, so that a crash in between leaves a useless secret and never a key that nobody knows.
func (c *Control) EnsureAdminKey(ctx context.Context, save func(secret string) error) (bool, error) {
	n, err := c.store.OperatorKeys(ctx)
	if err != nil {
		return false, outboard.Errorf(outboard.KindOf(err), "counting API keys: %w", err)
	}
	if n > 0 {
		return false, nil
	}
	secret := newKeySecret()
	if err := save(secret); err != nil {
		return false, outboard.Errorf(outboard.KindOf(err), "saving the admin key: %w", err)
	}
	_, err = c.putAdminKey(ctx, "server", firstStart, secret)
	return err == nil, err
}

// AdoptAdminKey makes a secret that a data directory holds already the first key of a store: the process that
// made it was killed before it stored the key. It does nothing when the store has an operator's key. Conflict:
// the secret is that of a key that was revoked.
func (c *Control) AdoptAdminKey(ctx context.Context, secret string) (bool, error) {
	n, err := c.store.OperatorKeys(ctx)
	if err != nil {
		return false, outboard.Errorf(outboard.KindOf(err), "counting API keys: %w", err)
	}
	if n > 0 {
		return false, nil
	}
	_, err = c.putAdminKey(ctx, "server", firstStart, secret)
	return err == nil, err
}

// AddAdminKey stores another operator's key for a process that has the database itself. save gets the secret
// before the key exists. actor names the person in the audit, why the reason.
func (c *Control) AddAdminKey(ctx context.Context, actor, why string,
	save func(secret string) error) (outboard.Key, error) {
	secret := newKeySecret()
	if err := save(secret); err != nil {
		return outboard.Key{}, outboard.Errorf(outboard.KindOf(err), "saving the admin key: %w", err)
	}
	return c.putAdminKey(ctx, actor, why, secret)
}

// RetireAdminKeys revokes operator's keys for a process that has the database itself.
func (c *Control) RetireAdminKeys(ctx context.Context, actor, why string, old []outboard.Key) error {
	for i := range old {
		err := c.store.Audit(ctx, outboard.AuditRecord{At: c.clock(), Org: outboard.DefaultOrg, Actor: actor,
			Action:   "key.revoke",
			Resource: string(old[i].ID), Decision: outboard.Allowed, Rule: why})
		if err != nil {
			return outboard.Errorf(outboard.KindOf(err), "writing the audit: %w", err)
		}
		if _, err := c.store.RevokeKey(ctx, old[i].ID, c.clock()); err != nil {
			return outboard.Errorf(outboard.KindOf(err), "revoking %s: %w", old[i].ID, err)
		}
	}
	return nil
}

// putAdminKey records and stores an operator's key with a secret that is saved already.
func (c *Control) putAdminKey(ctx context.Context, actor, why, secret string) (outboard.Key, error) {
	if !strings.HasPrefix(secret, keyPrefix) || len(secret) > maxSecret {
		return outboard.Key{}, outboard.Errorf(outboard.Invalid, "admin.key does not hold the secret of a key").
			WithHint("move admin.key out of the data directory; the next start makes a new one")
	}
	k := outboard.Key{ID: outboard.NewID[outboard.KeyID](outboard.PrefixKey), Name: "admin", Hash: HashSecret(secret),
		Role: outboard.RoleAdmin, Kind: outboard.KeyOperator, Org: outboard.DefaultOrg, CreatedAt: c.clock()}
	err := c.store.Audit(ctx, outboard.AuditRecord{At: k.CreatedAt, Org: outboard.DefaultOrg, Actor: actor,
		Action:   "key.create",
		Resource: string(k.ID), Decision: outboard.Allowed, Rule: why})
	if err != nil {
		return k, outboard.Errorf(outboard.KindOf(err), "writing the audit: %w", err)
	}
	err = c.store.PutKey(ctx, k)
	if errors.Is(err, store.ErrDuplicate) { // another server of the directory was faster, or somebody revoked it
		if k, err = c.store.KeyByHash(ctx, k.Hash); outboard.KindOf(err) == outboard.NotFound {
			return k, outboard.Errorf(outboard.Conflict, "the key in admin.key was revoked").
				WithHint("outboard key recover makes a new one")
		}
	}
	if err != nil {
		return k, outboard.Errorf(outboard.KindOf(err), "storing the admin key: %w", err)
	}
	return k, nil
}

// HashSecret is what the store keeps of the secret of a key.
func HashSecret(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}
