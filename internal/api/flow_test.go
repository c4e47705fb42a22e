package api_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard/internal/api"
	"github.com/outboard-dev/outboard/internal/outboardtest"
)

// whole is the API of a complete server, runner and sandboxes included.
func whole(t *testing.T, opt outboardtest.Options) *bench {
	t.Helper()
	more := opt.API
	opt.API = func(cfg *api.Config) {
		cfg.Unrecorded = func(route string) { t.Errorf("%s changed something and left no record in the audit", route) }
		if more != nil {
			more(cfg)
		}
	}
	s := outboardtest.Start(t, opt)
	return &bench{t: t, url: s.URL, key: s.Key, store: s.Store, live: s.Live, ctl: s.Control, witness: s.Witness}
}

// feed reads one stream.
type feed struct {
	t        *testing.T
	resp     *http.Response
	sc       *bufio.Scanner
	comments []string
	stop     *time.Timer
}

// follow opens a stream and returns once it says that it is connected.
func (b *bench) follow(session, query string) *feed {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), "GET", b.url+"/v1/sessions/"+session+"/events/stream"+query,
		nil)
	if err != nil {
		b.t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", b.key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	f := &feed{t: b.t, resp: resp, sc: bufio.NewScanner(resp.Body)}
	f.sc.Buffer(nil, 64<<20)
	f.stop = time.AfterFunc(30*time.Second, func() { resp.Body.Close() }) // a silent stream fails the read, not the run
	b.t.Cleanup(f.close)
	if resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		b.t.Fatalf("stream: %d %v", resp.StatusCode, resp.Header)
	}
	if !f.sc.Scan() || f.sc.Text() != ": connected" {
		b.t.Fatalf("stream began with %q, want : connected", f.sc.Text())
	}
	return f
}

func (f *feed) close() { f.stop.Stop(); f.resp.Body.Close() }

// next returns the next event; ok is false at the end of the stream.
func (f *feed) next() (ev map[string]any, ok bool) {
	f.t.Helper()
	name := ""
	for f.sc.Scan() {
		switch line := f.sc.Text(); {
		case line == "":
		case strings.HasPrefix(line, ":"):
			f.comments = append(f.comments, line)
			return nil, true
		case strings.HasPrefix(line, "event: "):
			name = line[7:]
		case strings.HasPrefix(line, "data: "):
			if name != "message" {
				f.t.Fatalf("frame named %q: %s", name, line)
			}
			if err := json.Unmarshal([]byte(line[6:]), &ev); err != nil {
				f.t.Fatalf("frame %s: %v", line, err)
			}
			return ev, true
		}
	}
	return nil, false
}

// until reads to the first event of a type, that one included.
func (f *feed) until(kind string) []map[string]any {
	f.t.Helper()
	var out []map[string]any
	for {
		ev, ok := f.next()
		if !ok {
			f.t.Fatalf("stream ended before %s; saw %v", kind, types(out))
		}
		if ev == nil {
			continue
		}
		out = append(out, ev)
		if ev["type"] == kind {
			return out
		}
	}
}

func types(evs []map[string]any) []string {
	var out []string
	for _, e := range evs {
		out = append(out, e["type"].(string))
	}
	return out
}

// list returns the session's whole history.
func (b *bench) list(session, query string) []map[string]any {
	b.t.Helper()
	var page struct{ Data []map[string]any }
	if err := json.Unmarshal(b.ok("GET", "/v1/sessions/"+session+"/events"+query, nil).body, &page); err != nil {
		b.t.Fatal(err)
	}
	return page.Data
}

// recorded is the order of a one-tool turn as the real service was recorded.
var recorded = []string{"session.status_running", "session.thread_status_running", "user.message",
	"span.model_request_start",
	"agent.thinking", "agent.tool_use", "span.model_request_end", "agent.tool_result", "span.model_request_start", "agent.message",
	"span.model_request_end", "session.thread_status_idle", "session.usage", "session.status_idle"}

