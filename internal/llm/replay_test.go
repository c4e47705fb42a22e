package llm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
)

// logged passes a response through what the log does to it, and returns the message a later request is made from.
func logged(t *testing.T, resp *Response, seq int64) *outboard.Message {
	t.Helper()
	e := outboard.NewEvent("sthr_1", &outboard.ModelFinished{Request: "sevt_1", Provider: resp.Provider, Raw: resp.Raw})
	p, err := e.Decode()
	if err != nil {
		t.Fatalf("decoding the event: %v", err)
	}
	f := p.(*outboard.ModelFinished)
	m := &outboard.Message{Role: "assistant", Seq: seq, Provider: f.Provider, Raw: f.Raw, Model: "test/x"}
	for _, b := range resp.Blocks {
		switch b.Kind {
		case "text":
			m.Content = append(m.Content, outboard.Text(b.Text))
		case "tool_use":
			m.Uses = append(m.Uses, outboard.ToolUse{ID: b.ToolUseID, Name: b.Name, Input: b.Input})
		}
	}
	return m
}

// oddAnthropic is a message with everything that decoding and encoding again would change: escapes, a lone
// surrogate, a pair split over two deltas, HTML characters, white space, key order and number formats.
var oddAnthropic = []string{
	`{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","content":[],"model":"m","usage":{"input_tokens":3,"cache_creation_input_tokens":30,"cache_read_input_tokens":40,"cache_creation":{"ephemeral_5m_input_tokens":10,"ephemeral_1h_input_tokens":20},"output_tokens":1}}}`,
	`{"type":"content_block_start","index":0,"content_block":{ "type": "thinking", "thinking" : "" ,"signature":""}}`,
	`{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"a \u003cb\u003E <c> & \u00e9é \ud83d"}}`,
	`{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"\ude00 \ud800 \/ \u2028 end"}}`,
	`{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"EqQ\/+\u003d="}}`,
	`{"type":"content_block_stop","index":0}`,
	`{"type":"content_block_start","index":1,"content_block":{"data":"secret\u002b==","type":"redacted_thinking","future":[1.0, 2e3]}}`,
	`{"type":"content_block_stop","index":1}`,
	`{"type":"content_block_start","index":2,"content_block":{"type":"text","text":"","citations":null}}`,
	`{"type":"content_block_delta","index":2,"delta":{"type":"text_delta","text":"I \"look\"\u0009at it."}}`,
	`{"type":"content_block_stop","index":2}`,
	`{"type":"content_block_start","index":3,"content_block":{"type":"tool_use","id":"toolu_A","name":"bash","input":{},"caller":{"type":"direct"}}}`,
	`{"type":"content_block_delta","index":3,"delta":{"type":"input_json_delta","partial_json":""}}`,
	`{"type":"content_block_delta","index":3,"delta":{"type":"input_json_delta","partial_json":"{\"z\": 1.50, \"command\": \"echo \\u003c"}}`,
	`{"type":"content_block_delta","index":3,"delta":{"type":"input_json_delta","partial_json":"<&\", \"a\":\"\\ud800\", \"n\":12345678901234567890}"}}`,
	`{"type":"content_block_stop","index":3}`,
	`{"type":"content_block_start","index":4,"content_block":{"type":"tool_use","id":"toolu_B","name":"list","input":{}}}`,
	`{"type":"content_block_stop","index":4}`,
	`{"type":"content_block_start","index":5,"content_block":{"type":"new_kind","x": {"b":1, "a":2}}}`,
	`{"type":"content_block_stop","index":5}`,
	`{"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"output_tokens":50}}`,
	`{"type":"message_stop"}`,
}

// oddAnthropicBack is what must go back: each block as it started, with the deltas' text put in uncoded.
const oddAnthropicBack = `[{ "type": "thinking", "thinking" : "a \u003cb\u003E <c> & \u00e9é \ud83d\ude00 \ud800 \/ \u2028 end" ,"signature":"EqQ\/+\u003d="},` +
	`{"data":"secret\u002b==","type":"redacted_thinking","future":[1.0, 2e3]},` +
	`{"type":"text","text":"I \"look\"\u0009at it.","citations":null},` +
	`{"type":"tool_use","id":"toolu_A","name":"bash","input":{"z": 1.50, "command": "echo \u003c<&", "a":"\ud800", "n":12345678901234567890},"caller":{"type":"direct"}},` +
	`{"type":"tool_use","id":"toolu_B","name":"list","input":{}},` +
	`{"type":"new_kind","x": {"b":1, "a":2}}]`

