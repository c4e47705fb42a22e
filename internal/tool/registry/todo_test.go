package registry

import (
	"fmt"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
)

// plan is the input of a call: "x text" is done, "> text" in progress, "- text" pending.
func plan(items ...string) outboard.Raw {
	var out []string
	for _, i := range items {
		status := map[byte]string{'x': done, '>': inProgress, '-': pending}[i[0]]
		out = append(out, fmt.Sprintf(`{"text":%q,"status":%q}`, i[2:], status))
	}
	return outboard.Raw(`{"items":[` + strings.Join(out, ",") + `]}`)
}

// Broken if a plan that is too large, or unclear, is kept.
func TestTodoInput(t *testing.T) {
	var many []string
	for i := range maxItems + 1 {
		many = append(many, fmt.Sprint("- ", i))
	}
	tool := todo()
	for want, input := range map[string]outboard.Raw{
		"items is required": outboard.Raw(`{}`),
		"items must be a list of at most 100 objects with text, status, got": plan(many...),
		"items[1]: text must have at most 500 bytes, not 501": plan("- a",
			"- "+strings.Repeat("b", maxItem+1)),
		"items[0]: text must not be empty":                                            plan("- "),
		"items[0]: status must be one of pending, in_progress, done, got \"started\"": outboard.Raw(`{"items":[{"text":"a","status":"started"}]}`),
		"items[0]: status is required":                                                outboard.Raw(`{"items":[{"text":"a"}]}`),
		`items[0]: unknown field "id"; items[0] takes text, status`:                   outboard.Raw(`{"items":[{"text":"a","status":"done","id":1}]}`),
		"items[0]: expected a JSON object":                                            outboard.Raw(`{"items":["a"]}`),
		"items[2] has the same text as items[0]":                                      plan("- a", "- b", "x a"),
	} {
		if err := tool.Validate(input); err == nil || outboard.KindOf(err) != outboard.Invalid ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: got %v, want %q", input, err, want)
		}
	}
	for _, input := range []outboard.Raw{plan(), plan(many[:maxItems]...),
		plan("- "+strings.Repeat("b", maxItem), "> b", "x c")} {
		if err := tool.Validate(input); err != nil {
			t.Errorf("%.60s: %v", input, err)
		}
	}
}

// Broken if the model, or who watches, is told another state of the plan than it has.
func TestTodoResult(t *testing.T) {
	var old, fresh []string
	for i := range 15 {
		old, fresh = append(old, fmt.Sprint("- old ", i)), append(fresh, fmt.Sprint("- new ", i))
	}
	for _, c := range []struct {
		last, input outboard.Raw
		want        string
	}{
		{nil, plan("x a", "- b", "> c", "- d"), "1 of 4 done: c"},
		{plan("> a", "- b"), plan("x a", "> b", "- c"), "1 of 3 done: b\nnow done: a\nnow in_progress: b\nadded, " +
			"pending: c"},
		{plan("x a", "> b"), plan("x a", "> b"), "1 of 2 done: b\nnothing changed"},
		{plan("x a", "- b"), plan("x a"), "1 of 1 done\nremoved, was pending: b"},
		{plan("x a"), plan(), "0 of 0 done\nremoved, was done: a"},
		{outboard.Raw(`{"items":7}`), plan("- a"), "0 of 1 done: a"},
	} {
		got, err := todo().Run(c.input, c.last)
		if err != nil || got != c.want {
			t.Errorf("%s after %s: %q, %v, want %q", c.input, c.last, got, err, c.want)
		}
		line, _, _ := strings.Cut(c.want, "\n")
		if title := todo().Title(c.input); title != line {
			t.Errorf("%s: a terminal shows %q, want %q", c.input, title, line)
		}
	}
	got, _ := todo().Run(plan(fresh...), plan(old...))
	if !strings.HasSuffix(got, "\nand 10 other changes") || strings.Count(got, "\n") != maxChanges+1 {
		t.Errorf("of 30 changes: %s", got)
	}
}
