package llm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
)

// calling is a stream of one call with these arguments, in two pieces, on each wire. The text is put in as a
// JSON string.
func calling(kind, text string) []string {
	lit := func(s string) string { return string(appendString(nil, s)) }
	cut := len(text) / 2
	switch kind {
	case TypeAnthropic:
		return []string{oddAnthropic[0],
			`{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"c1","name":"ticket","input":{}}}`,
			`{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":` +
				lit(text[:cut]) + `}}`,
			`{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":` +
				lit(text[cut:]) + `}}`,
			`{"type":"content_block_stop","index":0}`, `{"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":5}}`,
			`{"type":"message_stop"}`}
	case TypeResponses:
		return []string{`{"type":"response.output_item.done","output_index":0,"item":{"type":"function_call","id":"f","call_id":"c1","name":"ticket","arguments":` + lit(text) + `,"status":"completed"}}`,
			`{"type":"response.completed","response":{"id":"r","status":"completed"}}`}
	}
	return []string{`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c1","function":{"name":"ticket","arguments":` + lit(text[:cut]) + `}}]}}]}`,
		`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":` + lit(text[cut:]) +
			`}}]},"finish_reason":"tool_calls"}]}`}
}

// sentArguments finds the arguments of call c1 in a request of each wire: an object on Anthropic's, else the
// text of one.
func sentArguments(t *testing.T, kind string, body []byte) string {
	t.Helper()
	var req struct {
		Messages []struct {
			Content   json.RawMessage
			ToolCalls []struct{ Function struct{ Arguments string } } `json:"tool_calls"`
		}
		Input []struct{ Type, Arguments string }
	}
	if err := json.Unmarshal(body, &req); err != nil {
		t.Fatalf("the request: %v\n%s", err, body)
	}
	for _, it := range req.Input {
		if it.Type == "function_call" {
			return it.Arguments
		}
	}
	for _, m := range req.Messages {
		if len(m.ToolCalls) > 0 {
			return m.ToolCalls[0].Function.Arguments
		}
		var blocks []struct {
			Type  string
			Input json.RawMessage
		}
		if json.Unmarshal(m.Content, &blocks) == nil && len(blocks) > 0 && blocks[0].Type == "tool_use" {
			return string(blocks[0].Input)
		}
	}
	t.Fatalf("no call in %s", body)
	return ""
}

// If this failed, arguments that are no JSON object would end the turn, or go back in a form that a provider
// refuses the conversation for.
func TestArgumentsThatAreNoObject(t *testing.T) {
	for _, c := range []struct{ name, text, input, back string }{
		{"an object", `{"a": 1.50}`, `{"a": 1.50}`, `{"a": 1.50}`},
		{"nothing", ``, `{}`, `{}`},
		{"cut", `{"a": "b`, `"{\"a\": \"b"`, `{"invalid":"{\"a\": \"b"}`},
		{"a list", `[1, 2]`, `[1, 2]`, `{"invalid":[1, 2]}`},
		{"a string", `"a"`, `"a"`, `{"invalid":"a"}`},
		{"null", `null`, `null`, `{"invalid":null}`},
		{"prose", "call it <now> \u2028\n", "\"call it <now> \\u2028\\n\"",
			"{\"invalid\":\"call it <now> \\u2028\\n\"}"},
		{"two objects", `{} {}`, `"{} {}"`, `{"invalid":"{} {}"}`},
		{"too deep", strings.Repeat("[", 20_000), `"` + strings.Repeat("[", 20_000) + `"`, `{"invalid":"` +
			strings.Repeat("[", 20_000) + `"}`},
	} {
		for _, w := range wires {
			t.Run(w.kind+"/"+c.name, func(t *testing.T) {
				s := newServer(t, stream(calling(w.kind, c.text)...), stream(w.hello...), stream(w.hello...))
				m := remote(t, w.kind, w.model, s)
				resp, err := m.Generate(t.Context(), hello(), nil)
				if err != nil {
					t.Fatal(err)
				}
				if len(resp.Blocks) != 1 || resp.Stop != "tool_use" {
					t.Fatalf("got %s", short(resp))
				}
				equalJSON(t, resp.Blocks[0].Input, c.input)
				req := hello()
				answer := &outboard.Message{Role: "tool",
					Results: []outboard.ToolResult{{ToolUseID: "c1", IsError: true,
						Content: []outboard.Content{outboard.Text("no")}}}}
				req.History = append(req.History, logged(t, resp, 2), answer)
				if _, err := m.Generate(t.Context(), req, nil); err != nil {
					t.Fatalf("the next request: %v", err)
				}
				equalJSON(t, []byte(sentArguments(t, w.kind, s.body(1))), c.back)
				foreign := *req.History[1] // as another provider's: rebuilt
				foreign.Provider, foreign.Raw = "else", nil
				req.History[1] = &foreign
				if _, err := m.Generate(t.Context(), req, nil); err != nil {
					t.Fatalf("rebuilt: %v", err)
				}
				equalJSON(t, []byte(sentArguments(t, w.kind, s.body(2))), c.back)
			})
		}
	}
}

