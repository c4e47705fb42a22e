package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// SSHKey is a public key that lets its holder into sandboxes.
type SSHKey struct {
	Type        string     `json:"type"`
	ID          string     `json:"id"`
	Org         string     `json:"organization_id"`
	User        *string    `json:"user_id"`
	Key         *string    `json:"key_id"`
	Name        string     `json:"name"`
	Public      string     `json:"public_key"`
	Fingerprint string     `json:"fingerprint"`
	CreatedAt   time.Time  `json:"created_at"`
	ExpiresAt   *time.Time `json:"expires_at"`
	RevokedAt   *time.Time `json:"revoked_at"`
}

// SSHDoor is where the server takes SSH connections.
type SSHDoor struct {
	Type    string `json:"type"`
	Address string `json:"address"`
	HostKey string `json:"host_key"`
}

const sshKeysPath = "/v1/ssh_keys"

// SSHKeys lists public keys, newest first.
func (c *Client) SSHKeys(ctx context.Context, all bool) iter.Seq2[SSHKey, error] {
	return pages[SSHKey](ctx, c, sshKeysPath, url.Values{"include_archived": {strconv.FormatBool(all)}})
}

// AddSSHKey registers a public key; ttl 0 is no end of its own.
func (c *Client) AddSSHKey(ctx context.Context, name, public string, ttl time.Duration) (k SSHKey, err error) {
	body := map[string]any{"name": name, "public_key": public}
	if ttl != 0 {
		body["expires_in_seconds"] = int64(ttl.Seconds())
	}
	return k, c.call(ctx, http.MethodPost, sshKeysPath, nil, body, &k)
}

// RevokeSSHKey ends a public key at once.
func (c *Client) RevokeSSHKey(ctx context.Context, id string) (k SSHKey, err error) {
	return k, c.call(ctx, http.MethodDelete, sshKeysPath+"/"+url.PathEscape(id), nil, nil, &k)
}

// SSH says where the server takes SSH connections; NotFound where it does not.
func (c *Client) SSH(ctx context.Context) (d SSHDoor, err error) {
	return d, c.call(ctx, http.MethodGet, "/v1/outboard/ssh", nil, nil, &d)
}
