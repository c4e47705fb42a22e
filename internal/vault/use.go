package vault

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// Injection is what a request is to be sent with. The zero value changes nothing.
type Injection struct {
	Names      []string                   // the credentials, for audit: ids and names
	Set        map[string]outboard.Secret // headers to replace
	Strip      []string                   // headers by which a client could bring a credential of its own
	StripQuery []string                   // query parameters likewise
	// names in a body under which there may be a placeholder and no key of the client's own
	RefuseBody []string
	// RefuseShapes are beginnings of keys that are refused in bodies without names, where there is a placeholder.
	RefuseShapes []string
	Replace      []Placeholder // to put values for
	// placeholders of this session that have no business here: a header with one is refused
	Refuse []string
	Sign   func(*SignRequest) error // called last, on the request as it will be sent
	Scrub  []outboard.Secret        // must not come back in an answer
	// Still returns an error once one of the credentials is no longer for the request: archived, deleted, or
	// under another rule. While that cannot be found out it returns nil.
	Still func(context.Context) error
	// Refused, when set, is to be called when the server answers 401: what the request was sent with was no good.
	Refused func()
}

// Placeholder is what a tool holds in the place of a secret.
type Placeholder struct {
	Text   string
	Value  outboard.Secret
	Name   string // of the variable that holds it
	Header bool
	Body   bool
	Path   bool
	Query  bool
}

// AuditUse is the action under which every use of a credential is recorded.
const AuditUse = "credential.use"

// held is what is cached for a session: sealed. It is dropped when the sequence moves.
type held struct {
	vaults []outboard.VaultID
	rows   []store.Credential
}

// forSession returns the verified, still sealed credentials of a session in the order of its vaults.
func (k *Keeper) forSession(ctx context.Context, st state, id outboard.SessionID) (*held, error) {
	k.mu.Lock()
	h := k.sessions[id]
	k.mu.Unlock()
	if h != nil {
		return h, nil
	}
	cfg, err := k.cfg.Store.SessionConfig(ctx, id)
	if err != nil {
		return nil, locked(err)
	}
	h = &held{}
	for _, v := range cfg.VaultIDs {
		h.vaults = append(h.vaults, outboard.VaultID(v))
	}
	if h.rows, err = k.verified(ctx, st, h.vaults); err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.sequence == st.sequence {
		if len(k.sessions) >= maxSessions {
			clear(k.sessions)
		}
		k.sessions[id] = h
	}
	return h, nil
}

// verified reads the living credentials of some vaults, and checks that they are all there and at the versions
// that the state names.
func (k *Keeper) verified(ctx context.Context, st state, vaults []outboard.VaultID) ([]store.Credential, error) {
	rows, err := k.cfg.Store.LivingCredentials(ctx, vaults)
	if err != nil {
		return nil, locked(err)
	}
	want := 0
	for _, m := range st.index {
		if !m.Archived && slices.Contains(vaults, m.Vault) {
			want++
		}
	}
	for i := range rows {
		if m := st.index[rows[i].ID]; m.Version != rows[i].Version || m.Archived {
			want = -1
		}
	}
	if want != len(rows) {
		k.mu.Lock()
		k.seen = time.Time{} // look at once, the next time
		k.mu.Unlock()
		return nil, outboard.Errorf(outboard.Unavailable, "the vault is locked: its credentials are changing, or "+
			"were changed by something other than outboard")
	}
	slices.SortStableFunc(rows, func(a, b store.Credential) int {
		return slices.Index(vaults, a.Vault) - slices.Index(vaults, b.Vault)
	})
	return rows, nil
}