// If this failed, a call without a name, or of a name that no tool can have, would end the turn, or go back in a
// form that a provider refuses the conversation for; or a name that is good would not go back as it came.
func TestNamesOfNoTool(t *testing.T) {
	for _, c := range []struct{ name, back string }{
		{"ticket", "ticket"}, {"", "unnamed_tool"}, {"functions.bash", "functions_bash"}, {"é\n<b>", "____b_"},
		{strings.Repeat("n", 128), strings.Repeat("n", 128)}, {strings.Repeat("n", 500), strings.Repeat("n", 64)},
	} {
		for _, w := range wires {
			t.Run(fmt.Sprintf("%s/%.20q", w.kind, c.name), func(t *testing.T) {
				events := calling(w.kind, `{"a": 1}`)
				for i := range events {
					events[i] = strings.ReplaceAll(events[i], `"name":"ticket"`,
						`"name":`+string(appendString(nil, c.name)))
				}
				s := newServer(t, stream(events...), stream(w.hello...), stream(w.hello...))
				m := remote(t, w.kind, w.model, s)
				resp, err := m.Generate(t.Context(), hello(), nil)
				if err != nil {
					t.Fatal(err)
				}
				if len(resp.Blocks) != 1 || resp.Stop != "tool_use" || resp.Blocks[0].Name != c.name {
					t.Fatalf("got %s", short(resp))
				}
				req := hello()
				answer := &outboard.Message{Role: "tool",
					Results: []outboard.ToolResult{{ToolUseID: "c1", IsError: true,
						Content: []outboard.Content{outboard.Text("no")}}}}
				req.History = append(req.History, logged(t, resp, 2), answer)
				foreign := *req.History[1] // as another provider's: rebuilt
				foreign.Provider, foreign.Raw = "else", nil
				for i, msg := range []*outboard.Message{req.History[1], &foreign} {
					req.History[1] = msg
					if _, err := m.Generate(t.Context(), req, nil); err != nil {
						t.Fatalf("the next request: %v", err)
					}
					if want := `"name":` + string(appendString(nil, c.back)); !bytes.Contains(s.body(i+1),
						[]byte(want)) {
						t.Errorf("request %d has no %s in %s", i+1, want, s.body(i+1))
					}
				}
			})
		}
	}
}

