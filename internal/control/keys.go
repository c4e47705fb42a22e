package control

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"

	"github.com/outboard-dev/outboard"
)

// maxSecret bounds what is hashed for one authentication attempt.
const maxSecret = 4096

// Authenticate returns who holds the secret, or Unauthenticated. The store is asked by hash, so the time it takes says nothing
// about a stored secret.
func (c *Control) Authenticate(ctx context.Context, secret string) (outboard.Caller, error) {
	if secret == "" {
		return outboard.Caller{}, outboard.Errorf(outboard.Unauthenticated, "no API key was given").
			WithHint("send it as X-Api-Key or as Authorization: Bearer")
	}
	if len(secret) > maxSecret {
		return outboard.Caller{}, badKey()
	}
	k, err := c.store.KeyByHash(ctx, hashSecret(secret))
	switch {
	case err == nil:
		return outboard.Caller{Key: k.ID, Name: k.Name, Role: k.Role}, nil
	case outboard.KindOf(err) == outboard.NotFound:
		return outboard.Caller{}, badKey()
	}
	return outboard.Caller{}, outboard.Errorf(outboard.KindOf(err), "checking the API key: %w", err)
}

func badKey() error {
	return outboard.Errorf(outboard.Unauthenticated, "the API key is not valid here").
		WithHint("the server wrote its admin key to admin.key in its data directory")
}

// EnsureAdminKey makes the first key of a store, and reports whether it did. save gets the secret before the key exists in the
// store, so that a crash in between leaves a useless secret and never a key that nobody knows.
func (c *Control) EnsureAdminKey(ctx context.Context, save func(secret string) error) (bool, error) {
	keys, err := c.store.Keys(ctx)
	if err != nil {
		return false, outboard.Errorf(outboard.KindOf(err), "listing API keys: %w", err)
	}
	for _, k := range keys {
		if k.Role == "admin" && k.RevokedAt.IsZero() {
			return false, nil
		}
	}
	secret := "obk_" + rand.Text()
	if err := save(secret); err != nil {
		return false, outboard.Errorf(outboard.KindOf(err), "saving the admin key: %w", err)
	}
	err = c.store.PutKey(ctx, outboard.Key{ID: outboard.NewID[outboard.KeyID](outboard.PrefixKey), Name: "admin",
		Hash: hashSecret(secret), Role: "admin", CreatedAt: c.clock()})
	if err != nil {
		return false, outboard.Errorf(outboard.KindOf(err), "storing the admin key: %w", err)
	}
	return true, nil
}

func hashSecret(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}
