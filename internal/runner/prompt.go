package runner

import (
	"fmt"
	"slices"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/llm"
	"github.com/outboard-dev/outboard/internal/policy"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/tool"
	"github.com/outboard-dev/outboard/internal/tool/registry"
)

// Tools implements harness.Turn: the enabled built-in tools and the custom ones, in the order of the toolsets,
// each name once.
func (t *turn) Tools() []llm.Tool {
	var out []llm.Tool
	add := func(l llm.Tool) {
		if !slices.ContainsFunc(out, func(o llm.Tool) bool { return o.Name == l.Name }) {
			out = append(out, l)
		}
	}
	for _, set := range t.durable.Config.Agent.Tools {
		switch set.Kind {
		case "custom":
			add(llm.Tool{Name: set.Name, Description: set.Description, InputSchema: set.InputSchema})
		case "builtin":
			for _, def := range t.tools {
				if policy.Setting(set, def.Name).Enabled {
					add(llm.Tool{Name: def.Name, Description: def.Description, InputSchema: def.Schema})
				}
			}
		}
	}
	return out
}

// tool returns a built-in tool.
func (r *Runner) tool(name string) (tool.Def, bool) {
	for _, def := range r.tools {
		if def.Name == name {
			return def, true
		}
	}
	return tool.Def{}, false
}

// System implements harness.Turn: the agent's own prompt, then what the platform has to say about where its
// tools act. It changes only when the session's configuration does, so that providers can cache it.
func (t *turn) System() string {
	cfg := &t.durable.Config
	sandboxed := slices.ContainsFunc(policy.Offered(cfg.Agent.Tools), func(name string) bool {
		def, ok := t.tool(name)
		return ok && def.Place == registry.InSandbox
	})
	if !sandboxed {
		return cfg.Agent.System
	}
	var b strings.Builder
	if cfg.Agent.System != "" {
		b.WriteString(cfg.Agent.System)
		b.WriteString("\n\n")
	}
	fmt.Fprintf(&b, "Your tools act in a Linux sandbox of your own. Work in %s. Put files that are meant for the "+
		"user into %s: they are "+
		"delivered from there.", sandbox.Workspace, sandbox.Outputs)
	var mounts []string
	for _, r := range cfg.Resources {
		if r.Kind == "file" {
			mounts = append(mounts, mountPath(r))
		}
	}
	if len(mounts) > 0 {
		fmt.Fprintf(&b, " The user gave you these files, read-only: %s.", strings.Join(mounts, ", "))
	}
	return b.String()
}

func mountPath(r outboard.Resource) string {
	if r.MountPath != "" {
		return r.MountPath
	}
	return sandbox.Uploads + "/" + string(r.File)
}
