package config

import (
	"reflect"
	"time"

	"github.com/outboard-dev/outboard"
)

// Login says with which identity provider people sign in. The zero value lets nobody sign in.
type Login struct {
	Issuer           string        `yaml:"issuer,omitempty"` // exactly as the provider writes it
	ClientID         string        `yaml:"client_id,omitempty"`
	ClientSecretEnv  string        `yaml:"client_secret_env,omitempty"` // neither = a public client
	ClientSecretFile string        `yaml:"client_secret_file,omitempty"`
	Scopes           []string      `yaml:"scopes,omitempty"`  // none = openid, email, profile
	CAFile           string        `yaml:"ca_file,omitempty"` // PEM; trusted besides the system's
	Lasts            time.Duration `yaml:"lasts,omitempty"`   // of a login; 0 = the server's own
	// a login ends after lasts, whatever the provider would say
	NoRenewal bool     `yaml:"no_renewal,omitempty"`
	Device    bool     `yaml:"device,omitempty"` // people may sign in on another device, by a code
	Members   []Member `yaml:"members,omitempty"`
	Follow    bool     `yaml:"follow,omitempty"` // members holds at every sign-in, not only at the first
}

// Member lets in whom nobody has added: by one of email, domain and claim.
type Member struct {
	Email        string `yaml:"email,omitempty"`
	Domain       string `yaml:"domain,omitempty"`
	Claim        string `yaml:"claim,omitempty"`
	Value        string `yaml:"value,omitempty"`
	Organization string `yaml:"organization,omitempty"` // id or name; "" = default
	Role         string `yaml:"role,omitempty"`
}

// IsZero reports whether nothing is set.
func (l Login) IsZero() bool { return reflect.ValueOf(l).IsZero() }

func (l Login) check() error {
	switch {
	case l.IsZero():
		return nil
	case l.ClientID == "" || !secureURL(l.Issuer):
		return outboard.Errorf(outboard.Invalid, "configuring login: it needs a client_id, and an issuer with https "+
			"(or http on this machine)")
	case l.ClientSecretEnv != "" && l.ClientSecretFile != "":
		return outboard.Errorf(outboard.Invalid, "configuring login: client_secret_env and client_secret_file "+
			"exclude each other")
	case l.Lasts < 0 || l.Lasts > maxLogin:
		return outboard.Errorf(outboard.Invalid, "configuring login: lasts is %s; it must be at most %s", l.Lasts,
			maxLogin)
	case l.Follow && len(l.Members) == 0:
		return outboard.Errorf(outboard.Invalid, "configuring login: follow without members would let nobody in")
	}
	return nil
}

// maxLogin bounds how long a login may last: somebody whom the identity provider no longer knows has it until then.
const maxLogin = 30 * 24 * time.Hour
