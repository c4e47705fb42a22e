package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/llm"
	"go.yaml.in/yaml/v3"
)

const (
	// defaultAgent and defaultEnvironment are the names of what run uses when nothing else is said.
	defaultAgent       = "outboard"
	defaultEnvironment = "outboard"
	// defaultModel is an alias the configuration may set.
	defaultModel = "default"
	// agentFileKey marks, in an agent's metadata, the file content it was made from.
	agentFileKey = "outboard.file_sha256"
	// maxAgentFile bounds an agent file.
	maxAgentFile = 1 << 20
)

// defaultSystem is the system prompt of the default agent.
const defaultSystem = "You work on the files in /workspace, in a sandbox of your own. " +
	"Make the smallest change that does what you are asked, run what checks it, and say in a few lines what you " +
	"changed and why."

// findAgent resolves what --agent says: "" is the default agent; else a file, an id or a name. It returns the
// agent's id.
func findAgent(ctx context.Context, c *client.Client, ref string) (string, error) {
	switch {
	case ref == "":
		return agentByName(ctx, c, defaultAgent, map[string]any{"name": defaultAgent, "model": defaultModel,
			"system":      defaultSystem,
			"description": "The agent of outboard run when no other is named.", "tools": []any{map[string]any{"type": toolsetName}}})
	case outboard.ValidID(outboard.PrefixAgent, ref):
		a, err := c.Agent(ctx, ref)
		return a.ID, err
	case isAgentFile(ref):
		return agentFromFile(ctx, c, ref)
	}
	id, err := agentByName(ctx, c, ref, nil)
	if err != nil && outboard.KindOf(err) == outboard.NotFound {
		err = noAgent(ref).WithHint("name a file, an id, or an agent that exists; without --agent run uses its own")
	}
	return id, err
}

// existingAgent is findAgent for what is about an agent and makes none: an id or a name.
func existingAgent(ctx context.Context, c *client.Client, ref string) (string, error) {
	if outboard.ValidID(outboard.PrefixAgent, ref) {
		return ref, nil
	}
	return agentByName(ctx, c, ref, nil)
}

func noAgent(name string) *outboard.Error {
	return outboard.Errorf(outboard.NotFound, "there is no agent %q", name)
}

// toolsetName is the wire's name of the built-in tools.
const toolsetName = "agent_toolset_20260401"

// agentByName returns the newest live agent of that name; where there is none, one made from body, if that is given.
func agentByName(ctx context.Context, c *client.Client, name string, body any) (string, error) {
	for a, err := range c.Agents(ctx) {
		if err != nil {
			return "", err
		}
		if a.Name == name && a.ArchivedAt == nil {
			return a.ID, nil
		}
	}
	if body == nil {
		return "", noAgent(name).WithHint("name it by its id or, if it is not archived, by its name")
	}
	a, err := c.CreateAgent(ctx, body)
	return a.ID, err
}

func isAgentFile(ref string) bool {
	switch filepath.Ext(ref) {
	case ".yaml", ".yml", ".json":
		return true
	}
	st, err := os.Stat(ref)
	return err == nil && st.Mode().IsRegular()
}

// agentFromFile returns the agent that a file describes, as the wire does, in YAML or JSON. The same content is
// the same agent.
func agentFromFile(ctx context.Context, c *client.Client, path string) (string, error) {
	body, err := readAgentFile(path)
	if err != nil {
		return "", err
	}
	sum := body["metadata"].(map[string]any)[agentFileKey]
	for a, err := range c.Agents(ctx) {
		if err != nil {
			return "", err
		}
		if a.Metadata[agentFileKey] == sum && a.ArchivedAt == nil {
			return a.ID, nil
		}
	}
	a, err := c.CreateAgent(ctx, body)
	return a.ID, err
}

func readAgentFile(path string) (map[string]any, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, outboard.Errorf(outboard.NotFound, "reading the agent: %w", err)
	}
	if st.Size() > maxAgentFile {
		return nil, outboard.Errorf(outboard.TooLarge, "%s is too large for an agent file", path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the agent: %w", err)
	}
	var doc any
	if err := yaml.Unmarshal(b, &doc); err != nil { // JSON is YAML
		return nil, usagef("%s is not an agent: %v", path, llm.SyntaxError(b, err))
	}
	body, ok := doc.(map[string]any)
	if !ok {
		return nil, usagef("%s is not an agent: a mapping with name, model, system, tools, as in POST /v1/agents", path)
	}
	if body["name"] == nil {
		body["name"] = strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	}
	meta, ok := body["metadata"].(map[string]any)
	if !ok && body["metadata"] != nil {
		return nil, usagef("%s: metadata must be a mapping", path)
	}
	if meta == nil {
		meta = map[string]any{}
	}
	sum := sha256.Sum256(b)
	meta[agentFileKey] = hex.EncodeToString(sum[:])
	body["metadata"] = meta
	if _, err := json.Marshal(body); err != nil {
		return nil, usagef("%s: only text, numbers, lists and mappings with text keys can be sent: %v", path, err)
	}
	return body, nil
}

// findEnvironment resolves what --env says: "" is the default environment; else an id or a name.
func findEnvironment(ctx context.Context, c *client.Client, ref string) (string, error) {
	if outboard.ValidID(outboard.PrefixEnvironment, ref) {
		return ref, nil
	}
	name := ref
	if name == "" {
		name = defaultEnvironment
	}
	for e, err := range c.Environments(ctx) {
		if err != nil {
			return "", err
		}
		if e.Name == name && e.ArchivedAt == nil {
			return e.ID, nil
		}
	}
	if ref != "" {
		return "", outboard.Errorf(outboard.NotFound, "there is no environment %q", ref).
			WithHint("leave out --env for the default one")
	}
	e, err := c.CreateEnvironment(ctx, map[string]any{"name": name,
		"description": "The environment of outboard run when no other is named.",
		"config":      map[string]any{"type": "cloud"}})
	if err != nil && outboard.KindOf(err) == outboard.Conflict { // another run made it since the list was read
		return findEnvironment(ctx, c, name)
	}
	return e.ID, err
}

// withPolicy returns the agent's tools with every built-in tool's permission policy replaced.
func withPolicy(tools []map[string]any, policy string) []map[string]any {
	p := map[string]any{"type": policy}
	for _, t := range tools {
		if t["type"] != toolsetName {
			continue
		}
		def, _ := t["default_config"].(map[string]any)
		if def == nil {
			def = map[string]any{}
		}
		def["permission_policy"] = p
		t["default_config"] = def
		configs, _ := t["configs"].([]any)
		for _, c := range configs {
			if m, ok := c.(map[string]any); ok {
				m["permission_policy"] = p
			}
		}
	}
	return tools
}
