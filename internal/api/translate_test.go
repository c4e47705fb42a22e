package api

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares JSON with a file of testdata.
func golden(t *testing.T, name string, v any) {
	t.Helper()
	got, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (run with -update after checking):\n%s", path, got)
	}
}

// memoryLog is a log in memory: the second implementation of source, with fixed ids and times.
type memoryLog struct {
	events []outboard.Event
	blobs  map[string][]byte
}

var logStart = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// add appends a payload under a readable id.
func (m *memoryLog) add(id string, p outboard.Payload) outboard.EventID {
	e := outboard.NewEvent("sthr_01primary", p)
	e.ID, e.Session, e.Seq = outboard.EventID("sevt_01"+id), "sesn_01golden", int64(len(m.events)+1)
	e.Time = logStart.Add(time.Duration(len(m.events)) * time.Second)
	m.events = append(m.events, e)
	return e.ID
}

func (m *memoryLog) Event(_ context.Context, id outboard.EventID) (outboard.Event, error) {
	for _, e := range m.events {
		if e.ID == id {
			return e, nil
		}
	}
	return outboard.Event{}, outboard.Errorf(outboard.NotFound, "no event %s", id)
}

func (m *memoryLog) UsageAt(_ context.Context, seq int64) (h outboard.Header, err error) {
	for i := range m.events[:seq] {
		if err := outboard.Project(&h, &m.events[i]); err != nil {
			return h, err
		}
	}
	return h, nil
}

func (m *memoryLog) ConfigAt(_ context.Context, seq int64) (outboard.SessionConfig, error) {
	s, err := outboard.Fold(m.events[:seq])
	if err != nil {
		return outboard.SessionConfig{}, err
	}
	return s.Config, nil
}

func (m *memoryLog) Load(_ context.Context, ref outboard.BlobRef) ([]byte, error) {
	b, ok := m.blobs[ref.Digest]
	if !ok {
		return nil, outboard.Errorf(outboard.NotFound, "no blob %s", ref.Digest)
	}
	return b, nil
}

