package api

import (
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

type vaultIn struct {
	DisplayName field[string]             `json:"display_name"`
	Metadata    field[map[string]*string] `json:"metadata"`
}

type vaultOut struct {
	Type        string            `json:"type"`
	ID          string            `json:"id"`
	DisplayName string            `json:"display_name"`
	Metadata    map[string]string `json:"metadata"`
	CreatedAt   string            `json:"created_at"`
	UpdatedAt   string            `json:"updated_at"`
	ArchivedAt  *string           `json:"archived_at"`
}

func showVault(v outboard.Vault) vaultOut {
	return vaultOut{"vault", string(v.ID), v.DisplayName, orEmpty(v.Metadata), stamp(v.CreatedAt), stamp(v.UpdatedAt),
		stampOrNull(v.ArchivedAt)}
}

// vaultPatch reads what create and update share.
func (r *request) vaultPatch() (p control.VaultPatch, err error) {
	var in vaultIn
	if err := r.decode(&in); err != nil {
		return p, err
	}
	p.DisplayName, err = in.DisplayName.keeping("display_name")
	p.Metadata = in.Metadata.v
	return p, err
}

func (r *request) vault() outboard.VaultID { return outboard.VaultID(r.PathValue("vault")) }

// shown encodes what a verb of control returned.
func shown[T, W any](show func(T) W) func(v T, err error) (any, error) {
	return func(v T, err error) (any, error) {
		if err != nil {
			return nil, err
		}
		return show(v), nil
	}
}

func (s *server) createVault(r *request) (any, error) {
	p, err := r.vaultPatch()
	if err != nil {
		return nil, err
	}
	return shown(showVault)(s.ctl.CreateVault(r.Context(), r.by, p))
}

func (s *server) getVault(r *request) (any, error) {
	return shown(showVault)(s.ctl.Vault(r.Context(), r.by, r.vault()))
}

func (s *server) updateVault(r *request) (any, error) {
	p, err := r.vaultPatch()
	if err != nil {
		return nil, err
	}
	return shown(showVault)(s.ctl.UpdateVault(r.Context(), r.by, r.vault(), p))
}

func (s *server) archiveVault(r *request) (any, error) {
	if err := r.empty(); err != nil {
		return nil, err
	}
	return shown(showVault)(s.ctl.ArchiveVault(r.Context(), r.by, r.vault()))
}

func (s *server) deleteVault(r *request) (any, error) {
	if err := s.ctl.DeleteVault(r.Context(), r.by, r.vault()); err != nil {
		return nil, err
	}
	return deletedOut{string(r.vault()), "vault_deleted"}, nil
}

func (s *server) listVaults(r *request) (any, error) {
	q, err := r.rows("vaults", agentPage, maxAgentPage)
	if err != nil {
		return nil, err
	}
	list, err := s.ctl.Vaults(r.Context(), r.by, q.page, q.at)
	if err != nil {
		return nil, err
	}
	return pageOf(q, list, func(v outboard.Vault) (string, time.Time) { return string(v.ID), v.CreatedAt },
		showVault), nil
}

// keyRotationOut is what became of an organization's keys.
type keyRotationOut struct {
	Org         outboard.OrgID `json:"organization_id"`
	Credentials int            `json:"credentials"`
	Values      map[string]int `json:"values"` // what else was sealed anew: how many, by the table
	Lost        int            `json:"lost"`
	Error       *errorDetail   `json:"error"`
}

// rotateVaultKeys is Outboard's own.
func (s *server) rotateVaultKeys(r *request) (any, error) {
	if err := r.empty(); err != nil {
		return nil, err
	}
	done, err := s.ctl.RotateVaultKeys(r.Context(), r.by)
	if err != nil {
		return nil, err
	}
	out := struct {
		Type        string           `json:"type"`
		Credentials int              `json:"credentials"` // of all
		Orgs        []keyRotationOut `json:"organizations"`
	}{Type: "vault_keys_rotated"}
	for _, d := range done {
		o := keyRotationOut{Org: d.Org, Credentials: d.Credentials, Values: d.Values, Lost: d.Lost}
		if d.Err != nil {
			body, _ := errorFor(d.Err, "")
			o.Error = &body.Error
		}
		out.Credentials += d.Credentials
		out.Orgs = append(out.Orgs, o)
	}
	return out, nil
}
