package api_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/llm"
	"github.com/outboard-dev/outboard/internal/outboardtest"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// talk is one session of a complete server, with its stream.
type talk struct {
	*bench
	id     string
	events string // the path of its events
	feed   *feed
}

// talk opens a session. policy is that of every built-in tool.
func (b *bench) talk(policy string) *talk {
	b.t.Helper()
	agent := b.ok("POST", "/v1/agents", map[string]any{"name": "a", "model": "script/steps",
		"tools": []any{map[string]any{
			"type": "agent_toolset_20260401", "default_config": map[string]any{"permission_policy": map[string]any{"type": policy}}}}}).str("id")
	id := b.ok("POST", "/v1/sessions", map[string]any{"agent": agent, "environment_id": b.environment()}).str("id")
	return &talk{b, id, "/v1/sessions/" + id + "/events", b.follow(id, "")}
}

// say sends a message of script steps.
func (k *talk) say(steps ...string) {
	k.t.Helper()
	k.ok("POST", k.events, send(message(strings.Join(steps, "\n")+"\n")))
}

// rest reads on until the session is idle, and returns what came and why it is.
func (k *talk) rest() (evs []map[string]any, stop string, waiting []string) {
	k.t.Helper()
	evs = k.feed.until("session.status_idle")
	reason := evs[len(evs)-1]["stop_reason"].(map[string]any)
	ids, _ := reason["event_ids"].([]any)
	for _, id := range ids {
		waiting = append(waiting, id.(string))
	}
	return evs, reason["type"].(string), waiting
}

// turn sends steps and returns what the session did until it ended its turn.
func (k *talk) turn(steps ...string) []map[string]any {
	k.t.Helper()
	k.say(steps...)
	evs, stop, _ := k.rest()
	if stop != "end_turn" {
		k.t.Fatalf("the turn ended with %s: %v", stop, evs)
	}
	return evs
}

// of returns the events of a type.
func of(evs []map[string]any, kind string) []map[string]any {
	return slices.DeleteFunc(slices.Clone(evs), func(e map[string]any) bool { return e["type"] != kind })
}

// texts returns the text of every event of a type.
func texts(evs []map[string]any, kind string) (out []string) {
	for _, e := range of(evs, kind) {
		var text strings.Builder
		blocks, _ := e["content"].([]any)
		for _, c := range blocks {
			s, _ := c.(map[string]any)["text"].(string)
			text.WriteString(s)
		}
		out = append(out, text.String())
	}
	return out
}

// latch is a command that waits until the test lets it go on.
type latch struct{ begun, pass string }

func newLatch(t *testing.T) latch {
	dir := t.TempDir()
	return latch{filepath.Join(dir, "begun"), filepath.Join(dir, "pass")}
}

func (l latch) command() string {
	return fmt.Sprintf("echo $$ > %s; until [ -e %s ]; do sleep 0.02; done", l.begun, l.pass)
}

