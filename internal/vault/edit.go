package vault

import (
	"context"
	"errors"
	"net/url"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// Unique is what no two living credentials of a vault may share: the server's URL, or the name.
func Unique(a *outboard.Auth) string {
	if a.MCPServerURL != "" {
		return "mcp " + NormalURL(a.MCPServerURL)
	}
	return "name " + a.Name
}

// NormalURL is a URL as MCP servers are compared: lower-case scheme and host, no default port, no slash at the end.
func NormalURL(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" {
		return s
	}
	u.Scheme, u.Host, u.Fragment = strings.ToLower(u.Scheme), strings.ToLower(u.Host), ""
	if p := u.Port(); u.Scheme == "https" && p == "443" || u.Scheme == "http" && p == "80" {
		u.Host = strings.TrimSuffix(u.Host, ":"+p)
	}
	u.Path, u.RawPath = strings.TrimSuffix(u.Path, "/"), strings.TrimSuffix(u.RawPath, "/")
	return u.String()
}

// Create stores a new credential, whose Auth the caller has checked. Conflict if its vault has another one like
// it; Exhausted if the vault is full.
func (k *Keeper) Create(ctx context.Context, c outboard.Credential, s Secrets) error {
	c.Version = 1
	err := k.edit(ctx, func(ks *keys, st *store.VaultState) (store.VaultEdit, error) {
		living := 0
		for _, m := range st.Marks {
			if m.Vault == c.Vault && !m.Archived {
				living++
			}
		}
		if living >= MaxCredentials {
			return store.VaultEdit{}, outboard.Errorf(outboard.Invalid,
				"vault %s has %d credentials, which is the most", c.Vault, living).
				WithHint("archive one, or use another vault")
		}
		sealed, err := ks.seal(k.org, &c, s)
		return store.VaultEdit{Put: []store.Credential{{Credential: c, Unique: Unique(&c.Auth), Sealed: sealed}}}, err
	})
	if errors.Is(err, store.ErrDuplicate) {
		return outboard.Errorf(outboard.Conflict, "vault %s has a credential for %q already", c.Vault,
			strings.TrimPrefix(strings.TrimPrefix(Unique(&c.Auth), "mcp "), "name ")).
			WithHint("update that one, or archive it first")
	}
	return err
}

// Update changes a credential and its secrets. change may run more than once. NotFound if there is none, Invalid
// if it is archived.
func (k *Keeper) Update(ctx context.Context, id outboard.CredentialID,
	change func(*outboard.Credential, *Secrets) error) (outboard.Credential, error) {
	for range maxEdits {
		c, err := k.updateOnce(ctx, id, change)
		if !errors.Is(err, errMoved) {
			return c, err
		}
	}
	return outboard.Credential{}, errMoved
}

func (k *Keeper) updateOnce(ctx context.Context, id outboard.CredentialID,
	change func(*outboard.Credential, *Secrets) error) (outboard.Credential, error) {
	row, err := k.cfg.Store.Credential(ctx, id)
	if err != nil {
		return outboard.Credential{}, err
	}
	if !row.ArchivedAt.IsZero() {
		return row.Credential, outboard.Errorf(outboard.Invalid, "credential %s is archived and cannot be changed", id)
	}
	var next outboard.Credential
	err = k.edit(ctx, func(ks *keys, st *store.VaultState) (store.VaultEdit, error) {
		if !at(st.Marks, id, row.Version) || row.Sealed.Key != ks.id {
			return store.VaultEdit{}, errMoved
		}
		s, err := ks.open(k.org, &row)
		if err != nil {
			return store.VaultEdit{}, err
		}
		next = row.Credential
		if err := change(&next, &s); err != nil {
			return store.VaultEdit{}, err
		}
		next.Version++
		sealed, err := ks.seal(k.org, &next, s)
		return store.VaultEdit{Put: []store.Credential{{Credential: next, Unique: Unique(&next.Auth),
			Sealed: sealed}}}, err
	})
	return next, err
}

