package notify

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/outbound"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

var key = []byte("0123456789abcdef0123456789abcdef")

func secret() string { return "whsec_" + base64.StdEncoding.EncodeToString(key) }

// world is a store with a clock that can be moved, and one approval that waits.
type world struct {
	store  *store.Store
	offset atomic.Int64
	id     outboard.ApprovalID
}

func (w *world) now() time.Time { return time.Now().Add(time.Duration(w.offset.Load())) }

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{id: "apr_1"}
	sc := storetest.SQLite(t)
	sc.Now = w.now
	w.store = storetest.Open(t, sc)
	h, err := w.store.CreateSession(t.Context(), outboard.Header{ID: "sesn_1", Thread: "sthr_1"},
		outboard.SessionConfig{},
		outboard.NewEvent("", &outboard.SessionCreated{}))
	if err != nil {
		t.Fatal(err)
	}
	row := outboard.Approval{ID: w.id, Session: h.ID, Call: "sevt_1", Action: "bash", Resource: "ls", Digest: "d",
		Request: `bash {"command":"ls <b>"}`,
		Why:     "asked", Needs: 2, State: outboard.ApprovalPending, CreatedAt: w.now(), ExpiresAt: w.now().
				Add(1000 * time.Hour)}
	c := store.Commit{Session: h.ID, Expect: store.Any,
		Events: []outboard.Event{outboard.NewEvent("", &outboard.AgentMessage{})}, Approvals: []outboard.Approval{row}}
	if _, err := w.store.Commit(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) notifier(t *testing.T, url string, guard *outbound.Guard) *Notifier {
	t.Helper()
	n, err := New(Config{Store: w.store, URL: url, Secret: secret(), Guard: guard, Now: w.now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Stop)
	return n
}

// If this fails, whoever is told cannot check who tells them, is told twice, or never again after one failure.
func TestNotice(t *testing.T) {
	w := newWorld(t)
	var calls atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mac := hmac.New(sha256.New, key) // by the text of the standard, not by Sign
		io.WriteString(mac, r.Header.Get("webhook-id")+"."+r.Header.Get("webhook-timestamp")+"."+string(body))
		if want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)); r.Header.Get("webhook-signature") != want {
			t.Errorf("signature %s, want %s", r.Header.Get("webhook-signature"), want)
		}
		var m map[string]any
		if err := json.Unmarshal(body, &m); err != nil || m["type"] != "approval.requested" ||
			m["data"].(map[string]any)["id"] != "apr_1" || m["data"].(map[string]any)["needs"] != 2.0 {
			t.Errorf("body: %s, %v", body, err)
		}
		if calls.Add(1) == 1 {
			rw.WriteHeader(http.StatusBadGateway)
		}
	}))
	defer srv.Close()
	n := w.notifier(t, srv.URL, &outbound.Guard{Private: outbound.Loopback})
	for _, step := range []struct {
		move time.Duration
		want int32
	}{{0, 1}, {0, 1}, {firstWait + time.Second, 2}, {time.Hour, 2}} {
		w.offset.Add(int64(step.move))
		if err := n.once(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := calls.Load(); got != step.want {
			t.Fatalf("after another %v: %d calls, want %d", step.move, got, step.want)
		}
	}
}

// If this fails, the webhook is a way to make the server call an inside address, by name, by redirect or as configured.
func TestNoticeStaysOutside(t *testing.T) {
	var inside atomic.Int32
	target := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { inside.Add(1) }))
	defer target.Close()
	hop := httptest.NewServer(http.RedirectHandler(target.URL, http.StatusTemporaryRedirect))
	defer hop.Close()
	w := newWorld(t)
	n := w.notifier(t, strings.Replace(target.URL, "http:", "https:", 1), &outbound.Guard{})
	if err := n.send(t.Context(), &outboard.Approval{ID: "apr_2"}); err == nil ||
		!strings.Contains(err.Error(), "not on the public internet") {
		t.Errorf("a loopback address: %v", err)
	}
	n = w.notifier(t, hop.URL, &outbound.Guard{Private: outbound.Loopback})
	if err := n.send(t.Context(), &outboard.Approval{ID: "apr_2"}); err == nil ||
		!strings.Contains(err.Error(), "307") {
		t.Errorf("a redirect: %v", err)
	}
	if inside.Load() != 0 {
		t.Error("the inside address was called")
	}
	n = w.notifier(t, target.URL, &outbound.Guard{Private: outbound.Loopback})
	if err := n.send(t.Context(), &outboard.Approval{ID: "apr_2"}); err != nil || inside.Load() != 1 {
		t.Errorf("control: %v, %d calls", err, inside.Load())
	}
}

