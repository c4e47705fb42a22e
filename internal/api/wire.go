package api

import (
	"cmp"
	"encoding/json"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// stampFormat is RFC 3339 in UTC with all six digits, so that times also sort as text.
const stampFormat = "2006-01-02T15:04:05.000000Z"

func stamp(t time.Time) string { return t.UTC().Format(stampFormat) }

// stampOrNull is null for the zero time.
func stampOrNull(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	return new(stamp(t))
}

// textOrNull is null for the empty string.
func textOrNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// some is s, or an empty list: the wire has no null lists.
func some[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// orEmpty is m, or an empty map.
func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

// listOut is one page of any list.
type listOut[T any] struct {
	Data     []T     `json:"data"`
	NextPage *string `json:"next_page"`
}

// deletedOut confirms a deletion.
type deletedOut struct {
	ID   string `json:"id"`
	Type string `json:"type"`
}

type typeOut struct {
	Type string `json:"type"`
}

type modelOut struct {
	ID     string  `json:"id"`
	Speed  string  `json:"speed"`
	Effort typeOut `json:"effort"`
	Geo    string  `json:"inference_geo,omitempty"`
}

type mcpServerOut struct {
	Type string `json:"type"`
	Name string `json:"name"`
	URL  string `json:"url"`
}

type skillOut struct {
	Type    string `json:"type"`
	ID      string `json:"skill_id"`
	Version string `json:"version"`
}

// threadAgentOut is an agent as a thread shows it: what every form of an agent has.
type threadAgentOut struct {
	Type        string         `json:"type"`
	ID          string         `json:"id"`
	Version     int            `json:"version"`
	Name        string         `json:"name"`
	Description *string        `json:"description"`
	Model       modelOut       `json:"model"`
	System      *string        `json:"system"`
	Tools       []any          `json:"tools"`
	MCPServers  []mcpServerOut `json:"mcp_servers"`
	Skills      []skillOut     `json:"skills"`
	Identity    any            `json:"execution_identity"`
}

// sessionAgentOut is an agent as a session shows it.
type sessionAgentOut struct {
	threadAgentOut
	Multiagent *struct{} `json:"multiagent"`
}

type agentOut struct {
	sessionAgentOut
	Metadata   map[string]string `json:"metadata"`
	CreatedAt  string            `json:"created_at"`
	UpdatedAt  string            `json:"updated_at"`
	ArchivedAt *string           `json:"archived_at"`
}

func showSessionAgent(a *outboard.Agent) sessionAgentOut {
	return sessionAgentOut{threadAgentOut: showThreadAgent(a)}
}

// showModelConfig fills in the wire's defaults. They are not stored: a model that takes no effort is sent none.
func showModelConfig(m outboard.ModelConfig) modelOut {
	return modelOut{ID: m.ID, Speed: cmp.Or(m.Speed, "standard"), Effort: typeOut{cmp.Or(m.Effort, "high")}, Geo: m.Geo}
}

func showThreadAgent(a *outboard.Agent) threadAgentOut {
	out := threadAgentOut{Type: "agent", ID: string(a.ID), Version: a.Version, Name: a.Name,
		Description: textOrNull(a.Description),
		System:      textOrNull(a.System), Model: showModelConfig(a.Model),
		Tools: []any{}, MCPServers: []mcpServerOut{}, Skills: []skillOut{}, Identity: typeOut{"service_account"}}
	if len(a.Identity) > 0 {
		out.Identity = a.Identity
	}
	for i := range a.Tools {
		out.Tools = append(out.Tools, showToolset(&a.Tools[i]))
	}
	for _, m := range a.MCPServers {
		out.MCPServers = append(out.MCPServers, mcpServerOut{"url", m.Name, m.URL})
	}
	for _, s := range a.Skills {
		if s.Version == "" {
			s.Version = "latest"
		}
		out.Skills = append(out.Skills, skillOut{s.Kind, s.ID, s.Version})
	}
	return out
}

func showAgent(a outboard.Agent) agentOut {
	return agentOut{showSessionAgent(&a), orEmpty(a.Metadata), stamp(a.CreatedAt), stamp(a.UpdatedAt),
		stampOrNull(a.ArchivedAt)}
}

func showPolicy(c outboard.ToolConfig) map[string]any {
	return map[string]any{"enabled": c.Enabled, "permission_policy": typeOut{string(c.Policy)}}
}

// showToolset is one entry of an agent's tools.
func showToolset(t *outboard.Toolset) map[string]any {
	if t.Kind == "custom" {
		return map[string]any{"type": "custom", "name": t.Name, "description": t.Description,
			"input_schema": t.InputSchema}
	}
	configs := []any{}
	for _, c := range t.Configs {
		m := showPolicy(c)
		m["name"] = c.Name
		if t.Kind == "builtin" {
			m["type"] = c.Name
			showWeb(m, c)
		}
		configs = append(configs, m)
	}
	m := map[string]any{"type": toolsetType, "default_config": showPolicy(t.Default), "configs": configs}
	if t.Kind == "mcp" {
		m["type"], m["mcp_server_name"] = "mcp_toolset", t.Server
	}
	return m
}

type environmentOut struct {
	Type        string            `json:"type"`
	ID          string            `json:"id"`
	Name        string            `json:"name"`
	Description *string           `json:"description"`
	Config      map[string]any    `json:"config"`
	Metadata    map[string]string `json:"metadata"`
	Scope       string            `json:"scope"`
	CreatedAt   string            `json:"created_at"`
	UpdatedAt   string            `json:"updated_at"`
	ArchivedAt  *string           `json:"archived_at"`
}

func showEnvironment(e outboard.Environment) environmentOut {
	scope := e.Scope
	if scope == "" {
		scope = "organization"
	}
	return environmentOut{"environment", string(e.ID), e.Name, textOrNull(e.Description), showEnvConfig(e.Config),
		orEmpty(e.Metadata),
		scope, stamp(e.CreatedAt), stamp(e.UpdatedAt), stampOrNull(e.ArchivedAt)}
}

// showEnvConfig is a config in full; Outboard's own part only where it was given.
func showEnvConfig(c outboard.EnvConfig) map[string]any {
	if c.Kind != "cloud" {
		return map[string]any{"type": c.Kind}
	}
	n := map[string]any{"type": c.Networking.Mode}
	if c.Networking.Mode == "limited" {
		n["allowed_hosts"] = some(c.Networking.AllowedHosts)
		n["allow_mcp_servers"] = c.Networking.AllowMCPServers
		n["allow_package_managers"] = c.Networking.AllowPackageManagers
	}
	packages := map[string]any{"type": "packages"}
	for _, m := range control.PackageManagers {
		packages[m] = some(c.Packages[m])
	}
	out := map[string]any{"type": "cloud", "networking": n, "packages": packages}
	own := len(c.Networking.Rules) > 0 || c.Networking.Budget != (outboard.NetBudget{}) ||
		c.Networking.Ask != (outboard.NetAsk{})
	if c.Rootfs != "" || c.Image != "" || c.Template != "" || c.Isolation != "" ||
		c.Limits != (outboard.SandboxLimits{}) || c.Lifecycle != (outboard.Lifecycle{}) || own {
		machine := map[string]any{"rootfs": c.Rootfs, "isolation": c.Isolation, "limits": c.Limits}
		if c.Image != "" {
			machine["image"] = c.Image
		}
		if c.Template != "" {
			machine["template"] = c.Template
		}
		if c.Lifecycle != (outboard.Lifecycle{}) {
			machine["lifecycle"] = c.Lifecycle
		}
		if own {
			own := map[string]any{"rules": some(c.Networking.Rules), "budget": c.Networking.Budget}
			if c.Networking.Ask != (outboard.NetAsk{}) {
				own["ask"] = c.Networking.Ask
			}
			machine["networking"] = own
		}
		out["outboard"] = machine
	}
	return out
}

type fileOut struct {
	Type         string    `json:"type"`
	ID           string    `json:"id"`
	Filename     string    `json:"filename"`
	MediaType    string    `json:"mime_type"`
	Size         int64     `json:"size_bytes"`
	CreatedAt    string    `json:"created_at"`
	Downloadable bool      `json:"downloadable"`
	ExpiresAt    *string   `json:"expires_at"`
	Scope        *scopeOut `json:"scope,omitempty"`
}

type scopeOut struct {
	Type string `json:"type"`
	ID   string `json:"id"`
}

func showFile(f outboard.File) fileOut {
	out := fileOut{Type: "file", ID: string(f.ID), Filename: f.Filename, MediaType: f.MediaType, Size: f.Blob.Size,
		CreatedAt: stamp(f.CreatedAt), Downloadable: f.Downloadable, ExpiresAt: stampOrNull(f.ExpiresAt)}
	if f.Session != "" {
		out.Scope = &scopeOut{"session", string(f.Session)}
	}
	return out
}

type modelInfoOut struct {
	Type         string    `json:"type"`
	ID           string    `json:"id"`
	DisplayName  string    `json:"display_name"`
	CreatedAt    string    `json:"created_at"`
	Lifecycle    string    `json:"lifecycle"`
	Line         *string   `json:"line"`
	Capabilities *struct{} `json:"capabilities"`
	MaxInput     int64     `json:"max_input_tokens"`
	MaxOutput    int64     `json:"max_tokens"`
	DeprecatedAt *string   `json:"deprecated_at"`
	RetiresAt    *string   `json:"retires_at"`

	Fallback json.RawMessage `json:"allowed_fallback_models,omitempty"` // null, and only where the beta is asked for
}
