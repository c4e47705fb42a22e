package api

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// toolsetType is the wire's name of the built-in toolset.
const toolsetType = "agent_toolset_20260401"

// decodeModel reads a model: a string or a config object. effort tells whether it named one.
func decodeModel(path string, raw json.RawMessage) (m outboard.ModelConfig, effort bool, err error) {
	if json.Unmarshal(raw, &m.ID) == nil {
		return m, false, nil
	}
	var in struct {
		ID     string          `json:"id" need:"yes"`
		Speed  string          `json:"speed"`
		Effort json.RawMessage `json:"effort"`
		Geo    string          `json:"inference_geo"`
	}
	if err := object(path, raw, &in); err != nil {
		return m, false, err
	}
	m = outboard.ModelConfig{ID: in.ID, Speed: in.Speed, Geo: in.Geo}
	if isNull(in.Effort) {
		return m, in.Effort != nil, nil
	}
	if json.Unmarshal(in.Effort, &m.Effort) == nil {
		return m, true, nil
	}
	var obj struct {
		Type string `json:"type" need:"yes"`
	}
	err = object(control.Join(path, "effort"), in.Effort, &obj)
	m.Effort = obj.Type
	return m, true, err
}

func isNull(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// decodeTools reads an agent's tools.
func decodeTools(path string, raws []json.RawMessage) ([]outboard.Toolset, error) {
	var out []outboard.Toolset
	for i, raw := range raws {
		p := control.At(path, i)
		kind, err := unionType(p, raw)
		if err != nil {
			return nil, err
		}
		var t outboard.Toolset
		switch kind {
		case toolsetType:
			t, err = decodeToolset(p, raw, "builtin", outboard.AlwaysAllow)
		case "mcp_toolset":
			t, err = decodeToolset(p, raw, "mcp", outboard.AlwaysAsk)
		case "custom":
			t, err = decodeCustom(p, raw)
		default:
			err = bad("%s.type: must be %s, mcp_toolset or custom, not %q", p, toolsetType, clip(kind))
		}
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

func decodeCustom(path string, raw json.RawMessage) (outboard.Toolset, error) {
	var in struct {
		Type        string          `json:"type"`
		Name        string          `json:"name" need:"yes"`
		Description string          `json:"description" need:"yes"`
		InputSchema json.RawMessage `json:"input_schema" need:"yes"`
	}
	err := object(path, raw, &in)
	return outboard.Toolset{Kind: "custom", Name: in.Name, Description: in.Description,
		InputSchema: in.InputSchema}, err
}

// toolConfigIn is what the default_config and the configs of a toolset share.
type toolConfigIn struct {
	Enabled *bool           `json:"enabled"`
	Policy  json.RawMessage `json:"permission_policy"`
}

// over lays the given values over a default.
func (c toolConfigIn) over(path string, def outboard.ToolConfig) (outboard.ToolConfig, error) {
	if c.Enabled != nil {
		def.Enabled = *c.Enabled
	}
	if isNull(c.Policy) {
		return def, nil
	}
	var p struct {
		Type string `json:"type" need:"yes"`
	}
	err := object(control.Join(path, "permission_policy"), c.Policy, &p)
	def.Policy = outboard.Permission(p.Type)
	return def, err
}

// decodeToolset reads the built-in toolset or an MCP server's.
func decodeToolset(path string, raw json.RawMessage, kind string,
	policy outboard.Permission) (t outboard.Toolset, err error) {
	var in struct {
		Type    string            `json:"type"`
		Default json.RawMessage   `json:"default_config"`
		Configs []json.RawMessage `json:"configs"`
	}
	var mcp struct {
		Type    string            `json:"type"`
		Server  string            `json:"mcp_server_name" need:"yes"`
		Default json.RawMessage   `json:"default_config"`
		Configs []json.RawMessage `json:"configs"`
	}
	if kind == "mcp" {
		err = object(path, raw, &mcp)
		in.Default, in.Configs = mcp.Default, mcp.Configs
	} else {
		err = object(path, raw, &in)
	}
	if err != nil {
		return t, err
	}
	t = outboard.Toolset{Kind: kind, Server: mcp.Server, Default: outboard.ToolConfig{Enabled: true, Policy: policy}}
	if !isNull(in.Default) {
		var c toolConfigIn
		p := control.Join(path, "default_config")
		if err := object(p, in.Default, &c); err != nil {
			return t, err
		}
		if t.Default, err = c.over(p, t.Default); err != nil {
			return t, err
		}
	}
	for i, raw := range in.Configs {
		c, err := decodeToolConfig(control.At(control.Join(path, "configs"), i), raw, kind, t.Default)
		if err != nil {
			return t, err
		}
		t.Configs = append(t.Configs, c)
	}
	return t, nil
}

// decodeToolConfig reads one entry of configs; what it leaves out is the toolset's default.
func decodeToolConfig(path string, raw json.RawMessage, kind string,
	def outboard.ToolConfig) (outboard.ToolConfig, error) {
	fields, err := members(path, raw)
	if err != nil {
		return def, err
	}
	var name struct {
		Name string `json:"name" need:"yes"`
	}
	head, err := json.Marshal(map[string]json.RawMessage{"name": fields["name"]})
	if err != nil {
		return def, bad("%s.name: %s", path, control.WhyJSON(err))
	}
	if err := object(path, head, &name); err != nil {
		return def, err
	}
	def.Name = name.Name
	delete(fields, "name")
	if kind == "builtin" {
		if t, ok := fields["type"]; ok && !isNull(t) && string(t) != `"`+name.Name+`"` {
			return def, bad("%s.type: must be the same as name, %q", path, clip(name.Name))
		}
		delete(fields, "type")
	}
	if kind == "builtin" && strings.HasPrefix(name.Name, "web_") {
		if def.Web, err = decodeWeb(path, name.Name, fields); err != nil {
			return def, err
		}
	}
	rest, err := json.Marshal(fields)
	if err != nil {
		return def, bad("%s: %s", path, control.WhyJSON(err))
	}
	var c toolConfigIn
	if err := object(path, rest, &c); err != nil {
		return def, err
	}
	return c.over(path, def)
}

// decodeServers reads mcp_servers.
func decodeServers(path string, raws []json.RawMessage) ([]outboard.MCPServer, error) {
	var out []outboard.MCPServer
	for i, raw := range raws {
		var in struct {
			Type string `json:"type" need:"yes"`
			Name string `json:"name" need:"yes"`
			URL  string `json:"url" need:"yes"`
		}
		if err := object(control.At(path, i), raw, &in); err != nil {
			return nil, err
		}
		if in.Type != "url" {
			return nil, bad("%s.type: must be url, not %q", control.At(path, i), clip(in.Type))
		}
		out = append(out, outboard.MCPServer{Name: in.Name, URL: in.URL})
	}
	return out, nil
}

// decodeSkills reads skills.
func decodeSkills(path string, raws []json.RawMessage) ([]outboard.SkillRef, error) {
	var out []outboard.SkillRef
	for i, raw := range raws {
		var in struct {
			Type    string `json:"type" need:"yes"`
			ID      string `json:"skill_id" need:"yes"`
			Version string `json:"version"`
		}
		if err := object(control.At(path, i), raw, &in); err != nil {
			return nil, err
		}
		if !slices.Contains([]string{"anthropic", "custom"}, in.Type) {
			return nil, bad("%s.type: must be anthropic or custom, not %q", control.At(path, i), clip(in.Type))
		}
		out = append(out, outboard.SkillRef{Kind: in.Type, ID: in.ID, Version: in.Version})
	}
	return out, nil
}

// decodeIdentity reads execution_identity; null and the service account are the default, which is not stored.
func decodeIdentity(path string, raw json.RawMessage) (outboard.Raw, error) {
	if isNull(raw) {
		return nil, nil
	}
	kind, err := unionType(path, raw)
	if err != nil {
		return nil, err
	}
	switch kind {
	case "service_account":
		var in typeOut
		return nil, object(path, raw, &in)
	case "aws_role":
		var in struct {
			Type string `json:"type"`
			ARN  string `json:"role_arn" need:"yes"`
		}
		if err := object(path, raw, &in); err != nil {
			return nil, err
		}
		return nil, outboard.Errorf(outboard.Unimplemented, "%s: AWS roles are not built yet", path).
			WithHint("use service_account")
	}
	return nil, bad("%s.type: must be service_account or aws_role, not %q", path, clip(kind))
}

// noMultiagent refuses a roster, which a stored agent could not keep.
func noMultiagent(raw json.RawMessage) error {
	if isNull(raw) {
		return nil
	}
	return outboard.Errorf(outboard.Unimplemented, "multiagent: agents that run other agents are not built yet")
}