const oddItems = `{"id":"rs_1","type":"reasoning","summary":[{"type":"summary_text","text":"A \u003cplan\u003e \ud800"}],"encrypted_content":"gAAA\/+=", "extra": 1.0e2}`
const oddMessage = `{"type":"message","id":"msg_1", "status":"completed","role":"assistant","content":[{"type":"output_text","annotations":[],"text":"I <look> \u0026 \u00e9."}]}`
const oddCall = `{"id":"fc_1","type":"function_call","status":"completed","arguments":"{\"z\": 1.50, \"command\":\"a\\u003c<\"}","call_id":"call_A","name":"bash"}`

var oddResponses = []string{
	`{"type":"response.created","response":{"id":"resp_1"}}`,
	`{"type":"response.reasoning_summary_text.delta","item_id":"rs_1","output_index":0,"summary_index":0,"delta":"A <plan> "}`,
	`{"type":"response.output_item.done","output_index":0,"item":` + oddItems + `}`,
	`{"type":"response.output_text.delta","item_id":"msg_1","output_index":1,"content_index":0,"delta":"I <look>"}`,
	`{"type":"response.output_item.done","output_index":2,"item":` + oddCall + `}`,
	`{"type":"response.output_item.done","output_index":1,"item":` + oddMessage + `}`,
	`{"type":"response.completed","response":{"id":"resp_1","status":"completed","usage":{"input_tokens":100,"input_tokens_details":{"cached_tokens":60,"cache_write_tokens":10},"output_tokens":50,"total_tokens":150}}}`,
}

var oddChat = []string{
	`{"choices":[{"index":0,"delta":{"role":"assistant","content":null,"reasoning_content":"hm \ud83d"}}]}`,
	`{"choices":[{"index":0,"delta":{"reasoning_content":"\ude00 \ud800 <x> \u003c"}}]}`,
	`{"choices":[{"index":0,"delta":{"reasoning_details":[{"type":"reasoning.encrypted", "data":"a\/b", "n":1.0}]}}]}`,
	`{"choices":[{"index":0,"delta":{"reasoning_details":[{"type":"reasoning.text","text":"t"}]}}]}`,
	`{"choices":[{"index":0,"delta":{"content":"I look \u0026 "}}]}`,
	`{"choices":[{"index":0,"delta":{"content":"see."}}]}`,
	`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"functions.bash:0","type":"function","extra_content":{"google":{"thought_signature":"s\/="}},"function":{"name":"bash","arguments":""}}]}}]}`,
	`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"z\": 1.50, "}}]}}]}`,
	`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"function":{"name":"list"}},{"index":0,"function":{"arguments":"\"command\":\"a\\u003c<\"}"}}]}}]}`,
	`{"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":100,"prompt_tokens_details":{"cached_tokens":60},"completion_tokens":50,"total_tokens":150}}`,
	`[DONE]`,
}

const oddChatBack = `{"role":"assistant","content":"I look \u0026 see.","reasoning_content":"hm \ud83d\ude00 \ud800 <x> \u003c",` +
	`"reasoning_details":[{"type":"reasoning.encrypted", "data":"a\/b", "n":1.0},{"type":"reasoning.text","text":"t"}],` +
	`"tool_calls":[{"id":"functions.bash:0","type":"function","extra_content":{"google":{"thought_signature":"s\/="}},` +
	`"function":{"name":"bash","arguments":"{\"z\": 1.50, \"command\":\"a\\u003c<\"}"}},` +
	`{"id":"call_1_2","type":"function","function":{"name":"list","arguments":"{}"}}]}`

