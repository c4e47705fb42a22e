package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"github.com/outboard-dev/outboard"
)

// Credential is a credential's row with its sealed secret, which this package cannot open.
type Credential struct {
	outboard.Credential
	Unique string // what no two living credentials of a vault share
	Sealed outboard.Sealed
}

// CredentialMark is what the state of a vault's credentials is authenticated by.
type CredentialMark struct {
	ID       outboard.CredentialID
	Vault    outboard.VaultID
	Version  int64
	Archived bool
}

// VaultState is what an edit of credentials decides on.
type VaultState struct {
	Key    outboard.VaultKey // zero before the first one
	Marks  []CredentialMark  // of every credential of the organization, by id
	Rows   []Credential      // the same with their secrets, if the edit asked for them
	Values []SealedValue     // what else is sealed, likewise
}

// VaultEdit is what an edit changes, all or nothing.
type VaultEdit struct {
	Key        outboard.VaultKey
	Vaults     []outboard.Vault // inserted or replaced
	DropVaults []outboard.VaultID
	Put        []Credential // inserted or replaced
	Drop       []outboard.CredentialID
	Values     []SealedValue // replaced
}

const vaultKeySQL = `SELECT id, wrapping, wrapped, sequence, tag FROM vault_keys WHERE org = ?`

// VaultKey returns an organization's wrapped data key, or the zero key if there is none yet.
func (s *Store) VaultKey(ctx context.Context, org string) (outboard.VaultKey, error) {
	k, err := scanVaultKey(org)(s.queryRow(ctx, vaultKeySQL, org))
	return k, s.fail("reading the vault key", err)
}

func scanVaultKey(org string) func(scanner) (outboard.VaultKey, error) {
	return func(sc scanner) (outboard.VaultKey, error) {
		k := outboard.VaultKey{Org: org}
		var wrapping string
		err := sc.Scan(&k.ID, &wrapping, &k.Wrapped, &k.Sequence, &k.Tag)
		if errors.Is(err, sql.ErrNoRows) {
			return outboard.VaultKey{}, nil
		}
		k.Wrapping = outboard.Raw(wrapping)
		return k, err
	}
}

const credentialMarksSQL = `SELECT id, vault, version, archived_at FROM credentials WHERE org = ? ORDER BY id`

func scanMark(sc scanner) (CredentialMark, error) {
	var m CredentialMark
	var archived int64
	err := sc.Scan(&m.ID, &m.Vault, &m.Version, &archived)
	m.Archived = archived != 0
	return m, err
}

// VaultState returns the key and the marks of an organization as of one moment.
func (s *Store) VaultState(ctx context.Context, org string) (st VaultState, err error) {
	err = s.update(ctx, "reading the state of the vaults", func(t tx) error {
		st, err = readVaultState(ctx, t, org, false)
		return err
	})
	return st, err
}

func readVaultState(ctx context.Context, t tx, org string, whole bool) (st VaultState, err error) {
	if st.Key, err = scanVaultKey(org)(t.queryRow(ctx, vaultKeySQL+t.s.d.locking(false), org)); err != nil {
		return st, err
	}
	if st.Marks, err = collectTx(ctx, t, scanMark, credentialMarksSQL, org); err != nil || !whole {
		return st, err
	}
	if st.Rows, err = collectTx(ctx, t, scanCredential,
		`SELECT `+credentialCols+` FROM credentials WHERE org = ? ORDER BY id`, org); err != nil {
		return st, err
	}
	st.Values, err = readSealed(ctx, t, org)
	return st, err
}

const putVaultSQL = `INSERT INTO vaults (id, org, created_at, archived_at, body) VALUES (?, ?, ?, ?, ?)
	ON CONFLICT (id) DO UPDATE SET archived_at = excluded.archived_at, body = excluded.body`

