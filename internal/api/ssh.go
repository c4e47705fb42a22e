package api

import (
	"time"

	"github.com/outboard-dev/outboard"
)

// Public keys for SSH: Outboard's own resource, in the wire's style.

type sshKeyOut struct {
	Type        string  `json:"type"` // "ssh_key"
	ID          string  `json:"id"`
	Org         string  `json:"organization_id"`
	User        *string `json:"user_id"`
	Key         *string `json:"key_id"` // the API key that it ends with
	Name        string  `json:"name"`
	Public      string  `json:"public_key"`
	Fingerprint string  `json:"fingerprint"`
	CreatedAt   string  `json:"created_at"`
	ExpiresAt   *string `json:"expires_at"`
	RevokedAt   *string `json:"revoked_at"`
}

func showSSHKey(k outboard.SSHKey) sshKeyOut {
	return sshKeyOut{Type: "ssh_key", ID: string(k.ID), Org: string(k.Org), User: textOrNull(string(k.User)),
		Key: textOrNull(string(k.Key)), Name: k.Name,
		Public: k.Public, Fingerprint: k.Fingerprint, CreatedAt: stamp(k.CreatedAt), ExpiresAt: stampOrNull(k.ExpiresAt), RevokedAt: stampOrNull(k.RevokedAt)}
}

func sshKeyID(r *request) outboard.SSHKeyID { return outboard.SSHKeyID(r.PathValue("ssh_key")) }

func (s *server) addSSHKey(r *request) (any, error) {
	var in struct {
		Name    string `json:"name"`
		Public  string `json:"public_key" need:"yes"`
		Expires int64  `json:"expires_in_seconds"`
	}
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	k, err := s.ctl.AddSSHKey(r.Context(), r.by, in.Name, in.Public, boxTTL(in.Expires))
	return showSSHKey(k), err
}

func (s *server) listSSHKeys(r *request) (any, error) {
	q, err := r.rows("ssh_keys", 100, 1000)
	if err != nil {
		return nil, err
	}
	list, err := s.ctl.SSHKeys(r.Context(), r.by, q.page)
	if err != nil {
		return nil, err
	}
	return pageOf(q, list, func(k outboard.SSHKey) (string, time.Time) { return string(k.ID), k.CreatedAt },
		showSSHKey), nil
}

func (s *server) getSSHKey(r *request) (any, error) {
	k, err := s.ctl.SSHKey(r.Context(), r.by, sshKeyID(r))
	return showSSHKey(k), err
}

func (s *server) revokeSSHKey(r *request) (any, error) {
	k, err := s.ctl.RevokeSSHKey(r.Context(), r.by, sshKeyID(r))
	return showSSHKey(k), err
}

type sshDoorOut struct {
	Type    string `json:"type"`    // "ssh"
	Address string `json:"address"` // as it listens: a client at another machine takes the port
	HostKey string `json:"host_key"`
}

func (s *server) sshDoor(r *request) (any, error) {
	d, err := s.ctl.SSH(r.Context(), r.by)
	return sshDoorOut{"ssh", d.Address, d.HostKey}, err
}
