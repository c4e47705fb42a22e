package api

import (
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

type credentialOut struct {
	Type        string            `json:"type"`
	ID          string            `json:"id"`
	VaultID     string            `json:"vault_id"`
	DisplayName *string           `json:"display_name"`
	Metadata    map[string]string `json:"metadata"`
	Auth        any               `json:"auth"`
	CreatedAt   string            `json:"created_at"`
	UpdatedAt   string            `json:"updated_at"`
	ArchivedAt  *string           `json:"archived_at"`
}

func showCredential(c outboard.Credential) credentialOut {
	return credentialOut{"vault_credential", string(c.ID), string(c.Vault), textOrNull(c.DisplayName),
		orEmpty(c.Metadata), showAuth(&c.Auth),
		stamp(c.CreatedAt), stamp(c.UpdatedAt), stampOrNull(c.ArchivedAt)}
}

type bearerOut struct {
	Type string `json:"type"`
	URL  string `json:"mcp_server_url"`
}

type oauthOut struct {
	bearerOut
	ExpiresAt *string     `json:"expires_at"`
	Refresh   *refreshOut `json:"refresh"`
}

type refreshOut struct {
	TokenEndpoint string  `json:"token_endpoint"`
	ClientID      string  `json:"client_id"`
	Scope         *string `json:"scope"`
	Resource      *string `json:"resource"`
	EndpointAuth  typeOut `json:"token_endpoint_auth"`
}

type injectionOut struct {
	Header bool `json:"header"`
	Body   bool `json:"body"`
	Path   bool `json:"path,omitempty"`  // Outboard's own
	Query  bool `json:"query,omitempty"` // Outboard's own
}

type credNetworkOut struct {
	Type  string   `json:"type"`
	Hosts []string `json:"allowed_hosts,omitempty"`
}

type variableOut struct {
	Type       string         `json:"type"`
	Name       string         `json:"secret_name"`
	Networking credNetworkOut `json:"networking"`
	Location   injectionOut   `json:"injection_location"`
	Outboard   *variableExtra `json:"outboard,omitempty"` // Outboard's own, when it was given
}

type variableExtra struct {
	Ports   []int    `json:"ports,omitempty"`
	Methods []string `json:"methods,omitempty"`
	Paths   []string `json:"paths,omitempty"`
	Prefix  string   `json:"placeholder_prefix,omitempty"`
}

// ruleOut is what Outboard's own types of credential share.
type ruleOut struct {
	Type    string   `json:"type"`
	Name    string   `json:"name"`
	Hosts   []string `json:"hosts"`
	Ports   []int    `json:"ports"`
	Methods []string `json:"methods"`
	Paths   []string `json:"paths"`
}

func showRule(a *outboard.Auth) ruleOut {
	u := &a.Rule
	return ruleOut{a.Type, a.Name, some(u.Hosts), some(u.Ports), some(u.Methods), some(u.Paths)}
}

// showAuth shows where a secret may go, and nothing of the secret.
func showAuth(a *outboard.Auth) any {
	switch a.Type {
	case outboard.AuthBearer:
		return bearerOut{a.Type, a.MCPServerURL}
	case outboard.AuthOAuth:
		out := oauthOut{bearerOut: bearerOut{a.Type, a.MCPServerURL}, ExpiresAt: stampOrNull(a.ExpiresAt)}
		if f := a.Refresh; f != nil {
			out.Refresh = &refreshOut{f.TokenEndpoint, f.ClientID, textOrNull(f.Scope), textOrNull(f.Resource),
				typeOut{f.EndpointAuth}}
		}
		return out
	case outboard.AuthEnv:
		out := variableOut{Type: a.Type, Name: a.Name, Networking: credNetworkOut{"limited", a.Rule.Hosts},
			Location: injectionOut{a.InHeader, a.InBody, a.InPath, a.InQuery}}
		if a.Rule.AnyHost {
			out.Networking = credNetworkOut{Type: "unrestricted"}
		}
		if u := a.Rule; len(u.Ports)+len(u.Methods)+len(u.Paths) > 0 {
			out.Outboard = &variableExtra{u.Ports, u.Methods, u.Paths, a.Shape}
		}
		return out
	case outboard.AuthHeader:
		return struct {
			ruleOut
			Header string `json:"header"`
			Format string `json:"format"`
		}{showRule(a), a.HeaderName, a.Format}
	case outboard.AuthAWS:
		return struct {
			ruleOut
			outboard.AWSScope
		}{showRule(a), *a.AWS}
	case outboard.AuthGitHub:
		return struct {
			ruleOut
			outboard.GitHubScope
		}{showRule(a), *a.GitHub}
	}
	return typeOut{a.Type}
}

type httpResponseOut struct {
	StatusCode int    `json:"status_code"`
	Kind       string `json:"content_type"`
	Body       string `json:"body"`
	Truncated  bool   `json:"body_truncated"`
}

type probeOut struct {
	Method   string           `json:"method"`
	Response *httpResponseOut `json:"http_response"`
}

type refreshedOut struct {
	Status   string           `json:"status"`
	Response *httpResponseOut `json:"http_response"`
}

type validationOut struct {
	Type         string        `json:"type"`
	CredentialID string        `json:"credential_id"`
	VaultID      string        `json:"vault_id"`
	Status       string        `json:"status"`
	ValidatedAt  string        `json:"validated_at"`
	HasRefresh   bool          `json:"has_refresh_token"`
	Probe        *probeOut     `json:"mcp_probe"`
	Refresh      *refreshedOut `json:"refresh"`
}

func showValidation(vault, credential string, v control.Validation) validationOut {
	out := validationOut{Type: "vault_credential_validation", CredentialID: credential, VaultID: vault,
		Status: v.Status, ValidatedAt: stamp(v.At), HasRefresh: v.HasRefresh}
	response := func(code int, kind, body string, cut bool) *httpResponseOut {
		if code == 0 {
			return nil
		}
		return &httpResponseOut{code, kind, body, cut}
	}
	if p := v.Probe; p != nil {
		out.Probe = &probeOut{p.Method, response(p.StatusCode, p.Kind, p.Body, p.Truncated)}
	}
	if f := v.Refresh; f != nil {
		out.Refresh = &refreshedOut{f.Status, response(f.StatusCode, f.Kind, f.Body, f.Truncated)}
	}
	return out
}

// instantIn reads a time that a credential ends at.
func instantIn(path, s string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return t, bad("%s: must be an RFC 3339 time, not %q", path, clip(s))
	}
	return t.UTC().Truncate(time.Microsecond), nil
}