// If this failed, signed or encrypted reasoning would go back altered, and the provider would refuse the conversation.
func TestReplayIsByteExact(t *testing.T) {
	for _, c := range []struct {
		kind, model string
		events      []string
		back        string // these bytes must be in the second request
		short       string
		thinking    string
		usage       outboard.Usage
	}{
		{TypeAnthropic, "claude-sonnet-5", oddAnthropic, `"content":` + oddAnthropicBack + "}",
			"thinking a <b> <c> & éé 😀 \uFFFD / \u2028 end | thinking  | text I \"look\"\tat it. | " +
				`toolu_A bash {"z": 1.50, "command": "echo \u003c<&", "a":"\ud800", "n":12345678901234567890} | toolu_B list {} -> tool_use`,
			"a <b> <c> & éé \uFFFD\uFFFD \uFFFD / \u2028 end", outboard.Usage{Input: 3, Output: 50, CacheRead: 40,
				CacheWrite5m: 10, CacheWrite1h: 20}},
		{TypeResponses, "gpt-5", oddResponses, "," + oddItems + "," + oddMessage + "," + oddCall + ",",
			"thinking A <plan> \uFFFD | text I <look> & é. | " +
				`call_A bash {"z": 1.50, "command":"a\u003c<"} -> tool_use`,
			"A <plan> ", outboard.Usage{Input: 30, Output: 50, CacheRead: 60, CacheWrite5m: 10}},
		{TypeChat, "llama", oddChat, "," + oddChatBack + ",",
			"thinking hm 😀 \uFFFD <x> < | text I look & see. | " +
				`functions.bash:0 bash {"z": 1.50, "command":"a\u003c<"} | call_1_2 list {} -> tool_use`,
			"hm \uFFFD\uFFFD \uFFFD <x> <", outboard.Usage{Input: 40, Output: 50, CacheRead: 60}},
	} {
		t.Run(c.kind, func(t *testing.T) {
			s := newServer(t, stream(c.events...), status(400, `{}`), status(400, `{}`))
			m := remote(t, c.kind, c.model, s)
			req := hello()
			var thought string
			resp, err := m.Generate(t.Context(), req, func(d Delta) {
				if d.Kind == "thinking" {
					thought += d.Text
				}
			})
			if err != nil {
				t.Fatalf("generating: %v", err)
			}
			want(t, short(resp), c.short)
			want(t, thought, c.thinking)
			if resp.Usage != c.usage {
				t.Errorf("usage %+v, want %+v", resp.Usage, c.usage)
			}
			msg := logged(t, resp, 2)
			msg.Model = "test/" + c.model
			result := &outboard.Message{Role: "tool", Seq: 3}
			for _, u := range msg.Uses {
				result.Results = append(result.Results, outboard.ToolResult{ToolUseID: u.ID,
					Content: []outboard.Content{outboard.Text("ok")}})
			}
			req.History = append(req.History, msg, result)
			if _, err := m.Generate(t.Context(), req, nil); err == nil {
				t.Fatal("the second reply is an error, but none came")
			}
			if !bytes.Contains(s.body(1), []byte(c.back)) {
				t.Errorf("the response did not go back as it came; sent\n%s\nwant in it\n%s", s.body(1), c.back)
			}
			for _, u := range msg.Uses { // the ids that go back must be those of the calls
				if n := bytes.Count(s.body(1), []byte(`"`+u.ID+`"`)); n != 2 {
					t.Errorf("id %s is %d times in the request, want with its call and its result", u.ID, n)
				}
			}

			// The positive control: from elsewhere the same message is rebuilt, without its reasoning.
			req.History[1].Model = "other/x"
			if _, err := m.Generate(t.Context(), req, nil); err == nil {
				t.Fatal("the third reply is an error, but none came")
			}
			body := string(s.body(2))
			if strings.Contains(body, c.back) || strings.Contains(body, "signature") ||
				strings.Contains(body, "encrypted_content\":\"") ||
				strings.Contains(body, "reasoning_content") || !strings.Contains(body, "bash") {
				t.Errorf("a foreign message went back with its reasoning: %s", body)
			}
		})
	}
}

// If this failed, a large response kept as a blob would be lost to the model.
func TestReplayFromABlob(t *testing.T) {
	s := newServer(t, status(400, `{}`), status(400, `{}`))
	m := remote(t, TypeAnthropic, "claude-sonnet-5", s)
	raw, err := packRaw([]byte(`[{"type":"text","text":"from \u0041 blob"}]`))
	if err != nil {
		t.Fatal(err)
	}
	ref := outboard.BlobRef{Digest: "d1", Size: int64(len(raw))}
	req := hello()
	req.Load = loader(map[string]string{"d1": string(raw)})
	req.History = append(req.History, &outboard.Message{Role: "assistant", Seq: 2, Provider: TypeAnthropic,
		RawBlob: &ref},
		&outboard.Message{Role: "user", Seq: 3,
			Content: []outboard.Content{{Type: "text", Blob: &outboard.BlobRef{Digest: "d2"}}}})
	if _, err := m.Generate(t.Context(), req, nil); outboard.KindOf(err) != outboard.NotFound {
		t.Errorf("got %v, want the loader's not found", err)
	}
	req.History = req.History[:2]
	if _, err := m.Generate(t.Context(), req, nil); err == nil {
		t.Error("the reply is an error, but none came")
	}
	if !bytes.Contains(s.body(0), []byte(`[{"type":"text","text":"from \u0041 blob"}]`)) {
		t.Errorf("the blob's bytes are not in the request: %s", s.body(0))
	}
}

