package llm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboard-dev/outboard"
)

// talk is a conversation with a model, kept as the harness would keep it.
type talk struct {
	t     *testing.T
	model Model
	req   Request
	seq   int64
}

func newTalk(t *testing.T, cfg Config, id string) *talk {
	t.Helper()
	r, err := NewRegistry(cfg)
	if err != nil {
		t.Fatalf("making the registry: %v", err)
	}
	m, err := r.Resolve(id)
	if err != nil {
		t.Fatalf("resolving %s: %v", id, err)
	}
	return &talk{t: t, model: m}
}

func (k *talk) add(m outboard.Message) {
	k.seq++
	m.Seq = k.seq
	k.req.History = append(k.req.History, &m)
}

// turn starts a new turn with a message.
func (k *talk) turn(text string) {
	k.seq++
	k.req.TurnSeq = k.seq
	k.user(text)
}

func (k *talk) user(text string) {
	k.add(outboard.Message{Role: "user", Content: []outboard.Content{outboard.Text(text)}})
}

// next makes one model call, keeps the response, answers its calls with result, and returns the response in short form.
func (k *talk) next(result string) string {
	k.t.Helper()
	resp, err := k.model.Generate(k.t.Context(), k.req, nil)
	if err != nil {
		k.t.Fatalf("generating: %v", err)
	}
	k.keep(resp, result)
	return short(resp)
}

func (k *talk) keep(resp *Response, result string) {
	m := outboard.Message{Role: "assistant", Provider: resp.Provider, Raw: resp.Raw}
	tool := outboard.Message{Role: "tool"}
	for _, b := range resp.Blocks {
		switch b.Kind {
		case "text":
			m.Content = append(m.Content, outboard.Text(b.Text))
		case "tool_use":
			m.Uses = append(m.Uses, outboard.ToolUse{ID: b.ToolUseID, Name: b.Name, Input: b.Input})
			tool.Results = append(tool.Results, outboard.ToolResult{ToolUseID: b.ToolUseID,
				Content: []outboard.Content{outboard.Text(result)}})
		}
	}
	k.add(m)
	if len(tool.Results) > 0 {
		k.add(tool)
	}
	k.req.Attempt = 0
}

// short writes a response in one line.
func short(r *Response) string {
	var out []string
	for _, b := range r.Blocks {
		switch b.Kind {
		case "tool_use":
			out = append(out, fmt.Sprintf("%s %s %s", b.ToolUseID, b.Name, b.Input))
		default:
			out = append(out, b.Kind+" "+b.Text)
		}
	}
	return strings.Join(out, " | ") + " -> " + r.Stop
}

