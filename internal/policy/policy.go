// Package policy decides what a session can do: allow, ask a person, or deny. It wraps Cedar and
// keeps Cedar's promise where Cedar by itself does not: whatever cannot be evaluated is a deny, and
// an alarm.
//
// A request must pass a stack of layers: the platform's own rules (the meaning of always_ask and
// auto, the taint rule), the operator's, the organization's, the agent's, the session's.
//
// Invariants:
//   - Each layer is asked by itself and the narrowest answer counts, so a lower one never widens a
//     higher one.
//   - A layer that permits nothing forbids only what it says; one with a permit is an allow-list.
//   - Set.Decide is pure: the same set and request always give the same verdict. Only Engine does
//     input and output, through Source: it reads the stored policies and grants, and counts.
//
// It never checks a call's input against the tool's schema: only the caller knows the schemas.
//
// Start reading at Set.Decide, then at Engine.
package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/text"
	"github.com/outboard-dev/outboard/internal/tool/registry"
)

// Builtins are the names of the built-in toolset that this platform runs, in the order a model is offered them.
// A name of the wire that is not here (web_search) can be configured, but neither offered nor called.
func Builtins() []string { return builtins }

var builtins = registry.Names(registry.Built())

// Resolve finds the tool a call names: its kind, and the agent's permission for it as Policy. Decision is Allow
// where there is such a tool, which leaves the decision to a Set, else Deny with the reason as the model reads
// it. The first toolset that has the tool decides.
func Resolve(sets []outboard.Toolset, name string, input outboard.Raw) outboard.CallRequested {
	name = exact(sets, name)
	call := outboard.CallRequested{Name: name, Kind: "builtin", Input: input, Decision: outboard.Deny}
	for _, set := range sets {
		switch {
		case set.Kind == "custom" && set.Name == name:
			call.Kind, call.Decision = "custom", outboard.Allow
			return call
		case set.Kind == "builtin" && has(set, name):
			return builtin(call, Setting(set, name), sets)
		}
	}
	call.Reason = fmt.Sprintf("there is no tool named %q; %s", clip(name), available(sets))
	if name == "" {
		call.Reason = "the call names no tool; " + available(sets)
	}
	return call
}

// has reports whether a built-in toolset has a tool: every one that is built, but for the optional ones that it
// has no entry of.
func has(set outboard.Toolset, name string) bool {
	t, ok := registry.Lookup(name)
	return ok && t.Unbuilt == "" &&
		(!t.Optional || slices.ContainsFunc(set.Configs, func(c outboard.ToolConfig) bool { return c.Name == name }))
}

// exact is the name of the tool that a model means: its own spelling, or that of the one tool which differs from
// it in case alone.
func exact(sets []outboard.Toolset, name string) string {
	offered := Offered(sets)
	if name == "" || slices.Contains(offered, name) {
		return name
	}
	alike := slices.DeleteFunc(offered, func(o string) bool { return !strings.EqualFold(o, name) })
	if len(alike) == 1 {
		return alike[0]
	}
	return name
}

// builtin resolves a call of the built-in toolset by the tool's setting.
func builtin(call outboard.CallRequested, cfg outboard.ToolConfig, sets []outboard.Toolset) outboard.CallRequested {
	if !cfg.Enabled {
		call.Reason = fmt.Sprintf("the tool %s is disabled for this agent; %s", call.Name, available(sets))
		return call
	}
	switch cfg.Policy {
	case outboard.AlwaysAllow, outboard.AlwaysAsk, outboard.AutoPolicy:
		call.Policy, call.Decision = cfg.Policy, outboard.Allow
	default:
		call.Reason = fmt.Sprintf("the permission policy %q of the tool %s is not known", clip(string(cfg.Policy)),
			call.Name)
	}
	return call
}

// Setting returns what a built-in toolset says about one of its tools: its own entry, else the toolset's
// default, else enabled and always allowed. An entry without a policy takes the default's. A default does not
// enable an optional tool.
func Setting(set outboard.Toolset, name string) outboard.ToolConfig {
	def := set.Default
	if def.Policy == "" && !def.Enabled { // the zero value: no default was given
		def = outboard.ToolConfig{Enabled: true}
	}
	if def.Policy == "" {
		def.Policy = outboard.AlwaysAllow
	}
	t, _ := registry.Lookup(name)
	cfg := outboard.ToolConfig{Name: name, Enabled: def.Enabled && !t.Optional, Policy: def.Policy}
	for _, c := range set.Configs {
		if c.Name != name {
			continue
		}
		cfg.Enabled, cfg.Web = c.Enabled, c.Web
		if c.Policy != "" {
			cfg.Policy = c.Policy
		}
	}
	return cfg
}

// Offered returns the names of the tools a model is offered, in the order of the toolsets, each once.
func Offered(sets []outboard.Toolset) []string {
	var names []string
	add := func(name string) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, set := range sets {
		switch set.Kind {
		case "custom":
			add(set.Name)
		case "builtin":
			for _, name := range Builtins() {
				if Setting(set, name).Enabled {
					add(name)
				}
			}
		}
	}
	return names
}

func available(sets []outboard.Toolset) string {
	names := Offered(sets)
	if len(names) == 0 {
		return "no tools are available"
	}
	return "available: " + strings.Join(names, ", ")
}

// clip bounds foreign text in a reason.
func clip(s string) string { return text.Clip(s, 100) }
