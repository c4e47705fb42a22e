package egress_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/egress"
	"github.com/outboard-dev/outboard/internal/store"
)

// boxRig is a rig whose sandbox is a box's, on a server that lets boxes reach what most says.
func boxRig(t *testing.T, most outboard.Networking, net outboard.BoxNetwork) (*rig, outboard.Box) {
	t.Helper()
	r := newRig(t, func(c *egress.Config, s *outboard.SessionConfig) { c.Boxes, s.Owner.Name = most, ofBox })
	b := outboard.Box{ID: outboard.NewBoxID(), Org: "org_boxes", Owner: "apikey_1", State: outboard.BoxRunning,
		Net: net, CreatedAt: time.Now(), EndAt: time.Now()}
	if err := r.store.AddBox(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	r.gateway.AttachBox(r.id, b)
	r.mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "here") })
	return r, b
}

func (r *rig) setBox(t *testing.T, id outboard.BoxID, net outboard.BoxNetwork) {
	t.Helper()
	if _, err := r.store.ChangeBox(t.Context(), id,
		func(b *outboard.Box) error { b.Net = net; return nil }); err != nil {
		t.Fatal(err)
	}
}

// Broken if a box reaches what its settings or the server's bound deny, if a change of its settings does not
// hold for the next request, also on a connection that is open, or if its requests are not in the audit under
// its name, with the rule that decided.
func TestBoxRules(t *testing.T) {
	r, b := boxRig(t, outboard.Networking{Mode: "unrestricted"}, outboard.BoxNetwork{Closed: true,
		Allow: []string{"a.test"}})
	for _, proxy := range []bool{false, true} {
		c := r.client(proxy)
		check := func(host string, want int) {
			t.Helper()
			for _, address := range []string{r.http(host, "/x"), r.https(host, "/x")} {
				status, text := get(t, c, address)
				refusedTunnel := proxy && want == http.StatusForbidden && status == 0 &&
					strings.Contains(text, "Forbidden")
				if status != want && !refusedTunnel {
					t.Errorf("proxy %v: %s: %d %s, want %d", proxy, address, status, text, want)
				}
			}
		}
		r.setBox(t, b.ID, outboard.BoxNetwork{Closed: true, Allow: []string{"a.test"}})
		check("a.test", 200)
		check("b.test", 403)
		r.setBox(t, b.ID, outboard.BoxNetwork{Closed: true, Allow: []string{"b.test"}})
		check("a.test", 403) // on connections that were open
		check("b.test", 200)
		r.setBox(t, b.ID, outboard.BoxNetwork{})
		check("a.test", 200)
		r.setBox(t, b.ID, outboard.BoxNetwork{Deny: []string{"127.0.0.0/8"}})
		check("a.test", 403) // by its address, also where a connection to it was kept
		r.setBox(t, b.ID, outboard.BoxNetwork{Closed: true})
		check("a.test", 403)
	}
	list, err := r.store.AuditRecords(t.Context(), store.AuditQuery{Actor: string(b.ID), Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	rules := map[string]int{}
	for _, a := range list {
		var d struct {
			Box outboard.BoxID `json:"box"`
		}
		if err := json.Unmarshal(a.Detail, &d); err != nil || d.Box != b.ID || a.Org != string(b.Org) {
			t.Errorf("a record: %+v, %v", a, err)
		}
		rules[a.Decision+" by "+a.Rule]++
	}
	for _, want := range []string{"allow by rules[0]", "allow by unrestricted", "deny by default", "deny by address"} {
		if rules[want] == 0 {
			t.Errorf("no request was recorded as %q: %v", want, rules)
		}
	}
	if err := r.store.DeleteBox(t.Context(), b.ID); err != nil {
		t.Fatal(err)
	}
	if status, text := get(t, r.client(false), r.http("a.test", "/")); status != 403 ||
		!strings.Contains(text, "removed") {
		t.Errorf("a box that is gone: %d %s", status, text)
	}
}

// Broken if a network that a box is let reach lets it reach more: a name that leads there, or what the operator
// has not opened; if a name that nothing allows is looked up, which tells whoever answers for it what the
// sandbox wants to say; or if such an address cannot be reached.
func TestBoxAllowedNetwork(t *testing.T) {
	r, b := boxRig(t, outboard.Networking{Mode: "unrestricted"}, outboard.BoxNetwork{Closed: true,
		Allow: []string{"127.0.0.0/24", "10.0.0.0/8", "169.254.0.0/16", "a.test"}})
	r.names["inside.test"], r.names["a.test"] = []string{"127.0.0.1"}, []string{"127.0.0.1"}
	for _, proxy := range []bool{false, true} {
		c := r.client(proxy)
		// by its address, and by its name
		for host, want := range map[string]string{"127.0.0.1": "here", "a.test": "here",
			"inside.test": "no rule lets", "127.0.1.1": "no rule lets", "127.0.0.1.x.test": "no rule lets",
			"10.1.2.3": "not on the public internet", "169.254.169.254": "not on the public internet"} {
			if _, text := get(t, c, r.http(host, "/x")); !strings.Contains(text, want) {
				t.Errorf("proxy %v: %s: %s, want %q", proxy, host, text, want)
			}
		}
	}
	if r.asked("inside.test") || r.asked("127.0.0.1.x.test") || !r.asked("a.test") {
		t.Error("a name that is not allowed was looked up, or one that is was not")
	}
	r.setBox(t, b.ID, outboard.BoxNetwork{Closed: true, Allow: []string{"127.0.0.2/32"}})
	if status, text := get(t, r.client(false), r.http("127.0.0.1", "/x")); status != 403 {
		t.Errorf("an address of a network that is allowed no more: %d %s", status, text)
	}
}

// Broken if an exception from a denied network is not one, or is one for addresses beyond it: by another name,
// by a name of two addresses, or by a name that leads elsewhere the next time.
func TestBoxException(t *testing.T) {
	r, b := boxRig(t, outboard.Networking{Mode: "unrestricted"}, outboard.BoxNetwork{Deny: []string{"127.0.0.0/8"}})
	r.names["out.test"], r.names["two.test"], r.names["turns.test"] = []string{"127.0.0.2"}, []string{"127.0.0.1",
		"127.0.0.2"}, []string{"127.0.0.1"}
	check := func(host string, want int) {
		t.Helper()
		if status, text := get(t, r.client(false), r.http(host, "/x")); status != want {
			t.Errorf("%s: %d %s, want %d", host, status, text, want)
		}
	}
	check("127.0.0.1", 403)
	check("turns.test", 403)
	r.setBox(t, b.ID, outboard.BoxNetwork{Deny: []string{"127.0.0.0/8"}, Allow: []string{"127.0.0.1"}})
	check("127.0.0.1", 200)
	check("turns.test", 200)
	check("127.0.0.2", 403)
	check("out.test", 403)
	check("two.test", 403)
	if status, text := get(t, r.client(true), r.https("127.0.0.2", "/x")); status != 0 ||
		!strings.Contains(text, "Forbidden") {
		t.Errorf("a tunnel beyond the exception: %d %s", status, text)
	}
	r.setBox(t, b.ID, outboard.BoxNetwork{Deny: []string{"127.0.0.0/8", "127.0.0.1/32"},
		Allow: []string{"127.0.0.0/30"}})
	check("turns.test", 200) // what is allowed wins, also over what is denied more narrowly
	r.mu.Lock()
	r.names["turns.test"] = []string{"127.0.0.9"}
	r.mu.Unlock()
	// no connection is kept
	r.setBox(t, b.ID, outboard.BoxNetwork{Deny: []string{"127.0.0.0/8"}, Allow: []string{"127.0.0.0/30"}})
	check("turns.test", 403)
}

// Broken if a server's bound, even a narrower one than a box was made under, does not hold.
func TestBoxBound(t *testing.T) {
	wish := outboard.BoxNetwork{Closed: true, Allow: []string{"a.test"}}
	for what, c := range map[string]struct {
		most outboard.Networking
		want int
	}{
		"open":    {outboard.Networking{Mode: "unrestricted"}, 200},
		"not set": {outboard.Networking{}, 403},
		"nothing": {outboard.Networking{Mode: "limited"}, 403},
		"none":    {outboard.Networking{Mode: "none"}, 403},
		"something else": {outboard.Networking{Mode: "limited",
			Rules: []outboard.NetRule{{Host: "b.test", Port: -1}}}, 403},
		"that host": {outboard.Networking{Mode: "limited",
			Rules: []outboard.NetRule{{Host: "*.test", Port: -1}}}, 200},
		"that host, to post": {outboard.Networking{Mode: "limited",
			Rules: []outboard.NetRule{{Host: "a.test", Port: -1, Methods: []string{"POST"}}}}, 403},
	} {
		r, _ := boxRig(t, c.most, wish)
		if status, text := get(t, r.client(false), r.http("a.test", "/")); status != c.want {
			t.Errorf("%s: %d %s, want %d", what, status, text, c.want)
		}
	}
}

// Broken if a stream goes on to a host that a box may not reach any more, or one is cut although nothing changed.
func TestBoxStreamsEnd(t *testing.T) {
	r, b := boxRig(t, outboard.Networking{Mode: "unrestricted"}, outboard.BoxNetwork{})
	r.mux.HandleFunc("/stream", func(w http.ResponseWriter, q *http.Request) {
		fmt.Fprint(w, "first")
		_ = http.NewResponseController(w).Flush()
		<-q.Context().Done()
	})
	resp, err := r.client(false).Get(r.http("a.test", "/stream"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadFull(resp.Body, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	if n := r.gateway.Recheck(); n != 0 {
		t.Errorf("%d streams ended though nothing changed", n)
	}
	r.setBox(t, b.ID, outboard.BoxNetwork{Closed: true})
	if r.gateway.Recheck(); r.gateway.Flows(func(egress.Subject) bool { return true }) > 1 {
		t.Error("streams are left")
	}
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("a stream to what is denied now ended as if it were whole")
	}
}

// Broken if a request that was judged by what a box's settings say now is ended for a change that was before it:
// by who had read them before that.
func TestBoxChangedBefore(t *testing.T) {
	r, b := boxRig(t, outboard.Networking{Mode: "unrestricted"}, outboard.BoxNetwork{})
	done := make(chan struct{})
	var checks sync.WaitGroup
	defer checks.Wait()
	defer close(done)
	for range 2 {
		checks.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					r.gateway.Recheck()
				}
			}
		})
	}
	c := r.client(false)
	for i := range 40 {
		r.setBox(t, b.ID, outboard.BoxNetwork{Deny: []string{fmt.Sprintf("10.0.0.%d/32", i)}})
		if status, text := get(t, c, r.http("a.test", "/")); status != 200 {
			t.Fatalf("request %d: %d %s", i, status, text)
		}
	}
}

