package registry

import (
	"encoding/json"
	"slices"
	"testing"
)

// Broken if a definition contradicts itself: a model would be told of an input that the tool refuses, or
// policies would judge another field than the tool uses.
func TestDefinitions(t *testing.T) {
	seen := map[string]bool{}
	for _, tool := range All() {
		var s struct {
			Type       string
			Additional *bool `json:"additionalProperties"`
		}
		if err := json.Unmarshal(tool.Schema, &s); err != nil || s.Type != "object" || s.Additional == nil ||
			*s.Additional {
			t.Errorf("%s: the schema is not a closed object: %v, %s", tool.Name, err, tool.Schema)
		}
		if seen[tool.Name] || tool.Class == "" || tool.Unbuilt == "" && tool.Description == "" {
			t.Errorf("%s: twice, without a class, or without a description: %+v", tool.Name, tool)
		}
		seen[tool.Name] = true
		has := func(field string) bool {
			return slices.ContainsFunc(tool.Fields, func(f Field) bool { return f.Name == field })
		}
		for _, field := range []string{tool.Target, tool.Replaced, tool.Replacement} {
			if field != "" && !has(field) {
				t.Errorf("%s has no field %s", tool.Name, field)
			}
		}
		if tool.Short != "" && !slices.ContainsFunc(tool.Fields, func(f Field) bool { return f.Key() == tool.Short }) {
			t.Errorf("%s: no key %s in its step", tool.Name, tool.Short)
		}
		if (tool.Subject == Nothing) != (tool.Target == "") || tool.Subject == Directory && !has("pattern") {
			t.Errorf("%s: the target does not fit the subject", tool.Name)
		}
		if tool.Run != nil && tool.Place != InControl || tool.Place == InControl && (tool.Shell || tool.Opens()) {
			t.Errorf("%s: its handler does not run where it says", tool.Name)
		}
		if tool.Place == InControl && tool.Unbuilt == "" && tool.Run == nil && tool.Subject != Address {
			t.Errorf("%s has no handler", tool.Name)
		}
	}
}

// Broken if a client that knows the standard toolset is shown a tool that it does not know.
func TestStandardToolset(t *testing.T) {
	var names []string
	for _, tool := range All() {
		if !tool.Optional {
			names = append(names, tool.Name)
		}
	}
	if want := []string{"bash", "read", "write", "edit", "glob", "grep", "web_fetch",
		"web_search"}; !slices.Equal(names, want) {
		t.Errorf("the standard toolset is %v, want %v", names, want)
	}
}
