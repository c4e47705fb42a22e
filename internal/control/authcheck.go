package control

import (
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/netrule"
	"github.com/outboard-dev/outboard/internal/vault"
)

// Limits of a credential. Those of the Managed Agents wire say so; the others keep a rule readable and its row small.
const (
	maxSecretValue = 4096 // wire: secret_value
	maxCredHosts   = 16   // wire: allowed_hosts
	maxRuleList    = 32   // ports, methods, paths
	maxRulePath    = 512
	maxURL         = 2048
	maxPEM         = 16 << 10
	maxScopeList   = 500 // repositories, as many as GitHub takes for one token
)

var (
	variableRE   = regexp.MustCompile(`^[A-Z_][A-Z0-9_]*$`)
	credNameRE   = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)
	headerRE     = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`)
	awsNameRE    = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)
	repositoryRE = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,100}/[A-Za-z0-9_.-]{1,100}$`)
	permissionRE = regexp.MustCompile(`^[a-z_]{1,64}$`)
	shapeRE      = regexp.MustCompile(`^[A-Za-z0-9_.-]{0,32}$`)
)

// ownVariables are what a sandbox's own environment needs: a credential must not replace them.
var ownVariables = regexp.MustCompile(`^(PATH|HOME|USER|SHELL|IFS|ENV|BASH_ENV|PWD|TMPDIR|LD_.*|OUTBOARD_.*|HTTPS?_PROXY|NO_PROXY|ALL_PROXY|SSL_CERT_.*|.*_CA_BUNDLE|.*_CAFILE|.*_CAINFO|(PIP|DENO)_CERT|GRPC_DEFAULT_SSL_ROOTS_FILE_PATH|NODE_(OPTIONS|EXTRA_CA_CERTS|USE_ENV_PROXY|TLS_REJECT_UNAUTHORIZED)|PYTHON(PATH|HOME|STARTUP)|GIT_.*|JAVA_TOOL_OPTIONS)$`)

// checkAuth validates a credential's rule and secrets. No message repeats a secret.
func checkAuth(a *outboard.Auth, s *Secrets) error {
	switch a.Type {
	case outboard.AuthOAuth:
		return checkOAuth(a, s)
	case outboard.AuthBearer:
		if err := checkURL("auth.mcp_server_url", a.MCPServerURL); err != nil {
			return err
		}
		return checkSecret("auth.token", s.Value, vault.MaxToken)
	case outboard.AuthEnv:
		return checkVariable(a, s)
	}
	if !credNameRE.MatchString(a.Name) {
		return invalid("auth.name must be letters, digits, dots, dashes and underscores, not %s", quote(a.Name))
	}
	if a.Rule.AnyHost || len(a.Rule.Hosts) == 0 {
		return invalid("auth.hosts must name the hosts the credential is for")
	}
	if err := checkRule("auth", &a.Rule); err != nil {
		return err
	}
	switch a.Type {
	case outboard.AuthHeader:
		return checkHeader(a, s)
	case outboard.AuthAWS:
		return checkAWS(a, s)
	case outboard.AuthGitHub:
		return checkGitHub(a, s)
	}
	return invalid("auth.type %s is not known", quote(a.Type))
}