// everything is a log with every event type in it.
func everything() *memoryLog {
	m := &memoryLog{blobs: map[string][]byte{"big": []byte("moved out of the log"), "png": {0x89, 'P', 'N', 'G'},
		"in": []byte(`{"command":"long"}`)}}
	use := outboard.Usage{Input: 10, Output: 5, CacheRead: 3, CacheWrite5m: 2, CacheWrite1h: 1}
	agent := outboard.Agent{ID: "agent_01a", Version: 3, Name: "golden",
		Model: outboard.ModelConfig{ID: "script/steps", Effort: "low"}}
	m.add("created", &outboard.SessionCreated{Config: outboard.SessionConfig{Agent: agent, Environment: "env_01e",
		Env: outboard.EnvConfig{Kind: "cloud"}}})
	msg := m.add("message", &outboard.InputMessage{Content: []outboard.Content{outboard.Text("hello"),
		{Type: "text", Blob: &outboard.BlobRef{Digest: "big", Size: 20}},
		{Type: "image", Source: &outboard.Source{Type: "blob", Encoding: "base64", MediaType: "image/png",
			Blob: &outboard.BlobRef{Digest: "png", Size: 4}}},
		{Type: "image", Source: &outboard.Source{Type: "file", File: "file_01f",
			Blob: &outboard.BlobRef{Digest: "png", Size: 4}}},
		{Type: "document", Title: "t", Context: "c", Source: &outboard.Source{Type: "text", MediaType: "text/plain",
			Data: "d"}},
		{Type: "document", Source: &outboard.Source{Type: "url", URL: "https://example.com/a.pdf"}}}})
	sys := m.add("system", &outboard.InputSystem{Content: []outboard.Content{outboard.Text("be brief")}})
	m.add("turn", &outboard.TurnStarted{Turn: 1, Harness: "builtin", Version: "1"})
	m.add("echo", &outboard.InputProcessed{Input: msg, Of: outboard.TypeInputMessage})
	m.add("echosys", &outboard.InputProcessed{Input: sys, Of: outboard.TypeInputSystem})
	req := m.add("model", &outboard.ModelStarted{Model: "script/steps", Attempt: 1})
	m.add("failed", &outboard.ModelFailed{Request: req, Error: outboard.Failure{Type: "model_overloaded_error",
		Message: "529"}})
	m.add("retrying", &outboard.TurnRetrying{Turn: 1, Attempt: 1, At: logStart.Add(time.Hour),
		Error: outboard.Failure{Type: "model_overloaded_error", Message: "529", Retry: "retrying"}})
	m.add("resumed", &outboard.TurnResumed{Turn: 1})
	req = m.add("model2", &outboard.ModelStarted{Model: "script/steps", Attempt: 2})
	m.add("think", &outboard.AgentThinking{Text: "kept to ourselves"})
	m.add("say", &outboard.AgentMessage{Content: []outboard.Content{outboard.Text("I run three tools")}})
	allowed := m.add("allowed", &outboard.CallRequested{ToolUseID: "tu1", Name: "bash", Kind: "builtin",
		Input:    []byte(`{"command":"true"}`),
		Decision: outboard.Allow, Policy: outboard.AlwaysAllow})
	asked := m.add("asked", &outboard.CallRequested{ToolUseID: "tu2", Name: "bash", Kind: "builtin",
		InputBlob: &outboard.BlobRef{Digest: "in"},
		Decision:  outboard.Ask, Policy: outboard.AlwaysAsk})
	denied := m.add("denied", &outboard.CallRequested{ToolUseID: "tu3", Name: "nope", Kind: "builtin",
		Input: []byte(`[1]`), Decision: outboard.Deny, Reason: "not enabled"})
	custom := m.add("custom", &outboard.CallRequested{ToolUseID: "tu4", Name: "lookup", Kind: "custom",
		Input: []byte(`{"q":1}`), Decision: outboard.Allow})
	held := m.add("held", &outboard.CallRequested{ToolUseID: "tu7", Name: "lookup", Kind: "custom",
		Input: []byte(`{"q":2}`), Decision: outboard.Ask})
	m.add("modelend", &outboard.ModelFinished{Request: req, Provider: "script", Stop: "tool_use", Usage: use})
	m.add("box", &outboard.SandboxReady{Sandbox: "sbx_01b", Generation: "g1", Provider: "native",
		Isolation: "namespaces"})
	m.add("start", &outboard.CallStarted{Call: allowed, Key: "k", Digest: "d", Class: outboard.ClassEffect, Epoch: 1,
		Sandbox: "sbx_01b", Generation: "g1", Attempt: 1})
	m.add("result", &outboard.CallFinished{Call: allowed, Outcome: outboard.OutcomeOK,
		Content: []outboard.Content{outboard.Text("ok")}, ExitCode: new(0), DurationUs: 1500})
	m.add("ckpt", &outboard.CheckpointCreated{Checkpoint: "ckpt_01c", Call: allowed, Bytes: 10})
	m.add("refused", &outboard.CallFinished{Call: denied, Outcome: outboard.OutcomeDenied,
		Content: []outboard.Content{outboard.Text("no such tool")}, IsError: true})
	m.add("parked", &outboard.TurnEnded{Turn: 1, Stop: outboard.StopReason{Type: "requires_action",
		EventIDs: []outboard.EventID{asked, custom}}})
	conf := m.add("answer", &outboard.InputConfirmation{Call: asked, Message: "rather not", By: "admin"})
	given := m.add("given", &outboard.InputToolResult{Call: custom, Custom: true, Content: []outboard.Content{
		{Type: "search_result", Text: "https://example.com", Title: "found", Citations: true,
			Parts: []outboard.Content{outboard.Text("42")}}}})
	m.add("resumed2", &outboard.TurnResumed{Turn: 1})
	m.add("echoconf", &outboard.InputProcessed{Input: conf, Of: outboard.TypeInputConfirmation})
	m.add("echogiven", &outboard.InputProcessed{Input: given, Of: outboard.TypeInputToolResult})
	m.add("customend", &outboard.CallFinished{Call: custom, Outcome: outboard.OutcomeOK})
	m.add("offered", &outboard.CallOffered{Call: held})
	m.add("heldgiven", &outboard.InputToolResult{Call: held, As: "sevt_01offered", Custom: true,
		Content: []outboard.Content{outboard.Text("43")}})
	m.add("heldend", &outboard.CallFinished{Call: held, Outcome: outboard.OutcomeOK,
		Content: []outboard.Content{outboard.Text("43")}})
	m.add("lost", &outboard.SandboxLost{Sandbox: "sbx_01b", Generation: "g1", Reason: "killed", Restore: "ckpt_01c"})
	m.add("compact", &outboard.ContextCompacted{Summary: "so far", Usage: use,
		Base: &outboard.Base{Config: outboard.SessionConfig{Environment: "env_hidden"}}})
	m.add("harvest", &outboard.FileHarvested{File: "file_01h", Path: "out.txt"})
	cut := m.add("cut", &outboard.InputInterrupt{Scope: "sthr_01primary"})
	m.add("echocut", &outboard.InputProcessed{Input: cut, Of: outboard.TypeInputInterrupt})
	m.add("turnfailed", &outboard.TurnFailed{Turn: 1, Error: outboard.Failure{Type: "something_new", Message: "gone",
		Retry: "exhausted"}})
	m.add("ended", &outboard.TurnEnded{Turn: 1, Stop: outboard.StopReason{Type: "refusal"},
		Details: []byte(`{"type":"refusal","category":"cyber","explanation":null}`)})
	m.add("updated", &outboard.SessionUpdated{Title: new("new"), Metadata: map[string]string{"k": "v"},
		Tools: &[]outboard.Toolset{{Kind: "builtin", Default: outboard.ToolConfig{Enabled: true,
			Policy: outboard.AlwaysAsk}}}})
	m.add("mounted", &outboard.SessionUpdated{Resources: &[]outboard.Resource{}})
	auto := m.add("auto", &outboard.CallRequested{ToolUseID: "tu5", Name: "bash", Kind: "builtin",
		Input:    []byte(`{"command":"rm -rf /"}`),
		Decision: outboard.Deny, Policy: outboard.AutoPolicy, Verdict: outboard.Deny, Rules: []string{"platform/auto_deny"}, Reason: "too risky"})
	m.add("judged", &outboard.CallJudged{Call: auto, Model: "script/judge", Verdict: outboard.Deny, Reason: "destroys",
		Usage: use})
	m.add("unsure", &outboard.CallRequested{ToolUseID: "tu6", Name: "bash", Kind: "builtin",
		Input:    []byte(`{"command":"x"}`),
		Decision: outboard.Ask, Policy: outboard.AutoPolicy, Rules: []string{"platform/auto_ask"}})
	m.add("forked", &outboard.SessionForked{Parent: "sesn_01p", Seq: 40, Checkpoint: "ckpt_01c",
		Config: outboard.SessionConfig{Agent: agent}})
	m.add("rewound", &outboard.SessionRewound{To: 4, Conversation: true, Machine: true, Checkpoint: "ckpt_01c",
		Sandbox: "sbx_01b", By: "admin"})
	m.add("archived", &outboard.SessionArchived{})
	return m
}

