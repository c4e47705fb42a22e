package vault

import (
	"context"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// Values are secrets of the server's own which have rows elsewhere: nothing of them goes to a session. They are sealed with the data key of
// their organization, and bound to it and to what they are for. A rotation of the keys of the vault leaves them behind: what is lost with one
// must be something that can be had again.

func valueAAD(org, key, use string) []byte { return bind("outboard value 1", org, key, use) }

// SealValue seals a value. use says for what, and names the row: the same is needed to open it. The first one makes the key of the vault.
func (k *Keeper) SealValue(ctx context.Context, use string, v outboard.Secret) (outboard.Sealed, error) {
	st, err := k.current(ctx)
	if err != nil {
		return outboard.Sealed{}, err
	}
	ks := st.keys
	if ks == nil {
		err := k.edit(ctx, func(made *keys, _ *store.VaultState) (store.VaultEdit, error) {
			ks = made
			return store.VaultEdit{}, nil
		})
		if err != nil {
			return outboard.Sealed{}, err
		}
	}
	data, err := sealWith(ks.data[:], []byte(v.Reveal()), valueAAD(k.org, ks.id, use))
	return outboard.Sealed{Key: ks.id, Data: data}, err
}

// OpenValue opens what SealValue has sealed. Denied when the key of the vault is another one by now, or anything that is bound to the value
// differs; Unavailable when the vault cannot be used.
func (k *Keeper) OpenValue(ctx context.Context, use string, s outboard.Sealed) (outboard.Secret, error) {
	st, err := k.current(ctx)
	if err != nil {
		return outboard.Secret{}, err
	}
	if st.keys == nil || st.keys.id != s.Key {
		return outboard.Secret{}, outboard.Errorf(outboard.Denied, "the keys of the vault were rotated since")
	}
	b, err := openWith(st.keys.data[:], s.Data, valueAAD(k.org, st.keys.id, use))
	if err != nil {
		return outboard.Secret{}, outboard.Errorf(outboard.Denied, "opening it: %w", err)
	}
	return outboard.NewSecret(string(b)), nil
}
