//go:build linux

package runner

import (
	"slices"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/llm"
	"github.com/outboard-dev/outboard/internal/policy"
)

// optional is the standard toolset with the tool todo.
func optional() []outboard.Toolset {
	sets := slices.Clone(allTools)
	sets[0].Configs = []outboard.ToolConfig{{Name: "todo", Enabled: true, Policy: outboard.AlwaysAllow}}
	return sets
}

// Broken if a list is compared with another one than the newest that was kept, an agent has the tool that did
// not name it, or a tool that needs no sandbox gets one or taints the session.
func TestOptionalTool(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.ruled(policy.Config{})
	id := r.session("script/steps", optional())
	r.say(id, "- todo: {items: [{text: a, status: pending}]}",
		"- todo: {items: [{text: a, status: in_progress}, {text: b, status: pending}]}",
		"- call: {name: todo, input: {items: [{text: lost, status: started}]}}",
		"- call: {name: Todo, input: {items: [{text: a, status: done}]}}", "- say: done")
	s := r.rests(id, "end_turn")
	r.say(id, "- todo: {items: []}", "- say: done")
	r.until(id, "the second turn", func(s *outboard.State) bool { return s.Turn == 2 && s.Phase == outboard.PhaseIdle })
	want := []string{"0 of 1 done: a", "0 of 2 done: a\nnow in_progress: a\nadded, pending: b",
		"invalid input for todo",
		"1 of 1 done\nnow done: a\nremoved, was pending: b", "0 of 0 done\nremoved, was done: a"}
	got := r.outcomes(id)
	if len(got) != len(want) {
		t.Fatalf("%d outcomes\n%s", len(got), r.dump(id))
	}
	for i, f := range got {
		if text := finalText(f); text != want[i] && !(f.IsError && strings.HasPrefix(text, want[i])) ||
			f.IsError != (i == 2) {
			t.Errorf("call %d: %q, want %q", i, text, want[i])
		}
	}
	if s.Sandbox != nil || s.Taint != (outboard.Taint{}) {
		t.Errorf("sandbox %v, taint %+v", s.Sandbox, s.Taint)
	}
	plain := r.steps("- todo: {items: []}", "- say: done")
	r.rests(plain, "end_turn")
	if f := r.outcomes(plain)[0]; f.Outcome != outboard.OutcomeDenied ||
		!strings.Contains(finalText(f), `no tool named "todo"`) {
		t.Errorf("without an entry: %+v", f)
	}
}

// Broken if the name of an optional tool is taken from an agent that has a custom tool of that name.
func TestCustomToolWithOptionalName(t *testing.T) {
	custom := outboard.Toolset{Kind: "custom", Name: "todo", InputSchema: outboard.Raw(`{"type":"object"}`)}
	call := policy.Resolve(append(slices.Clone(allTools), custom), "todo", outboard.Raw(`{}`))
	if call.Kind != "custom" || call.Decision != outboard.Allow {
		t.Errorf("the call is %+v", call)
	}
	if call := policy.Resolve(optional(), "todo", outboard.Raw(`{}`)); call.Kind != "builtin" ||
		call.Decision != outboard.Allow {
		t.Errorf("control: %+v", call)
	}
	if names := policy.Offered(allTools); slices.Contains(names, "todo") {
		t.Errorf("offered without an entry: %v", names)
	}
}