func wireOf(t *testing.T, m *memoryLog, own bool) []wireEvent {
	t.Helper()
	tr := &translator{src: m, thread: "sthr_01primary", agent: "golden", own: own}
	out := []wireEvent{}
	for i := range m.events {
		ws, err := tr.events(t.Context(), &m.events[i])
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, ws...)
	}
	return out
}

// Fails if the wire form of any log event changes, with or without Outboard's own.
func TestTranslateGolden(t *testing.T) {
	m := everything()
	golden(t, "events.json", wireOf(t, m, false))
	golden(t, "events-own.json", wireOf(t, m, true))
}

// Fails if two wire events share an id or a microsecond, if one changes between translations, or if Outboard's
// own events disturb the others: a client that dedupes would lose some.
func TestTranslateIdentity(t *testing.T) {
	m := everything()
	plain, own := wireOf(t, m, false), wireOf(t, m, true)
	ids, last := map[outboard.EventID]bool{}, time.Time{}
	for _, w := range own {
		if ids[w.id] || !w.at.After(last) {
			t.Errorf("%s %s at %s: id seen %v, after %s", w.kind, w.id, w.at, ids[w.id], last)
		}
		ids[w.id], last = true, w.at
	}
	i := 0
	for _, w := range own {
		if i < len(plain) && w.id == plain[i].id && w.at.Equal(plain[i].at) {
			i++
		}
	}
	if i != len(plain) {
		t.Errorf("with Outboard's own events, %s %s is another event", plain[i].kind, plain[i].id)
	}
}