// Broken if a box gets a new budget with every machine, or the counters of one that is gone stay.
func TestBoxBudget(t *testing.T) {
	r, b := boxRig(t, outboard.Networking{Mode: "unrestricted", Budget: outboard.NetBudget{Requests: 2}},
		outboard.BoxNetwork{})
	c := r.client(false)
	for i, want := range []int{200, 200, 429} {
		if status, text := get(t, c, r.http("a.test", "/")); status != want {
			t.Errorf("request %d: %d %s", i, status, text)
		}
	}
	r.gateway.Detach(r.id)
	if u, err := r.store.NetUsage(t.Context(), string(b.ID)); err != nil || u.Requests != 2 {
		t.Errorf("after a machine: %+v, %v", u, err)
	}
	next := outboard.NewID[outboard.SandboxID](outboard.PrefixSandbox)
	r.gateway.AttachBox(next, b)
	if err := r.store.DeleteBox(t.Context(), b.ID); err != nil {
		t.Fatal(err)
	}
	r.gateway.Detach(next)
	if u, err := r.store.NetUsage(t.Context(), string(b.ID)); err != nil || u.Requests != 0 {
		t.Errorf("after the box: %+v, %v", u, err)
	}
}

// Broken if a tunnel to an address that a box's settings deny is opened, so that a client believes it has
// reached it, or one to another address is not.
func TestBoxTunnelDenied(t *testing.T) {
	r, b := boxRig(t, outboard.Networking{Mode: "unrestricted"}, outboard.BoxNetwork{})
	address := r.https("127.0.0.1", "/x")
	if status, text := get(t, r.client(true), address); status == 0 && strings.Contains(text, "Forbidden") {
		t.Fatalf("the control: %d %s", status, text)
	}
	r.setBox(t, b.ID, outboard.BoxNetwork{Deny: []string{"127.0.0.0/8"}})
	if status, text := get(t, r.client(true), address); status != 0 || !strings.Contains(text, "Forbidden") {
		t.Errorf("a tunnel to a denied address: %d %s", status, text)
	}
	r.setBox(t, b.ID, outboard.BoxNetwork{Deny: []string{"10.0.0.0/8"}})
	if status, text := get(t, r.client(true), address); status == 0 && strings.Contains(text, "Forbidden") {
		t.Errorf("a tunnel to another address: %d %s", status, text)
	}
}
