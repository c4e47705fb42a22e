package vault

import (
	"context"
	"errors"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// Values are secrets of the server's own which have rows elsewhere: nothing of them goes to a session. They are
// sealed with the data key of their organization, and bound to it and to what they are for. A rotation of the
// keys seals them anew where they are, so they are read and written together with their rows: what was read
// before a rotation is read again, and what was sealed before one is sealed again.

// maxKeeps bounds how often a value is sealed again because the keys were rotated. What is not kept may be the
// only one there is, so it is more than anybody's rotations come to.
const maxKeeps = 100

func valueAAD(org, key, use string) []byte { return bind("outboard value 1", org, key, use) }

// sealValue seals a value. use says for what: the same is needed to open it.
func (k *keys) sealValue(org, use string, plain []byte) (outboard.Sealed, error) {
	data, err := sealWith(k.data[:], plain, valueAAD(org, k.id, use))
	return outboard.Sealed{Key: k.id, Data: data}, err
}

func (k *keys) openValue(org, use string, s outboard.Sealed) ([]byte, error) {
	return openWith(k.data[:], s.Data, valueAAD(org, k.id, use))
}

// KeepValue seals a value, and has put store it. put fails with store.ErrRotated, having stored nothing, when
// the keys were rotated since; then it is called with the value sealed anew. The first value makes the key of
// the vault.
func (k *Keeper) KeepValue(ctx context.Context, use string, v outboard.Secret, put func(outboard.Sealed) error) error {
	for range maxKeeps {
		ks, err := k.sealing(ctx)
		if errors.Is(err, errMoved) {
			continue
		}
		if err != nil {
			return err
		}
		s, err := ks.sealValue(k.org, use, []byte(v.Reveal()))
		if err != nil {
			return err
		}
		if err = put(s); !errors.Is(err, store.ErrRotated) {
			return err
		}
		k.lookAgain()
	}
	return locked(errMoved)
}

// sealing returns keys to seal with, and makes them if there are none.
func (k *Keeper) sealing(ctx context.Context) (*keys, error) {
	st, err := k.current(ctx)
	if err != nil || st.keys != nil {
		return st.keys, err
	}
	var made *keys
	err = k.edit(ctx, func(ks *keys, _ *store.VaultState) (store.VaultEdit, error) {
		made = ks
		return store.VaultEdit{}, nil
	})
	return made, err
}

// lookAgain makes the next call ask the store whether the keys are still those that are cached.
func (k *Keeper) lookAgain() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.seen = time.Time{}
}

// OpenValue opens what KeepValue has sealed. read returns it as it is in its row; it is called again when a
// rotation comes between. Denied when it is sealed under a key that was given up, or anything that is bound to
// the value differs; Unavailable when the vault cannot be used; or what read says.
func (k *Keeper) OpenValue(ctx context.Context, use string,
	read func() (outboard.Sealed, error)) (outboard.Secret, error) {
	var row, key string // of the attempt before
	for range maxKeeps {
		s, err := read()
		if err != nil {
			return outboard.Secret{}, err
		}
		st, err := k.current(ctx)
		if errors.Is(err, errMoved) {
			continue
		}
		if err != nil {
			return outboard.Secret{}, err
		}
		switch {
		case st.keys != nil && st.keys.id == s.Key:
			b, err := st.keys.openValue(k.org, use, s)
			if err != nil {
				return outboard.Secret{}, outboard.Errorf(outboard.Denied, "opening it: %w", err)
			}
			return outboard.NewSecret(string(b)), nil
		case st.keys == nil || row == s.Key && key == st.keys.id: // neither is behind the other
			return outboard.Secret{}, outboard.Errorf(outboard.Denied,
				"it is sealed under a key that the vault does not have any more")
		}
		row, key = s.Key, st.keys.id
		k.lookAgain()
	}
	return outboard.Secret{}, locked(errMoved)
}
