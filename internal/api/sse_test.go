package api_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/api"
	"github.com/outboard-dev/outboard/internal/live"
)

// Fails if a stream replays what was before it, keeps silent for longer than its keepalive, or does not end with
// its session.
func TestStreamLife(t *testing.T) {
	b := newBench(t, func(c *api.Config) { c.Keepalive = 20 * time.Millisecond })
	id := b.lively()
	f := b.follow(id, "")
	if ev, ok := f.next(); !ok || ev != nil || f.comments[0] != ":keepalive" {
		t.Fatalf("first frame %v, comments %v; want a keepalive and no history", ev, f.comments)
	}
	if cc := f.resp.Header.Get("Cache-Control"); cc != "no-cache, no-transform" {
		t.Errorf("Cache-Control %q", cc)
	}
	b.append(id, &outboard.AgentThinking{})
	if got := types(f.until("agent.thinking")); len(got) != 1 {
		t.Errorf("got %v", got)
	}
	other := b.session()
	g := b.follow(other, "")
	b.ok("DELETE", "/v1/sessions/"+other, nil)
	if got := types(g.until("session.deleted")); len(got) != 1 {
		t.Errorf("deleted: %v", got)
	}
	if _, ok := g.next(); ok {
		t.Error("the stream goes on after session.deleted")
	}
	b.refused(404, "no session", "GET", "/v1/sessions/"+other+"/events/stream", nil)
	third := b.session()
	b.ok("POST", "/v1/sessions/"+third+"/archive", nil)
	h := b.follow(third, "")
	if ev, ok := h.next(); ok {
		t.Errorf("a stream of an archived session gives %v", ev)
	}
}

// Fails if a client that reconnects, lists and dedupes by id misses an event, or sees one in two forms.
func TestReconnect(t *testing.T) {
	b := newBench(t)
	id := b.session()
	seen := map[string]int{}
	note := func(evs []map[string]any) {
		for _, e := range evs {
			seen[e["id"].(string)]++
		}
	}
	f := b.follow(id, "")
	b.append(id, &outboard.TurnStarted{Turn: 1})
	note(f.until("session.thread_status_running"))
	f.close()
	b.append(id, &outboard.AgentThinking{}) // while nobody listens
	f = b.follow(id, "")
	b.append(id, &outboard.TurnEnded{Turn: 1, Stop: outboard.StopReason{Type: "end_turn"}})
	note(b.list(id, ""))
	note(f.until("session.status_idle"))
	want := b.list(id, "")
	if len(seen) != len(want) {
		t.Errorf("saw %d ids, the history has %d", len(seen), len(want))
	}
	for _, e := range want {
		if seen[e["id"].(string)] == 0 {
			t.Errorf("missed %s", e["type"])
		}
	}
}

// Fails if Outboard's own stream cannot resume behind a position, or disturbs the events of the wire.
func TestOwnStream(t *testing.T) {
	b := newBench(t)
	id := b.lively()
	own := b.list(id, "?include[]=outboard")
	plain := b.list(id, "")
	var rest []map[string]any
	last := 0.0
	for _, e := range own {
		if seq, ok := e["seq"].(float64); !ok || e["processed_at"] != nil && seq < last {
			t.Errorf("seq %v after %v", e["seq"], last)
		} else {
			last = seq
		}
		if !strings.HasPrefix(e["type"].(string), "outboard.") {
			rest = append(rest, e)
		} else if e["payload"] == nil {
			t.Errorf("no payload: %v", e)
		}
	}
	if !slices.Equal(types(rest), types(plain)) {
		t.Errorf("own events disturb the others:\n%v\n%v", types(rest), types(plain))
	}
	f := b.follow(id, "?include[]=outboard&after_seq=0")
	b.append(id, &outboard.TurnFailed{Turn: 9})
	replayed := f.until("outboard.turn.failed")
	var processed []string
	for _, e := range own {
		if e["processed_at"] != nil {
			processed = append(processed, e["type"].(string))
		}
	}
	if got := types(replayed); !slices.Equal(got[:len(got)-2], processed) {
		t.Errorf("replay:\n got %v\nwant %v", got, processed)
	}
	seq := own[4]["seq"].(float64)
	g := b.follow(id, "?include[]=outboard&after_seq="+strconv.Itoa(int(seq)))
	if ev, ok := g.next(); !ok || ev["seq"].(float64) != seq+1 {
		t.Errorf("after %v came %v", seq, ev)
	}
}

