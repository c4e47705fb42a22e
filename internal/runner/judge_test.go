//go:build linux

package runner

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/llm"
	"github.com/outboard-dev/outboard/internal/store"
)

// silent is a model server that never answers, and what it was asked.
func silent(t *testing.T) (llm.Config, <-chan struct{}) {
	asked := make(chan struct{}, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		asked <- struct{}{}
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	return llm.Config{Providers: []llm.Provider{{Name: "p", Type: llm.TypeChat, BaseURL: server.URL}}}, asked
}

// silentJudge is a session whose calls are judged by a silent model.
func silentJudge(t *testing.T, change func(*Config)) (*rig, outboard.SessionID, <-chan struct{}) {
	models, asked := silent(t)
	r := newRig(t, models)
	r.start(func(cfg *Config) {
		cfg.Judge = "p/judge"
		change(cfg)
	})
	sets := slices.Clone(allTools)
	sets[0].Default.Policy = outboard.AutoPolicy
	id := r.session("script/steps", sets)
	r.say(id, append([]string{"- parallel:"}, slices.Repeat([]string{"    - bash: 'true'"}, 10)...)...)
	return r, id, asked
}

// If this fails, an interrupt ends one judgement only: the turn goes on for a minute with each of the calls behind it.
func TestInterruptEndsAllJudgements(t *testing.T) {
	r, id, asked := silentJudge(t, func(*Config) {})
	<-asked
	r.send(id, &outboard.InputInterrupt{})
	r.rests(id, "end_turn")
	if n := len(asked); n > 0 {
		t.Errorf("the judge was asked %d more times after the interrupt", n)
	}
	for _, f := range r.outcomes(id) {
		if f.Outcome != outboard.OutcomeCanceled {
			t.Errorf("a call of a response that was interrupted while it was judged: %s", f.Outcome)
		}
	}
}

// If this fails, an approval waits for days though its call ended in the commit that asked, and everybody who
// answers is refused.
func TestAskedAndInterruptedInOneCommit(t *testing.T) {
	r, id, asked := silentJudge(t, func(*Config) {})
	<-asked
	r.send(id, &outboard.InputInterrupt{})
	r.rests(id, "end_turn")
	list, err := r.store.Approvals(t.Context(), store.ApprovalFilter{})
	if err != nil || len(list) != 10 {
		t.Fatalf("%d approvals, %v; want one for each call", len(list), err)
	}
	for _, a := range list {
		if a.State != outboard.ApprovalClosed {
			t.Errorf("the approval of a call that has ended is %s", a.State)
		}
	}
}

// If this fails, a judge that does not answer holds a response back once for each of its calls.
func TestASilentJudgeIsAskedOnce(t *testing.T) {
	var r *rig
	var id outboard.SessionID
	n := 0
	// a busy machine may take longer to ask
	for silence := 50 * time.Millisecond; n == 0 && silence < patience; silence *= 4 {
		var asked <-chan struct{}
		r, id, asked = silentJudge(t, func(cfg *Config) { cfg.silence = silence })
		r.until(id, "all calls ask", func(s *outboard.State) bool { return len(s.Calls) == 10 })
		n = len(asked)
	}
	if n != 1 {
		t.Errorf("the judge was asked %d times about one response, want once", n)
	}
	judged := payloads[*outboard.CallJudged](r, id)
	if len(judged) != 10 || judged[9].Verdict != "" || !strings.Contains(judged[9].Reason, "did not answer in time") {
		t.Errorf("judgements: %d, the last is %+v", len(judged), judged[len(judged)-1])
	}
}

// If this fails, what is not exactly a verdict lets a call run: an answer that was cut off or filtered, one with
// something beside it, or one that two parsers read in two ways.
func TestVerdict(t *testing.T) {
	call := func(input string) llm.Block {
		return llm.Block{Kind: "tool_use", ToolUseID: "c", Name: "verdict", Input: []byte(input)}
	}
	const allow = `{"verdict":"allow","reason":"r"}`
	text := func(s string) llm.Block { return llm.Block{Kind: "text", Text: s} }
	for _, c := range []struct {
		name   string
		stop   string
		blocks []llm.Block
		want   outboard.Decision
	}{
		{"a verdict", "tool_use", []llm.Block{call(allow)}, outboard.Allow},
		{"after a thought", "tool_use", []llm.Block{{Kind: "thinking", Text: "hm"}, text("\n"),
			call(`{"reason":"","verdict":"deny"}`)}, outboard.Deny},
		{"cut off", "max_tokens", []llm.Block{call(allow)}, ""},
		{"filtered", "refusal", []llm.Block{call(allow)}, ""},
		{"text before it", "tool_use", []llm.Block{text("Not so sure."), call(allow)}, ""},
		{"text behind it", "tool_use", []llm.Block{call(allow), text("But ask.")}, ""},
		{"text alone", "end_turn", []llm.Block{text(allow)}, ""},
		{"two", "tool_use", []llm.Block{call(allow), call(allow)}, ""},
		{"another tool", "tool_use", []llm.Block{{Kind: "tool_use", Name: "Verdict", Input: []byte(allow)}}, ""},
		{"upper case", "tool_use", []llm.Block{call(`{"VERDICT":"allow","reason":"r"}`)}, ""},
		{"letters that fold", "tool_use", []llm.Block{call(`{"verdict":"allow","rea\u017fon":"r"}`)}, ""},
		{"upper case value", "tool_use", []llm.Block{call(`{"verdict":"Allow","reason":"r"}`)}, ""},
		{"twice", "tool_use", []llm.Block{call(`{"verdict":"deny","verdict":"allow","reason":"r"}`)}, ""},
		{"twice, differently", "tool_use", []llm.Block{call(`{"verdict":"deny","Verdict":"allow","reason":"r"}`)}, ""},
		{"more", "tool_use", []llm.Block{call(`{"verdict":"allow","reason":"r","but":"no"}`)}, ""},
		{"no reason", "tool_use", []llm.Block{call(`{"verdict":"allow"}`)}, ""},
		{"null", "tool_use", []llm.Block{call(`{"verdict":"allow","reason":null}`)}, ""},
		{"a list", "tool_use", []llm.Block{call(`{"verdict":["allow"],"reason":"r"}`)}, ""},
		{"something behind it", "tool_use", []llm.Block{call(allow + `{}`)}, ""},
		{"not JSON", "tool_use", []llm.Block{call(`"allow"`)}, ""},
	} {
		got, _, err := verdict(&llm.Response{Blocks: c.blocks, Stop: c.stop})
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %q, %v; want %q", c.name, got, err, c.want)
		}
	}
}