// Whoever is renewing a credential goes on when it is sealed anew, which leaves its version.
const putCredentialSQL = `INSERT INTO credentials (id, org, vault, created_at, archived_at, uniq, version, body, key_id, sealed)
	VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET archived_at = excluded.archived_at, uniq = excluded.uniq,
	version = excluded.version, body = excluded.body, key_id = excluded.key_id, sealed = excluded.sealed,
	renewed_until = CASE WHEN credentials.version = excluded.version THEN credentials.renewed_until ELSE 0 END`

const insertVaultKeySQL = `INSERT INTO vault_keys (org, id, wrapping, wrapped, sequence, tag) VALUES (?, ?, ?, ?, ?, ?)`

const updateVaultKeySQL = `UPDATE vault_keys SET id = ?, wrapping = ?, wrapped = ?, sequence = ?, tag = ? WHERE org = ?`

// EditVaults changes credentials and the key they are sealed under in one transaction. decide computes and calls
// nothing else; it may run more than once. whole gives it the rows too, and everything else that is sealed.
// ErrDuplicate if two living credentials of a vault would share Unique, or if another process has just made the
// first key. Another key is refused, and nothing changed, while anything is sealed under the one before.
func (s *Store) EditVaults(ctx context.Context, org string, whole bool,
	decide func(VaultState) (VaultEdit, error)) error {
	return s.update(ctx, "changing credentials", func(t tx) error {
		st, err := readVaultState(ctx, t, org, whole)
		if err != nil {
			return err
		}
		e, err := decide(st)
		if err != nil {
			return err
		}
		if err = writeVaults(ctx, t, org, st.Key.ID == "", &e); s.d.unique(err) {
			return ErrDuplicate
		}
		if err == nil && st.Key.ID != "" && e.Key.ID != st.Key.ID {
			err = givenUp(ctx, t, st.Key.ID)
		}
		return err
	})
}

func writeVaults(ctx context.Context, t tx, org string, first bool, e *VaultEdit) error {
	query, args := updateVaultKeySQL, []any{e.Key.ID, string(e.Key.Wrapping), e.Key.Wrapped, e.Key.Sequence, e.Key.Tag,
		org}
	if first {
		query, args = insertVaultKeySQL, append([]any{org}, args[:5]...)
	}
	if _, err := t.exec(ctx, query, args...); err != nil {
		return err
	}
	for _, v := range e.Vaults {
		if _, err := t.exec(ctx, putVaultSQL, string(v.ID), org, micros(v.CreatedAt), micros(v.ArchivedAt),
			mustJSON(v)); err != nil {
			return err
		}
	}
	for _, c := range e.Put {
		if _, err := t.exec(ctx, putCredentialSQL, string(c.ID), org, string(c.Vault), micros(c.CreatedAt),
			micros(c.ArchivedAt), c.Unique,
			c.Version, mustJSON(c.Credential), c.Sealed.Key, append([]byte{}, c.Sealed.Data...)); err != nil {
			return err
		}
	}
	for _, id := range e.Drop {
		if _, err := t.exec(ctx, `DELETE FROM credentials WHERE id = ?`, string(id)); err != nil {
			return err
		}
	}
	for _, id := range e.DropVaults {
		if _, err := t.exec(ctx, `DELETE FROM vaults WHERE id = ?`, string(id)); err != nil {
			return err
		}
	}
	return writeSealed(ctx, t, e.Values)
}

// PutVault inserts or replaces a vault. Its credentials are not touched.
func (s *Store) PutVault(ctx context.Context, v outboard.Vault) error {
	return s.update(ctx, "storing vault", func(t tx) error {
		_, err := t.exec(ctx, putVaultSQL, string(v.ID), orgText(v.Org), micros(v.CreatedAt), micros(v.ArchivedAt),
			mustJSON(v))
		return err
	})
}

func scanVault(sc scanner) (outboard.Vault, error) {
	return scanIn(sc, func(v *outboard.Vault) *outboard.OrgID { return &v.Org })
}

// Vault returns one.
func (s *Store) Vault(ctx context.Context, id outboard.VaultID) (outboard.Vault, error) {
	return one(ctx, s, "vault", id, scanVault, `SELECT body, org FROM vaults WHERE id = ?`, string(id))
}

