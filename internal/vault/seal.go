package vault

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// Secrets is what a credential hides. Which fields are set follows from its type.
type Secrets struct {
	Value        outboard.Secret // token, access token, variable, header secret, AWS secret key, GitHub private key
	RefreshToken outboard.Secret // mcp_oauth
	ClientSecret outboard.Secret // mcp_oauth
	AccessKeyID  outboard.Secret // outboard_aws
	SessionToken outboard.Secret // outboard_aws
}

// plain is Secrets on its way into and out of a seal, and nowhere else.
type plain struct {
	Value        string `json:"value,omitempty"`
	RefreshToken string `json:"refresh_token,omitempty"`
	ClientSecret string `json:"client_secret,omitempty"`
	AccessKeyID  string `json:"access_key_id,omitempty"`
	SessionToken string `json:"session_token,omitempty"`
}

// keys are the data keys of an organization in the clear.
type keys struct {
	id    string
	data  [keySize]byte // seals secrets; new with every rotation
	tag   [keySize]byte // authenticates the state of all credentials; likewise
	names [keySize]byte // derives placeholders; kept, so that those in running sandboxes stay valid
}

func newKeys() *keys {
	k := &keys{id: rand.Text()}
	rand.Read(k.data[:])
	rand.Read(k.tag[:])
	rand.Read(k.names[:])
	return k
}

// rotated returns fresh keys that derive the same placeholders.
func (k *keys) rotated() *keys {
	n := newKeys()
	n.names = k.names
	return n
}

func (k *keys) bytes() []byte { return bytes.Join([][]byte{k.data[:], k.tag[:], k.names[:]}, nil) }

func parseKeys(id string, b []byte) (*keys, error) {
	k := &keys{id: id}
	if len(b) != 3*keySize {
		return nil, outboard.Errorf(outboard.Denied, "the vault key has %d bytes", len(b))
	}
	copy(k.data[:], b)
	copy(k.tag[:], b[keySize:])
	copy(k.names[:], b[2*keySize:])
	return k, nil
}

// bind encodes fields without ambiguity: each after its length.
func bind(fields ...string) []byte {
	var b []byte
	for _, f := range fields {
		b = binary.BigEndian.AppendUint32(b, uint32(len(f)))
		b = append(b, f...)
	}
	return b
}

func number(n int64) string { return string(binary.BigEndian.AppendUint64(nil, uint64(n))) }

func keyAAD(org, id string) []byte { return bind("outboard vault key 1", org, id) }

// credentialAAD binds a secret to where it may go: the rule is in Auth.
func credentialAAD(org, key string, c *outboard.Credential) []byte {
	auth, err := json.Marshal(c.Auth)
	if err != nil {
		panic("vault: encoding a rule: " + err.Error()) // plain structs of ours
	}
	return bind("outboard credential 1", org, key, string(c.ID), string(c.Vault), number(c.Version), string(auth))
}

// seal encrypts a credential's secrets.
func (k *keys) seal(org string, c *outboard.Credential, s Secrets) (outboard.Sealed, error) {
	b, err := json.Marshal(plain{s.Value.Reveal(), s.RefreshToken.Reveal(), s.ClientSecret.Reveal(),
		s.AccessKeyID.Reveal(), s.SessionToken.Reveal()})
	if err != nil {
		return outboard.Sealed{}, outboard.Errorf(outboard.Internal, "encoding a secret")
	}
	data, err := sealWith(k.data[:], b, credentialAAD(org, k.id, c))
	return outboard.Sealed{Key: k.id, Data: data}, err
}

// open decrypts them. Denied when anything that is bound to them differs.
func (k *keys) open(org string, c *store.Credential) (Secrets, error) {
	if c.Sealed.Key != k.id {
		return Secrets{}, outboard.Errorf(outboard.Denied, "credential %s is sealed with another key than the vault's",
			c.ID)
	}
	b, err := openWith(k.data[:], c.Sealed.Data, credentialAAD(org, k.id, &c.Credential))
	if err != nil {
		return Secrets{}, outboard.Errorf(outboard.Denied, "opening credential %s: %w", c.ID, err).
			WithHint("its row in the database was changed by something other than outboard; set it again")
	}
	var p plain
	if err := json.Unmarshal(b, &p); err != nil {
		return Secrets{}, outboard.Errorf(outboard.Internal, "decoding credential %s", c.ID)
	}
	s := outboard.NewSecret
	return Secrets{s(p.Value), s(p.RefreshToken), s(p.ClientSecret), s(p.AccessKeyID), s(p.SessionToken)}, nil
}

// sum is the tag over the state of all credentials of an organization. marks are in the order of their ids.
func (k *keys) sum(org string, sequence int64, marks []store.CredentialMark) []byte {
	h := hmac.New(sha256.New, k.tag[:])
	h.Write(bind("outboard vault state 1", org, k.id, number(sequence)))
	for _, m := range marks {
		archived := "0"
		if m.Archived {
			archived = "1"
		}
		h.Write(bind(string(m.ID), string(m.Vault), number(m.Version), archived))
	}
	return h.Sum(nil)
}