// Use returns what a request of a sandbox is to be sent with: it checks each rule, writes an audit record, and
// only then opens a secret. The zero Injection means that no credential covers the request. Any error means that
// the request must not be sent.
func (k *Keeper) Use(ctx context.Context, r Request) (Injection, error) {
	var in Injection
	if r.Session == "" {
		return in, nil
	}
	k, err := k.of(ctx, r.Session)
	if err != nil {
		return in, err
	}
	st, h, err := k.view(ctx, r.Session)
	if err != nil || h == nil || len(h.rows) == 0 {
		return in, err
	}
	var covering []*store.Credential
	taken := map[string]bool{}
	own := false // a credential is for this server, though perhaps not for this request
	for i := range h.rows {
		c := &h.rows[i]
		slots := surfaces(&c.Auth)
		switch {
		case len(slots) == 0:
		case !matches(&c.Auth.Rule, &r):
			own = own || isFor(&c.Auth.Rule, &r)
			if c.Auth.Type == outboard.AuthEnv {
				in.Refuse = append(in.Refuse, placeholder(st.keys, r.Session, &c.Credential))
			}
		case !slices.ContainsFunc(slots, func(s string) bool { return taken[s] }):
			for _, s := range slots {
				taken[s] = true
			}
			covering = append(covering, c)
		}
	}
	if own { // an account of the client's own must not do there what ours may not: push to another namespace, say
		in.Strip, in.StripQuery = clientHeaders, clientQuery
	}
	if len(covering) == 0 {
		return in, nil
	}
	for _, c := range covering {
		in.Names = append(in.Names, label(&c.Credential))
	}
	if err := k.record(ctx, string(r.Session), &r, in.Names, versions(covering)); err != nil {
		return Injection{}, err
	}
	for _, c := range covering {
		s, err := st.keys.open(k.org, c)
		if err != nil {
			return Injection{}, locked(err)
		}
		if err := k.inject(ctx, st.keys, &r, &c.Credential, s, &in); err != nil {
			return Injection{}, err
		}
	}
	kept := r // r itself stays on the stack of requests without credentials
	in.Still = func(ctx context.Context) error { return k.still(ctx, &kept, covering) }
	if in.Sign != nil {
		// The client's own signature tells which service and region it means, so it is the signer that replaces
		// it, whatever else of the session's credentials is for this request.
		in.Strip = slices.DeleteFunc(slices.Clone(in.Strip), func(h string) bool { return h == "Authorization" })
	}
	return in, nil
}

// still is Injection.Still. A new value ends nothing: the next request has it.
func (k *Keeper) still(ctx context.Context, r *Request, used []*store.Credential) error {
	_, h, err := k.view(ctx, r.Session)
	if err != nil || h == nil {
		return nil
	}
	for _, c := range used {
		if !slices.ContainsFunc(h.rows,
			func(now store.Credential) bool { return now.ID == c.ID && matches(&now.Auth.Rule, r) }) {
			return outboard.Errorf(outboard.Denied, "credential %s is no longer for this request", label(&c.Credential))
		}
	}
	return nil
}

// view is the current state with a session's credentials, read again when the two do not agree.
func (k *Keeper) view(ctx context.Context, id outboard.SessionID) (st state, h *held, err error) {
	for range 2 {
		if st, err = k.current(ctx); err != nil || st.keys == nil {
			return st, nil, err
		}
		if h, err = k.forSession(ctx, st, id); err == nil {
			return st, h, nil
		}
	}
	return st, nil, err
}

// surfaces are where a credential is put: two for the same place do not both apply, the first vault's wins. None
// for those that are not used by the gateway. A signer has several, or it would remove what another credential
// has set there.
func surfaces(a *outboard.Auth) []string {
	switch a.Type {
	case outboard.AuthEnv:
		return []string{"placeholder " + a.Name}
	case outboard.AuthHeader:
		return []string{"header " + http.CanonicalHeaderKey(a.HeaderName)}
	case outboard.AuthGitHub:
		return []string{"header Authorization"}
	case outboard.AuthAWS:
		var out []string
		for _, name := range awsOwn {
			out = append(out, "header "+name)
		}
		return out
	}
	return nil
}

// label names a credential in audit records: never by its value.
func label(c *outboard.Credential) string {
	if c.Auth.Name != "" {
		return string(c.ID) + " (" + c.Auth.Name + ")"
	}
	return string(c.ID)
}

func versions(cs []*store.Credential) map[outboard.CredentialID]int64 {
	out := map[outboard.CredentialID]int64{}
	for _, c := range cs {
		out[c.ID] = c.Version
	}
	return out
}

// record writes that credentials are about to be used.
func (k *Keeper) record(ctx context.Context, actor string, r *Request, names []string,
	used map[outboard.CredentialID]int64) error {
	for id := range used {
		if k.cfg.Permit == nil {
			break
		}
		if err := k.cfg.Permit(ctx, id); err != nil {
			return err
		}
	}
	detail, err := json.Marshal(struct {
		Sandbox     outboard.SandboxID              `json:"sandbox,omitempty"`
		Credentials map[outboard.CredentialID]int64 `json:"credentials"`
	}{r.Sandbox, used})
	if err != nil {
		return outboard.Errorf(outboard.Internal, "encoding an audit record: %w", err)
	}
	err = k.cfg.Store.Audit(ctx, outboard.AuditRecord{Org: k.org, Actor: actor, Action: AuditUse,
		Decision: outboard.Allowed,
		Resource: fmt.Sprintf("%s %s://%s:%d%s", r.Method, r.Scheme, r.Host, r.Port, r.Path), Rule: strings.Join(names,
			", "), Detail: detail})
	if err != nil {
		return outboard.Errorf(outboard.Unavailable, "a credential is not used, because its use could not be "+
			"recorded: %w", err)
	}
	return nil
}