func (l latch) open(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(l.pass, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// started reads on until a call's intent is in the log, which the API does not show.
func (k *talk) started(n int) {
	k.t.Helper()
	for e, err := range k.store.Follow(k.t.Context(), outboard.SessionID(k.id), 0) {
		if err != nil {
			k.t.Fatal(err)
		}
		if e.Type == outboard.TypeCallStarted {
			if n--; n == 0 {
				return
			}
		}
	}
}

// Fails if a message that is sent while a tool runs does not reach the model at its next call, or queued
// messages change their order.
func steering(t *testing.T, b *bench) {
	k, l := b.talk("always_allow"), newLatch(t)
	k.say("- bash: "+l.command(), "- say: first")
	k.started(1)
	k.say("- say: second")
	k.say("- say: third")
	l.open(t)
	evs, _, _ := k.rest()
	want := []string{"agent.tool_result", "user.message", "user.message", "span.model_request_start", "agent.message",
		"agent.message",
		"agent.message", "span.model_request_end", "session.thread_status_idle", "session.usage", "session.status_idle"}
	got := types(evs)
	if got = got[max(0, slices.Index(got, "agent.tool_result")):]; !slices.Equal(got, want) {
		t.Errorf("after the call came %v, want %v", got, want)
	}
	if got := texts(evs, "agent.message"); !slices.Equal(got, []string{"first", "second", "third"}) {
		t.Errorf("the model said %q", got)
	}
}

// Fails if an interrupt does not cut a model that is talking, or what it had said half counts.
func interruptModel(t *testing.T, b *bench) {
	k := b.talk("always_allow")
	previews := b.follow(k.id, "?event_deltas[]=agent.message")
	k.say("- say: half a sentence", "- sleep: 60s", "- say: never")
	previews.until("event_delta")
	began := time.Now()
	k.ok("POST", k.events, send(map[string]any{"type": "user.interrupt"}, message("- say: next\n")))
	cut, stop, _ := k.rest()
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the interrupt took %v", took)
	}
	if kept := texts(cut, "agent.message"); len(kept) != 1 || !strings.HasPrefix(kept[0], "half a sentence") ||
		!strings.Contains(kept[0], "interrupted") {
		t.Errorf("what was shown is kept as %q", kept)
	}
	if got := types(cut); stop != "end_turn" || !slices.Contains(got, "span.model_request_end") ||
		!slices.Contains(got, "user.interrupt") || slices.Contains(got, "session.error") {
		t.Errorf("the cut turn ended with %s: %v", stop, got)
	}
	next, _, _ := k.rest()
	if got := texts(next, "agent.message"); !slices.Equal(got, []string{"next"}) {
		t.Errorf("the message behind the interrupt was answered with %q", got)
	}
}

// Fails if an interrupt leaves calls running or without a result.
func interruptCalls(t *testing.T, b *bench) {
	k, l, ran := b.talk("always_allow"), newLatch(t), filepath.Join(t.TempDir(), "ran")
	k.say("- parallel:", "  - bash: "+l.command()+"; echo first >> "+ran, "  - bash: echo second >> "+ran,
		"- say: never")
	k.started(2)
	k.ok("POST", k.events, send(map[string]any{"type": "user.interrupt"}))
	evs, stop, _ := k.rest()
	results := of(evs, "agent.tool_result")
	if stop != "end_turn" || len(results) != 2 || results[0]["is_error"] != true || results[1]["is_error"] != true {
		t.Errorf("ended with %s and results %v", stop, results)
	}
	l.open(t)
	if got := texts(k.turn("- bash: cat "+ran+" || echo nothing ran", "- say: end"),
		"agent.tool_result"); len(got) != 1 ||
		!strings.HasSuffix(got[0], "nothing ran\n") {
		t.Errorf("after the interrupt: %q", got)
	}
}

func quote(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

// Fails if an asked call runs without a person's word, an answer is lost or taken for another call's, or the
// model does not learn of a denial.
func confirmations(t *testing.T, b *bench) {
	k, ran := b.talk("always_ask"), filepath.Join(t.TempDir(), "ran")
	k.say("- parallel:", "  - bash: echo one >> "+ran+"; echo one", "  - bash: echo two >> "+ran,
		"  - bash: echo three >> "+ran+"; echo three", "- say: end")
	evs, stop, asked := k.rest()
	var calls []string
	for _, e := range of(evs, "agent.tool_use") {
		if e["evaluated_permission"] != "ask" {
			t.Errorf("a call that asks: %v", e)
		}
		calls = append(calls, e["id"].(string))
	}
	if stop != "requires_action" || len(calls) != 3 || !slices.Equal(asked, calls) {
		t.Fatalf("stopped with %s on %v, calls %v", stop, asked, calls)
	}
	answer := func(call, result string, more ...string) map[string]any {
		a := map[string]any{"type": "user.tool_confirmation", "tool_use_id": call, "result": result}
		if len(more) > 0 {
			a["deny_message"] = more[0]
		}
		return a
	}
	other := of(k.list(k.id, ""), "user.message")[0]["id"].(string)
	for _, wrong := range []string{"sevt_01nobody", other, "", k.id} {
		k.refused(400, quote(wrong), "POST", k.events, send(answer(wrong, "allow")))
	}
	k.refused(400, "result", "POST", k.events, send(answer(calls[0], "perhaps")))
	k.refused(400, "deny_message", "POST", k.events, send(answer(calls[0], "allow", "why")))
	k.ok("POST", k.events, send(answer(calls[1], "deny", "use the other one")))
	if _, stop, asked = k.rest(); stop != "requires_action" || !slices.Equal(asked, []string{calls[0], calls[2]}) {
		t.Fatalf("after the first answer: %s on %v", stop, asked)
	}
	k.ok("POST", k.events, send(answer(calls[2], "allow")))
	if _, stop, asked = k.rest(); stop != "requires_action" || !slices.Equal(asked, calls[:1]) {
		t.Fatalf("after the second answer: %s on %v", stop, asked)
	}
	if out, err := os.ReadFile(ran); err == nil {
		t.Errorf("ran before all were answered: %q", out)
	}
	k.ok("POST", k.events, send(answer(calls[0], "allow")))
	if _, stop, _ = k.rest(); stop != "end_turn" {
		t.Errorf("after the last answer: %s", stop)
	}
	results := map[string]string{}
	all := k.list(k.id, "")
	for i, e := range of(all, "agent.tool_result") {
		results[e["tool_use_id"].(string)] = fmt.Sprint(e["is_error"], " ",
			texts(of(all, "agent.tool_result"), "agent.tool_result")[i])
	}
	const fresh = "[a person allowed this command, so it ran in a fresh shell"
	if !strings.HasPrefix(results[calls[0]], "false one\n"+fresh) || !strings.HasPrefix(results[calls[2]],
		"false three\n"+fresh) ||
		!strings.HasPrefix(results[calls[1]], "true ") || strings.Contains(results[calls[1]], fresh) ||
		!strings.Contains(results[calls[1]], "use the other one") {
		t.Errorf("results %q", results)
	}
	if out, err := os.ReadFile(ran); err != nil || string(out) != "one\nthree\n" && string(out) != "three\none\n" {
		t.Errorf("what ran: %q, %v", out, err)
	}
}

// Fails if what a provider reports is not told to the client, or a wait it asks for is not kept.
func retries(t *testing.T, b *bench) {
	k := b.talk("always_allow")
	evs := k.turn("- fail: {status: 529, times: 2, retry_after: 1s}", "- say: through")
	var errs []string
	for _, e := range of(evs, "session.error") {
		failure := e["error"].(map[string]any)
		errs = append(errs, fmt.Sprint(failure["type"], " ", failure["retry_status"].(map[string]any)["type"]))
	}
	if !slices.Equal(errs, []string{"model_overloaded_error retrying", "model_overloaded_error retrying"}) {
		t.Errorf("errors %q", errs)
	}
	ends, starts := of(evs, "span.model_request_end"), of(evs, "span.model_request_start")
	if len(ends) != 3 || len(starts) != 3 || ends[0]["is_error"] != true || ends[2]["is_error"] != false {
		t.Fatalf("requests: %v", types(evs))
	}
	for i := range 2 {
		if wait := at(t, starts[i+1]).Sub(at(t, ends[i])); wait < time.Second {
			t.Errorf("attempt %d came after %v, before the second that was asked for", i+2, wait)
		}
	}
	evs = k.turn("- fail: 529 after 6 bytes", "- say: the whole answer")
	if errs := of(evs, "session.error"); len(errs) != 1 ||
		errs[0]["error"].(map[string]any)["retry_status"].(map[string]any)["type"] != "retrying" {
		t.Errorf("an answer that broke off: %v", evs)
	}
	if got := texts(evs, "agent.message"); !slices.Equal(got, []string{"the whole answer"}) {
		t.Errorf("an answer that broke off is made again: %q", got)
	}
	for _, step := range []string{"- fail: {status: 529, retry_after: 2h}", "- fail: 400"} {
		k.say(step, "- say: never")
		evs, stop, _ := k.rest()
		errs := of(evs, "session.error")
		if stop != "retries_exhausted" || len(errs) != 1 || len(of(evs, "span.model_request_start")) != 1 ||
			errs[0]["error"].(map[string]any)["retry_status"].(map[string]any)["type"] != "exhausted" {
			t.Errorf("%s: %s, %v", step, stop, evs)
		}
	}
	if got := texts(k.turn("- say: again"), "agent.message"); !slices.Equal(got, []string{"again"}) {
		t.Errorf("after failed turns: %q", got)
	}
}

// at is when an event was processed.
func at(t *testing.T, e map[string]any) time.Time {
	t.Helper()
	v, err := time.Parse(time.RFC3339Nano, e["processed_at"].(string))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// Fails if a model's shell forgets what it was told between two calls or two turns, hangs for ever, or keeps the
// rest of a long output to itself.
func shell(t *testing.T, b *bench) {
	k := b.talk("always_allow")
	evs := k.turn("- bash: mkdir d; cd d; export A=1; B=2; (while :; do echo x >> ticks; sleep 0.02; done) "+
		">/dev/null 2>&1 & echo $! > pid",
		"- bash: 'basename $PWD; echo $A$B; kill -0 $(cat pid) && echo lives'",
		"- bash: {command: 'echo begun; sleep 600', timeout_ms: 300}", "- bash: seq 100000")
	out := texts(evs, "agent.tool_result")
	if len(out) != 4 || out[1] != "d\n12\nlives\n" || !strings.Contains(out[2], "begun") ||
		!strings.Contains(out[2], "timed out") {
		t.Fatalf("results %.300q", out)
	}
	if len(out[3]) > 100_000 || !strings.HasPrefix(out[3], "1\n2\n") {
		t.Errorf("a long output of %d bytes: %.60q", len(out[3]), out[3])
	}
	full := ""
	for word := range strings.FieldsSeq(out[3]) {
		if word = strings.Trim(word, "[].,;:()\"'"); strings.HasPrefix(word, "/") {
			full = word
		}
	}
	evs = k.turn("- read: {path: "+quote(full)+", view_range: [99998, 99999]}",
		"- bash: 'kill -0 $(cat pid) && echo $A$B; kill $(cat pid)'",
		"- bash: {restart: true}", "- bash: 'basename $PWD; echo \"[$A$B]\"'")
	out = texts(evs, "agent.tool_result")
	if len(out) != 4 || !strings.HasPrefix(out[0], " 99998\t99998\n 99999\t99999") || out[1] != "12\n" ||
		!strings.HasSuffix(out[3], "\n[]\n") || out[3] == "d\n[]\n" {
		t.Errorf("in the next turn: %q (the file is %q)", out, full)
	}
}

// flows are sessions as a client drives them through a complete server.
var flows = []struct {
	name string
	run  func(*testing.T, *bench)
}{
	{"order", recordedOrder}, {"answers", askCustomInterrupt}, {"steering", steering}, {"interrupt of a model",
		interruptModel},
	{"interrupt of calls", interruptCalls}, {"confirmations", confirmations}, {"retries", retries}, {"shell", shell},
}

// Fails if a session that a client drives through the whole server does not do what the reference says.
func TestFlows(t *testing.T) {
	for _, f := range flows {
		t.Run(f.name, func(t *testing.T) { f.run(t, whole(t, outboardtest.Options{})) })
	}
}

// Fails if the whole server works on one database only.
func TestFlowsOnPostgres(t *testing.T) {
	b := whole(t, outboardtest.Options{DB: storetest.Postgres(t)})
	for _, f := range flows {
		t.Run(f.name, func(t *testing.T) {
			own := *b
			own.t = t
			f.run(t, &own)
		})
	}
}

// Fails if a long conversation is not summarised near the model's limit, the client is not told, or what comes
// after has lost its place.
func TestCompaction(t *testing.T) {
	b := whole(t, outboardtest.Options{Models: llm.Config{Scripts: llm.Scripts{Context: 20_000}}})
	k := b.talk("always_allow")
	steps := []string{"- bash: X=kept"}
	for range 6 {
		steps = append(steps, "- bash: seq 4000")
	}
	evs := k.turn(append(steps, "- bash: echo $X", "- say: end")...)
	if n := len(of(evs, "agent.thread_context_compacted")); n == 0 {
		t.Errorf("nothing was compacted: %v", types(evs))
	}
	out := texts(evs, "agent.tool_result")
	if len(out) != 8 || out[7] != "kept\n" || !slices.Equal(texts(evs, "agent.message"), []string{"end"}) {
		t.Errorf("%d results, the last %.20q; said %q", len(out), out[len(out)-1], texts(evs, "agent.message"))
	}
	if n := len(of(k.list(k.id, ""), "agent.tool_result")); n != 8 {
		t.Errorf("the history has %d results after the compaction, want all 8", n)
	}
	if got := texts(k.turn("- say: next"), "agent.message"); !slices.Equal(got, []string{"next"}) {
		t.Errorf("the next turn said %q", got)
	}
}

// If this fails, the position that a fold begins at goes out with a session, with its vaults and its owner; or
// one that somebody made up comes in with a file, and decides what the session is.
func TestBaseOfAFoldStaysHere(t *testing.T) {
	b := whole(t, outboardtest.Options{Models: llm.Config{Scripts: llm.Scripts{Context: 20_000}}})
	k := b.talk("always_allow")
	k.turn(append(slices.Repeat([]string{"- bash: seq 4000"}, 6), "- say: end")...)
	bases := func(id string) (n int) {
		t.Helper()
		q := store.EventQuery{Types: []outboard.EventType{outboard.TypeContextCompacted}}
		list, err := b.store.Events(t.Context(), outboard.SessionID(id), q)
		if err != nil || len(list) == 0 {
			t.Fatalf("%d summaries, %v", len(list), err)
		}
		for i := range list {
			base, err := list[i].Base()
			if err != nil {
				t.Fatal(err)
			}
			if base != nil {
				n++
			}
		}
		return n
	}
	if bases(k.id) == 0 {
		t.Fatal("no summary has a base: this tests nothing")
	}
	file := b.export(k.id)
	x := takeApart(t, file)
	const log = "events/00000001.jsonl"
	if s := string(x.data[log]); !strings.Contains(s, `"summary":"`) || strings.Contains(s, `"base"`) {
		t.Error("the export has no summary, or the base of one")
	}
	x.replace(log, `"summary":"`,
		`"base":{"header":{"head":1},"config":{"environment_id":"env_x"},"turn":77},"summary":"`)
	id := b.ok("POST", "/v1/outboard/import?unsigned=true", x.pack(t, true)).str("id")
	if n := bases(id); n != 0 {
		t.Errorf("%d bases came in with a file", n)
	}
	if was, is := b.sees(k.id), b.sees(id); was != is {
		t.Errorf("the model sees %.100q, saw %.100q", is, was)
	}
}

// Fails if a typo in a model's id is found by a running session, or its author is not told what to write instead.
func TestUnknownModel(t *testing.T) {
	b := whole(t, outboardtest.Options{Models: llm.Config{Providers: []llm.Provider{
		{Name: "gw", Type: llm.TypeChat, BaseURL: "http://127.0.0.1:1/v1", Models: []llm.ModelInfo{{Name: "one"}}}}}})
	agent, env := b.agent(), b.environment()
	override := map[string]any{"type": "agent_with_overrides", "id": agent, "model": "gw/three"}
	b.refused(400, "gw/three", "POST", "/v1/sessions", map[string]any{"agent": override, "environment_id": env})
	r := b.refused(400, "gw/one", "POST", "/v1/sessions", map[string]any{"agent": override, "environment_id": env})
	if strings.Contains(string(r.body), "sesn_") {
		t.Errorf("a session was made: %s", r.body)
	}
	override["model"] = "gw/one"
	b.ok("POST", "/v1/sessions", map[string]any{"agent": override, "environment_id": env})
}
