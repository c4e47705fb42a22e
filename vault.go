package outboard

import "time"

// DefaultOrg is the organization that is always there. It is part of what authenticates a sealed secret.
const DefaultOrg = "default"

// VaultID names a vault, CredentialID a credential.
type (
	VaultID      string
	CredentialID string
)

// Prefixes of the ids above, without the underscore.
const (
	PrefixVault      = "vlt"
	PrefixCredential = "vcrd"
)

// Vault is a set of credentials that sessions are given together.
type Vault struct {
	ID          VaultID           `json:"id"`
	DisplayName string            `json:"display_name"`
	Metadata    map[string]string `json:"metadata,omitempty"`
	CreatedAt   time.Time         `json:"created_at"`
	UpdatedAt   time.Time         `json:"updated_at"`
	ArchivedAt  time.Time         `json:"archived_at,omitzero"`
	Org         OrgID             `json:"-"` // whose it is
}

// Credential is a secret and the rule on where it may go. Its secret is not here: only package vault opens that.
// Archived credentials have none.
type Credential struct {
	ID          CredentialID      `json:"id"`
	Vault       VaultID           `json:"vault_id"`
	DisplayName string            `json:"display_name,omitempty"`
	Metadata    map[string]string `json:"metadata,omitempty"`
	Auth        Auth              `json:"auth"`
	Version     int64             `json:"version"` // raised by every change of Auth or the secret
	CreatedAt   time.Time         `json:"created_at"`
	UpdatedAt   time.Time         `json:"updated_at"`
	ArchivedAt  time.Time         `json:"archived_at,omitzero"`
}

// Kinds of Auth. Those with the prefix outboard_ are Outboard's own.
const (
	AuthOAuth  = "mcp_oauth"     // MCPServerURL, ExpiresAt, Refresh
	AuthBearer = "static_bearer" // MCPServerURL
	// Name, Rule.Hosts, Header, Body: a placeholder inside, the value at the gateway
	AuthEnv = "environment_variable"
	// Name, Rule, HeaderName, Format: the gateway sets a header, the sandbox sees nothing
	AuthHeader = "outboard_header"
	AuthAWS    = "outboard_aws"        // Name, Rule, AWS: the gateway signs
	AuthGitHub = "outboard_github_app" // Name, Rule, GitHub: the gateway mints installation tokens
	AuthBox    = "outboard_box"        // Name: the headers of a box, with their hosts; in no vault
)

// Auth is how a credential is used. Everything in it decides where a secret may go, and is sealed with the secret.
type Auth struct {
	Type         string        `json:"type"`
	MCPServerURL string        `json:"mcp_server_url,omitempty"`
	ExpiresAt    time.Time     `json:"expires_at,omitzero"`
	Refresh      *OAuthRefresh `json:"refresh,omitempty"`
	Name         string        `json:"name,omitempty"` // the variable, or what the credential is called
	Rule         UseRule       `json:"rule,omitzero"`
	InHeader     bool          `json:"in_header,omitempty"` // AuthEnv: the placeholder is replaced in header values
	InBody       bool          `json:"in_body,omitempty"`   // AuthEnv: and in bodies
	InPath       bool          `json:"in_path,omitempty"`   // AuthEnv: and in the path
	InQuery      bool          `json:"in_query,omitempty"`  // AuthEnv: and in the query
	// AuthEnv: what the placeholder begins with, a public prefix such as "sk-ant-"
	Shape      string       `json:"shape,omitempty"`
	HeaderName string       `json:"header,omitempty"` // AuthHeader
	Format     string       `json:"format,omitempty"` // AuthHeader: the value, with {secret} or {basic} in it
	AWS        *AWSScope    `json:"aws,omitempty"`
	GitHub     *GitHubScope `json:"github,omitempty"`
}

// UseRule bounds the requests a credential is used on. Every list must match; an empty one matches all, but for
// Hosts: without hosts a rule matches nothing, unless AnyHost is set.
type UseRule struct {
	AnyHost bool     `json:"any_host,omitempty"`
	Hosts   []string `json:"hosts,omitempty"`   // a name, an IPv4 address, or *.name
	Ports   []int    `json:"ports,omitempty"`   // default 443
	Methods []string `json:"methods,omitempty"` // upper case
	Paths   []string `json:"paths,omitempty"`   // globs on the canonical path: * within a segment, ** over segments
}

// OAuthRefresh is how an access token is renewed.
type OAuthRefresh struct {
	TokenEndpoint string `json:"token_endpoint"`
	ClientID      string `json:"client_id"`
	Scope         string `json:"scope,omitempty"`
	Resource      string `json:"resource,omitempty"`
	EndpointAuth  string `json:"endpoint_auth"` // none, client_secret_basic, client_secret_post
}

// AWSScope is what the gateway signs for: requests of exactly this service and region.
type AWSScope struct {
	Service string `json:"service"`
	Region  string `json:"region"`
}

// GitHubScope is what minted installation tokens may do: never more than these repositories and permissions.
type GitHubScope struct {
	AppID          int64             `json:"app_id"`
	InstallationID int64             `json:"installation_id"`
	APIURL         string            `json:"api_url"` // https://api.github.com, or a server of one's own
	Repositories   []string          `json:"repositories"`
	Permissions    map[string]string `json:"permissions"`
}

// Sealed is a secret as the store keeps it: encrypted under the data key Key, bound to its credential, version
// and Auth.
type Sealed struct {
	Key  string // id of the data key
	Data []byte
}

// VaultKey is the data key of an organization, wrapped, and the state of all its credentials, authenticated.
// Sequence rises with every change of any credential.
type VaultKey struct {
	Org      string
	ID       string // of the data key, new with every rotation
	Wrapping Raw    // how Wrapped is opened: which key-encryption key, with what parameters
	Wrapped  []byte
	Sequence int64
	Tag      []byte // over Sequence and every credential's id and version
}