// If this failed, a response cut in the middle of a call's arguments would make a call nobody asked for, or none
// of its text.
func TestCutToolCalls(t *testing.T) {
	for _, c := range []struct {
		kind, model string
		events      []string // with a %s for the reason to stop
		full, short string
		filter      string
	}{
		{TypeAnthropic, "claude-sonnet-5", []string{oddAnthropic[0],
			`{"type":"content_block_start","index":0,"content_block":{"type":"text","text":"Now."}}`, `{"type":"content_block_stop","index":0}`,
			`{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"toolu_A","name":"bash","input":{}}}`,
			`{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"comm"}}`,
			`{"type":"content_block_stop","index":1}`, `{"type":"message_delta","delta":{"stop_reason":"%s"},"usage":{"output_tokens":5}}`,
			`{"type":"message_stop"}`}, "tool_use", "max_tokens", "refusal"},
		{TypeResponses, "gpt-5", []string{
			`{"type":"response.output_item.done","output_index":0,"item":{"type":"message","id":"m","role":"assistant","content":[{"type":"output_text","text":"Now."}]}}`,
			`{"type":"response.output_item.done","output_index":1,"item":{"type":"function_call","id":"f","call_id":"c","name":"bash","arguments":"{\"comm"}}`,
			`{"type":"response.incomplete","response":{"id":"r","incomplete_details":{"reason":"%s"}}}`}, "unheard_of", "max_output_tokens", "content_filter"},
		{TypeChat, "llama", []string{`{"choices":[{"index":0,"delta":{"content":"Now."}}]}`,
			`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"bash","arguments":"{\"comm"}}]}}]}`,
			`{"choices":[{"index":0,"delta":{},"finish_reason":"%s"}]}`}, "tool_calls", "length", "content_filter"},
	} {
		t.Run(c.kind, func(t *testing.T) {
			fill := func(reason string) (out []string) {
				for _, e := range c.events {
					out = append(out, strings.ReplaceAll(e, "%s", reason))
				}
				return out
			}
			m := remote(t, c.kind, c.model, newServer(t, stream(fill(c.short)...), stream(fill(c.filter)...),
				stream(fill(c.full)...)))
			for _, stop := range []string{"max_tokens", "refusal"} {
				resp, err := m.Generate(t.Context(), hello(), nil)
				if err != nil {
					t.Fatalf("a response that ends in %s: %v", stop, err)
				}
				want(t, short(resp), "text Now. -> "+stop)
				if strings.Contains(string(resp.Raw), "bash") {
					t.Errorf("the cut call is still in %s", resp.Raw)
				}
			}
			resp, err := m.Generate(t.Context(), hello(), nil)
			if err != nil {
				t.Fatalf("broken arguments of a response that is whole: %v", err)
			}
			if got := short(resp); !strings.HasSuffix(got, ` bash "{\"comm" -> tool_use`) {
				t.Errorf("broken arguments: %s", got)
			}
		})
	}
}

// If this failed, sloppy servers (no ids, no index, no usage, whole calls, repeated names) could not be used.
func TestChatTakesWhatServersSend(t *testing.T) {
	for _, c := range []struct {
		name   string
		events []string
		want   string
	}{
		{"no ids, no index, no usage", []string{
			`{"choices":[{"delta":{"tool_calls":[{"function":{"name":"a","arguments":"{}"}}]}}]}`,
			`{"choices":[{"delta":{"content":""},"finish_reason":"stop"}]}`}, `call_1_1 a {} -> tool_use`},
		{"same index, own ids", []string{
			`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"x","function":{"name":"a","arguments":"{\"k\":1}"}}]}}]}`,
			`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"y","function":{"name":"b","arguments":""}}]},"finish_reason":"tool_calls"}]}`},
			`x a {"k":1} | y b {} -> tool_use`},
		{"same ids", []string{
			`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"x","function":{"name":"a","arguments":"{}"}},{"index":1,"id":"x","function":{"name":"b","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}`},
			`x a {} | call_1_2 b {} -> tool_use`},
		{"repeated name and id, arguments as an object", []string{
			`{"choices":[{"index":0,"delta":{"role":"assistant","tool_calls":[{"index":0,"id":"x","function":{"name":"a","arguments":null}}]}}]}`,
			`{"choices":[{"index":0,"delta":{"role":"assistant","tool_calls":[{"index":0,"id":"x","function":{"name":"a","arguments":{"k":1}}}]},"finish_reason":"tool_calls"}]}`},
			`x a {"k":1} -> tool_use`},
		{"two names for reasoning", []string{
			`{"choices":[{"index":0,"delta":{"reasoning":"hm","reasoning_content":"hm"}}]}`,
			`{"choices":[{"index":0,"delta":{"content":"ok","tool_calls":null},"finish_reason":"stop"}]}`}, `thinking hm | text ok -> end_turn`},
		{"a filter", []string{`{"choices":[{"index":0,"delta":{"content":"no"},"finish_reason":"content_filter"}]}`},
			`text no -> refusal`},
		{"a refusal", []string{`{"choices":[{"index":0,"delta":{"refusal":"I won't."},"finish_reason":"stop"}]}`},
			`text I won't. -> refusal`},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp, err := remote(t, TypeChat, "llama", newServer(t, stream(c.events...))).
				Generate(t.Context(), hello(), nil)
			if err != nil {
				t.Fatalf("generating: %v", err)
			}
			want(t, short(resp), c.want)
		})
	}
}

