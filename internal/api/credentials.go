package api

import (
	"cmp"
	"encoding/json"
	"net/url"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// authChange changes a credential's rule and secrets: from nothing when it is made, else from what they are.
type authChange = func(*outboard.Auth, *control.Secrets) error

// put replaces a secret when one was given.
func put(to *outboard.Secret, v *string) {
	if v != nil {
		*to = outboard.NewSecret(*v)
	}
}

// decodeAuth reads the auth of a credential. An update may leave members out.
func decodeAuth(raw json.RawMessage, create bool) (string, authChange, error) {
	const path = "auth"
	kind, err := unionType(path, raw)
	if err != nil {
		return "", nil, err
	}
	decode := map[string]func(string, json.RawMessage, bool) (authChange, error){
		outboard.AuthOAuth: decodeOAuth, outboard.AuthBearer: decodeBearer, outboard.AuthEnv: decodeVariable,
		outboard.AuthHeader: decodeHeader, outboard.AuthAWS: decodeAWS, outboard.AuthGitHub: decodeGitHub,
	}[kind]
	if decode == nil {
		return kind, nil, bad("auth.type: must be mcp_oauth, static_bearer, environment_variable, outboard_header, "+
			"outboard_aws or outboard_github_app, not %q", clip(kind))
	}
	change, err := decode(path, raw, create)
	return kind, change, err
}

// immutable refuses a member that only a new credential may have, and wants it of a new one.
func immutable(path, name string, v *string, create bool) error {
	switch {
	case create && v == nil:
		return bad("%s.%s: required", path, name)
	case !create && v != nil:
		return bad("%s.%s: cannot change; make another credential", path, name)
	}
	return nil
}

// needed wants a member of a new credential.
func needed(path, name string, given, create bool) error {
	if create && !given {
		return bad("%s.%s: required", path, name)
	}
	return nil
}

func decodeBearer(path string, raw json.RawMessage, create bool) (authChange, error) {
	var in struct {
		Type  string  `json:"type"`
		URL   *string `json:"mcp_server_url"`
		Token *string `json:"token"`
	}
	err := cmpErr(object(path, raw, &in), immutable(path, "mcp_server_url", in.URL, create),
		needed(path, "token", in.Token != nil, create))
	return func(a *outboard.Auth, s *control.Secrets) error {
		keep(&a.MCPServerURL, in.URL)
		put(&s.Value, in.Token)
		return nil
	}, err
}

// cmpErr returns the first error.
func cmpErr(errs ...error) error { return cmp.Or(errs...) }

func decodeOAuth(path string, raw json.RawMessage, create bool) (authChange, error) {
	var in struct {
		Type      string          `json:"type"`
		URL       *string         `json:"mcp_server_url"`
		Token     *string         `json:"access_token"`
		ExpiresAt field[string]   `json:"expires_at"`
		Refresh   json.RawMessage `json:"refresh"`
	}
	err := object(path, raw, &in)
	err = cmpErr(err, immutable(path, "mcp_server_url", in.URL, create),
		needed(path, "access_token", in.Token != nil, create))
	if err != nil {
		return nil, err
	}
	var ends time.Time
	if in.ExpiresAt.set && !in.ExpiresAt.null {
		if ends, err = instantIn(path+".expires_at", in.ExpiresAt.v); err != nil {
			return nil, err
		}
	}
	refresh := func(*outboard.Auth, *control.Secrets) error { return nil }
	if !isNull(in.Refresh) {
		if refresh, err = decodeRefresh(path+".refresh", in.Refresh, create); err != nil {
			return nil, err
		}
	}
	return func(a *outboard.Auth, s *control.Secrets) error {
		keep(&a.MCPServerURL, in.URL)
		put(&s.Value, in.Token)
		if in.ExpiresAt.set {
			a.ExpiresAt = ends
		}
		return refresh(a, s)
	}, nil
}

func decodeRefresh(path string, raw json.RawMessage, create bool) (authChange, error) {
	var in struct {
		Token    *string         `json:"refresh_token"`
		Endpoint *string         `json:"token_endpoint"`
		Client   *string         `json:"client_id"`
		Scope    field[string]   `json:"scope"`
		Resource field[string]   `json:"resource"`
		Auth     json.RawMessage `json:"token_endpoint_auth"`
	}
	err := object(path, raw, &in)
	err = cmpErr(err, immutable(path, "token_endpoint", in.Endpoint, create),
		immutable(path, "client_id", in.Client, create),
		needed(path, "refresh_token", in.Token != nil, create), needed(path, "token_endpoint_auth", !isNull(in.Auth),
			create))
	if err != nil {
		return nil, err
	}
	var auth struct {
		Type   string  `json:"type" need:"yes"`
		Secret *string `json:"client_secret"`
	}
	if !isNull(in.Auth) {
		if err := object(path+".token_endpoint_auth", in.Auth, &auth); err != nil {
			return nil, err
		}
	}
	return func(a *outboard.Auth, s *control.Secrets) error {
		f := outboard.OAuthRefresh{}
		switch {
		case a.Refresh != nil:
			f = *a.Refresh
		case !create:
			return bad("%s: the credential has no refresh to change", path)
		}
		keep(&f.TokenEndpoint, in.Endpoint)
		keep(&f.ClientID, in.Client)
		keep(&f.Scope, in.Scope.clearing())
		keep(&f.Resource, in.Resource.clearing())
		f.EndpointAuth = cmp.Or(auth.Type, f.EndpointAuth)
		put(&s.RefreshToken, in.Token)
		put(&s.ClientSecret, auth.Secret)
		a.Refresh = &f
		return nil
	}, nil
}

func decodeVariable(path string, raw json.RawMessage, create bool) (authChange, error) {
	var in struct {
		Type       string          `json:"type"`
		Name       *string         `json:"secret_name"`
		Value      *string         `json:"secret_value"`
		Networking json.RawMessage `json:"networking"`
		Location   json.RawMessage `json:"injection_location"`
		Outboard   json.RawMessage `json:"outboard"`
	}
	var at struct {
		Header field[bool] `json:"header"`
		Body   field[bool] `json:"body"`
		Path   field[bool] `json:"path"`  // Outboard's own
		Query  field[bool] `json:"query"` // Outboard's own
	}
	var extra variableExtra
	err := object(path, raw, &in)
	if err == nil && in.Location != nil {
		err = cmpErr(object(path+".injection_location", in.Location, &at),
			notNull(path+".injection_location.header", at.Header.null),
			notNull(path+".injection_location.body", at.Body.null), notNull(path+".injection_location.path",
				at.Path.null),
			notNull(path+".injection_location.query", at.Query.null))
	}
	if err == nil && !isNull(in.Outboard) {
		err = object(path+".outboard", in.Outboard, &extra)
	}
	err = cmpErr(err, immutable(path, "secret_name", in.Name, create),
		needed(path, "secret_value", in.Value != nil, create),
		needed(path, "networking", !isNull(in.Networking), create))
	if err != nil {
		return nil, err
	}
	var hosts *outboard.UseRule
	if !isNull(in.Networking) {
		if hosts, err = decodeCredNetworking(path+".networking", in.Networking); err != nil {
			return nil, err
		}
	}
	return func(a *outboard.Auth, s *control.Secrets) error {
		keep(&a.Name, in.Name)
		put(&s.Value, in.Value)
		if hosts != nil {
			a.Rule.AnyHost, a.Rule.Hosts = hosts.AnyHost, hosts.Hosts
		}
		if create && in.Location == nil {
			a.InHeader, a.InBody = true, true
		}
		if at.Header.set {
			a.InHeader = at.Header.v
		}
		if at.Body.set {
			a.InBody = at.Body.v
		}
		if at.Path.set {
			a.InPath = at.Path.v
		}
		if at.Query.set {
			a.InQuery = at.Query.v
		}
		if in.Outboard != nil {
			a.Rule.Ports, a.Rule.Methods, a.Rule.Paths, a.Shape = extra.Ports, extra.Methods, extra.Paths, extra.Prefix
		}
		if in.Value != nil && extra.Prefix == "" {
			a.Shape = control.Shape(*in.Value)
		}
		return nil
	}, nil
}

// notNull refuses a member that is a value or absent.
func notNull(path string, null bool) error {
	if null {
		return bad("%s: must not be null", path)
	}
	return nil
}

func decodeCredNetworking(path string, raw json.RawMessage) (*outboard.UseRule, error) {
	kind, err := unionType(path, raw)
	if err != nil {
		return nil, err
	}
	switch kind {
	case "unrestricted":
		return &outboard.UseRule{AnyHost: true}, object(path, raw, new(typeOut))
	case "limited":
		var in struct {
			Type  string   `json:"type"`
			Hosts []string `json:"allowed_hosts" need:"yes"`
		}
		err := object(path, raw, &in)
		return &outboard.UseRule{Hosts: in.Hosts}, err
	}
	return nil, bad("%s.type: must be unrestricted or limited, not %q", path, clip(kind))
}

// ruleIn is what Outboard's own types of credential share.
type ruleIn struct {
	name                  *string
	hosts, methods, paths *[]string
	ports                 *[]int
}

func (in *ruleIn) apply(a *outboard.Auth) {
	keep(&a.Name, in.name)
	keep(&a.Rule.Hosts, in.hosts)
	keep(&a.Rule.Ports, in.ports)
	keep(&a.Rule.Methods, in.methods)
	keep(&a.Rule.Paths, in.paths)
}

func decodeHeader(path string, raw json.RawMessage, create bool) (authChange, error) {
	var in struct {
		Type    string    `json:"type"`
		Name    *string   `json:"name"`
		Hosts   *[]string `json:"hosts"`
		Ports   *[]int    `json:"ports"`
		Methods *[]string `json:"methods"`
		Paths   *[]string `json:"paths"`
		Value   *string   `json:"value"`
		Header  *string   `json:"header"`
		Format  *string   `json:"format"`
	}
	err := object(path, raw, &in)
	err = cmpErr(err, immutable(path, "name", in.Name, create), needed(path, "hosts", in.Hosts != nil, create),
		needed(path, "value", in.Value != nil, create))
	rule := ruleIn{in.Name, in.Hosts, in.Methods, in.Paths, in.Ports}
	return func(a *outboard.Auth, s *control.Secrets) error {
		rule.apply(a)
		put(&s.Value, in.Value)
		keep(&a.HeaderName, in.Header)
		a.HeaderName = cmp.Or(a.HeaderName, "Authorization")
		format := "{secret}"
		if a.HeaderName == "Authorization" {
			format = "Bearer {secret}"
		}
		keep(&a.Format, in.Format)
		a.Format = cmp.Or(a.Format, format)
		return nil
	}, err
}

func decodeAWS(path string, raw json.RawMessage, create bool) (authChange, error) {
	var in struct {
		Type    string        `json:"type"`
		Name    *string       `json:"name"`
		Hosts   *[]string     `json:"hosts"`
		Ports   *[]int        `json:"ports"`
		Methods *[]string     `json:"methods"`
		Paths   *[]string     `json:"paths"`
		KeyID   *string       `json:"access_key_id"`
		Key     *string       `json:"secret_access_key"`
		Token   field[string] `json:"session_token"`
		Service *string       `json:"service"`
		Region  *string       `json:"region"`
	}
	err := object(path, raw, &in)
	err = cmpErr(err, immutable(path, "name", in.Name, create), needed(path, "hosts", in.Hosts != nil, create),
		immutable(path, "service", in.Service, create),
		immutable(path, "region", in.Region, create), needed(path, "access_key_id", in.KeyID != nil,
			create), needed(path, "secret_access_key", in.Key != nil, create))
	rule := ruleIn{in.Name, in.Hosts, in.Methods, in.Paths, in.Ports}
	return func(a *outboard.Auth, s *control.Secrets) error {
		rule.apply(a)
		put(&s.AccessKeyID, in.KeyID)
		put(&s.Value, in.Key)
		put(&s.SessionToken, in.Token.clearing())
		if create {
			a.AWS = &outboard.AWSScope{Service: *in.Service, Region: *in.Region}
		}
		return nil
	}, err
}

func decodeGitHub(path string, raw json.RawMessage, create bool) (authChange, error) {
	var in struct {
		Type         string             `json:"type"`
		Name         *string            `json:"name"`
		Hosts        *[]string          `json:"hosts"`
		Ports        *[]int             `json:"ports"`
		Methods      *[]string          `json:"methods"`
		Paths        *[]string          `json:"paths"`
		App          *int64             `json:"app_id"`
		Installation *int64             `json:"installation_id"`
		Key          *string            `json:"private_key"`
		API          *string            `json:"api_url"`
		Repositories *[]string          `json:"repositories"`
		Permissions  *map[string]string `json:"permissions"`
	}
	err := object(path, raw, &in)
	err = cmpErr(err, immutable(path, "name", in.Name, create), needed(path, "app_id", in.App != nil, create),
		needed(path, "installation_id", in.Installation != nil, create),
		needed(path, "private_key", in.Key != nil, create), needed(path, "repositories", in.Repositories != nil,
			create), needed(path, "permissions", in.Permissions != nil, create))
	rule := ruleIn{in.Name, in.Hosts, in.Methods, in.Paths, in.Ports}
	return func(a *outboard.Auth, s *control.Secrets) error {
		rule.apply(a)
		put(&s.Value, in.Key)
		g := outboard.GitHubScope{APIURL: "https://api.github.com"}
		if a.GitHub != nil {
			g = *a.GitHub
		}
		keep(&g.AppID, in.App)
		keep(&g.InstallationID, in.Installation)
		keep(&g.APIURL, in.API)
		keep(&g.Repositories, in.Repositories)
		keep(&g.Permissions, in.Permissions)
		a.GitHub = &g
		if u, err := url.Parse(g.APIURL); len(a.Rule.Hosts) == 0 && err == nil {
			a.Rule.Hosts = []string{u.Hostname()}
			if u.Hostname() == "api.github.com" {
				a.Rule.Hosts = []string{"api.github.com", "github.com"}
			}
		}
		return nil
	}, err
}

func (r *request) credential() outboard.CredentialID {
	return outboard.CredentialID(r.PathValue("credential"))
}

func (s *server) createCredential(r *request) (any, error) {
	var in struct {
		DisplayName field[string]     `json:"display_name"`
		Metadata    map[string]string `json:"metadata"`
		Auth        json.RawMessage   `json:"auth" need:"yes"`
	}
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	q := control.CredentialRequest{DisplayName: in.DisplayName.v, Metadata: in.Metadata}
	kind, change, err := decodeAuth(in.Auth, true)
	if err != nil {
		return nil, err
	}
	q.Auth.Type = kind
	if err := change(&q.Auth, &q.Secrets); err != nil {
		return nil, err
	}
	if !q.Auth.ExpiresAt.IsZero() && q.Auth.ExpiresAt.Before(s.now()) {
		return nil, bad("auth.expires_at: must be in the future")
	}
	return shown(showCredential)(s.ctl.CreateCredential(r.Context(), r.by, r.vault(), q))
}

func (s *server) updateCredential(r *request) (any, error) {
	var in struct {
		DisplayName field[string]             `json:"display_name"`
		Metadata    field[map[string]*string] `json:"metadata"`
		Auth        json.RawMessage           `json:"auth"`
	}
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	p := control.CredentialPatch{DisplayName: in.DisplayName.clearing(), Metadata: in.Metadata.v}
	if !isNull(in.Auth) {
		kind, change, err := decodeAuth(in.Auth, false)
		if err != nil {
			return nil, err
		}
		p.Type, p.Auth = kind, change
	}
	return shown(showCredential)(s.ctl.UpdateCredential(r.Context(), r.by, r.vault(), r.credential(), p))
}

func (s *server) getCredential(r *request) (any, error) {
	return shown(showCredential)(s.ctl.Credential(r.Context(), r.by, r.vault(), r.credential()))
}

func (s *server) archiveCredential(r *request) (any, error) {
	if err := r.empty(); err != nil {
		return nil, err
	}
	return shown(showCredential)(s.ctl.ArchiveCredential(r.Context(), r.by, r.vault(), r.credential()))
}

func (s *server) deleteCredential(r *request) (any, error) {
	if err := s.ctl.DeleteCredential(r.Context(), r.by, r.vault(), r.credential()); err != nil {
		return nil, err
	}
	return deletedOut{string(r.credential()), "vault_credential_deleted"}, nil
}

func (s *server) listCredentials(r *request) (any, error) {
	q, err := r.rows("credentials of "+string(r.vault()), agentPage, maxAgentPage)
	if err != nil {
		return nil, err
	}
	list, err := s.ctl.Credentials(r.Context(), r.by, r.vault(), q.page, q.at)
	if err != nil {
		return nil, err
	}
	return pageOf(q, list, func(c outboard.Credential) (string, time.Time) { return string(c.ID), c.CreatedAt },
		showCredential), nil
}

func (s *server) validateCredential(r *request) (any, error) {
	if err := r.empty(); err != nil {
		return nil, err
	}
	v, err := s.ctl.ValidateCredential(r.Context(), r.by, r.vault(), r.credential())
	if err != nil {
		return nil, err
	}
	return showValidation(string(r.vault()), string(r.credential()), v), nil
}

// testCredential is Outboard's own: would the credential be used on this request?
func (s *server) testCredential(r *request) (any, error) {
	var in struct {
		Method string `json:"method" need:"yes"`
		URL    string `json:"url" need:"yes"`
	}
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	why, err := s.ctl.TestCredential(r.Context(), r.by, r.vault(), r.credential(), in.Method, in.URL)
	if err != nil {
		return nil, err
	}
	return struct {
		Type   string  `json:"type"`
		Used   bool    `json:"used"`
		Reason *string `json:"reason"`
	}{"vault_credential_test", why == "", textOrNull(why)}, nil
}