func want(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// If this failed, a client could not drive every built-in tool through script/steps.
func TestStepsCallEveryTool(t *testing.T) {
	k := newTalk(t, Config{}, "script/steps")
	k.turn(`
- think: first look around
- say: Looking.
- bash: ls -l "a b" && echo <x>
- bash: {command: make, timeout_ms: 5000, restart: false}
- read: a.txt
- read: {path: a.txt, view_range: [1, 20]}
- write: {path: b.txt, content: "x\n"}
- edit: {path: b.txt, old: x, new: y, replace_all: true}
- glob: "*.go"
- grep: {pattern: "func.*", path: src}
- web_fetch: http://example.com/
- call: {name: lookup, input: {z: 1, a: [true, null, 2.50, "3"], n: 12345678901234567890}}
- parallel: [{bash: a}, {read: b}]
- say: All good.
`)
	for _, line := range []string{
		`thinking first look around | text Looking. | toolu_1_1 bash {"command":"ls -l \"a b\" && echo <x>"} -> tool_use`,
		`toolu_2_1 bash {"command":"make","timeout_ms":5000,"restart":false} -> tool_use`,
		`toolu_3_1 read {"file_path":"a.txt"} -> tool_use`,
		`toolu_4_1 read {"file_path":"a.txt","view_range":[1,20]} -> tool_use`,
		`toolu_5_1 write {"file_path":"b.txt","content":"x\n"} -> tool_use`,
		`toolu_6_1 edit {"file_path":"b.txt","old_string":"x","new_string":"y","replace_all":true} -> tool_use`,
		`toolu_7_1 glob {"pattern":"*.go"} -> tool_use`,
		`toolu_8_1 grep {"pattern":"func.*","path":"src"} -> tool_use`,
		`toolu_9_1 web_fetch {"url":"http://example.com/"} -> tool_use`,
		`toolu_10_1 lookup {"z":1,"a":[true,null,2.50,"3"],"n":12345678901234567890} -> tool_use`,
		`toolu_11_1 bash {"command":"a"} | toolu_11_2 read {"file_path":"b"} -> tool_use`,
		`text All good. -> end_turn`,
	} {
		want(t, k.next("ok"), line)
	}
	k.turn("- bash: again")
	want(t, k.next("ok"), `toolu_13_1 bash {"command":"again"} -> tool_use`)
	want(t, k.next("ok"), `text done -> end_turn`)
}

// If this failed, a message sent while the session runs would be lost, or would cut off the one before it.
func TestStepsQueueSteeringMessages(t *testing.T) {
	k := newTalk(t, Config{}, "script/steps")
	k.turn("- bash: one\n- bash: two\n- say: first")
	want(t, k.next("ok"), `toolu_1_1 bash {"command":"one"} -> tool_use`)
	k.user("- bash: three\n- say: second")
	k.user("- say: third")
	want(t, k.next("ok"), `toolu_2_1 bash {"command":"two"} -> tool_use`)
	want(t, k.next("ok"), `text first | toolu_3_1 bash {"command":"three"} -> tool_use`)
	want(t, k.next("ok"), `text second | text third -> end_turn`)
}

// If this failed, what an interrupted or failed turn left undone would run in the next turn.
func TestStepsOfAnEarlierTurnAreDropped(t *testing.T) {
	k := newTalk(t, Config{}, "script/steps")
	k.turn("- bash: one\n- bash: never")
	want(t, k.next("interrupted"), `toolu_1_1 bash {"command":"one"} -> tool_use`)
	k.turn("this is no script")
	if _, err := k.model.Generate(t.Context(), k.req, nil); err == nil {
		t.Error("plain text was accepted as steps")
	}
	k.turn("- say: hello")
	want(t, k.next(""), `text hello -> end_turn`)
}

// If this failed, a compacted session would lose its remaining steps or repeat the ones already done.
func TestStepsSurviveCompaction(t *testing.T) {
	k := newTalk(t, Config{Scripts: Scripts{Context: 2000}}, "script/steps")
	if got := k.model.Info().Context; got != 2000 {
		t.Errorf("context window is %d, want the configured 2000", got)
	}
	k.turn("- bash: one\n- parallel: [{bash: two}, {call: {name: x, input: {b: 1, a: 2}}}]\n- fail: {status: 529, " +
		"times: 2}\n- say: end")
	want(t, k.next("ok"), `toolu_1_1 bash {"command":"one"} -> tool_use`)
	for range 2 { // a summary of a summary is as good
		req := k.req
		req.Purpose = PurposeSummary
		req.History = append(req.History[:len(req.History):len(req.History)],
			&outboard.Message{Role: "user", Content: []outboard.Content{outboard.Text("Summarise the conversation.")}})
		resp, err := k.model.Generate(t.Context(), req, nil)
		if err != nil {
			t.Fatalf("summarising: %v", err)
		}
		k.req.History = nil
		k.add(outboard.Message{Role: "summary", Content: []outboard.Content{outboard.Text(resp.Blocks[0].Text)}})
	}
	k.user("- say: steered")
	want(t, k.next("ok"), `toolu_2_1 bash {"command":"two"} | toolu_2_2 x {"b":1,"a":2} -> tool_use`)
	k.req.Attempt = 2
	want(t, k.next("ok"), `text end | text steered -> end_turn`)
	k.turn("- bash: after")
	want(t, k.next("ok"), `toolu_4_1 bash {"command":"after"} -> tool_use`)
}

// If this failed, a message that is no script would be forgotten by a compaction, and the turn would end as if
// it had been done.
func TestCompactionKeepsErrors(t *testing.T) {
	k := newTalk(t, Config{}, "script/steps")
	k.turn("this is no script")
	k.req.Purpose = PurposeSummary
	if resp, err := k.model.Generate(t.Context(), k.req, nil); err == nil {
		t.Errorf("the summary is %q", resp.Blocks[0].Text)
	}
}

// If this failed, retries could not be tried out: a scripted failure would never end, or would not happen.
func TestFailures(t *testing.T) {
	k := newTalk(t, Config{}, "script/steps")
	k.turn("- fail: {status: 429, times: 2, retry_after: 3s}\n- fail: connection\n- say: hello\n")
	for attempt, e := range []Error{
		{Type: RateLimited, Status: 429, Retryable: true, RetryAfter: 3 * time.Second},
		{Type: RateLimited, Status: 429, Retryable: true, RetryAfter: 3 * time.Second},
		{Type: Failed, Status: 0, Retryable: true},
	} {
		k.req.Attempt = attempt
		_, err := k.model.Generate(t.Context(), k.req, nil)
		got, ok := errors.AsType[*Error](err)
		if !ok {
			t.Fatalf("attempt %d: %v, want an *Error", attempt, err)
		}
		e.Message = got.Message
		if *got != e {
			t.Errorf("attempt %d: %+v, want %+v", attempt, *got, e)
		}
	}
	k.req.Attempt = 3
	want(t, k.next(""), "text hello -> end_turn")

	k.turn("- fail: 529 after 40 bytes\n- say: This text is said only in part, as the stream breaks.")
	var text strings.Builder
	_, err := k.model.Generate(t.Context(), k.req, func(d Delta) { text.WriteString(d.Text) })
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Type != Overloaded || !e.Retryable || !e.Emitted {
		t.Errorf("got %+v, want an overloaded error after content", err)
	}
	want(t, text.String(), "This text is said only in part, as the s")
	k.turn("- fail: 402\n")
	if _, err := k.model.Generate(t.Context(), k.req, nil); err == nil || err.(*Error).Type != Billing || err.(*Error).
		Retryable {
		t.Errorf("got %v, want a billing error that is not retried", err)
	}
}

// If this failed, an interrupt would wait for a scripted sleep to end.
func TestSleepEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newTalk(t, Config{}, "script/steps")
		k.turn("- sleep: 2s\n- say: slept")
		start := time.Now()
		want(t, k.next(""), "text slept -> end_turn")
		if d := time.Since(start); d != 2*time.Second {
			t.Errorf("slept %v, want 2s", d)
		}
		k.turn("- sleep: 2h")
		stop := errors.New("stop")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, stop)
		defer cancel()
		if _, err := k.model.Generate(ctx, k.req, nil); !errors.Is(err, stop) || time.Since(start) > 4*time.Second {
			t.Errorf("after %v: %v, want the context's cause after a second", time.Since(start), err)
		}
	})
}

