package outboard

import (
	"cmp"
	"slices"
	"time"
)

// Organization is a tenant: what belongs to one is not there for another.
type Organization struct {
	ID         OrgID     `json:"id"`
	Name       string    `json:"name"` // unique
	CreatedAt  time.Time `json:"created_at,omitzero"`
	ArchivedAt time.Time `json:"archived_at,omitzero"` // its keys and logins are refused from then on
}

// User is a person in an organization.
type User struct {
	ID  UserID `json:"id"`
	Org OrgID  `json:"org"`
	// lower case, unique in the organization; what an identity provider must vouch for at the first sign-in
	Email string `json:"email"`
	Name  string `json:"name"`
	Role  string `json:"role"`
	// with Subject: who the identity provider says it is, from the first sign-in on
	Issuer    string    `json:"issuer,omitempty"`
	Subject   string    `json:"subject,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	// nothing of theirs works from then on, until an administrator restores them
	RemovedAt time.Time `json:"removed_at,omitzero"`
}

// Roles. Each may do what those after it may.
const (
	RoleAdmin     = "admin"     // people, keys, policies and vaults
	RoleDeveloper = "developer" // everything that runs
	RoleViewer    = "viewer"    // reads
)

// Roles are the roles from the highest.
var Roles = []string{RoleAdmin, RoleDeveloper, RoleViewer}

// AtLeast reports whether a role may do what another may. An unknown role may nothing.
func AtLeast(role, least string) bool {
	have, need := slices.Index(Roles, role), slices.Index(Roles, least)
	return have >= 0 && need >= 0 && have <= need
}

// LowerRole returns the lower of two roles.
func LowerRole(a, b string) string {
	if AtLeast(a, b) {
		return b
	}
	return a
}

// KeyKind says what a key is for.
type KeyKind string

// The kinds of keys.
const (
	// runs the server: acts as an administrator of any organization, and alone manages those
	KeyOperator    KeyKind = "operator"
	KeyAPI         KeyKind = "api"         // of a program, or of a person
	KeyLogin       KeyKind = "login"       // of a person who signed in; short-lived
	KeyEnvironment KeyKind = "environment" // of the workers of one self-hosted environment
)

// Key is an API key's row; the secret itself is never stored.
type Key struct {
	ID        KeyID     `json:"id"`
	Name      string    `json:"name"`
	Hash      string    `json:"hash"` // hex SHA-256 of the secret
	Role      string    `json:"role"`
	CreatedAt time.Time `json:"created_at"`
	RevokedAt time.Time `json:"revoked_at,omitzero"`
	Org       OrgID     `json:"org"`
	Kind      KeyKind   `json:"kind"`
	User      UserID    `json:"user,omitempty"` // whose it is; "" = a machine's
	// what of its role it may use; none = all of it. See KeyScopes
	Scopes      []string      `json:"scopes,omitempty"`
	Environment EnvironmentID `json:"environment,omitempty"` // of a KeyEnvironment
	ExpiresAt   time.Time     `json:"expires_at,omitzero"`   // zero = never
	// the key that it was made with; "" = none, or nobody knows
	MadeWith KeyID `json:"made_with,omitempty"`
	// who made it, and so has seen its secret: see Caller.Person. "" = who runs the server, or the person at
	// sign-in
	Maker string `json:"maker,omitempty"`

	// RenewAfter is of a login that can be renewed: from when on its holder should. control sets it; it is not stored.
	RenewAfter time.Time `json:"-"`
}

// Alive reports whether the key is neither revoked nor over.
func (k *Key) Alive(now time.Time) bool {
	return k.RevokedAt.IsZero() && (k.ExpiresAt.IsZero() || now.Before(k.ExpiresAt))
}

// Caller returns who holds the key. user is the person whose key it is, or the zero User for a machine's: a
// person's key has no more than the person's role is now.
func (k *Key) Caller(user User) Caller {
	by := Caller{Key: k.ID, Name: k.Name, Role: k.Role, Org: k.Org, Kind: k.Kind, Scopes: k.Scopes,
		Environment: k.Environment, Until: k.ExpiresAt, Maker: k.Maker}
	if k.User != "" {
		by.User, by.Name, by.Role = k.User, user.Email, LowerRole(k.Role, user.Role)
	}
	return by
}

// KeyScopes are what a key can be limited to: with each its verbs besides reading.
var KeyScopes = []string{"read", "sessions", "agents", "environments", "files", "sandboxes", "vaults", "policies",
	"approvals", "people"}

// Caller is who asks. Every verb of control takes one.
type Caller struct {
	Key         KeyID
	Name        string
	Role        string
	Org         OrgID // whose things there are for it; "" = DefaultOrg
	User        UserID
	Kind        KeyKind
	Scopes      []string
	Environment EnvironmentID
	Until       time.Time // when its key is over; zero = never
	Maker       string    // of its key
}

// In returns the caller's organization.
func (c Caller) In() OrgID {
	if c.Org == "" {
		return DefaultOrg
	}
	return c.Org
}

// Approves reports whether the caller's role may answer approvals and give grants.
func (c Caller) Approves() bool { return AtLeast(c.Role, RoleDeveloper) }

// Operator reports whether the caller runs the server.
func (c Caller) Operator() bool { return c.Kind == KeyOperator }

// Owner is the caller as whom a session acts for.
func (c Caller) Owner() Owner {
	return Owner{Org: c.In(), User: c.User, Key: c.Key, Name: c.Name, Maker: c.Maker}
}

// Person is who stands behind the caller: whose key it is, else who made it, else the key itself.
func (c Caller) Person() string { return cmp.Or(string(c.User), c.Maker, string(c.Key)) }

// Makes is the Maker of a key that the caller makes. Who runs the server makes keys for others, and is nobody's second.
func (c Caller) Makes() string {
	if c.Operator() {
		return ""
	}
	return c.Person()
}
