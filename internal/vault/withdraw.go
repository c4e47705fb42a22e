package vault

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
)

// The actions under which the withdrawal of a token is recorded: before the issuer is asked, and by what came of it.
const (
	AuditWithdraw       = "token.revoke"
	AuditWithdrawn      = "token.revoked"
	AuditWithdrawFailed = "token.revoke_failed"
)

const (
	// withdrawTries and withdrawWait bound the attempts to withdraw one token: with doubling waits the last is
	// two minutes after the first. What is minted lives for an hour at most, and is not in anybody's hands.
	withdrawTries = 8
	withdrawWait  = time.Second
	// maxWithdrawals bounds the tokens that are being withdrawn at the same time.
	maxWithdrawals = 16
)

// withdrawal is one token on its way back to its issuer.
type withdrawal struct {
	k     *Keeper
	label string // of the credential
	kind  string // installation_token, access_token, refresh_token, registry_password
	why   string // the kill
	until time.Time
	// an error of another kind than Unavailable: the issuer takes no token back
	ask  func(ctx context.Context) (*http.Request, error)
	good func(status int) bool
}

// withdrawals run beside everything else: no kill waits for an issuer.
type withdrawals struct {
	mu     sync.Mutex
	ctx    context.Context
	cancel context.CancelFunc
	run    sync.WaitGroup
	slots  chan struct{} // capacity maxWithdrawals
}

func newWithdrawals() *withdrawals {
	ctx, cancel := context.WithCancel(context.Background())
	return &withdrawals{ctx: ctx, cancel: cancel, slots: make(chan struct{}, maxWithdrawals)}
}

// Stop ends what is done in the background, for the keepers of all organizations. It may be called twice.
func (k *Keeper) Stop() {
	w := k.family.withdrawals
	w.mu.Lock()
	w.cancel()
	w.mu.Unlock()
	w.run.Wait()
}

// start withdraws a token in the background.
func (w *withdrawals) start(t withdrawal) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx.Err() != nil {
		return
	}
	w.run.Go(func() {
		select {
		case w.slots <- struct{}{}:
			defer func() { <-w.slots }()
			t.run(w.ctx)
		case <-w.ctx.Done():
		}
	})
}

// run asks the issuer until it has answered for good.
func (t *withdrawal) run(ctx context.Context) {
	var why string
	for try := range withdrawTries {
		if try > 0 {
			select {
			case <-time.After(withdrawWait << (try - 1)):
			case <-ctx.Done():
				return
			}
		}
		if !t.until.IsZero() && t.k.cfg.Now().After(t.until) {
			t.record(ctx, AuditWithdrawn, "it has ended by itself")
			return
		}
		status, again, err := t.try(ctx)
		if err == nil {
			t.record(ctx, AuditWithdrawn, fmt.Sprintf("the issuer answered %d", status))
			return
		}
		if why = plainError(err); !again {
			break
		}
	}
	t.k.log.Warn("a token was not revoked at its issuer", "credential", t.label, "kind", t.kind, "err", why)
	t.record(ctx, AuditWithdrawFailed, why)
}

// try asks once, on record. again says whether it is worth asking once more.
func (t *withdrawal) try(ctx context.Context) (status int, again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, issuerTimeout)
	defer cancel()
	req, err := t.ask(ctx)
	if err != nil {
		return 0, outboard.KindOf(err) == outboard.Unavailable, err
	}
	if err := t.record(ctx, AuditWithdraw, req.Method+" "+req.URL.Scheme+"://"+req.URL.Host+req.URL.Path); err != nil {
		return 0, true, err
	}
	a, err := t.k.ask(req)
	switch {
	case err != nil:
		return 0, true, err
	case t.good(a.status):
		return a.status, false, nil
	}
	return a.status, a.status >= 500 || a.status == http.StatusTooManyRequests, outboard.Errorf(outboard.Unavailable,
		"the issuer answered %d", a.status)
}

func (t *withdrawal) record(ctx context.Context, action, what string) error {
	detail, err := json.Marshal(map[string]string{"token": t.kind, "what": what})
	if err != nil {
		return outboard.Errorf(outboard.Internal, "encoding an audit record: %w", err)
	}
	err = t.k.cfg.Store.Audit(ctx, outboard.AuditRecord{Org: t.k.org, Actor: "server", Action: action,
		Resource: t.label, Decision: outboard.Allowed,
		Rule: t.why, Detail: detail})
	if err != nil {
		t.k.log.Error("the revocation of a token was not recorded", "credential", t.label, "action", action, "err", err)
	}
	return err
}

