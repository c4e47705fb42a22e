package vault

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// Bearer returns the token for an MCP server of a session: that of the first vault with a credential for the
// URL. ok is false when there is none. An access token that is about to end is renewed first.
func (k *Keeper) Bearer(ctx context.Context, session outboard.SessionID,
	serverURL string) (token outboard.Secret, ok bool, err error) {
	if k, err = k.of(ctx, session); err != nil {
		return token, false, err
	}
	st, h, err := k.view(ctx, session)
	if err != nil || h == nil {
		return token, false, err
	}
	want := "mcp " + NormalURL(serverURL)
	for i := range h.rows {
		c := &h.rows[i]
		if c.Unique != want {
			continue
		}
		r, err := RequestFor(http.MethodPost, serverURL)
		if err != nil {
			return token, false, err
		}
		if err := k.record(ctx, string(session), &r, []string{label(&c.Credential)},
			versions([]*store.Credential{c})); err != nil {
			return token, false, err
		}
		s, err := st.keys.open(k.org, c)
		if err != nil {
			return token, false, locked(err)
		}
		k.handed(c.ID, session)
		if c.Auth.Refresh == nil || !k.ending(&c.Credential) {
			return s.Value, true, nil
		}
		if err := k.deniedFor(renewKey(&c.Credential)); err != nil {
			return token, false, err
		}
		out, err := k.renew(ctx, c.ID, "ending", func(c *outboard.Credential, _ Secrets) bool { return k.ending(c) })
		if err = cmp.Or(err, out.err); err != nil {
			return token, false, err
		}
		return out.secrets.Value, true, nil
	}
	return token, false, nil
}

// renewKey names the renewals of a version of a credential, for deniedFor: whoever mends it makes a new one.
func renewKey(c *outboard.Credential) string { return fmt.Sprintf("renewal of %s/%d", c.ID, c.Version) }

// handed notes who uses an access token, for Withdraw.
func (k *Keeper) handed(id outboard.CredentialID, session outboard.SessionID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.bearers[id] == nil {
		if len(k.bearers) >= maxMinted {
			clear(k.bearers)
		}
		k.bearers[id] = uses{}
	}
	k.bearers[id].add(session)
}

// renew gets a new access token unless there is one by now, once however many ask: in this process by a flight,
// among processes by a claim in the store. Due says that the one of a credential is to be renewed; flight is the
// same for all whose due is.
func (k *Keeper) renew(ctx context.Context, id outboard.CredentialID, flight string,
	due func(*outboard.Credential, Secrets) bool) (refreshed, error) {
	return k.renewals.do(ctx, string(id)+" "+flight, func(ctx context.Context) (refreshed, error) {
		for {
			row, s, err := k.openNow(ctx, id)
			if err != nil {
				return refreshed{}, err
			}
			if !due(&row.Credential, s) {
				return refreshed{secrets: s, status: "succeeded"}, nil // another was faster
			}
			won, err := k.cfg.Store.ClaimRenewal(ctx, id, row.Version, renewTTL)
			if err != nil {
				return refreshed{}, err
			}
			if won {
				out := k.refresh(ctx, &row.Credential, s)
				if out.status != "succeeded" {
					k.keepDenied(renewKey(&row.Credential), out.err)
					k.unclaim(ctx, id, row.Version)
				}
				if !errors.Is(out.err, errReplaced) {
					return out, nil
				}
				continue
			}
			select { // another is at it
			case <-ctx.Done():
				return refreshed{}, outboard.Errorf(outboard.Canceled, "waiting for a token: %w", context.Cause(ctx))
			case <-time.After(Freshness):
			}
		}
	})
}

// unclaim lets the next who asks try at once what has failed.
func (k *Keeper) unclaim(ctx context.Context, id outboard.CredentialID, version int64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), renewTTL-issuerTimeout)
	defer cancel()
	if err := k.cfg.Store.ReleaseRenewal(ctx, id, version); err != nil {
		k.log.Warn("the next renewal of a token has to wait", "credential", id, "err", err)
	}
}

// ending reports whether an access token is about to end. One whose end the issuer does not tell is not.
func (k *Keeper) ending(c *outboard.Credential) bool {
	return !c.Auth.ExpiresAt.IsZero() && !k.cfg.Now().Add(renewBefore).Before(c.Auth.ExpiresAt)
}

// errOther: a credential is not what the vault's list says. Whoever reads the two while it is changed sees that, too.
var errOther = outboard.Errorf(outboard.Denied, "it is at another version, or under another key, than the vault says")