// If this failed, a response that was cut in its reasoning, or has text that says nothing, would go back as it
// came, and its provider refuse the conversation for good.
func TestBlocksThatCannotGoBack(t *testing.T) {
	block := func(i int, start string) []string {
		return []string{fmt.Sprintf(`{"type":"content_block_start","index":%d,"content_block":%s}`, i, start),
			fmt.Sprintf(`{"type":"content_block_stop","index":%d}`, i)}
	}
	const thinking, redacted = `{"type":"thinking","thinking":"hm","signature":""}`, `{"type":"redacted_thinking","data":"d"}`
	const call = `{"type":"tool_use","id":"c1","name":"ticket","input":{}}`
	for _, c := range []struct {
		name, stop, want string // want is the content that goes back
		blocks           []string
	}{
		{"reasoning only", "max_tokens", `[{"text":"(no text)","type":"text"}]`, []string{redacted, thinking}},
		{"reasoning last", "end_turn", `[{"type":"text","text":"Now."}]`,
			[]string{`{"type":"text","text":"Now."}`, thinking}},
		{"reasoning before a cut call", "refusal", `[{"type":"text","text":"Now."}]`,
			[]string{`{"type":"text","text":"Now."}`, thinking,
				`{"type":"tool_use","id":"c1","name":"ticket","input":"{"}`}},
		{"reasoning before a call", "tool_use", `[` + redacted + `,` + thinking + `,` + call + `]`,
			[]string{redacted, thinking, call}},
		{"empty text", "tool_use", `[` + thinking + `,` + call + `]`, []string{thinking, `{"type":"text","text":""}`,
			`{"type":"text","text":"\n\n"}`, call}},
		{"nothing", "end_turn", `[{"text":"(no text)","type":"text"}]`, []string{`{"type":"text","text":""}`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			events := []string{oddAnthropic[0]}
			for i, b := range c.blocks {
				events = append(events, block(i, b)...)
			}
			events = append(events, fmt.Sprintf(`{"type":"message_delta","delta":{"stop_reason":%q}}`, c.stop),
				`{"type":"message_stop"}`)
			s := newServer(t, stream(events...), stream(wires[0].hello...))
			m := remote(t, TypeAnthropic, "claude-sonnet-5", s)
			resp, err := m.Generate(t.Context(), hello(), nil)
			if err != nil {
				t.Fatal(err)
			}
			req := hello()
			req.History = append(req.History, logged(t, resp, 2), &outboard.Message{Role: "user",
				Content: []outboard.Content{outboard.Text("Go on.")}})
			if _, err := m.Generate(t.Context(), req, nil); err != nil {
				t.Fatal(err)
			}
			if want := `{"role":"assistant","content":` + c.want + `}`; !bytes.Contains(s.body(1), []byte(want)) {
				t.Errorf("%s is not in %s", want, s.body(1))
			}
		})
	}
}