// If this failed, a call without an id, or with another call's, would end the turn, or go back in a form that a
// provider refuses the conversation for; or a good id, however long, would not go back as it came.
func TestIDsOfNoCall(t *testing.T) {
	long, longer := strings.Repeat("i", 16<<10), strings.Repeat("i", 16<<10+1)
	for _, c := range []struct{ name, first, second, back1, back2 string }{
		{"good", `"x"`, `"call.y/ü"`, "x", "call.y/ü"},
		{"long", `"` + long + `"`, `"y"`, long, "y"},
		{"none", `""`, `null`, "call_3_1", "call_3_2"},
		{"too long", `"` + longer + `"`, `"y"`, "call_3_1", "y"},
		{"the same", `"x"`, `"x"`, "x", "call_3_2"},
		{"of an earlier call", `"x"`, `"old"`, "x", "call_3_2"},
		{"what would be made", `"call_3_2"`, `""`, "call_3_2", "call_3_3"},
	} {
		for _, w := range wires {
			t.Run(w.kind+"/"+c.name, func(t *testing.T) {
				s := newServer(t, stream(callingTwice(w.kind, c.first, c.second)...), stream(w.hello...))
				m := remote(t, w.kind, w.model, s)
				req := hello()
				said := []outboard.Content{outboard.Text("yes")}
				for _, id := range []string{"older", "old"} {
					req.History = append(req.History, &outboard.Message{Role: "assistant",
						Uses: []outboard.ToolUse{{ID: id, Name: "ticket"}}},
						&outboard.Message{Role: "tool", Results: []outboard.ToolResult{{ToolUseID: id, Content: said}}})
				}
				resp, err := m.Generate(t.Context(), req, nil)
				if err != nil {
					t.Fatal(err)
				}
				want(t, short(resp), fmt.Sprintf("%s ticket {} | %s ticket {} -> tool_use", c.back1, c.back2))
				answer := &outboard.Message{Role: "tool"}
				for _, b := range resp.Blocks {
					answer.Results = append(answer.Results, outboard.ToolResult{ToolUseID: b.ToolUseID, Content: said})
				}
				req.History = append(req.History, logged(t, resp, 6), answer)
				if _, err := m.Generate(t.Context(), req, nil); err != nil {
					t.Fatalf("the next request: %v", err)
				}
				for _, id := range []string{c.back1, c.back2} { // the call's, and its result's
					if n := bytes.Count(s.body(1), appendString(nil, id)); n != 2 {
						t.Errorf("%.20q is %d times in %.2000s", id, n, s.body(1))
					}
				}
			})
		}
	}
}

// callingTwice is a stream of two calls with these ids, which are JSON, on each wire.
func callingTwice(kind, first, second string) []string {
	var out []string
	for i, id := range []string{first, second} {
		switch kind {
		case TypeAnthropic:
			out = append(out, fmt.Sprintf(`{"type":"content_block_start","index":%d,"content_block":{"type":"tool_use","id":%s,"name":"ticket","input":{}}}`, i, id),
				fmt.Sprintf(`{"type":"content_block_stop","index":%d}`, i))
		case TypeResponses:
			out = append(out, fmt.Sprintf(`{"type":"response.output_item.done","output_index":%d,"item":{"type":"function_call","call_id":%s,"name":"ticket","arguments":"{}"}}`, i, id))
		default:
			out = append(out, fmt.Sprintf(`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":%d,"id":%s,"function":{"name":"ticket","arguments":"{}"}}]}}]}`, i, id))
		}
	}
	switch kind {
	case TypeAnthropic:
		return append(append([]string{oddAnthropic[0]}, out...),
			`{"type":"message_delta","delta":{"stop_reason":"tool_use"}}`, `{"type":"message_stop"}`)
	case TypeResponses:
		return append(out, `{"type":"response.completed","response":{"id":"r","status":"completed"}}`)
	}
	return append(out, `{"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}`)
}

// If this failed, a call that the limit on output cut off before its name would be answered as one that the model made.
func TestCallCutBeforeItsName(t *testing.T) {
	for kind, events := range map[string][]string{
		TypeChat: {`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c1","function":{}}]},"finish_reason":"length"}]}`},
		TypeAnthropic: {oddAnthropic[0],
			`{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"c1","name":"","input":{"a":1}}}`,
			`{"type":"content_block_stop","index":0}`, `{"type":"message_delta","delta":{"stop_reason":"max_tokens"}}`, `{"type":"message_stop"}`},
		TypeResponses: {`{"type":"response.output_item.done","output_index":0,"item":{"type":"function_call","call_id":"c1","name":"","arguments":"{}"}}`,
			`{"type":"response.incomplete","response":{"id":"r","status":"incomplete","incomplete_details":{"reason":"max_output_tokens"}}}`},
	} {
		model := map[string]string{TypeChat: "llama", TypeAnthropic: "claude-sonnet-5", TypeResponses: "gpt-5"}[kind]
		resp, err := remote(t, kind, model, newServer(t, stream(events...))).Generate(t.Context(), hello(), nil)
		if err != nil || len(resp.Blocks) != 0 || resp.Stop != "max_tokens" {
			t.Errorf("%s: %v, %+v", kind, err, resp)
		}
	}
}