// openNow reads and opens a credential as it is in the store.
func (k *Keeper) openNow(ctx context.Context, id outboard.CredentialID) (row store.Credential, s Secrets, err error) {
	for range maxEdits { // another process may change it meanwhile
		if row, s, err = k.openOnce(ctx, id); !errors.Is(err, errOther) {
			return row, s, err
		}
		k.lookAgain()
	}
	return row, s, err
}

func (k *Keeper) openOnce(ctx context.Context, id outboard.CredentialID) (store.Credential, Secrets, error) {
	row, err := k.cfg.Store.Credential(ctx, id)
	if err != nil {
		return row, Secrets{}, err
	}
	if !row.ArchivedAt.IsZero() {
		return row, Secrets{}, outboard.Errorf(outboard.Denied, "credential %s is archived", id)
	}
	st, err := k.current(ctx)
	if err != nil {
		return row, Secrets{}, err
	}
	if st.keys == nil {
		return row, Secrets{}, locked(outboard.Errorf(outboard.Unavailable, "there is no vault key"))
	}
	if st.index[id].Version != row.Version || st.keys.id != row.Sealed.Key {
		return row, Secrets{}, locked(outboard.Errorf(outboard.Denied, "opening credential %s: %w", id, errOther))
	}
	s, err := st.keys.open(k.org, &row)
	if err != nil {
		return row, s, locked(err)
	}
	return row, s, nil
}

// refreshed is the outcome of a refresh.
type refreshed struct {
	secrets Secrets // when it succeeded
	status  string  // succeeded, failed, connect_error, no_refresh_token
	answer  *answer
	err     error // why it failed, or why what succeeded could not be stored
}

// errReplaced: somebody signed in again while a token was renewed, and theirs stays.
var errReplaced = outboard.Errorf(outboard.Conflict, "the refresh token was replaced meanwhile")

// refresh exchanges the refresh token at the issuer and stores what comes back, for whoever has claimed it. The
// new secrets are stored even when nobody waits for them any more: issuers forget the old refresh token.
func (k *Keeper) refresh(ctx context.Context, c *outboard.Credential, s Secrets) refreshed {
	r := c.Auth.Refresh
	if r == nil || s.RefreshToken.IsZero() {
		return refreshed{status: "no_refresh_token", err: outboard.Errorf(outboard.Unavailable,
			"credential %s has no refresh token", c.ID)}
	}
	req, err := refreshRequest(ctx, r, s)
	if err != nil {
		return refreshed{status: "failed", err: err}
	}
	req, cancel := bounded(req)
	defer cancel()
	a, err := k.ask(req)
	if err != nil {
		return refreshed{status: "connect_error", err: outboard.Errorf(outboard.Unavailable,
			"refreshing credential %s: %s", c.ID, plainError(err))}
	}
	var out struct {
		AccessToken  string `json:"access_token"`
		RefreshToken string `json:"refresh_token"`
		ExpiresIn    int64  `json:"expires_in"`
	}
	shown := &a
	if a.status == http.StatusOK {
		shown = nil // whatever it is, it may hold tokens
	}
	if a.status != http.StatusOK || json.Unmarshal(a.body, &out) != nil || out.AccessToken == "" ||
		len(out.AccessToken) > MaxToken || len(out.RefreshToken) > MaxToken {
		return refreshed{status: "failed", answer: shown, err: outboard.Errorf(outboard.Unavailable,
			"refreshing credential %s: the issuer answered %d", c.ID, a.status).
			WithHint("sign in again and set the credential's tokens")}
	}
	next := s
	next.Value = outboard.NewSecret(out.AccessToken)
	if out.RefreshToken != "" {
		next.RefreshToken = outboard.NewSecret(out.RefreshToken)
	}
	keep, done := context.WithTimeout(context.WithoutCancel(ctx), renewTTL-issuerTimeout)
	defer done()
	_, err = k.Update(keep, c.ID, func(c *outboard.Credential, now *Secrets) error {
		if now.RefreshToken.Reveal() != s.RefreshToken.Reveal() {
			return errReplaced
		}
		c.Auth.ExpiresAt = time.Time{}
		if out.ExpiresIn > 0 {
			c.Auth.ExpiresAt = clock(k).Add(time.Duration(min(out.ExpiresIn, maxLife)) * time.Second)
		}
		now.Value, now.RefreshToken = next.Value, next.RefreshToken
		return nil
	})
	return refreshed{secrets: next, status: "succeeded", err: err}
}

// maxLife bounds, in seconds, what an issuer may say of a token's life: a year.
const maxLife = 365 * 24 * 3600

// MaxToken bounds a token. Managed Agents wire: 8192.
const MaxToken = 8192

