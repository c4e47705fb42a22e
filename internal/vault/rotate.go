package vault

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// Rotation says what a rotation of an organization's keys has sealed anew.
type Rotation struct {
	Credentials int            // those of boxes included
	Values      map[string]int // what else is sealed: how many, by the table
	Lost        int            // nobody can open these: they are sealed under a key that was given up before
}

// rotation is one attempt.
type rotation struct {
	Rotation
	org       string
	from, to  *keys
	edit      store.VaultEdit
	wrappedBy json.RawMessage // from
}

// RotateKeys makes new keys and seals everything that is sealed anew, in one transaction. A process that is
// killed meanwhile leaves the old keys or the new ones in use, never a mixture; the old ones are given up after
// it. NotFound if there are none yet.
func (k *Keeper) RotateKeys(ctx context.Context) (Rotation, error) {
	for range maxEdits {
		n, err := k.rotateOnce(ctx)
		if !errors.Is(err, errMoved) {
			return n, err
		}
	}
	return Rotation{}, errMoved
}

func (k *Keeper) rotateOnce(ctx context.Context) (Rotation, error) {
	k.lookAgain()
	cur, err := k.current(ctx)
	if err != nil {
		return Rotation{}, err
	}
	if cur.keys == nil {
		return Rotation{}, outboard.Errorf(outboard.NotFound,
			"there is no vault key yet: it is made with the first secret")
	}
	next := cur.keys.rotated()
	row, settle, err := k.wrap(ctx, next)
	if err != nil {
		return Rotation{}, err
	}
	k.reached("wrapped")
	var r rotation
	var after store.VaultState
	err = k.cfg.Store.EditVaults(ctx, k.org, true, func(st store.VaultState) (store.VaultEdit, error) {
		if st.Key.ID != cur.keys.id {
			return store.VaultEdit{}, errMoved
		}
		if err := k.verify(cur.keys, &st, max(cur.sequence, k.mark())); err != nil {
			return store.VaultEdit{}, locked(err)
		}
		r = rotation{org: k.org, from: cur.keys, to: next, wrappedBy: st.Key.Wrapping,
			Rotation: Rotation{Values: map[string]int{}}}
		if err := errors.Join(r.credentials(st.Rows), r.values(st.Values)); err != nil {
			return store.VaultEdit{}, err
		}
		row.Sequence = st.Key.Sequence + 1
		row.Tag = next.sum(k.org, row.Sequence, st.Marks)
		r.edit.Key, after = row, store.VaultState{Key: row, Marks: st.Marks}
		k.reached("sealed")
		return r.edit, nil
	})
	if err != nil {
		return Rotation{}, err
	}
	k.reached("stored")
	k.mu.Lock()
	k.keep(next, after.Key.Sequence, after.Marks)
	k.mu.Unlock()
	k.retire(r.wrappedBy, settle)
	k.reached("settled")
	return r.Rotation, nil
}

// credentials seals those of an organization anew.
func (r *rotation) credentials(rows []store.Credential) error {
	for _, c := range rows {
		if !c.ArchivedAt.IsZero() {
			continue
		}
		s, err := r.from.open(r.org, &c)
		if err != nil {
			return err
		}
		if c.Sealed, err = r.to.seal(r.org, &c.Credential, s); err != nil {
			return err
		}
		r.edit.Put = append(r.edit.Put, c)
		r.Credentials++
	}
	return nil
}

// values does the same for what else is sealed. What is under a key that was given up before is not worth
// keeping the others from it.
func (r *rotation) values(all []store.SealedValue) error {
	for _, v := range all {
		if v.Sealed.Key != r.from.id {
			r.Lost++
			continue
		}
		plain, err := r.from.openValue(r.org, v.Use, v.Sealed)
		if err != nil {
			return outboard.Errorf(outboard.Denied, "opening %s %s: %w", v.Table, v.Row, err).
				WithHint("its row in the database was changed by something other than outboard; remove it, and " +
					"rotate again")
		}
		if v.Sealed, err = r.to.sealValue(r.org, v.Use, plain); err != nil {
			return err
		}
		r.edit.Values = append(r.edit.Values, v)
		r.Values[v.Table]++
	}
	return nil
}

// retire gives up what wrapped the old key. A file that stays opens nothing any more.
func (k *Keeper) retire(old json.RawMessage, settle func(json.RawMessage) error) {
	err := settle(old)
	for _, w := range k.cfg.Wrappers[1:] {
		if d, ok := w.(KeyDir); ok && k.cfg.Wrappers[0].Kind() != d.Kind() { // the new key is of another kind
			err = errors.Join(err, d.retire(old, ""))
		}
	}
	if err != nil {
		k.log.Warn("removing the old vault key failed", "err", err)
	}
}

func (k *Keeper) reached(step string) {
	if k.cfg.reached != nil {
		k.cfg.reached(step)
	}
}