// If this failed, live output would come in one lump or differ from the response.
func TestScriptStreams(t *testing.T) {
	k := newTalk(t, Config{}, "script/steps")
	say := "Grüße aus dem Maschinenraum, äöü ☃☃☃☃☃☃☃☃ und noch etwas mehr Text."
	k.turn("- think: hm\n- say: " + say)
	var got []Delta
	resp, err := k.model.Generate(t.Context(), k.req, func(d Delta) { got = append(got, d) })
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	starts := 0
	for _, d := range got {
		if d.Start {
			starts++
		}
		if d.Kind == "text" {
			text.WriteString(d.Text)
		}
		if strings.ContainsRune(d.Text, '\uFFFD') || len(d.Text) > pieceBytes+3 {
			t.Errorf("piece %q is cut inside a character or too large", d.Text)
		}
	}
	if text.String() != say || starts != 2 || len(got) < 6 {
		t.Errorf("streamed %q in %d pieces with %d starts", text.String(), len(got), starts)
	}
	if resp.Usage.Input != tokens(int64(len("- think: hm\n- say: "+say))) ||
		resp.Usage.Output != tokens(int64(len(say)+2)) {
		t.Errorf("usage %+v is not a quarter of the bytes", resp.Usage)
	}
}

// If this failed, a mistake in a script would be accepted, or its author would not learn where it is.
func TestStepErrorsNameLineAndKey(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"hello", `line 1: expected a list of steps, got the text "hello"`},
		{"", "the script is empty"},
		{"# nothing\n", "the script is empty"},
		{"[]", "the list of steps is empty"},
		{"say: hi", `expected a list of steps, got a mapping with keys ["say"]`},
		{"- say: a\n- bsh: ls", `line 2: unknown step "bsh"; steps are bash, call`},
		{"- say: a\n  bash: b", `line 1: a step is one "name: value"`},
		{"- say", "a step is one"},
		{"- say:", "say needs text, got nothing"},
		{"- write: {path: a}", `write needs "content"`},
		{"- write: {path: a, contents: b}", `write has no key "contents"; it has content, path`},
		{"- read: [a]", "read needs a mapping with path, view_range"},
		{"- read: {path: a, view_range: 3}", "read.view_range needs a list"},
		{"- bash: {command: a, timeout_ms: soon}", "bash.timeout_ms needs a whole number"},
		{"- bash: {restart: please}", "bash.restart is true or false"},
		{"- call: {input: {}}", `call needs "name"`},
		{"- call: {name: a, input: [1]}", "call.input must be a mapping"},
		{"- call: {name: a, with: b}", `call has no key "with"`},
		{"- call: {name: a, input: {x: .inf}}", "not a number JSON can hold"},
		{"- call: {name: a, input: {x: 1, x: 2}}", `key "x" is given twice`},
		{"- call: &a {name: b}\n- call: *a", "anchors and aliases are not allowed"},
		{"- sleep: 2", "sleep needs a duration such as 2s"},
		{"- sleep: 25h", "at most 24h"},
		{"- fail: 200", "fail needs a status from 400 to 599"},
		{"- fail: 529 after many bytes", "fail needs a whole number"},
		{"- fail: 529 before", "fail is a status"},
		{"- fail: {after: 3}", `fail needs "status"`},
		{"- fail: {status: 529, times: 0}", "fail.times needs a whole number from 1"},
		{"- fail: {status: 500, when: now}", `fail has no key "when"`},
		{"- parallel: ls", "parallel needs a list of tool steps"},
		{"- parallel:\n  - bash: a\n  - say: a", `line 3: parallel makes tool calls, and say is none`},
		{"- stop: soon", "stop is refusal or max_tokens"},
		{"- say: a\n---\n- say: b", "more than one YAML document"},
		{"- say: [", "line 1: did not find expected node content"},
		{"\t- say: a", "line 1: found character that cannot start any token"},
		{"- say: \"a\n\n", "line 1: found unexpected end of stream"},
		{"- say: a\n- bash: [ls\n", "line 2: did not find expected ',' or ']'"},
		{"# comment\n- say: a\n- say: b\n - say: c\n- say: d", "line 4: did not find expected '-' indicator"},
		{"- write: {path: a,\n    content: b}\n- say: c\n- read: {path: x\n- say: y\n",
			"line 4: did not find expected ',' or '}'"},
		{"- bash: |\n    a\n\n- say: a: b\n", "line 4: mapping values are not allowed"},
		{strings.Repeat("- say: x\n", maxSteps+1), "at most 10000 are allowed"},
		{"- say: " + strings.Repeat("x", maxScript), "at most 1048576 are allowed"},
		{"- call: {name: a, input: " + strings.Repeat("{a: ", 80) + "1" + strings.Repeat("}", 80) + "}",
			"nested more than 64 deep"},
	} {
		k := newTalk(t, Config{}, "script/steps")
		k.turn(c.text)
		_, err := k.model.Generate(t.Context(), k.req, nil)
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Retryable || e.Type != Failed || !strings.Contains(e.Message, c.want) {
			t.Errorf("%.60q: got %v\nwant a final error with %s", c.text, err, c.want)
		}
	}
	k := newTalk(t, Config{}, "script/steps")
	k.turn("- say: fine")
	want(t, k.next(""), "text fine -> end_turn")
}