func refreshRequest(ctx context.Context, r *outboard.OAuthRefresh, s Secrets) (*http.Request, error) {
	form := url.Values{"grant_type": {"refresh_token"}, "refresh_token": {s.RefreshToken.Reveal()}}
	if r.Scope != "" {
		form.Set("scope", r.Scope)
	}
	if r.Resource != "" {
		form.Set("resource", r.Resource)
	}
	return clientRequest(ctx, r.TokenEndpoint, r, s, form)
}

// clientRequest posts a form to an endpoint of the issuer, as the credential's client.
func clientRequest(ctx context.Context, endpoint string, r *outboard.OAuthRefresh, s Secrets,
	form url.Values) (*http.Request, error) {
	if r.EndpointAuth != "client_secret_basic" {
		form.Set("client_id", r.ClientID)
	}
	if r.EndpointAuth == "client_secret_post" {
		form.Set("client_secret", s.ClientSecret.Reveal())
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, strings.NewReader(form.Encode()))
	if err != nil {
		return nil, outboard.Errorf(outboard.Invalid, "an endpoint of the issuer is malformed")
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	if r.EndpointAuth == "client_secret_basic" {
		req.SetBasicAuth(url.QueryEscape(r.ClientID), url.QueryEscape(s.ClientSecret.Reveal()))
	}
	return req, nil
}

func bounded(req *http.Request) (*http.Request, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(req.Context(), issuerTimeout)
	return req.WithContext(ctx), cancel
}

// Validation says whether an mcp_oauth credential works.
type Validation struct {
	Status     string // valid, invalid, unknown
	At         time.Time
	HasRefresh bool
	Probe      *Exchange // the step at the MCP server that failed, or nil
	Refresh    *Exchange // with the issuer
}

// Exchange is one request of a validation and what came back, without any secret.
type Exchange struct {
	Method     string // of the probe
	Status     string // of the refresh
	StatusCode int    // 0 = no answer to show
	Kind       string
	Body       string
	Truncated  bool
}

// Validate tries a credential at its MCP server, and renews it once if the server refuses it.
func (k *Keeper) Validate(ctx context.Context, by string, id outboard.CredentialID) (Validation, error) {
	row, s, err := k.openNow(ctx, id)
	if err != nil {
		return Validation{}, err
	}
	v := Validation{Status: "unknown", At: clock(k), HasRefresh: !s.RefreshToken.IsZero()}
	r, err := RequestFor(http.MethodPost, row.Auth.MCPServerURL)
	if err != nil {
		return v, err
	}
	if err := k.record(ctx, by, &r, []string{label(&row.Credential)}, versions([]*store.Credential{&row})); err != nil {
		return Validation{}, err
	}
	code := k.probe(ctx, &v, row.Auth.MCPServerURL, s)
	if code != http.StatusUnauthorized && code != http.StatusForbidden {
		return v, nil
	}
	out, err := k.renew(ctx, id, "refused",
		func(_ *outboard.Credential, now Secrets) bool { return now.Value.Reveal() == s.Value.Reveal() })
	if err != nil {
		return v, err
	}
	v.Refresh = &Exchange{Status: out.status}
	if out.answer != nil {
		v.Refresh.show(out.answer, s)
	}
	if out.status == "succeeded" && out.err == nil {
		k.probe(ctx, &v, row.Auth.MCPServerURL, out.secrets)
	}
	return v, nil
}

// probe opens an MCP session with the token and sets Status by the answer.
func (k *Keeper) probe(ctx context.Context, v *Validation, server string, s Secrets) int {
	const hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},` +
		`"clientInfo":{"name":"outboard","version":"1"}}}`
	v.Probe = &Exchange{Method: "initialize"}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, server, bytes.NewReader([]byte(hello)))
	if err != nil {
		return 0
	}
	req, cancel := bounded(req)
	defer cancel()
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("Authorization", "Bearer "+s.Value.Reveal())
	a, err := k.ask(req)
	if err != nil && a.status == 0 {
		return 0
	}
	v.Probe.show(&a, s)
	switch {
	case a.status >= 200 && a.status < 300:
		v.Status, v.Probe = "valid", nil
	case a.status == http.StatusUnauthorized, a.status == http.StatusForbidden:
		v.Status = "invalid"
	}
	return a.status
}

// show keeps of an answer what may be shown.
func (e *Exchange) show(a *answer, s Secrets) {
	body := string(a.body)
	for _, secret := range []outboard.Secret{s.Value, s.RefreshToken, s.ClientSecret} {
		if !secret.IsZero() {
			body = strings.ReplaceAll(body, secret.Reveal(), secret.String())
		}
	}
	e.Truncated = a.cut || len(body) > maxShown
	body = body[:min(len(body), maxShown)]
	e.StatusCode, e.Kind, e.Body = a.status, strings.ToValidUTF8(a.kind, "?"), strings.ToValidUTF8(body, "?")
}
