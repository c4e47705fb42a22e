package llm

import (
	"fmt"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
)

// conversation grows by a user message, a response and a result at a time.
func conversation(n int) []*outboard.Message {
	var h []*outboard.Message
	for i := range n {
		h = append(h,
			&outboard.Message{Role: "user", Content: []outboard.Content{outboard.Text(strings.Repeat("u", i))}},
			&outboard.Message{Role: "assistant",
				Uses: []outboard.ToolUse{{Name: "bash", Input: outboard.Raw(`{"command":"true"}`)}}},
			&outboard.Message{Role: "tool",
				Results: []outboard.ToolResult{{Content: []outboard.Content{outboard.Text(fmt.Sprint("r", i))}}}})
	}
	return h
}

// histories are what requests of one conversation may hold one after the other: grown, compacted, rewound, and
// of other messages.
func histories() [][]*outboard.Message {
	long, other := conversation(40), conversation(25)
	summary := []*outboard.Message{{Role: "summary", Content: []outboard.Content{outboard.Text("so far")}}}
	all := [][]*outboard.Message{summary, append(summary, other[:6]...), append(summary, other[1:6]...), other[:6],
		long[:30], long[:7], other,
		conversation(40), nil, long[:30]}
	for i := range long {
		all = append(all, long[:i+1])
	}
	// another result for the newest call
	replaced := append(append([]*outboard.Message{}, long[:len(long)-1]...), other[2])
	return append(all, replaced, long)
}

// What is remembered of a conversation may save time only: usage that depends on what a process has seen before
// is not deterministic.
func TestCountedIsWhatCountingGives(t *testing.T) {
	for i, h := range histories() {
		req := Request{System: "be brief", CacheKey: t.Name(), History: h}
		plain := req
		plain.CacheKey = ""
		if got, want := requestBytes(req), requestBytes(plain); got != want {
			t.Errorf("history %d of %d messages: %d bytes, want %d", i, len(h), got, want)
		}
	}
	long := conversation(40)
	for i := range 3 * maxCounted {
		requestBytes(Request{CacheKey: fmt.Sprint("sthr_", i), History: long})
	}
	if len(counted.kept) > maxCounted {
		t.Errorf("%d conversations are remembered, over the bound of %d", len(counted.kept), maxCounted)
	}
}

// The same for where a script is in its conversation. If this fails, a script takes steps twice or not at all in
// a long session.
func TestLocatedIsWhatLocatingGives(t *testing.T) {
	s, resumed := new(script), 0
	for i, h := range histories() {
		for j, m := range h {
			m.Seq = int64(j + 1)
		}
		for _, back := range []int{1, 2, 3, 4} { // how many messages are the current turn's
			req := Request{CacheKey: t.Name(), History: h, TurnSeq: int64(max(len(h)-back, 1))}
			plain := req
			plain.CacheKey = ""
			if _, over := s.resume(req); over.messages > 0 {
				resumed++
			}
			got, err := s.locate(t.Context(), req)
			want, err2 := s.locate(t.Context(), plain)
			bad := fmt.Sprint(got.bad) == fmt.Sprint(want.bad)
			if got.bad, want.bad = nil, nil; err != nil || err2 != nil || !bad ||
				fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
				t.Fatalf("history %d of %d messages, %d of this turn: %+v, %v, want %+v, %v", i, len(h), back, got, err,
					want, err2)
			}
		}
	}
	if resumed < 100 {
		t.Errorf("only %d conversations were not gone through from their beginning", resumed)
	}
}

// A script is parsed once, and one that is wrong stays wrong.
func TestParsedScripts(t *testing.T) {
	var c parses
	const good, bad = "- bash: ls\n- say: done\n", "- bash: ls\n- shout: done\n"
	for range 2 {
		if steps, err := c.steps(good); err != nil || len(steps) != 2 || steps[1].text != "done" {
			t.Errorf("steps %+v, %v", steps, err)
		}
		if _, err := c.steps(bad); err == nil || !strings.Contains(err.Error(), "shout") {
			t.Errorf("the wrong script: %v", err)
		}
	}
	if len(c.kept) != 1 {
		t.Errorf("%d scripts are kept, want the good one", len(c.kept))
	}
	for i := range 3 * maxParsed {
		if _, err := c.steps(fmt.Sprintf("- say: %d\n", i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.steps("- say: " + strings.Repeat("x", maxParsedText) + "\n"); err != nil {
		t.Error(err)
	}
	if len(c.kept) > maxParsed {
		t.Errorf("%d scripts are kept, over the bound of %d", len(c.kept), maxParsed)
	}
	for text := range c.kept {
		if len(text) > maxParsedText {
			t.Error("a script over the bound is kept")
		}
	}
}
