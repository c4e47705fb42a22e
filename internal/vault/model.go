package vault

import (
	"context"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// Key opens a credential for a request of this server itself, to a model provider: within its rule and on
// record, like any use. ref is an id, a name in the vault "default", or VAULT/NAME.
func (k *Keeper) Key(ctx context.Context, ref, method, target string) (outboard.Secret, error) {
	row, s, err := k.own(ctx, ref, method, target)
	if err == nil && (row.Auth.AWS != nil || row.Auth.GitHub != nil) {
		err = noKey(ref, &row.Auth)
	}
	if err != nil {
		return outboard.Secret{}, err
	}
	return s.Value, nil
}

func noKey(ref string, a *outboard.Auth) error {
	return outboard.Errorf(outboard.Invalid, "credential %q is %s, which is no API key", ref, a.Type)
}

// own opens a credential for a request of this server itself.
func (k *Keeper) own(ctx context.Context, ref, method, target string) (row store.Credential, s Secrets, err error) {
	r, err := RequestFor(method, target)
	if err != nil {
		return row, s, err
	}
	id, err := k.find(ctx, ref)
	if err != nil {
		return row, s, err
	}
	if row, s, err = k.openNow(ctx, id); err != nil {
		return row, Secrets{}, err
	}
	if len(surfaces(&row.Auth)) == 0 {
		return row, Secrets{}, noKey(ref, &row.Auth)
	}
	if why := mismatch(&row.Auth.Rule, &r); why != "" {
		return row, Secrets{}, outboard.Errorf(outboard.Denied, "credential %q is not for %s://%s:%d: %s", ref,
			r.Scheme, r.Host, r.Port, why).
			WithHint("outboard secret set %s --host %s", ref, r.Host)
	}
	if err := k.record(ctx, "server", &r, []string{label(&row.Credential)},
		versions([]*store.Credential{&row})); err != nil {
		return row, Secrets{}, err
	}
	return row, s, nil
}

// find resolves a reference to a credential. What was found is remembered until a credential changes.
func (k *Keeper) find(ctx context.Context, ref string) (outboard.CredentialID, error) {
	if outboard.ValidID(outboard.PrefixCredential, ref) {
		return outboard.CredentialID(ref), nil
	}
	k.mu.Lock()
	id, ok := k.refs[ref]
	k.mu.Unlock()
	if ok {
		return id, nil
	}
	in, name, ok := strings.Cut(ref, "/")
	if !ok {
		in, name = "default", ref
	}
	page := store.Page{Org: outboard.OrgID(k.org), Limit: 100}
	for {
		vaults, err := k.cfg.Store.Vaults(ctx, page)
		if err != nil {
			return "", locked(err)
		}
		for _, v := range vaults {
			if string(v.ID) != in && v.DisplayName != in {
				continue
			}
			id, err := k.named(ctx, v.ID, name)
			if err != nil {
				return "", err
			}
			if id != "" {
				k.mu.Lock()
				k.refs[ref] = id
				k.mu.Unlock()
				return id, nil
			}
		}
		if len(vaults) < page.Limit {
			return "", outboard.Errorf(outboard.NotFound, "there is no credential %q", ref).
				WithHint("outboard secret set %s", name)
		}
		page.Cursor = string(vaults[len(vaults)-1].ID)
	}
}

// named returns the living credential of a vault with a name, or "".
func (k *Keeper) named(ctx context.Context, vault outboard.VaultID, name string) (outboard.CredentialID, error) {
	rows, err := k.cfg.Store.LivingCredentials(ctx, []outboard.VaultID{vault})
	if err != nil {
		return "", locked(err)
	}
	for _, c := range rows {
		if c.Auth.Name == name || c.DisplayName == name {
			return c.ID, nil
		}
	}
	return "", nil
}