// at reports whether a credential is at a version.
func at(marks []store.CredentialMark, id outboard.CredentialID, version int64) bool {
	for _, m := range marks {
		if m.ID == id {
			return m.Version == version
		}
	}
	return false
}

// Archive purges a credential's secrets and lets its name be used again. Archiving twice is the same as once.
func (k *Keeper) Archive(ctx context.Context, id outboard.CredentialID) (outboard.Credential, error) {
	for range maxEdits {
		row, err := k.cfg.Store.Credential(ctx, id)
		if err != nil || !row.ArchivedAt.IsZero() {
			return row.Credential, err
		}
		read := row.Version
		k.purge(&row)
		err = k.edit(ctx, func(_ *keys, st *store.VaultState) (e store.VaultEdit, err error) {
			if !at(st.Marks, id, read) {
				return e, errMoved
			}
			return store.VaultEdit{Put: []store.Credential{row}}, nil
		})
		if !errors.Is(err, errMoved) {
			return row.Credential, err
		}
	}
	return outboard.Credential{}, errMoved
}

func (k *Keeper) purge(c *store.Credential) {
	c.ArchivedAt = clock(k)
	c.UpdatedAt = c.ArchivedAt
	c.Version++
	c.Sealed = outboard.Sealed{}
}

// Delete removes a credential for good. Deleting what is not there is no error.
func (k *Keeper) Delete(ctx context.Context, id outboard.CredentialID) error {
	return k.edit(ctx, func(*keys, *store.VaultState) (store.VaultEdit, error) {
		return store.VaultEdit{Drop: []outboard.CredentialID{id}}, nil
	})
}

// ArchiveVault archives a vault and every credential of it.
func (k *Keeper) ArchiveVault(ctx context.Context, v outboard.Vault) (outboard.Vault, error) {
	v.ArchivedAt = clock(k)
	v.UpdatedAt = v.ArchivedAt
	return v, k.all(ctx, v.ID, func(rows []store.Credential) store.VaultEdit {
		e := store.VaultEdit{Vaults: []outboard.Vault{v}}
		for _, c := range rows {
			if c.ArchivedAt.IsZero() {
				k.purge(&c)
				e.Put = append(e.Put, c)
			}
		}
		return e
	})
}

// DeleteVault removes a vault and every credential of it.
func (k *Keeper) DeleteVault(ctx context.Context, id outboard.VaultID) error {
	return k.all(ctx, id, func(rows []store.Credential) store.VaultEdit {
		e := store.VaultEdit{DropVaults: []outboard.VaultID{id}}
		for _, c := range rows {
			e.Drop = append(e.Drop, c.ID)
		}
		return e
	})
}

// all edits a vault with all its credentials.
func (k *Keeper) all(ctx context.Context, id outboard.VaultID, decide func([]store.Credential) store.VaultEdit) error {
	for range maxEdits {
		var rows []store.Credential
		page := store.Page{IncludeArchived: true, Limit: 100}
		for {
			some, err := k.cfg.Store.Credentials(ctx, id, page)
			if err != nil {
				return err
			}
			rows = append(rows, some...)
			if len(some) < page.Limit {
				break
			}
			page.Cursor = string(some[len(some)-1].ID)
		}
		err := k.edit(ctx, func(_ *keys, st *store.VaultState) (store.VaultEdit, error) {
			n := 0
			for _, m := range st.Marks {
				if m.Vault == id {
					n++
				}
			}
			for _, c := range rows {
				if !at(st.Marks, c.ID, c.Version) {
					n = -1
				}
			}
			if n != len(rows) {
				return store.VaultEdit{}, errMoved // one was added or changed since it was read
			}
			return decide(rows), nil
		})
		if !errors.Is(err, errMoved) {
			return err
		}
	}
	return errMoved
}