// Withdraw revokes at their issuers the tokens in this process's hands that were made for the uses that covered
// names, and forgets them. It asks no issuer itself: that goes on in the background until Stop, with an audit
// record of each outcome. why is for the record. What was withdrawn once is not there to be withdrawn again.
func (k *Keeper) Withdraw(why string, covered func(id outboard.CredentialID, session outboard.SessionID) bool) {
	k.family.mu.Lock()
	keepers := slices.Collect(maps.Values(k.family.keepers))
	k.family.mu.Unlock()
	for _, own := range keepers {
		own.withdrawMinted(why, covered)
		own.withdrawAccess(why, covered)
	}
}

// uses is who has used something.
type uses map[outboard.SessionID]struct{}

// maxUses bounds who is remembered.
const maxUses = 4096

func (u uses) add(s outboard.SessionID) {
	if len(u) >= maxUses {
		clear(u)
	}
	u[s] = struct{}{}
}

func (u uses) covered(id outboard.CredentialID, covered func(outboard.CredentialID, outboard.SessionID) bool) bool {
	for s := range u {
		if covered(id, s) {
			return true
		}
	}
	return len(u) == 0 && covered(id, "")
}

// withdrawMinted withdraws installation tokens. One that other sessions use as well goes, too: they get another.
func (k *Keeper) withdrawMinted(why string, covered func(outboard.CredentialID, outboard.SessionID) bool) {
	k.mu.Lock()
	list := map[string]minted{}
	for key, m := range k.minted {
		m.by = maps.Clone(m.by)
		list[key] = m
	}
	k.mu.Unlock()
	for key, m := range list {
		if !m.by.covered(m.of.ID, covered) {
			continue
		}
		k.mu.Lock()
		mine := k.minted[key].token == m.token
		if mine {
			delete(k.minted, key)
		}
		k.mu.Unlock()
		if mine {
			k.family.withdrawals.start(k.takeBack(why, m))
		}
	}
}

// takeBack is how what was minted ends.
func (k *Keeper) takeBack(why string, m minted) withdrawal {
	if m.of.Auth.AWS != nil {
		return k.forgotten(why, m)
	}
	return k.installation(why, m)
}

// installation takes back what mint has got.
func (k *Keeper) installation(why string, m minted) withdrawal {
	target := strings.TrimSuffix(m.of.Auth.GitHub.APIURL, "/") + "/installation/token"
	return withdrawal{k: k, label: label(&m.of), kind: "installation_token", why: why, until: m.until,
		ask: func(ctx context.Context) (*http.Request, error) {
			req, err := http.NewRequestWithContext(ctx, http.MethodDelete, target, nil)
			if err != nil {
				return nil, outboard.Errorf(outboard.Invalid, "the API URL of the GitHub App is malformed")
			}
			req.Header.Set("Accept", "application/vnd.github+json")
			req.Header.Set("Authorization", "Bearer "+m.token.Reveal())
			return req, nil
		},
		// it is dead already
		good: func(status int) bool { return status == http.StatusNoContent || status == http.StatusUnauthorized }}
}

// withdrawAccess withdraws the access tokens that covered sessions have used. Those that cannot be renewed stay:
// revoking one would end the credential for everybody, which is what the kill of a credential is for.
func (k *Keeper) withdrawAccess(why string, covered func(outboard.CredentialID, outboard.SessionID) bool) {
	k.mu.Lock()
	list := map[outboard.CredentialID]uses{}
	for id, by := range k.bearers {
		list[id] = maps.Clone(by)
	}
	k.mu.Unlock()
	ctx := k.family.withdrawals.ctx
	for id, by := range list {
		if !by.covered(id, covered) {
			continue
		}
		row, s, err := k.openNow(ctx, id)
		if err != nil && outboard.KindOf(err) == outboard.Unavailable {
			continue // it is asked for again
		}
		k.mu.Lock()
		delete(k.bearers, id)
		k.mu.Unlock()
		if err != nil || row.Auth.Refresh == nil || s.RefreshToken.IsZero() {
			continue
		}
		used := s.Value
		_, err = k.Update(ctx, id, func(c *outboard.Credential, now *Secrets) error {
			if now.Value.Reveal() == used.Reveal() {
				c.Auth.ExpiresAt = clock(k) // whoever needs one renews it
			}
			return nil
		})
		if err != nil {
			k.log.Warn("an access token is not renewed before its end", "credential", id, "err", err)
			continue
		}
		k.family.withdrawals.start(k.oauth(why, &row.Credential, s, "access_token", used))
	}
}

