package control

import (
	"context"
	"crypto/rsa"
	"errors"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// Limits of SSH keys.
const (
	maxSSHPublic = 8 << 10 // bytes of a line: an RSA key of 16,384 bits has 2,800
	maxSSHKeys   = 100     // of one holder
	minRSABits   = 2048    // what OpenSSH asks for
	maxRSABits   = 16384   // a signature of more takes long to verify
)

// sshKeyTypes are the kinds of public keys that are taken. DSA is broken, and a certificate says things that
// nobody here looks at.
var sshKeyTypes = []string{ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521,
	ssh.KeyAlgoRSA,
	ssh.KeyAlgoSKED25519, ssh.KeyAlgoSKECDSA256}

// parseSSHKey reads a line of a .pub file.
func parseSSHKey(line string) (ssh.PublicKey, string, error) {
	if len(line) > maxSSHPublic {
		return nil, "", invalid("public_key must have at most %d bytes, not %d", maxSSHPublic, len(line))
	}
	key, comment, options, rest, err := ssh.ParseAuthorizedKey([]byte(line))
	switch {
	case err != nil:
		return nil, "", invalid("public_key is not a line like ssh-ed25519 AAAA...: give what is in the .pub file")
	case len(options) > 0 || len(strings.TrimSpace(string(rest))) > 0:
		return nil, "", invalid("public_key must be one key without options: what it may do follows from whose it is")
	case !slices.Contains(sshKeyTypes, key.Type()):
		return nil, "", invalid("public_key: keys of type %s are not taken, only %s", quote(key.Type()),
			strings.Join(sshKeyTypes, ", "))
	}
	if c, ok := key.(ssh.CryptoPublicKey); ok {
		if r, ok := c.CryptoPublicKey().(*rsa.PublicKey); ok && (r.N.BitLen() < minRSABits ||
			r.N.BitLen() > maxRSABits) {
			return nil, "", invalid("public_key: an RSA key has %d to %d bits, not %d", minRSABits, maxRSABits,
				r.N.BitLen())
		}
	}
	return key, comment, nil
}

// AddSSHKey registers a public key of the caller's: a person who signed in holds it themselves, else it hangs on
// the caller's API key. ttl 0 is no end of its own. Conflict if the caller has it already.
func (c *Control) AddSSHKey(ctx context.Context, by outboard.Caller, name, line string,
	ttl time.Duration) (outboard.SSHKey, error) {
	k := outboard.SSHKey{ID: outboard.NewID[outboard.SSHKeyID](outboard.PrefixSSHKey), Org: by.In(), User: by.User,
		Key: by.Key, Name: name, CreatedAt: c.clock()}
	if err := requireDeveloper(by, scopeSandboxes); err != nil {
		return k, err
	}
	key, comment, err := parseSSHKey(line)
	if err != nil {
		return k, err
	}
	if k.Name == "" {
		k.Name = strings.ToValidUTF8(comment[:min(len(comment), shownID)], "?")
	}
	if err := length("name", k.Name, 0, maxName); err != nil {
		return k, err
	}
	if ttl < 0 || ttl > maxKeyTTL {
		return k, invalid("expires_in_seconds must be positive, and at most %d seconds", int64(maxKeyTTL.Seconds()))
	}
	if ttl != 0 {
		k.ExpiresAt = k.CreatedAt.Add(ttl)
	}
	if by.Kind == outboard.KeyLogin { // it is over in hours, and the person is not
		k.Key, k.Role, k.Scopes = "", by.Role, by.Scopes
	}
	k.Public = strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))
	k.Fingerprint = ssh.FingerprintSHA256(key)
	n, err := c.store.CountSSHKeys(ctx, k)
	if err != nil {
		return k, err
	}
	if n >= maxSSHKeys {
		return k, outboard.Errorf(outboard.Exhausted, "there are %d SSH keys of yours, which is the most there may be",
			n).WithHint("outboard ssh-key ls; outboard ssh-key rm")
	}
	if err := c.record(ctx, by, "ssh_key.add", string(k.ID), map[string]string{"name": k.Name,
		"fingerprint": k.Fingerprint}); err != nil {
		return k, err
	}
	err = c.store.AddSSHKey(ctx, k)
	if errors.Is(err, store.ErrDuplicate) {
		return k, outboard.Errorf(outboard.Conflict, "you have the SSH key %s already", k.Fingerprint).
			WithHint("outboard ssh-key ls")
	}
	return k, err
}

// SSHKeys returns one page of public keys, newest first: all of the organization for an administrator, else the
// caller's own.
func (c *Control) SSHKeys(ctx context.Context, by outboard.Caller, p Page) ([]outboard.SSHKey, error) {
	if err := requireReader(by); err != nil {
		return nil, err
	}
	p.Org = by.In()
	if requireAdmin(by, scopePeople) != nil { // a page of everybody's may have none of theirs
		list, err := c.store.SSHKeysOf(ctx, p, by.User, by.Key)
		return list, wrapLookup("SSH keys", "", err)
	}
	list, err := c.store.SSHKeys(ctx, p)
	return list, wrapLookup("SSH keys", "", err)
}

// holds reports whether an SSH key is the caller's own.
func holds(by outboard.Caller, k *outboard.SSHKey) bool {
	return k.Key != "" && k.Key == by.Key || by.User != "" && k.User == by.User
}

// SSHKey returns one.
func (c *Control) SSHKey(ctx context.Context, by outboard.Caller, id outboard.SSHKeyID) (outboard.SSHKey, error) {
	if err := requireReader(by); err != nil {
		return outboard.SSHKey{}, err
	}
	if !outboard.ValidID(outboard.PrefixSSHKey, string(id)) {
		return outboard.SSHKey{}, notFound("SSH key", string(id))
	}
	k, err := c.store.SSHKey(ctx, id)
	if err := ownedBy(by, k.Org, "SSH key", string(id), err); err != nil {
		return outboard.SSHKey{}, err
	}
	if requireAdmin(by, scopePeople) != nil && !holds(by, &k) {
		return outboard.SSHKey{}, notFound("SSH key", string(id))
	}
	return k, nil
}

// RevokeSSHKey ends a public key, and within a second every connection that it opened. Everybody may end their own.
func (c *Control) RevokeSSHKey(ctx context.Context, by outboard.Caller, id outboard.SSHKeyID) (outboard.SSHKey, error) {
	k, err := c.SSHKey(ctx, by, id)
	if err != nil {
		return k, err
	}
	if err := c.record(ctx, by, "ssh_key.revoke", string(id), nil); err != nil {
		return k, err
	}
	k, err = c.store.RevokeSSHKey(ctx, id, c.clock())
	return k, wrapLookup("SSH key", string(id), err)
}
