package control

import (
	"encoding/json"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/schema"
	"github.com/outboard-dev/outboard/internal/tool/registry"
)

// Limits of the Managed Agents wire on an agent's tools.
const (
	maxTools      = 256
	maxServers    = 20
	maxServerName = 255
	maxServerURL  = 2048
	maxSkillID    = 64
	maxSkills     = 100 // not stated by the wire; bounds the row
	maxDomains    = 64
	// bytes of the schemas of all custom tools; not stated by the wire, bounds the row and what it takes to
	// compile them
	maxSchemas = 1 << 20
)

// builtins are the tools of the built-in toolset.
var builtins = registry.Names(registry.All())

var customName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)

// checkAgent validates a whole definition.
func checkAgent(a *outboard.Agent) error {
	if err := length("name", a.Name, 1, maxName); err != nil {
		return err
	}
	if err := length("description", a.Description, 0, maxAgentText); err != nil {
		return err
	}
	if err := length("system", a.System, 0, maxSystem); err != nil {
		return err
	}
	if err := checkModel(a.Model); err != nil {
		return err
	}
	if err := checkMetadata(a.Metadata); err != nil {
		return err
	}
	if err := checkSkills(a.Skills); err != nil {
		return err
	}
	if err := checkTools(a.Tools, a.MCPServers); err != nil {
		return err
	}
	return checkDefinition("the agent: its system prompt, tools, servers and skills", a)
}

// checkDefinition refuses what no session could hold.
func checkDefinition(what string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return invalid("%s: %w", what, err)
	}
	if len(b) > outboard.MaxDefinition {
		return outboard.Errorf(outboard.TooLarge, "%s must have at most %d bytes as JSON, not %d", what,
			outboard.MaxDefinition, len(b)).
			WithHint("shorten the descriptions of the longest entries")
	}
	return nil
}

func checkModel(m outboard.ModelConfig) error {
	if err := length("model.id", m.ID, 1, maxModelID); err != nil {
		return err
	}
	if !slices.Contains([]string{"", "standard", "fast"}, m.Speed) {
		return invalid("model.speed must be standard or fast, not %s", quote(m.Speed))
	}
	if !slices.Contains([]string{"", "low", "medium", "high", "xhigh", "max"}, m.Effort) {
		return invalid("model.effort must be low, medium, high, xhigh or max, not %s", quote(m.Effort))
	}
	return length("model.inference_geo", m.Geo, 0, maxGeo)
}

func checkSkills(skills []outboard.SkillRef) error {
	if len(skills) > maxSkills {
		return invalid("skills must have at most %d entries, not %d", maxSkills, len(skills))
	}
	for _, s := range skills {
		if err := length("skill_id", s.ID, 1, maxSkillID); err != nil {
			return err
		}
		if err := length("version of skill "+quote(s.ID), s.Version, 0, maxSkillID); err != nil {
			return err
		}
	}
	return nil
}

// checkTools validates tools and MCP servers together: each server must have a toolset and the other way round.
func checkTools(tools []outboard.Toolset, servers []outboard.MCPServer) error {
	if err := checkServers(servers); err != nil {
		return err
	}
	names, used, builtin, count := map[string]bool{}, map[string]bool{}, false, 0
	for _, t := range tools {
		count += max(1, len(t.Configs))
		switch t.Kind {
		case "builtin":
			if builtin {
				return invalid("tools must have at most one agent_toolset_20260401")
			}
			builtin = true
		case "custom":
			if names[t.Name] {
				return invalid("tool name %s is used twice", quote(t.Name))
			}
			if b := looksLike(t.Name, tools); b != "" {
				return invalid("tool name %s is, or reads like, the built-in tool %s", quote(t.Name), b).
					WithHint("rename the tool, so that who approves a call or writes a policy cannot take it for %s", b)
			}
			names[t.Name] = true
		case "mcp":
			if !slices.ContainsFunc(servers, func(s outboard.MCPServer) bool { return s.Name == t.Server }) {
				return invalid("mcp_toolset names server %s, which is not in mcp_servers", quote(t.Server))
			}
			if used[t.Server] {
				return invalid("server %s has two mcp_toolsets", quote(t.Server))
			}
			used[t.Server] = true
		}
		if err := checkToolset(t); err != nil {
			return err
		}
	}
	if count > maxTools {
		return invalid("tools must name at most %d tools over all toolsets, not %d", maxTools, count)
	}
	for _, s := range servers {
		if !used[s.Name] {
			return invalid("MCP server %s is not referenced by an mcp_toolset", quote(s.Name))
		}
	}
	return nil
}

// alike are the letters that read like others in common fonts, each beside the one that stands for all of them. Names
// of custom tools are ASCII (customName), so letters of other scripts need no place here.
var alike = strings.NewReplacer("_", "", "-", "", "0", "o", "1", "l", "i", "l", "3", "e", "4", "a", "5", "s", "7", "t",
	"8", "b", "6", "b", "9", "g", "q", "g",
	"vv", "w", "uu", "w", "rn", "m", "cl", "d")

// skeleton is the same for names that a person may take for each other.
func skeleton(name string) string { return alike.Replace(strings.ToLower(name)) }

// looksLike returns the built-in tool that a name is or reads like, "" = none. An optional tool is one only for
// an agent that has it among its tools: others may have given the name to a tool of their own.
func looksLike(name string, tools []outboard.Toolset) string {
	for _, b := range registry.All() {
		if skeleton(name) == skeleton(b.Name) && (!b.Optional || configures(tools, b.Name)) {
			return b.Name
		}
	}
	return ""
}