const fixScript = `
- when: {turn: 1, contains: fix}
  do:
    - think: A test fails.
    - say: I run the tests.
    - bash: make test
- when: {last_tool: bash, tool_result_matches: "FAIL: (\\w+)"}
  do:
    - edit: {path: a, old: x, new: y}
    - bash: make test
- when: {last_tool: bash, tool_result_contains: ok, tool_result_is_error: false}
  do: [{say: Fixed.}]
- when: {step: 1, matches: "^thanks"}
  do: [{say: You are welcome.}]
`

// If this failed, named scripts would not follow their conditions.
func TestNamedScript(t *testing.T) {
	k := newTalk(t, Config{Scripts: Scripts{Inline: map[string]string{"fix": fixScript}}}, "script/fix")
	k.turn("please fix it")
	want(t, k.next("FAIL: TestA"),
		`thinking A test fails. | text I run the tests. | toolu_1_1 bash {"command":"make test"} -> tool_use`)
	req := k.req
	req.Purpose = PurposeSummary
	resp, err := k.model.Generate(t.Context(), req, nil)
	if err != nil {
		t.Fatalf("summarising: %v", err)
	}
	k.req.History = nil
	k.add(outboard.Message{Role: "summary", Content: []outboard.Content{outboard.Text(resp.Blocks[0].Text)}})
	want(t, k.next("ok"),
		`toolu_2_1 edit {"file_path":"a","old_string":"x","new_string":"y"} | toolu_2_2 bash {"command":"make test"} -> tool_use`)
	want(t, k.next(""), `text Fixed. -> end_turn`)
	k.turn("thanks a lot")
	want(t, k.next(""), `text You are welcome. -> end_turn`)

	k.turn("something else")
	_, err = k.model.Generate(t.Context(), k.req, nil)
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Retryable {
		t.Fatalf("got %v, want a final error", err)
	}
	for _, s := range []string{"no rule matches response 5", "nearest is rule 4 (line 13)",
		`matches: "something else" does not match ^thanks`} {
		if !strings.Contains(e.Message, s) {
			t.Errorf("error %q lacks %q", e.Message, s)
		}
	}
}