// clientHeaders and clientQuery are where clients carry credentials: with a credential of ours, theirs go. A
// placeholder is ours.
var (
	clientHeaders = []string{"Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key", "Private-Token", "Job-Token",
		"Deploy-Token", "X-Auth-Token", "X-Access-Token",
		"Xi-Api-Key", "Ocp-Apim-Subscription-Key", "Cookie"}
	clientQuery = []string{"access_token", "api_key", "apikey", "key", "token", "private_token", "job_token",
		"auth_token"}
	// clientBody and clientBodyGot are the like in bodies, without words that APIs have for something else. What
	// is got for a credential that goes in bodies may be in later ones, so those take the first alone.
	clientBody = []string{"api_key", "api-key", "apikey", "api_secret", "apisecret", "client_secret", "clientsecret",
		"secret_key", "secretkey", "private_token"}
	clientBodyGot = append([]string{"access_token", "accesstoken", "auth_token", "authtoken", "authorization"},
		clientBody...)
)

// inject adds one credential to an injection.
func (k *Keeper) inject(ctx context.Context, ks *keys, r *Request, c *outboard.Credential, s Secrets,
	in *Injection) error {
	if c.Auth.Type == outboard.AuthEnv {
		in.Replace = append(in.Replace, Placeholder{Text: placeholder(ks, r.Session, c), Value: s.Value,
			Name:   c.Auth.Name,
			Header: c.Auth.InHeader, Body: c.Auth.InBody, Path: c.Auth.InPath, Query: c.Auth.InQuery})
		in.Scrub = append(in.Scrub, s.Value)
		// For every host it says nothing of whose keys go where; only in a body, what is got for it may be in a header.
		if (c.Auth.InHeader || c.Auth.InPath || c.Auth.InQuery) && !c.Auth.Rule.AnyHost && in.Strip == nil {
			in.Strip, in.StripQuery = clientHeaders, clientQuery
		}
		if !c.Auth.Rule.AnyHost {
			in.RefuseShapes = shapes
		}
		switch {
		case c.Auth.Rule.AnyHost:
		case c.Auth.InBody:
			in.RefuseBody = clientBody
		case in.RefuseBody == nil:
			in.RefuseBody = clientBodyGot
		}
		return nil
	}
	if in.Set == nil {
		in.Set = map[string]outboard.Secret{}
	}
	in.Strip, in.StripQuery = clientHeaders, clientQuery
	switch c.Auth.Type {
	case outboard.AuthHeader:
		in.Set[http.CanonicalHeaderKey(c.Auth.HeaderName)] = format(c.Auth.Format, s.Value)
		in.Scrub = append(in.Scrub, s.Value)
	case outboard.AuthGitHub:
		token, err := k.installationToken(ctx, r.Session, c, s)
		if err != nil {
			return err
		}
		in.Set["Authorization"] = gitHubHeader(c.Auth.GitHub, r.Host, token)
		in.Scrub = append(in.Scrub, token)
		key := mintKey(c)
		in.Refused = func() { k.refused(key, token) }
	case outboard.AuthAWS:
		if err := presigned(r.Query); err != nil {
			return err
		}
		signer := awsSigner{scope: *c.Auth.AWS, secrets: s, now: k.cfg.Signed}
		in.Sign = signer.sign
		in.Scrub = append(in.Scrub, s.Value, s.SessionToken)
	}
	return nil
}

// format makes a header's value: {secret} is the secret, {basic} is it in base64 as HTTP Basic wants it.
func format(f string, s outboard.Secret) outboard.Secret {
	f = strings.ReplaceAll(f, "{basic}", base64.StdEncoding.EncodeToString([]byte(s.Reveal())))
	return outboard.NewSecret(strings.ReplaceAll(f, "{secret}", s.Reveal()))
}

// placeholder derives what a session's sandbox sees in the place of a secret: 160 bits that mean nothing to any
// other session, the same for every version of the credential, so that rotation needs no new sandbox.
func placeholder(ks *keys, id outboard.SessionID, c *outboard.Credential) string {
	h := hmac.New(sha256.New, ks.names[:])
	h.Write(bind("outboard placeholder 1", string(id), string(c.ID)))
	return c.Auth.Shape + "outboard" + hex.EncodeToString(h.Sum(nil)[:20])
}