// configures reports whether the built-in toolset has an entry for a tool.
func configures(tools []outboard.Toolset, name string) bool {
	return slices.ContainsFunc(tools, func(t outboard.Toolset) bool {
		return t.Kind == "builtin" && slices.ContainsFunc(t.Configs,
			func(c outboard.ToolConfig) bool { return c.Name == name })
	})
}

// checkSchemas refuses input schemas that no call could be held to. It is asked about tools that are given, not
// about those an agent has: a stored agent keeps starting sessions when the rules become stricter, and the
// runner passes calls that it has no schema for.
func checkSchemas(tools []outboard.Toolset) error {
	size := 0
	for _, t := range tools {
		size += len(t.InputSchema)
	}
	if size > maxSchemas {
		return invalid("tools: the input_schemas of the custom tools must have at most %d bytes together, not %d",
			maxSchemas, size)
	}
	for i, t := range tools {
		if t.Kind != "custom" {
			continue
		}
		if _, err := schema.Compile(t.InputSchema); err != nil {
			return invalid("tools[%d].input_schema of custom tool %s: %w", i, t.Name, err)
		}
	}
	return nil
}

func checkServers(servers []outboard.MCPServer) error {
	if len(servers) > maxServers {
		return invalid("mcp_servers must have at most %d entries, not %d", maxServers, len(servers))
	}
	seen := map[string]bool{}
	for _, s := range servers {
		if err := length("name of an MCP server", s.Name, 1, maxServerName); err != nil {
			return err
		}
		if seen[s.Name] {
			return invalid("MCP server name %s is used twice", quote(s.Name))
		}
		seen[s.Name] = true
		u, err := url.Parse(s.URL)
		if err != nil || len(s.URL) > maxServerURL || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" ||
			u.User != nil {
			return invalid("url of MCP server %s must be an http(s) URL without credentials, of at most %d characters",
				quote(s.Name), maxServerURL)
		}
	}
	return nil
}

func checkToolset(t outboard.Toolset) error {
	if t.Kind == "custom" {
		return checkCustom(t)
	}
	if err := checkPolicy("default_config", t.Default.Policy); err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, cfg := range t.Configs {
		if t.Kind == "builtin" && !slices.Contains(builtins, cfg.Name) {
			return invalid("configs names %s, which is not a built-in tool", quote(cfg.Name)).
				WithHint("the built-in tools are %s", strings.Join(builtins, ", "))
		}
		if err := length("name of a tool in configs", cfg.Name, 1, 128); err != nil {
			return err
		}
		if seen[cfg.Name] {
			return invalid("configs names %s twice", quote(cfg.Name))
		}
		seen[cfg.Name] = true
		if err := checkPolicy("configs entry "+quote(cfg.Name), cfg.Policy); err != nil {
			return err
		}
		if err := checkWeb(cfg); err != nil {
			return err
		}
	}
	return nil
}

func checkPolicy(where string, p outboard.Permission) error {
	switch p {
	case outboard.AlwaysAllow, outboard.AlwaysAsk, outboard.AutoPolicy:
		return nil
	}
	return invalid("%s: permission_policy must be always_allow, always_ask or auto, not %s", where, quote(string(p)))
}

func checkCustom(t outboard.Toolset) error {
	if !customName.MatchString(t.Name) {
		return invalid("name of a custom tool must match %s, not %s", customName, quote(t.Name))
	}
	if t.Description == "" {
		return invalid("description of custom tool %s must not be empty", t.Name)
	}
	if len(t.Description) > maxSystem {
		return invalid("description of custom tool %s must have at most %d bytes", t.Name, maxSystem)
	}
	if len(t.InputSchema) > schema.MaxBytes {
		return invalid("input_schema of custom tool %s must have at most %d bytes, not %d", t.Name, schema.MaxBytes,
			len(t.InputSchema))
	}
	var s struct {
		Type json.RawMessage `json:"type"`
	}
	if err := json.Unmarshal(t.InputSchema, &s); err != nil {
		return invalid("input_schema of custom tool %s: %v", t.Name, err)
	}
	if string(s.Type) != `"object"` {
		return invalid(`input_schema of custom tool %s must have type "object", not %s`, t.Name, quote(string(s.Type)))
	}
	return nil
}

// checkWeb validates the extras of web_fetch and web_search that this server acts on; the wire layer has checked
// their shape.
func checkWeb(cfg outboard.ToolConfig) error {
	if len(cfg.Web) == 0 {
		return nil
	}
	var w struct {
		Allowed *[]string `json:"allowed_domains"`
		Blocked *[]string `json:"blocked_domains"`
		Tokens  *int64    `json:"max_content_tokens"`
	}
	if err := json.Unmarshal(cfg.Web, &w); err != nil {
		return invalid("configs entry %s: %v", quote(cfg.Name), err)
	}
	if w.Allowed != nil && w.Blocked != nil {
		return invalid("configs entry %s has both allowed_domains and blocked_domains", quote(cfg.Name))
	}
	for field, list := range map[string]*[]string{"allowed_domains": w.Allowed, "blocked_domains": w.Blocked} {
		if list == nil {
			continue
		}
		if len(*list) == 0 || len(*list) > maxDomains {
			return invalid("%s of %s must have 1 to %d entries, not %d", field, cfg.Name, maxDomains, len(*list))
		}
		for _, d := range *list {
			host, _, path := strings.Cut(d, "/")
			if !hostName.MatchString(host) || path && cfg.Name != "web_search" {
				return invalid("%s of %s: %s is not a plain host name", field, cfg.Name, quote(d))
			}
		}
	}
	if w.Tokens != nil && *w.Tokens <= 0 {
		return invalid("max_content_tokens of %s must be positive, not %d", cfg.Name, *w.Tokens)
	}
	return nil
}
