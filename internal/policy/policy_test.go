package policy_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/policy"
)

func builtin(def outboard.ToolConfig, configs ...outboard.ToolConfig) outboard.Toolset {
	return outboard.Toolset{Kind: "builtin", Default: def, Configs: configs}
}

// decide is what becomes of a call under the platform's own rules.
func decide(t *testing.T, sets []outboard.Toolset, name string, input outboard.Raw) outboard.CallRequested {
	t.Helper()
	call := policy.Resolve(sets, name, input)
	if call.Decision == outboard.Deny {
		return call
	}
	v := stack(t).Decide(ask(&call, input))
	call.Decision, call.Reason, call.Rules = v.Decision, v.Reason, v.Rules
	return call
}

// If this fails, a tool runs that its agent's owner switched off or wanted to be asked about, or one stays off
// that was allowed.
func TestDecide(t *testing.T) {
	custom := outboard.Toolset{Kind: "custom", Name: "ticket"}
	mcp := outboard.Toolset{Kind: "mcp", Server: "github"}
	off := outboard.ToolConfig{Policy: outboard.AlwaysAllow}
	on := func(name string, p outboard.Permission) outboard.ToolConfig {
		return outboard.ToolConfig{Name: name, Enabled: true, Policy: p}
	}
	cases := []struct {
		name     string
		sets     []outboard.Toolset
		tool     string
		input    string
		decision outboard.Decision
		policy   outboard.Permission
		kind     string
		reason   string
	}{
		{"default of the defaults", []outboard.Toolset{builtin(outboard.ToolConfig{})}, "bash", `{}`, outboard.Allow,
			outboard.AlwaysAllow, "builtin", ""},
		{"default asks", []outboard.Toolset{builtin(on("", outboard.AlwaysAsk))}, "bash", `{}`, outboard.Ask,
			outboard.AlwaysAsk, "builtin", ""},
		{"own entry over the default",
			[]outboard.Toolset{builtin(on("", outboard.AlwaysAsk),
				on("read", outboard.AlwaysAllow))}, "read", `{}`, outboard.Allow, outboard.AlwaysAllow, "builtin", ""},
		{"own entry without a policy", []outboard.Toolset{builtin(on("", outboard.AlwaysAsk), on("read", ""))}, "read",
			`{}`, outboard.Ask, outboard.AlwaysAsk, "builtin", ""},
		{"auto has no verdict", []outboard.Toolset{builtin(on("", outboard.AutoPolicy))}, "bash", `{}`, outboard.Ask,
			outboard.AutoPolicy, "builtin", ""},
		{"unknown permission", []outboard.Toolset{builtin(on("", "sometimes"))}, "bash", `{}`, outboard.Deny, "",
			"builtin", `"sometimes"`},
		{"disabled by default", []outboard.Toolset{builtin(off)}, "bash", `{}`, outboard.Deny, "", "builtin",
			"disabled"},
		{"enabled against the default", []outboard.Toolset{builtin(off, on("bash", ""))}, "bash", `{}`, outboard.Allow,
			outboard.AlwaysAllow, "builtin", ""},
		{"disabled by its entry", []outboard.Toolset{builtin(outboard.ToolConfig{}, outboard.ToolConfig{Name: "bash"})},
			"bash", `{}`, outboard.Deny, "", "builtin", "available: read, write"},
		{"custom", []outboard.Toolset{builtin(outboard.ToolConfig{}), custom}, "ticket", `{"a":1}`, outboard.Allow, "",
			"custom", ""},
		{"no such tool", []outboard.Toolset{builtin(off, on("bash", "")), custom}, "rm", `{}`, outboard.Deny, "",
			"builtin", `no tool named "rm"; available: bash, ticket`},
		{"no tools at all", nil, "bash", `{}`, outboard.Deny, "", "builtin", "no tools are available"},
		{"mcp is not built", []outboard.Toolset{mcp}, "search", `{}`, outboard.Deny, "", "builtin",
			`no tool named "search"`},
		{"web_search is not built", []outboard.Toolset{builtin(outboard.ToolConfig{}, on("web_search", ""))},
			"web_search", `{}`, outboard.Deny, "", "builtin", "no tool named"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got := decide(t, c.sets, c.tool, outboard.Raw(c.input))
			if got.Decision != c.decision || got.Policy != c.policy || got.Kind != c.kind || got.Name != c.tool {
				t.Errorf("got %s by %q, kind %s; want %s by %q, kind %s", got.Decision, got.Policy, got.Kind,
					c.decision, c.policy, c.kind)
			}
			if !strings.Contains(got.Reason, c.reason) || c.reason == "" && got.Decision == outboard.Allow &&
				got.Reason != "" {
				t.Errorf("reason = %q, want %q", got.Reason, c.reason)
			}
		})
	}
}

// If this fails, a model is told of tools that every call of would be refused, or not told of tools it has.
func TestOfferedIsWhatIsNotRefused(t *testing.T) {
	sets := []outboard.Toolset{builtin(outboard.ToolConfig{}, outboard.ToolConfig{Name: "write"}),
		{Kind: "custom", Name: "ticket"}, {Kind: "mcp"}}
	offered := policy.Offered(sets)
	for _, name := range append(policy.Builtins(), "ticket", "other") {
		refused := decide(t, sets, name, outboard.Raw(`{}`)).Decision == outboard.Deny
		if refused == slices.Contains(offered, name) {
			t.Errorf("%s: offered %v, refused %v", name, !refused, refused)
		}
	}
}