// Fails if the rules of deltas are broken: one start per event, a contiguous prefix, nothing after the event
// itself, nothing that was not asked for, and never in the history.
func TestDeltas(t *testing.T) {
	b := newBench(t)
	id := b.session()
	sid := outboard.SessionID(id)
	publish := func(ev outboard.EventID, kind outboard.EventType, start bool, text string) {
		b.live.Publish(live.Delta{Session: sid, Event: ev, Kind: kind, Start: start, Text: text})
	}
	start := b.append(id, &outboard.ModelStarted{Model: "m"})[0].ID
	f := b.follow(id, "?event_deltas[]=agent.message")
	g := b.follow(id, "")
	publish("sevt_01missed", outboard.TypeAgentMessage, false, "no start was seen")
	publish("sevt_01think", outboard.TypeAgentThinking, true, "")
	publish("sevt_01cut", outboard.TypeAgentMessage, true, "")
	publish("sevt_01cut", outboard.TypeAgentMessage, false, "hal")
	publish("sevt_01cut", outboard.TypeAgentMessage, true, "")
	publish("sevt_01cut", outboard.TypeAgentMessage, false, "f")
	next := func() map[string]any {
		t.Helper()
		ev, ok := f.next()
		if !ok {
			t.Fatal("the stream ended")
		}
		return ev
	}
	if ev := next(); ev["type"] != "event_start" || ev["event"].(map[string]any)["id"] != "sevt_01cut" {
		t.Fatalf("first %v", ev)
	}
	for _, text := range []string{"hal", "f"} {
		ev := next()
		d, _ := ev["delta"].(map[string]any)
		if ev["type"] != "event_delta" || d["content"].(map[string]any)["text"] != text || d["index"] != 0.0 {
			t.Fatalf("delta %v, want %q", ev, text)
		}
	}
	b.append(id, &outboard.ModelFailed{Request: start}) // closes the preview without its event
	if ev := next(); ev["type"] != "span.model_request_end" {
		t.Fatalf("after the preview: %v", ev)
	}
	publish("sevt_01cut", outboard.TypeAgentMessage, false, "too late")
	publish("sevt_01cut", outboard.TypeAgentMessage, true, "")
	b.append(id, &outboard.AgentThinking{})
	if ev := next(); ev["type"] != "agent.thinking" {
		t.Errorf("after the request ended: %v", ev)
	}
	if got := types(g.until("agent.thinking")); !slices.Equal(got, []string{"span.model_request_end",
		"agent.thinking"}) {
		t.Errorf("a stream that asked for no deltas: %v", got)
	}
	for _, e := range b.list(id, "") {
		if strings.HasPrefix(e["type"].(string), "event_") {
			t.Errorf("a delta is in the history: %v", e)
		}
	}
}

// Fails if a client that stops reading holds a stream, and the goroutines behind it, for ever.
func TestSlowReaderIsDropped(t *testing.T) {
	b := newBench(t)
	id := b.session()
	returned := make(chan struct{})
	h := api.New(api.Config{Control: b.ctl, WriteTimeout: 100 * time.Millisecond})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(returned)
		h.ServeHTTP(w, r)
	}))
	defer srv.Close()
	b.url = srv.URL
	f := b.follow(id, "") // and never read on
	big := strings.Repeat("x", 200<<10)
	for range 60 { // more than socket buffers hold
		b.append(id, &outboard.AgentMessage{Content: []outboard.Content{outboard.Text(big)}})
	}
	select {
	case <-returned:
	case <-time.After(20 * time.Second):
		t.Error("the stream is still served")
	}
	f.close()
}

// Fails if the lines of running commands reach a client that did not ask for them in Outboard's own dialect, come
// before their call or
// after its result, or are in the history.
func TestCallOutput(t *testing.T) {
	b := newBench(t)
	id := b.lively()
	show := func(call outboard.EventID, after int64, text string) {
		b.live.Publish(live.Delta{Session: outboard.SessionID(id), Event: call, Kind: live.CallOutput, After: after,
			Text: text})
	}
	b.refused(400, "event_deltas[]: must be of agent.message, agent.thinking", "GET",
		"/v1/sessions/"+id+"/events/stream?event_deltas[]=outboard.call.output", nil)
	own := b.follow(id, "?include[]=outboard&event_deltas[]=outboard.call.output")
	quiet := []*feed{b.follow(id, ""), b.follow(id, "?include[]=outboard"),
		b.follow(id, "?event_deltas[]=agent.message"),
		b.follow(id, "?include[]=outboard&event_deltas[]=agent.message")}
	call := b.append(id, &outboard.CallRequested{Name: "bash", Kind: "builtin",
		Input: outboard.Raw(`{"command":"make"}`), Decision: outboard.Allow})[0]
	started := b.append(id, &outboard.CallStarted{Call: call.ID, Key: "k"})[0]
	b.live.Publish(live.Delta{Session: outboard.SessionID(id), Event: call.ID, Kind: live.CallOutput,
		After: started.Seq, Text: "compiling"})
	show(call.ID, started.Seq, "linking")
	evs := own.until("outboard.call.output")
	if got := types(evs); !slices.Contains(got, "agent.tool_use") {
		t.Errorf("a line came before its call: %v", got)
	}
	last := evs[len(evs)-1]
	if last["tool_use_id"] != string(call.ID) || last["line"] != "compiling" || last["id"] != nil {
		t.Errorf("a line is %v", last)
	}
	if ev, ok := own.next(); !ok || ev["line"] != "linking" {
		t.Errorf("the next line is %v", ev)
	}
	b.append(id, &outboard.CallFinished{Call: call.ID, Outcome: outboard.OutcomeOK})
	own.until("agent.tool_result")
	show(call.ID, started.Seq, "too late")
	b.append(id, &outboard.AgentThinking{})
	for i, f := range append(quiet, own) {
		if got := types(f.until("agent.thinking")); slices.Contains(got, "outboard.call.output") {
			t.Errorf("stream %d: %v", i, got)
		}
	}
	if got := types(b.list(id, "?include[]=outboard")); slices.Contains(got, "outboard.call.output") {
		t.Errorf("a line is in the history: %v", got)
	}
}