// Fails if a log event type exists that the translation or the filter by type does not know.
func TestTranslateCoversTypes(t *testing.T) {
	m := everything()
	seen := map[outboard.EventType]bool{}
	for _, e := range m.events {
		seen[e.Type] = true
	}
	for _, w := range wireOf(t, m, false) {
		found := false
		for _, l := range shownAs[w.kind] {
			found = found || l == m.events[w.seq-1].Type
		}
		if !found {
			t.Errorf("a listing by type %s does not look at %s", w.kind, m.events[w.seq-1].Type)
		}
	}
	for _, typ := range ownTypes {
		if !seen[typ] {
			t.Errorf("%s is not in the golden log", typ)
		}
	}
}

// clientEvents are what clients send, one of each shape.
const clientEvents = `[
 {"type":"user.message","content":[{"type":"text","text":"hi"},
  {"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBORw=="}},
  {"type":"image","source":{"type":"url","url":"https://example.com/a.png"}},
  {"type":"document","source":{"type":"text","media_type":"text/plain","data":"d"},"title":"t","context":"c"},
  {"type":"document","source":{"type":"file","file_id":"file_01f"}}]},
 {"type":"user.interrupt"},
 {"type":"user.interrupt","session_thread_id":"sthr_01primary"},
 {"type":"user.tool_confirmation","tool_use_id":"sevt_01asked","result":"allow"},
 {"type":"user.tool_confirmation","tool_use_id":"sevt_01asked","result":"deny","deny_message":"no"},
 {"type":"user.custom_tool_result","custom_tool_use_id":"sevt_01custom","content":[
  {"type":"search_result","source":"https://example.com","title":"t","content":[{"type":"text","text":"x"}],"citations":{"enabled":true}}],"is_error":true},
 {"type":"user.tool_result","tool_use_id":"sevt_01asked","content":[{"type":"text","text":"x"}]},
 {"type":"system.message","content":[{"type":"text","text":"be brief"}]}]`

// Fails if a client event is read into another input, or its echo is not what the client sent.
func TestDecodeGolden(t *testing.T) {
	var raws []json.RawMessage
	if err := json.Unmarshal([]byte(clientEvents), &raws); err != nil {
		t.Fatal(err)
	}
	ps, err := decodeEvents("events", raws)
	if err != nil {
		t.Fatal(err)
	}
	type pair struct {
		Type    outboard.EventType
		Payload outboard.Payload
		Echo    wireEvent
	}
	var out []pair
	tr := &translator{src: &memoryLog{}}
	for i, p := range ps {
		e := outboard.NewEvent("sthr_01primary", p)
		e.ID, e.Time = outboard.EventID("sevt_01in"+string(rune('a'+i))), logStart
		w, err := tr.queued(t.Context(), &e, true)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, pair{p.EventType(), p, w})
		var sent, echo map[string]any
		b, _ := json.Marshal(w)
		if json.Unmarshal(raws[i], &sent) != nil || json.Unmarshal(b, &echo) != nil {
			t.Fatal("not JSON")
		}
		for k, v := range sent {
			x, _ := json.Marshal(v)
			if y, _ := json.Marshal(echo[k]); !bytes.Equal(x, y) {
				t.Errorf("%s: sent %s %s, echoed %s", p.EventType(), k, x, y)
			}
		}
	}
	golden(t, "inputs.json", out)
}

// Fails if decoding a client event can panic, or accepts what it cannot echo.
func FuzzDecodeEvent(f *testing.F) {
	var raws []json.RawMessage
	if err := json.Unmarshal([]byte(clientEvents), &raws); err != nil {
		f.Fatal(err)
	}
	for _, r := range raws {
		f.Add([]byte(r))
	}
	f.Add([]byte(`{"type":"user.message","content":[{"type":"text","text":"\u0000"}],"x":1}`))
	f.Add([]byte(`{"type":{},"type":"user.interrupt"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if control.CheckJSON(b) != nil || !json.Valid(b) {
			return
		}
		p, err := decodeEvent("event", b)
		if err != nil {
			if k := outboard.KindOf(err); k != outboard.Invalid && k != outboard.Unimplemented {
				t.Fatalf("%s: %v", k, err)
			}
			return
		}
		e := outboard.NewEvent("sthr_01", p)
		w, err := (&translator{src: &memoryLog{}}).queued(t.Context(), &e, false)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := json.Marshal(w); err != nil {
			t.Fatal(err)
		}
	})
}
