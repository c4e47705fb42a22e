package outboard

import "time"

// SSHKeyID names a public key that lets its holder into sandboxes.
type SSHKeyID string

// PrefixSSHKey is that of an SSHKeyID.
const PrefixSSHKey = "sshkey"

// SSHKey is the row of a public key. Whoever has the private half may do over SSH what the holder may do by the
// API, and nothing else. The holder is a person, for a key that was registered after signing in: it ends with
// the person. Or it is the API key with which it was registered: it ends with that.
type SSHKey struct {
	ID          SSHKeyID  `json:"id"`
	Org         OrgID     `json:"org"`
	User        UserID    `json:"user,omitempty"`   // whose it is; "" = a machine's
	Key         KeyID     `json:"key,omitempty"`    // what it hangs on; "" = the person alone
	Name        string    `json:"name"`             // what people call it
	Public      string    `json:"public"`           // as in authorized_keys, without a comment
	Fingerprint string    `json:"fingerprint"`      // SHA256:..., as ssh-keygen -l shows it
	Role        string    `json:"role,omitempty"`   // without Key: the most it may, whatever the person's role becomes
	Scopes      []string  `json:"scopes,omitempty"` // and what it was limited to; none = not
	CreatedAt   time.Time `json:"created_at"`
	ExpiresAt   time.Time `json:"expires_at,omitzero"` // zero = never
	RevokedAt   time.Time `json:"revoked_at,omitzero"`
}

// Alive reports whether the key is neither revoked nor over.
func (k *SSHKey) Alive(now time.Time) bool {
	return k.RevokedAt.IsZero() && (k.ExpiresAt.IsZero() || now.Before(k.ExpiresAt))
}
