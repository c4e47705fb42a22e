package llm

import (
	"bytes"
	"encoding/json"
	"testing"
)

// If this failed, putting a signature into a block would alter some other part of it.
func FuzzSetMember(f *testing.F) {
	f.Add(`{ "type": "thinking", "thinking" : "" ,"signature":""}`, "thinking", `"a\u003cb\ud800"`)
	f.Add(`{}`, "x", `1.0e2`)
	f.Add(`{"a":{"a":1}, "b":[1, 2]}`, "b", `{ "k" : null }`)
	f.Add(`{"a":1,"a":2}`, "a", `3`)
	f.Fuzz(func(t *testing.T, text, key, value string) {
		if !json.Valid([]byte(text)) || !json.Valid([]byte(value)) ||
			len(bytes.TrimSpace([]byte(value))) != len(value) {
			return
		}
		before, err := parseObject([]byte(text))
		if err != nil {
			return // no object
		}
		out, err := setMember([]byte(text), key, []byte(value))
		if err != nil || !json.Valid(out) {
			t.Fatalf("setting %q in %s: %s, %v", key, text, out, err)
		}
		after, err := parseObject(out)
		if err != nil {
			t.Fatal(err)
		}
		replaced := -1
		for i, m := range before {
			if m.key == key {
				replaced = i
				break
			}
		}
		for i, m := range before {
			if want := m.value; i != replaced && !bytes.Equal(after[i].value, want) {
				t.Errorf("setting %q changed %q to %s in %s", key, m.key, after[i].value, out)
			}
		}
		if replaced < 0 {
			replaced = len(before)
		}
		if !bytes.Equal(after[replaced].value, []byte(value)) {
			t.Errorf("%q is %s, want %s", key, after[replaced].value, value)
		}
	})
}

// If this failed, a stream could crash the server, or a response could be kept that no provider takes back.
func FuzzChatDeltas(f *testing.F) {
	f.Add(`{"role":"assistant","content":"a"}`,
		`{"tool_calls":[{"index":0,"id":"x","function":{"name":"b","arguments":"{}"}}]}`)
	f.Add(`{"reasoning_details":[1, {"a":2}]}`, `{"reasoning_details":[ ],"content":[{"type":"text"}]}`)
	f.Add(`{"tool_calls":[{"function":{"name":"a","arguments":{"k":1}}},{"id":"y"}]}`,
		`{"tool_calls":[{"index":null,"function":null}]}`)
	f.Fuzz(func(t *testing.T, a, b string) {
		s := chatStream{x: &exchange{endpoint: &endpoint{}}, ids: newCallIDs(nil), finish: "stop"}
		for _, text := range []string{a, b} {
			o, err := parseObject([]byte(text))
			if err != nil || !json.Valid([]byte(text)) || s.delta(o) != nil {
				return
			}
		}
		resp, err := s.response()
		if err != nil {
			return
		}
		var text string
		if json.Unmarshal(resp.Raw, &text) != nil || !json.Valid([]byte(text)) {
			t.Errorf("raw is %s", resp.Raw)
		}
		for _, b := range resp.Blocks {
			if b.Kind == "tool_use" && (b.ToolUseID == "" || !json.Valid(b.Input)) {
				t.Errorf("block %+v", b)
			}
		}
	})
}
