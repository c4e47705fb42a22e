//go:build linux

package api_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/outboardtest"
	"github.com/outboard-dev/outboard/internal/outbound"
	"github.com/outboard-dev/outboard/internal/sandboxtest"
	"github.com/outboard-dev/outboard/internal/tool"
)

// state is the fold of the session's log.
func (k *talk) state() *outboard.State {
	k.t.Helper()
	s := new(outboard.State)
	for e, err := range k.store.Read(k.t.Context(), outboard.SessionID(k.id), 0) {
		if err == nil {
			err = s.Apply(&e)
		}
		if err != nil {
			k.t.Fatal(err)
		}
	}
	return s
}

// machine is the sandbox that the session uses now.
func (k *talk) machine() outboard.SandboxID {
	k.t.Helper()
	s := k.state()
	if s.Sandbox == nil {
		k.t.Fatal("the session has no sandbox")
	}
	return s.Sandbox.Sandbox
}

// told is what the platform itself has told the model.
func (k *talk) told() (notes []string) {
	k.t.Helper()
	for _, m := range k.state().History {
		if m.Role == "note" {
			notes = append(notes, outboard.PlainText(m.Content))
		}
	}
	return notes
}

// Fails if a sandbox that dies between two turns or under a command ends the session, loses saved files, or the
// model is not told.
func TestSandboxLost(t *testing.T) {
	boxes := sandboxtest.NewBare(t).(*sandboxtest.Bare)
	b := whole(t, outboardtest.Options{Provider: boxes})
	k := b.talk("always_allow")
	k.turn("- bash: echo saved > file; export A=1", "- say: end")
	first := k.machine()
	if err := boxes.Crash(first); err != nil {
		t.Fatal(err)
	}
	evs := k.turn("- bash: 'cat file; echo \"[$A]\"'", "- say: end")
	if got := texts(evs, "agent.tool_result"); len(got) != 1 || !strings.HasSuffix(got[0], "saved\n[]\n") ||
		of(evs, "agent.tool_result")[0]["is_error"] != false {
		t.Errorf("after a loss between turns: %q", got)
	}
	if notes := k.told(); len(notes) != 1 || !strings.Contains(notes[0], "lost") ||
		!strings.Contains(notes[0], "checkpoint") || k.machine() == first {
		t.Errorf("the model was told %q", notes)
	}

	k.say("- bash: echo more >> file", "- sleep: 500ms", "- bash: cat file", "- say: end")
	k.feed.until("agent.tool_result")
	if err := boxes.Crash(k.machine()); err != nil { // between two calls of a turn
		t.Fatal(err)
	}
	evs, stop, _ := k.rest()
	if got := texts(evs, "agent.tool_result"); stop != "end_turn" || len(got) != 1 || got[0] != "saved\nmore\n" {
		t.Errorf("after a loss between calls: %s, %q", stop, got)
	}

	l := newLatch(t)
	k.say("- bash: echo gone > file; "+l.command(), "- bash: cat file", "- say: end")
	k.started(5)
	if err := boxes.Crash(k.machine()); err != nil {
		t.Fatal(err)
	}
	evs, stop, _ = k.rest()
	l.open(t) // for what the dead machine left
	results, out := of(evs, "agent.tool_result"), texts(evs, "agent.tool_result")
	if stop != "end_turn" || len(out) != 2 || results[0]["is_error"] != true ||
		!strings.Contains(out[0], "OUTCOME UNKNOWN") || out[1] != "saved\nmore\n" {
		t.Errorf("after a loss during a call: %s, %q", stop, out)
	}
	if notes := k.told(); len(notes) != 3 {
		t.Errorf("the model was told %q", notes)
	}
	if got := types(k.list(k.id, "?include[]=outboard")); !slices.Contains(got, "outboard.sandbox.lost") {
		t.Errorf("the loss is not in the history: %v", got)
	}
}

// Fails if who follows a process of a box whose machine dies is told nothing but that the connection broke.
func TestProcessOfALostBox(t *testing.T) {
	boxes := sandboxtest.NewBare(t).(*sandboxtest.Bare)
	b := whole(t, outboardtest.Options{Provider: boxes})
	id := b.ok("POST", "/v1/boxes", `{"timeout_seconds":600}`).str("id")
	machines, err := boxes.List(t.Context())
	if err != nil || len(machines) != 1 {
		t.Fatalf("%v, %v", machines, err)
	}
	c, err := client.New(client.Config{URL: b.url, Key: b.key})
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	for e, err := range c.StartProcess(t.Context(), id, map[string]any{"argv": []string{"sleep", "1000"}}) {
		if failed = err; err == nil && e.Type == "process.started" {
			if err := boxes.Crash(machines[0]); err != nil {
				t.Fatal(err)
			}
		}
	}
	if failed == nil || !strings.Contains(failed.Error(), "the sandbox was paused, or has ended") {
		t.Errorf("told %v", failed)
	}
}

// Fails if a turn cannot fetch a page, or a page can send the server to an address inside.
func TestWebFetch(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/page":
			w.Header().Set("Content-Type", "text/html")
			io.WriteString(w, "<html><head><title>A page</title></head><body><p>Readable "+
				"<b>text</b>.</p><script>no()</script></body></html>")
		case "/inside":
			http.Redirect(w, r, "http://169.254.169.254/latest/meta-data/", http.StatusFound)
		default:
			http.NotFound(w, r)
		}
	}))
	defer srv.Close()
	u, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	b := whole(t, outboardtest.Options{Fetch: tool.FetcherConfig{Ports: []int{port},
		Guard: outbound.Guard{Private: outbound.Loopback,
			Resolve: func(context.Context, string) ([]netip.Addr, error) {
				return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
			}}}})
	k := b.talk("always_allow")
	site := "http://site.test:" + u.Port()
	evs := k.turn("- web_fetch: "+site+"/page", "- parallel:", "  - web_fetch: "+site+"/inside",
		"  - web_fetch: http://10.0.0.1/", "- say: end")
	results, out := of(evs, "agent.tool_result"), texts(evs, "agent.tool_result")
	if len(out) != 3 || results[0]["is_error"] != false || !strings.Contains(out[0], "Readable text") ||
		strings.Contains(out[0], "no()") {
		t.Fatalf("results %q", out)
	}
	for i := 1; i < 3; i++ {
		if results[i]["is_error"] != true || !strings.HasPrefix(out[i], "url_not_allowed: ") {
			t.Errorf("an address inside: %q", out[i])
		}
	}
	if got := types(k.list(k.id, "?include[]=outboard")); slices.ContainsFunc(got,
		func(s string) bool { return strings.HasSuffix(s, "sandbox.ready") }) {
		t.Errorf("a sandbox was made to fetch a page: %v", got)
	}
}