// If this failed, a broken script file would be found by a running session instead of at start-up.
func TestNamedScriptErrors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"- do: [{say: a}]\n  then: b", `line 2: a rule has no key "then"; it has when, do`},
		{"- when: {turn: 1}", `a rule needs "do"`},
		{"- when: {trun: 1}\n  do: [{say: a}]", `when has no key "trun"`},
		{"- when: {turn: one}\n  do: [{say: a}]", "turn needs a whole number"},
		{"- when: {matches: \"(\"}\n  do: [{say: a}]", "matches needs a regular expression"},
		{"- when: {tool_result_is_error: 3}\n  do: [{say: a}]", "tool_result_is_error is true or false"},
		{"- when: {step: 0}\n  do: [{say: a}]", "line 1: step needs a whole number from 1 to"},
		{"- do:\n    - bash: a\n    - say: b", "line 3: a rule is one response: after a call only calls may follow"},
		{"- do: say", "expected a list of steps"},
		{"turns: []", "a script is a list of {when, do}"},
	} {
		_, err := NewRegistry(Config{Scripts: Scripts{Inline: map[string]string{"x": c.text}}})
		if outboard.KindOf(err) != outboard.Invalid || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), `script "x"`) {
			t.Errorf("%q: got %v, want %s", c.text, err, c.want)
		}
	}
}

// If this failed, some text in a message could crash the server or make a response that is no JSON.
func FuzzSteps(f *testing.F) {
	f.Add("- bash: ls\n- say: done")
	f.Add("- call: {name: a, input: {x: [1, 0x1f, 1e9, .5, 1_000, 2001-01-01, yes, ~]}}")
	f.Add("- parallel: [{read: a}, {grep: {pattern: b}}]\n- fail: 529 after 40 bytes\n- stop: refusal")
	f.Add("- when: {turn: 1}\n  do: [{say: a}]")
	f.Add("- {say: !!binary aGk=}\n- ? a\n  : b")
	f.Fuzz(func(t *testing.T, text string) {
		_, _ = parseRules([]byte(text))
		n, err := parseYAML([]byte(text))
		if err != nil {
			return
		}
		steps, err := parseSteps(n)
		if err != nil {
			return
		}
		var p position
		for _, s := range steps {
			if !json.Valid(s.src) {
				t.Errorf("step %s is no JSON", s.src)
			}
			for _, c := range s.calls {
				if !json.Valid(c.input) {
					t.Errorf("input %s is no JSON", c.input)
				}
			}
		}
		src := make([]json.RawMessage, len(steps))
		for i := range steps {
			src[i] = steps[i].src
		}
		b, err := json.Marshal(src)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.add(string(b)); err != nil && len(b) <= maxScript {
			t.Errorf("steps %s do not survive a compaction: %v", b, err)
		}
	})
}