// Retire withdraws everything that a credential holds, which is about to be archived: what was made with it, and
// its tokens of OAuth. k is the keeper of its organization. An error says that the tokens could not be read.
func (k *Keeper) Retire(ctx context.Context, why string, id outboard.CredentialID) error {
	k.withdrawMinted(why, func(c outboard.CredentialID, _ outboard.SessionID) bool { return c == id })
	row, s, err := k.openNow(ctx, id)
	if err != nil && !row.ArchivedAt.IsZero() {
		return nil
	}
	if err != nil || row.Auth.Refresh == nil {
		return err
	}
	for kind, token := range map[string]outboard.Secret{"refresh_token": s.RefreshToken, "access_token": s.Value} {
		if !token.IsZero() {
			k.family.withdrawals.start(k.oauth(why, &row.Credential, s, kind, token))
		}
	}
	return nil
}

// oauth takes back a token by RFC 7009, where the issuer has an endpoint for it.
func (k *Keeper) oauth(why string, c *outboard.Credential, s Secrets, kind string, token outboard.Secret) withdrawal {
	refresh := *c.Auth.Refresh
	return withdrawal{k: k, label: label(c), kind: kind, why: why,
		good: func(status int) bool { return status == http.StatusOK },
		ask: func(ctx context.Context) (*http.Request, error) {
			target, err := k.revocationEndpoint(ctx, refresh.TokenEndpoint)
			if err != nil {
				return nil, err
			}
			return clientRequest(ctx, target, &refresh, s, url.Values{"token": {token.Reveal()},
				"token_type_hint": {kind}})
		}}
}

// maxMetadata bounds the places where an issuer's metadata is looked for.
const maxMetadata = 8

// revocationEndpoint finds where an issuer takes tokens back: in its metadata (RFC 8414, OpenID Connect
// Discovery), which must be of this token endpoint. It must be on the same host, so that no metadata can send a
// token elsewhere. NotFound: there is none.
func (k *Keeper) revocationEndpoint(ctx context.Context, tokenEndpoint string) (string, error) {
	at, err := url.Parse(tokenEndpoint)
	if err != nil {
		return "", outboard.Errorf(outboard.Invalid, "the token endpoint is malformed")
	}
	silent := 0
	places := metadata(at)
	for _, place := range places {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, place, nil)
		if err != nil {
			return "", outboard.Errorf(outboard.Invalid, "the token endpoint is malformed")
		}
		req.Header.Set("Accept", "application/json")
		a, err := k.ask(req)
		if err != nil || a.status >= 500 {
			silent++
			continue
		}
		var out struct {
			Token      string `json:"token_endpoint"`
			Revocation string `json:"revocation_endpoint"`
		}
		if a.status != http.StatusOK || json.Unmarshal(a.body, &out) != nil || out.Token != tokenEndpoint ||
			out.Revocation == "" {
			continue
		}
		if u, err := url.Parse(out.Revocation); err != nil || u.Scheme != at.Scheme ||
			!strings.EqualFold(u.Host, at.Host) || u.User != nil {
			return "", outboard.Errorf(outboard.NotFound, "the issuer's revocation endpoint is not on the host of "+
				"its token endpoint")
		}
		return out.Revocation, nil
	}
	if silent > 0 {
		return "", outboard.Errorf(outboard.Unavailable, "the issuer's metadata could not be read")
	}
	return "", outboard.Errorf(outboard.NotFound, "the issuer names no endpoint that takes tokens back")
}

// metadata are the places where the metadata of the issuer with a token endpoint can be. The issuer's path, if
// it has one, is part of the endpoint's.
func metadata(at *url.URL) (places []string) {
	origin := at.Scheme + "://" + at.Host
	for dir := path.Dir(path.Clean("/" + at.Path)); len(places) < maxMetadata; dir = path.Dir(dir) {
		issuer := strings.TrimSuffix(dir, "/")
		places = append(places, origin+"/.well-known/oauth-authorization-server"+issuer,
			origin+issuer+"/.well-known/openid-configuration")
		if issuer == "" {
			break
		}
	}
	return places
}