// Environment returns the variables of a session's sandbox: a placeholder for each environment_variable
// credential, and what clients of AWS and GitHub want to see before they send anything that the gateway could
// sign or set a header of. No secret is opened.
func (k *Keeper) Environment(ctx context.Context, id outboard.SessionID) (map[string]string, error) {
	k, err := k.of(ctx, id)
	if err != nil {
		return nil, err
	}
	st, h, err := k.view(ctx, id)
	if err != nil || h == nil {
		return nil, err
	}
	out := map[string]string{}
	for i := range h.rows {
		if c := &h.rows[i].Credential; c.Auth.Type == outboard.AuthEnv && out[c.Auth.Name] == "" {
			out[c.Auth.Name] = placeholder(st.keys, id, c)
		}
	}
	for i := range h.rows {
		c := &h.rows[i].Credential
		made := madeUp(st.keys, id, c)
		if slices.ContainsFunc(slices.Collect(maps.Keys(made)), func(name string) bool { return out[name] != "" }) {
			continue // a pair is of one kind
		}
		maps.Copy(out, made)
	}
	return out, nil
}

// madeUp are values that look like the credential of an account and are none: what is sent with them is signed,
// or has its header set, by the gateway.
func madeUp(ks *keys, id outboard.SessionID, c *outboard.Credential) map[string]string {
	if c.Auth.Type != outboard.AuthAWS && c.Auth.Type != outboard.AuthGitHub {
		return nil
	}
	h := hmac.New(sha256.New, ks.names[:])
	h.Write(bind("outboard made-up credential 1", string(id), string(c.ID)))
	sum := h.Sum(nil)
	if c.Auth.Type == outboard.AuthGitHub {
		token := "ghs_" + hex.EncodeToString(sum[:18])
		return map[string]string{"GH_TOKEN": token, "GITHUB_TOKEN": token}
	}
	return map[string]string{"AWS_ACCESS_KEY_ID": "AKIA" + base32.StdEncoding.EncodeToString(sum[:10]),
		"AWS_SECRET_ACCESS_KEY": hex.EncodeToString(sum[12:32]),
		"AWS_REGION":            c.Auth.AWS.Region, "AWS_DEFAULT_REGION": c.Auth.AWS.Region}
}

// shapes are public beginnings of keys that some client checks before it sends one.
var shapes = []string{"sk-ant-api03-", "sk-ant-oat01-", "sk-ant-", "sk-proj-", "sk-svcacct-", "sk-or-v1-", "sk-",
	"github_pat_", "ghp_", "gho_", "ghs_",
	"glpat-", "xoxb-", "xoxp-", "AIzaSy", "AIza", "hf_", "npm_", "pypi-", "gsk_", "r8_", "pplx-", "xai-"}

// Shape returns the public beginning of a secret, or "". What comes after it is never part of a placeholder.
func Shape(secret string) string {
	for _, s := range shapes {
		if strings.HasPrefix(secret, s) && len(secret) > len(s)+8 {
			return s
		}
	}
	return ""
}

// Test opens a credential as a use would, and says why it would not be used on a request, or "". A GitHub App is
// asked for a token, and AWS for the password of a registry.
func (k *Keeper) Test(ctx context.Context, by string, id outboard.CredentialID, r Request) (why string, err error) {
	row, s, err := k.openNow(ctx, id)
	if err != nil {
		return "", err
	}
	c := &row.Credential
	if len(surfaces(&c.Auth)) == 0 {
		if NormalURL(c.Auth.MCPServerURL) != NormalURL(fmt.Sprintf("%s://%s:%d%s", r.Scheme, r.Host, r.Port, r.Path)) {
			return "it is for the MCP server " + c.Auth.MCPServerURL, nil
		}
		return "", nil
	}
	if why := mismatch(&c.Auth.Rule, &r); why != "" {
		return why, nil
	}
	if err := k.record(ctx, by, &r, []string{label(c)}, versions([]*store.Credential{&row})); err != nil {
		return "", err
	}
	st, err := k.current(ctx)
	if err != nil {
		return "", err
	}
	if c.Auth.AWS != nil && c.Auth.AWS.Service == ServiceECR {
		_, err := k.ecrLogin(ctx, by, c, s)
		return "", err
	}
	return "", k.inject(ctx, st.keys, &r, c, s, new(Injection))
}