// checkSecret refuses a secret that is absent, too long, or could break out of a header.
func checkSecret(field string, s outboard.Secret, most int) error {
	v := s.Reveal()
	switch {
	case v == "":
		return invalid("%s must not be empty", field)
	case len(v) > most:
		return invalid("%s must have at most %d bytes, not %d", field, most, len(v))
	case strings.ContainsAny(strings.TrimRight(v, "\r\n"), "\r\n"):
		err := invalid("%s must not contain control characters: it has several lines, which a header, a path or a "+
			"query cannot carry", field)
		if field == "auth.secret_value" {
			err = err.WithHint(`where only bodies carry it, say so: "injection_location": {"header": false, "body": true}`)
		}
		return err
	case strings.ContainsFunc(v, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return invalid("%s must not contain control characters", field).WithHint("a line break at its end? strip it")
	}
	return nil
}

// checkURL wants https; plain http only to this machine itself, which outbound rules allow in development alone.
func checkURL(field, s string) error {
	u, err := url.Parse(s)
	if err != nil || len(s) > maxURL || u.Host == "" || u.User != nil || u.Fragment != "" {
		return invalid("%s must be an https URL without user and fragment", field)
	}
	ip, err := netip.ParseAddr(u.Hostname())
	if u.Scheme == "https" || u.Scheme == "http" && (u.Hostname() == "localhost" || err == nil && ip.IsLoopback()) {
		return nil
	}
	return invalid("%s must be an https URL", field)
}

func checkOAuth(a *outboard.Auth, s *Secrets) error {
	if err := checkURL("auth.mcp_server_url", a.MCPServerURL); err != nil {
		return err
	}
	if err := checkSecret("auth.access_token", s.Value, vault.MaxToken); err != nil {
		return err
	}
	r := a.Refresh
	if r == nil {
		return nil
	}
	if err := checkURL("auth.refresh.token_endpoint", r.TokenEndpoint); err != nil {
		return err
	}
	if err := checkSecret("auth.refresh.refresh_token", s.RefreshToken, vault.MaxToken); err != nil {
		return err
	}
	for field, v := range map[string]string{"client_id": r.ClientID, "scope": r.Scope, "resource": r.Resource} {
		least := 0
		if field == "client_id" {
			least = 1
		}
		if err := length("auth.refresh."+field, v, least, maxURL); err != nil {
			return err
		}
	}
	switch r.EndpointAuth {
	case "none":
		return nil
	case "client_secret_basic", "client_secret_post":
		return checkSecret("auth.refresh.token_endpoint_auth.client_secret", s.ClientSecret, vault.MaxToken)
	}
	return invalid("auth.refresh.token_endpoint_auth.type must be none, client_secret_basic or client_secret_post, "+
		"not %s", quote(r.EndpointAuth))
}

func checkVariable(a *outboard.Auth, s *Secrets) error {
	if !variableRE.MatchString(a.Name) || len(a.Name) > maxName {
		return invalid("auth.secret_name must be capital letters, digits and underscores, not %s", quote(a.Name))
	}
	if ownVariables.MatchString(a.Name) {
		return invalid("auth.secret_name %s is a variable that the sandbox itself needs", quote(a.Name))
	}
	if !a.InHeader && !a.InBody && !a.InPath && !a.InQuery {
		return invalid("auth.injection_location must name header, body, path or query, or several of them")
	}
	if !shapeRE.MatchString(a.Shape) {
		return invalid("auth.outboard.placeholder_prefix must be at most 32 letters, digits, dots, dashes and " +
			"underscores")
	}
	if !a.Rule.AnyHost && len(a.Rule.Hosts) == 0 {
		return invalid("auth.networking.allowed_hosts must not be empty")
	}
	if err := checkRule("auth", &a.Rule); err != nil {
		return err
	}
	if a.InBody && !a.InHeader && !a.InPath && !a.InQuery {
		return checkText("auth.secret_value", s.Value, maxSecretValue)
	}
	return checkSecret("auth.secret_value", s.Value, maxSecretValue)
}

// checkText is checkSecret for one that goes in bodies alone, where it may have several lines, as a key in PEM has.
func checkText(field string, s outboard.Secret, most int) error {
	v := s.Reveal()
	if len(v) > most {
		return invalid("%s must have at most %d bytes, not %d", field, most, len(v))
	}
	return checkSecret(field, outboard.NewSecret(strings.NewReplacer("\r\n", " ", "\n", " ", "\t", " ").Replace(v)),
		most)
}

// checkRule validates the lists of a rule.
func checkRule(path string, u *outboard.UseRule) error {
	if len(u.Hosts) > maxCredHosts {
		return invalid("%s: at most %d hosts, not %d", path, maxCredHosts, len(u.Hosts))
	}
	for _, h := range u.Hosts {
		if ip, err := netip.ParseAddr(h); err == nil && ip.Is4() {
			continue
		}
		name := strings.TrimPrefix(h, "*.")
		if !hostName.MatchString(name) || strings.HasPrefix(h, "*.") && !strings.Contains(name, ".") {
			return invalid("%s: %s is neither a host name, an IPv4 address nor *.name", path, quote(h))
		}
		if err := netrule.Check(outboard.NetRule{Host: strings.ToLower(h)}); err != nil {
			return invalid("%s: %s: %w", path, quote(h), err)
		}
	}
	if len(u.Ports) > maxRuleList || len(u.Methods) > maxRuleList || len(u.Paths) > maxRuleList {
		return invalid("%s: at most %d ports, methods and paths each", path, maxRuleList)
	}
	for _, p := range u.Ports {
		if p < 1 || p > 65535 {
			return invalid("%s.ports: %d is no port", path, p)
		}
	}
	for _, m := range u.Methods {
		if m == "" || strings.Trim(m, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
			return invalid("%s.methods: %s is no method in capitals", path, quote(m))
		}
	}
	for _, p := range u.Paths {
		if !strings.HasPrefix(p, "/") || len(p) > maxRulePath || strings.ContainsAny(p, "?#%;\\\x00") ||
			slices.Contains(strings.Split(p, "/"), "..") ||
			strings.Count(p, "**") > 3 {
			return invalid("%s.paths: %s is no path pattern", path, quote(p)).
				WithHint("begin with /; * is any text within a segment, ** any segments; no query, escapes or ..")
		}
	}
	return nil
}

func checkHeader(a *outboard.Auth, s *Secrets) error {
	if !headerRE.MatchString(a.HeaderName) ||
		slices.Contains([]string{"host", "connection", "content-length", "transfer-encoding", "upgrade", "te",
			"trailer"}, strings.ToLower(a.HeaderName)) {
		return invalid("auth.header %s is no header that carries a credential", quote(a.HeaderName))
	}
	if n := strings.Count(a.Format, "{secret}") + strings.Count(a.Format, "{basic}"); n != 1 ||
		len(a.Format) > maxName ||
		strings.ContainsFunc(a.Format, func(r rune) bool { return r < ' ' || r > '~' }) {
		return invalid("auth.format must hold {secret} or {basic} once, and printable ASCII around it")
	}
	return checkSecret("auth.value", s.Value, vault.MaxToken)
}

func checkAWS(a *outboard.Auth, s *Secrets) error {
	if a.AWS == nil || !awsNameRE.MatchString(a.AWS.Service) || !awsNameRE.MatchString(a.AWS.Region) {
		return invalid("auth.service and auth.region must be names such as s3 and eu-central-1")
	}
	if a.AWS.Service == "sts" || a.AWS.Service == "iam" {
		return invalid("auth.service %s is not signed for: it would hand new credentials into the sandbox",
			a.AWS.Service)
	}
	// whoever may ask AWS itself is given a password, which would be one in the sandbox
	if a.AWS.Service == vault.ServiceECR {
		if why := vault.CheckECR(a); why != "" {
			return invalid("auth.service %s is for pulling images: %s", vault.ServiceECR, why)
		}
	}
	if err := checkSecret("auth.access_key_id", s.AccessKeyID, maxName); err != nil {
		return err
	}
	if !s.SessionToken.IsZero() {
		if err := checkSecret("auth.session_token", s.SessionToken, vault.MaxToken); err != nil {
			return err
		}
	}
	return checkSecret("auth.secret_access_key", s.Value, maxSecretValue)
}

func checkGitHub(a *outboard.Auth, s *Secrets) error {
	g := a.GitHub
	if g == nil || g.AppID < 1 || g.InstallationID < 1 {
		return invalid("auth.app_id and auth.installation_id must be numbers from 1")
	}
	if err := checkURL("auth.api_url", g.APIURL); err != nil {
		return err
	}
	if len(g.Repositories) == 0 || len(g.Repositories) > maxScopeList || len(g.Permissions) == 0 ||
		len(g.Permissions) > maxScopeList {
		return invalid("auth.repositories and auth.permissions must name what tokens may do, at most %d each",
			maxScopeList)
	}
	for _, r := range g.Repositories {
		if !repositoryRE.MatchString(r) {
			return invalid("auth.repositories: %s is not owner/name", quote(r))
		}
	}
	for name, level := range g.Permissions {
		if !permissionRE.MatchString(name) || !slices.Contains([]string{"read", "write", "admin"}, level) {
			return invalid("auth.permissions: %s must be read, write or admin", quote(name))
		}
	}
	if len(s.Value.Reveal()) > maxPEM {
		return invalid("auth.private_key must have at most %d bytes", maxPEM)
	}
	_, err := vault.ParseRSAKey(s.Value)
	return err
}