// If this failed, a stream that breaks the wire's rules would pass for a response.
func TestBrokenMessages(t *testing.T) {
	start := oddAnthropic[0]
	for _, c := range []struct {
		kind, model string
		events      []string
		want        string
	}{
		{TypeAnthropic, "claude-sonnet-5", []string{`{"type":"message_stop"}`}, "comes before message_start"},
		{TypeAnthropic, "claude-sonnet-5",
			[]string{start, `{"type":"content_block_start","index":3,"content_block":{"type":"text","text":""}}`}, "block 3 comes after 0 blocks"},
		{TypeAnthropic, "claude-sonnet-5",
			[]string{start, `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"x"}}`}, "block 0, which is not open"},
		{TypeAnthropic, "claude-sonnet-5",
			[]string{start, `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":"` + "\xff" +
				`"}}`,
				`{"type":"message_stop"}`}, "not valid JSON"},
		{TypeResponses, "gpt-5",
			[]string{`{"type":"response.failed","response":{"status":"failed","error":{"code":"rate_limit_exceeded","message":"slow"}}}`}, "429 rate_limit_exceeded: slow"},
		{TypeResponses, "gpt-5",
			[]string{`{"type":"error","code":"server_error","message":"oops","param":null,"sequence_number":3}`}, "500 server_error: oops"},
		{TypeChat, "llama", []string{`{"choices":[{"index":0,"delta":{"tool_calls":{"a":1}}}]}`},
			"tool_calls is no list"},
		{TypeChat, "llama", []string{`{"error":"model crashed"}`}, "500: model crashed"},
		{TypeChat, "llama", []string{`{"error":{"message":"busy","type":"server_error","code":503}}`},
			"500 server_error: busy"},
		{TypeChat, "llama", []string{`[1,2]`}, "model test/llama: "},
	} {
		m := remote(t, c.kind, c.model, newServer(t, stream(c.events...)))
		if e := mustFail(t, m, nil); !strings.Contains(e.Message, c.want) {
			t.Errorf("%s: got %q, want %q", c.kind, e.Message, c.want)
		}
	}
}

// If this failed, a refusal would look like an ordinary answer, or lose why.
func TestRefusal(t *testing.T) {
	events := []string{oddAnthropic[0],
		`{"type":"message_delta","delta":{"stop_reason":"refusal","stop_details":{"type":"refusal","category":"cyber","explanation":"no"}},"usage":{"input_tokens":9,"output_tokens":2}}`,
		`{"type":"message_stop"}`}
	resp, err := remote(t, TypeAnthropic, "claude-sonnet-5", newServer(t, stream(events...))).
		Generate(t.Context(), hello(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Stop != "refusal" || string(resp.Details) != `{"type":"refusal","category":"cyber","explanation":"no"}` ||
		resp.Usage.Input != 9 {
		t.Errorf("got stop %q, details %s, usage %+v", resp.Stop, resp.Details, resp.Usage)
	}
	// An empty response leaves nothing to replay: it is left out, and the conversation stays well-formed.
	req := hello()
	req.History = append(req.History, logged(t, resp, 2), &outboard.Message{Role: "user", Seq: 3,
		Content: []outboard.Content{outboard.Text("Why?")}})
	s := newServer(t, status(400, `{}`))
	if _, err := remote(t, TypeAnthropic, "claude-sonnet-5", s).Generate(t.Context(), req, nil); err == nil {
		t.Error("the reply is an error, but none came")
	}
	if bytes.Contains(s.body(0), []byte(`"content":[]`)) || bytes.Contains(s.body(0), []byte("null")) {
		t.Errorf("the request has an empty message: %s", s.body(0))
	}
}

// If this failed, settings of this process's environment would change which server and key a provider uses.
func TestEnvironmentDoesNotReachTheSDKs(t *testing.T) {
	for _, name := range []string{"ANTHROPIC_BASE_URL", "OPENAI_BASE_URL"} {
		t.Setenv(name, "http://192.0.2.1:1/")
	}
	for _, name := range []string{"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "OPENAI_API_KEY", "OPENAI_ORG_ID",
		"ANTHROPIC_CUSTOM_HEADERS"} {
		t.Setenv(name, "X-Leaked: leaked")
	}
	for _, w := range wires {
		s := newServer(t, stream(w.hello...))
		m := remote(t, w.kind, w.model, s, func(c *Config) {
			c.Providers[0].APIKey = Key{}
			c.Providers[0].Headers = map[string]Secret{"X-Gateway": NewSecret("pass")}
		})
		if _, err := m.Generate(t.Context(), hello(), nil); err != nil {
			t.Fatalf("%s: %v", w.kind, err)
		}
		if h := s.headers[0]; h.Get("X-Gateway") != "pass" || strings.Contains(strings.ToLower(headerText(h)),
			"leaked") {
			t.Errorf("%s: headers %v", w.kind, h)
		}
	}
}

func headerText(h http.Header) string {
	b, _ := json.Marshal(h)
	return string(b)
}
