package vault

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// takesBack adds GitHub's endpoint for the end of a token to a forge; the first request fails as a busy server does.
func (f *forge) takesBack(t *testing.T) (revoked func() []string) {
	t.Helper()
	var mu sync.Mutex
	var got []string
	busy := true
	mint := f.Config.Handler
	f.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodDelete || r.URL.Path != "/installation/token" {
			mint.ServeHTTP(w, r)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if busy {
			busy = false
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		got = append(got, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
		w.WriteHeader(http.StatusNoContent)
	})
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(got)
	}
}

// withdrawn waits until so many withdrawals have an outcome, and returns the actions on record.
func (r *rig) withdrawn(outcomes int) (actions []string) {
	r.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		actions = nil
		n := 0
		list, err := r.store.AuditEntries(r.Context(), store.AuditQuery{Text: "token", Limit: 100})
		r.must(err)
		for _, e := range list {
			if !strings.HasPrefix(e.Action, AuditWithdraw) {
				continue
			}
			actions = append(actions, e.Action)
			if e.Action != AuditWithdraw {
				n++
			}
			if e.Rule != "kill kill_1" || strings.Contains(string(e.Detail), "ghs_") ||
				strings.Contains(string(e.Detail), "-1") {
				r.Fatalf("a record says %s: %s", e.Rule, e.Detail)
			}
		}
		if n >= outcomes {
			return actions
		}
		if time.Now().After(end) {
			r.Fatalf("%d withdrawals have no outcome: %v", outcomes-n, actions)
		}
	}
}

// If this fails, a token that was minted for a killed session lives on at its issuer, one failure ends the
// attempt, a token of somebody else dies, or the next session is sent with a dead one.
func TestWithdrawInstallation(t *testing.T) {
	r, f := newRig(t), newForge(t)
	revoked := f.takesBack(t)
	t.Cleanup(r.Keeper.Stop)
	r.addApp(f)
	other := r.addSession(r.vault)
	if in, err := r.Use(t.Context(), r.to("GET", "github.com", "/")); err != nil ||
		!strings.Contains(base64Of(in), "ghs_minted-1") {
		t.Fatalf("the control: %v, %v", base64Of(in), err)
	}
	r.Withdraw("kill kill_1", func(_ outboard.CredentialID, s outboard.SessionID) bool { return s == other })
	r.Withdraw("kill kill_1", func(_ outboard.CredentialID, s outboard.SessionID) bool { return s == r.session })
	// there is nothing left
	r.Withdraw("kill kill_1", func(_ outboard.CredentialID, s outboard.SessionID) bool { return s == r.session })
	if got := r.withdrawn(1); !slices.Equal(got, []string{AuditWithdraw, AuditWithdraw, AuditWithdrawn}) {
		t.Errorf("on record is %v", got)
	}
	if got := revoked(); !slices.Equal(got, []string{"ghs_minted-1"}) {
		t.Errorf("the issuer took back %v", got)
	}
	if in, err := r.Use(t.Context(), r.to("GET", "github.com", "/")); err != nil ||
		!strings.Contains(base64Of(in), "ghs_minted-2") {
		t.Errorf("the next use: %v, %v", base64Of(in), err)
	}
}

// revoker is an issuer with an endpoint of RFC 7009, which its metadata names.
type revoker struct {
	*httptest.Server
	mu   sync.Mutex
	got  []string
	meta string // another revocation endpoint; "" = its own
}

func newRevoker(t *testing.T) *revoker {
	t.Helper()
	v := &revoker{}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /realm/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		end := v.URL + "/realm/revoke"
		if v.meta != "" {
			end = v.meta
		}
		fmt.Fprintf(w, `{"token_endpoint":%q,"revocation_endpoint":%q}`, v.URL+"/realm/oauth/token", end)
	})
	mux.HandleFunc("POST /realm/revoke", func(w http.ResponseWriter, r *http.Request) {
		v.mu.Lock()
		defer v.mu.Unlock()
		if id, secret, ok := r.BasicAuth(); !ok || id != "client" || secret != "client-secret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		v.got = append(v.got, r.FormValue("token_type_hint")+" "+r.FormValue("token"))
	})
	v.Server = httptest.NewServer(mux)
	t.Cleanup(v.Close)
	return v
}

func (v *revoker) revoked() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Sorted(slices.Values(v.got))
}

// If this fails, the tokens of a killed credential live on at their issuer, or are sent to a host that only its
// metadata names.
func TestRetireOAuth(t *testing.T) {
	r, v := newRig(t), newRevoker(t)
	t.Cleanup(r.Keeper.Stop)
	c := r.addOAuth(v.URL + "/realm/oauth/token")
	r.must(r.Retire(t.Context(), "kill kill_1", c.ID))
	if _, err := r.Archive(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	if got := r.withdrawn(2); len(got) != 4 || slices.Contains(got, AuditWithdrawFailed) {
		t.Errorf("on record is %v", got)
	}
	if got := v.revoked(); !slices.Equal(got, []string{"access_token access-1", "refresh_token refresh-1"}) {
		t.Errorf("the issuer took back %v", got)
	}
	r.must(r.Retire(t.Context(), "kill kill_1", c.ID)) // archived: nothing is left

	away := newRevoker(t)
	v.meta = away.URL + "/realm/revoke"
	c = r.addOAuth(v.URL + "/realm/oauth/token")
	r.must(r.Retire(t.Context(), "kill kill_1", c.ID))
	if got := r.withdrawn(4); !slices.Contains(got, AuditWithdrawFailed) {
		t.Errorf("on record is %v", got)
	}
	if got := away.revoked(); len(got) != 0 {
		t.Errorf("another host was sent %v", got)
	}
}

// If this fails, the kill of a session leaves the access token that it used alive, or takes from the others what
// cannot be had again.
func TestWithdrawAccess(t *testing.T) {
	r, v := newRig(t), newRevoker(t)
	t.Cleanup(r.Keeper.Stop)
	c := r.addOAuth(v.URL + "/realm/oauth/token")
	if _, ok, err := r.Bearer(t.Context(), r.session, "https://mcp.example.com/x"); !ok || err != nil {
		t.Fatalf("the control: %v, %v", ok, err)
	}
	mine := func(_ outboard.CredentialID, s outboard.SessionID) bool { return s == r.session }
	r.Withdraw("kill kill_1", func(_ outboard.CredentialID, s outboard.SessionID) bool { return s == "sesn_other" })
	r.Withdraw("kill kill_1", mine)
	r.Withdraw("kill kill_1", mine)
	if got := r.withdrawn(1); !slices.Equal(got, []string{AuditWithdraw, AuditWithdrawn}) {
		t.Errorf("on record is %v", got)
	}
	if got := v.revoked(); !slices.Equal(got, []string{"access_token access-1"}) {
		t.Errorf("the issuer took back %v", got)
	}
	row, err := r.store.Credential(t.Context(), c.ID)
	r.must(err)
	if !row.ArchivedAt.IsZero() || row.Auth.ExpiresAt.After(r.now) {
		t.Errorf("the others: archived %v, valid until %v", row.ArchivedAt, row.Auth.ExpiresAt)
	}
}