// Vaults returns one page.
func (s *Store) Vaults(ctx context.Context, p Page) ([]outboard.Vault, error) {
	w, err := s.list(ctx, "vaults", p)
	if err != nil {
		return nil, err
	}
	if !p.IncludeArchived {
		w.add(`archived_at = 0`)
	}
	query := `SELECT body, org FROM vaults` + w.String() + order("created_at, id", false) + ` LIMIT ?`
	return collect(ctx, s, "listing vaults", scanVault, query, append(w.args, limitOr(p.Limit, defaultPage))...)
}

const credentialCols = `body, uniq, version, key_id, sealed`

func scanCredential(sc scanner) (Credential, error) {
	var c Credential
	var body string
	var version int64
	if err := sc.Scan(&body, &c.Unique, &version, &c.Sealed.Key, &c.Sealed.Data); err != nil {
		return c, err
	}
	if err := json.Unmarshal([]byte(body), &c.Credential); err != nil {
		return c, outboard.Errorf(outboard.Internal, "decoding a credential: %w", err)
	}
	c.Version = version
	return c, nil
}

// Credential returns one.
func (s *Store) Credential(ctx context.Context, id outboard.CredentialID) (Credential, error) {
	return one(ctx, s, "credential", id, scanCredential, `SELECT `+credentialCols+` FROM credentials WHERE id = ?`,
		string(id))
}

// Credentials returns one page of a vault's.
func (s *Store) Credentials(ctx context.Context, vault outboard.VaultID, p Page) ([]Credential, error) {
	w, err := s.list(ctx, "credentials", p)
	if err != nil {
		return nil, err
	}
	w.add(`vault = ?`, string(vault))
	if !p.IncludeArchived {
		w.add(`archived_at = 0`)
	}
	query := `SELECT ` + credentialCols + ` FROM credentials` + w.String() + order("created_at, id", false) + ` LIMIT ?`
	return collect(ctx, s, "listing credentials", scanCredential, query,
		append(w.args, limitOr(p.Limit, defaultPage))...)
}

// LivingCredentials returns every credential of these vaults that is not archived, as no archived vault's is,
// oldest first.
func (s *Store) LivingCredentials(ctx context.Context, vaults []outboard.VaultID) ([]Credential, error) {
	if len(vaults) == 0 {
		return nil, nil
	}
	query := `SELECT ` + credentialCols + ` FROM credentials WHERE archived_at = 0 AND vault IN
		(SELECT id FROM vaults WHERE archived_at = 0 AND id IN (` + marks(len(vaults)) + `)) ORDER BY created_at, id`
	return collect(ctx, s, "listing credentials", scanCredential, query, texts(vaults)...)
}

const claimRenewalSQL = `UPDATE credentials SET renewed_until = ? WHERE id = ? AND version = ? AND archived_at = 0 AND renewed_until <= ?`

// ClaimRenewal reports whether the caller is the one process that may renew this version of a credential with
// its issuer, for as long as ttl.
func (s *Store) ClaimRenewal(ctx context.Context, id outboard.CredentialID, version int64,
	ttl time.Duration) (won bool, err error) {
	now := s.now()
	err = s.update(ctx, "claiming a renewal", func(t tx) error {
		n, err := t.exec(ctx, claimRenewalSQL, micros(now.Add(ttl)), string(id), version, micros(now))
		won = n == 1
		return err
	})
	return won, err
}

const releaseRenewalSQL = `UPDATE credentials SET renewed_until = 0 WHERE id = ? AND version = ?`

// ReleaseRenewal gives a claim up, when the version is the one that was claimed still. Only who has claimed it
// may call it.
func (s *Store) ReleaseRenewal(ctx context.Context, id outboard.CredentialID, version int64) error {
	return s.update(ctx, "releasing a renewal", func(t tx) error {
		_, err := t.exec(ctx, releaseRenewalSQL, string(id), version)
		return err
	})
}