// Fails if a turn's events come in another order than the recorded one, on the stream or in the list, or their
// times do not rise.
func recordedOrder(t *testing.T, b *bench) {
	id := b.session()
	f := b.follow(id, "")
	b.ok("POST", "/v1/sessions/"+id+"/events", send(message("- think: hm\n- bash: echo hi\n- say: done\n")))
	streamed := f.until("session.status_idle")
	if got := types(streamed); !slices.Equal(got, recorded) {
		t.Errorf("stream:\n got %v\nwant %v", got, recorded)
	}
	listed := b.list(id, "")
	if got := types(listed); !slices.Equal(got, recorded) {
		t.Errorf("list:\n got %v\nwant %v", got, recorded)
	}
	last := ""
	for i, ev := range listed {
		at := ev["processed_at"].(string)
		if at <= last {
			t.Errorf("event %d at %s is not after %s", i, at, last)
		}
		last = at
		a, _ := json.Marshal(ev)
		s, _ := json.Marshal(streamed[min(i, len(streamed)-1)])
		if !bytes.Equal(a, s) {
			t.Errorf("event %d differs:\n list   %s\n stream %s", i, a, s)
		}
	}
	if r := streamed[7]; r["tool_use_id"] != streamed[5]["id"] || r["is_error"] != false {
		t.Errorf("tool result %v does not answer %v", r, streamed[5])
	}
	if st := b.ok("GET", "/v1/sessions/"+id, nil).str("status"); st != "idle" {
		t.Errorf("status %s right after the idle event", st)
	}
}

// Fails if the confirmation, custom tool or interrupt flow does not work through the real runner, or a repeated
// answer does harm.
func askCustomInterrupt(t *testing.T, b *bench) {
	agent := b.ok("POST", "/v1/agents", map[string]any{"name": "a", "model": "script/steps", "tools": []any{
		map[string]any{"type": "agent_toolset_20260401",
			"default_config": map[string]any{"permission_policy": map[string]any{"type": "always_ask"}}},
		map[string]any{"type": "custom", "name": "lookup", "description": "d",
			"input_schema": map[string]any{"type": "object"}},
	}}).str("id")
	id := b.ok("POST", "/v1/sessions", map[string]any{"agent": agent, "environment_id": b.environment()}).str("id")
	events := "/v1/sessions/" + id + "/events"
	f := b.follow(id, "")
	b.ok("POST", events, send(message("- bash: echo yes\n- call: {name: lookup, input: {q: 1}}\n- say: end\n")))

	asked := f.until("session.status_idle")
	idle := asked[len(asked)-1]
	reason := idle["stop_reason"].(map[string]any)
	if reason["type"] != "requires_action" {
		t.Fatalf("stop reason %v", reason)
	}
	call := reason["event_ids"].([]any)[0].(string)
	b.refused(400, call, "POST", events,
		send(map[string]any{"type": "user.custom_tool_result", "custom_tool_use_id": call}))
	allow := map[string]any{"type": "user.tool_confirmation", "tool_use_id": call, "result": "allow"}
	first := b.ok("POST", events, send(allow))
	if again := b.ok("POST", events, send(allow)); again.str("data.0.id") != first.str("data.0.id") {
		t.Errorf("a repeated confirmation made a second event: %s", again.body)
	}
	custom := f.until("session.status_idle")
	if !slices.Contains(types(custom), "agent.tool_result") || !slices.Contains(types(custom),
		"user.tool_confirmation") {
		t.Errorf("after allow: %v", types(custom))
	}
	b.refused(400, call, "POST", events,
		send(map[string]any{"type": "user.tool_confirmation", "tool_use_id": call, "result": "deny"}))
	call = custom[len(custom)-1]["stop_reason"].(map[string]any)["event_ids"].([]any)[0].(string)
	sent := b.ok("POST", events, send(map[string]any{"type": "user.custom_tool_result", "custom_tool_use_id": call,
		"content": []any{map[string]any{"type": "text", "text": "42"}}}))
	if sent.str("data.0.processed_at") == "" {
		t.Errorf("a custom tool result is processed on receipt: %s", sent.body)
	}
	done := f.until("session.status_idle")
	if got := types(done); slices.Contains(got, "agent.tool_result") ||
		!slices.Contains(got, "user.custom_tool_result") || !slices.Contains(got, "agent.message") {
		t.Errorf("after the custom result: %v", got)
	}

	b.ok("POST", events, send(message("- sleep: 60s\n- say: never\n")))
	f.until("span.model_request_start")
	b.ok("POST", events, send(map[string]any{"type": "user.interrupt"}))
	cut := f.until("session.status_idle")
	if r := cut[len(cut)-1]["stop_reason"].(map[string]any); r["type"] != "end_turn" ||
		!slices.Contains(types(cut), "user.interrupt") {
		t.Errorf("after the interrupt: %v, %v", types(cut), r)
	}
	archived := b.ok("POST", "/v1/sessions/"+id+"/archive", nil)
	if archived.str("status") != "terminated" {
		t.Errorf("archived: %s", archived.body)
	}
	if end := f.until("session.status_terminated"); types(end)[0] != "session.thread_status_terminated" {
		t.Errorf("archive events: %v", types(end))
	}
	if _, ok := f.next(); ok {
		t.Error("the stream goes on after session.status_terminated")
	}
	b.refused(400, "archived", "POST", events, send(message("x")))
}

var _ = api.Config{}