// If this fails, attempts go on for ever, or an answered approval is announced.
func TestNoticeEnds(t *testing.T) {
	w := newWorld(t)
	var calls atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		rw.WriteHeader(http.StatusInternalServerError)
	}))
	defer srv.Close()
	n := w.notifier(t, srv.URL, &outbound.Guard{Private: outbound.Loopback})
	for range maxAttempts + 3 {
		if err := n.once(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.offset.Add(int64(firstWait << maxAttempts)) // longer than any wait between two
	}
	if got := calls.Load(); got != maxAttempts {
		t.Errorf("%d attempts, want %d", got, maxAttempts)
	}
	other := newWorld(t)
	answer := outboard.Answer{Call: "sevt_1", Allow: true, At: other.now()}
	c := store.Commit{Session: "sesn_1", Expect: store.Any,
		Events: []outboard.Event{outboard.NewEvent("", &outboard.AgentMessage{})}, Answers: []outboard.Answer{answer}}
	if _, err := other.store.Commit(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if err := other.notifier(t, srv.URL, &outbound.Guard{Private: outbound.Loopback}).once(t.Context()); err != nil ||
		calls.Load() != maxAttempts {
		t.Errorf("an answered approval was announced: %v", err)
	}
}

// If this fails, a server starts with a webhook that cannot work or signs with nothing.
func TestConfig(t *testing.T) {
	private := &outbound.Guard{Private: outbound.Loopback}
	for name, c := range map[string]Config{
		"no url":      {URL: "", Secret: secret(), Guard: private},
		"credentials": {URL: "https://u:p@example.com/", Secret: secret(), Guard: private},
		"plain http":  {URL: "http://example.com/", Secret: secret(), Guard: &outbound.Guard{}},
		"no prefix":   {URL: "https://example.com/", Secret: base64.StdEncoding.EncodeToString(key), Guard: private},
		"short secret": {URL: "https://example.com/", Secret: "whsec_" + base64.StdEncoding.EncodeToString(key[:8]),
			Guard: private},
		"no base64": {URL: "https://example.com/", Secret: "whsec_!!!", Guard: private},
	} {
		if _, err := New(c); outboard.KindOf(err) != outboard.Invalid || err == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := New(Config{URL: "https://example.com/hook", Secret: secret() + "\n",
		Guard: &outbound.Guard{}}); err != nil {
		t.Errorf("control: %v", err)
	}
}

// If this fails, a server that goes on from a later time than its host's signs notices that their receiver takes
// for forged: standard receivers compare the time with their own.
func TestNoticeSaysTheHostsTime(t *testing.T) {
	w := newWorld(t)
	w.offset.Store(int64(time.Hour)) // a wrong hour, which the store goes on from
	w.store.Now()
	w.offset.Store(0)
	if ahead := w.store.Now().Sub(w.now()); ahead < 50*time.Minute {
		t.Fatalf("the store is %v ahead", ahead)
	}
	said := make(chan string, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter,
		r *http.Request) {
		said <- r.Header.Get("webhook-timestamp")
	}))
	defer srv.Close()
	if err := w.notifier(t, srv.URL, &outbound.Guard{Private: outbound.Loopback}).once(t.Context()); err != nil {
		t.Fatal(err)
	}
	at, err := strconv.ParseInt(<-said, 10, 64)
	if off := time.Since(time.Unix(at, 0)).Abs(); err != nil || off > time.Minute {
		t.Errorf("the notice is %v off: %v", off, err)
	}
}