func equalJSON(t *testing.T, got []byte, want string) {
	t.Helper()
	var g, w bytes.Buffer
	if json.Compact(&g, got) != nil || json.Compact(&w, []byte(want)) != nil {
		t.Fatalf("got  %.200s\nwant %.200s", got, want)
	}
	if canonical(t, g.Bytes()) != canonical(t, w.Bytes()) {
		t.Errorf("got  %.200s\nwant %.200s", got, want)
	}
}

func canonical(t *testing.T, b []byte) string {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// If this failed, a server that sends arguments as values, not as text, would have its calls run with none.
func TestArgumentsAsValues(t *testing.T) {
	for _, c := range []struct{ value, want string }{
		{`{"a":1}`, `{"a":1}`}, {`null`, `{}`}, {`[1]`, `[1]`}, {`7`, `7`}, {`true`, `true`},
	} {
		for kind, events := range map[string][]string{
			TypeChat: {`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c1","function":{"name":"ticket","arguments":` + c.value + `}}]},"finish_reason":"tool_calls"}]}`},
			TypeAnthropic: {oddAnthropic[0],
				`{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"c1","name":"ticket","input":` + c.value + `}}`,
				`{"type":"content_block_stop","index":0}`, `{"type":"message_delta","delta":{"stop_reason":"tool_use"}}`, `{"type":"message_stop"}`},
			TypeResponses: {`{"type":"response.output_item.done","output_index":0,"item":{"type":"function_call","call_id":"c1","name":"ticket","arguments":` + c.value + `}}`,
				`{"type":"response.completed","response":{"id":"r"}}`},
		} {
			model := map[string]string{TypeChat: "llama", TypeAnthropic: "claude-sonnet-5",
				TypeResponses: "gpt-5"}[kind]
			resp, err := remote(t, kind, model, newServer(t, stream(events...))).Generate(t.Context(), hello(), nil)
			if err != nil {
				t.Errorf("%s, %s: %v", kind, c.value, err)
				continue
			}
			want(t, short(resp), "c1 ticket "+c.want+" -> tool_use")
			raw, err := unpackRaw(t.Context(), hello(), *logged(t, resp, 2))
			if err != nil || !bytes.Contains(raw, []byte(`{`)) || bytes.Contains(raw, []byte(`"arguments":`+c.value)) ||
				bytes.Contains(raw, []byte(`"input":`+c.value)) && c.value[0] != '{' {
				t.Errorf("%s, %s goes back as %s, %v", kind, c.value, raw, err)
			}
		}
	}
}

// If this failed, a response of OpenAI's that broke off would end the turn where the model could go on, or make
// a call of half an input.
func TestResponsesThatBreakOff(t *testing.T) {
	call := func(id, arguments, status string) string {
		return fmt.Sprintf(`{"type":"function_call","id":"f_%s","call_id":%q,"name":"ticket","arguments":%s,"status":%q}`, id, id, appendString(nil, arguments), status)
	}
	reasoning := `{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"x"}`
	for _, c := range []struct {
		name, reason string
		items        []string
		want         string
		kept, gone   string // what goes back, and what does not
	}{
		{"limit", "max_output_tokens", []string{call("a", `{}`, "completed"), call("b", `{"x`, "incomplete")},
			`a ticket {} -> max_tokens`, `"a"`, `"b"`},
		{"limit, whole arguments", "max_output_tokens", []string{call("b", `{}`, "incomplete")}, ` -> max_tokens`, `[]`,
			`"b"`},
		{"filter", "content_filter", []string{call("b", `{"x`, "incomplete")}, ` -> refusal`, `[]`, `"b"`},
		{"filter in the middle", "content_filter", []string{call("b", `{"x`, "incomplete"),
			call("a", `{}`, "completed")}, `a ticket {} -> refusal`, `"a"`, `"b"`},
		{"other", "unheard_of", []string{call("a", `{}`, "completed"), call("b", `{"x`, "incomplete")},
			`a ticket {} | b ticket "{\"x" -> tool_use`, `"{\"invalid\":\"{\\\"x\"}"`, `"{\"x"`},
		{"other, whole arguments", "unheard_of", []string{call("b", `{"x":1}`, "incomplete")},
			`b ticket "{\"x\":1}" -> tool_use`, `invalid`, `"{\"x\":1}"`},
		{"other, no arguments", "unheard_of", []string{call("b", ``, "incomplete")}, `b ticket "" -> tool_use`,
			`invalid`, `"arguments":""`},
		{"not incomplete after all", "", []string{call("b", `{"x":1}`, "incomplete")}, `b ticket {"x":1} -> tool_use`,
			`"{\"x\":1}"`, `invalid`},
		{"reasoning only", "max_output_tokens", []string{reasoning}, `thinking  -> max_tokens`, `[]`, `rs_1`},
		{"reasoning for a cut call", "max_output_tokens", []string{call("a", `{}`, "completed"), reasoning,
			call("b", `{"x`, "incomplete")}, `a ticket {} | thinking  -> max_tokens`, `"a"`, `rs_1`},
		{"reasoning for a call", "max_output_tokens", []string{reasoning, call("a", `{}`, "completed"),
			call("b", `{"x`, "incomplete")}, `thinking  | a ticket {} -> max_tokens`, `rs_1`, `"b"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var events []string
			for i, it := range c.items {
				events = append(events, fmt.Sprintf(`{"type":"response.output_item.done","output_index":%d,"item":%s}`,
					i, it))
			}
			end := `{"type":"response.completed","response":{"id":"r","status":"completed"}}`
			if c.reason != "" {
				end = fmt.Sprintf(`{"type":"response.incomplete","response":{"id":"r","status":"incomplete","incomplete_details":{"reason":%q}}}`, c.reason)
			}
			resp, err := remote(t, TypeResponses, "gpt-5", newServer(t, stream(append(events, end)...))).
				Generate(t.Context(), hello(), nil)
			if err != nil {
				t.Fatal(err)
			}
			want(t, short(resp), c.want)
			raw, err := unpackRaw(t.Context(), hello(), *logged(t, resp, 2))
			if err != nil || !bytes.Contains(raw, []byte(c.kept)) || bytes.Contains(raw, []byte(c.gone)) {
				t.Errorf("goes back: %s, %v; want %s in it and not %s", raw, err, c.kept, c.gone)
			}
		})
	}
}

// If this failed, some garbage that a model writes as arguments would make a log or a request that is not valid.
func FuzzArguments(f *testing.F) {
	for _, text := range []string{`{"a":1}`, `{"a":`, `[`, "\x00", "\xff{}", `"\ud800"`, ` {} `, `{"a":1}{`, "\u2028",
		`nul`, "1e999"} {
		f.Add(text, true)
	}
	f.Fuzz(func(t *testing.T, text string, whole bool) {
		raw := appendString(nil, text)
		if whole && json.Valid([]byte(text)) {
			raw = []byte(text)
		}
		in := toolInput(argumentsText(raw))
		var back map[string]json.RawMessage
		if !json.Valid(in) || json.Unmarshal(asObject(in), &back) != nil || back == nil {
			t.Fatalf("%q: input %s goes back as %s", text, in, asObject(in))
		}
		item := item{raw: fmt.Appendf(nil, `{"type":"function_call","call_id":"c","name":"n","arguments":%s}`, raw)}
		blocks, err := (&responsesStream{ids: newCallIDs(nil)}).blocks(&item)
		if err != nil || len(blocks) != 1 || !json.Valid(item.raw) {
			t.Fatalf("%q: %v, %v; %s", text, blocks, err, item.raw)
		}
		c := chatCall{}
		if c.function(fmt.Appendf(nil, `{"name":"n","arguments":%s}`, raw)) != nil {
			return
		}
		b, call, err := c.finish(newCallIDs(nil))
		if err != nil || !json.Valid(call) || !json.Valid(b.Input) {
			t.Fatalf("%q: %+v, %s, %v", text, b, call, err)
		}
	})
}
