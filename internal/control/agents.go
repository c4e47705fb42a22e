package control

import (
	"context"
	"maps"
	"slices"
	"strconv"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// updateTries bounds how often an update without a version lock starts over because another one came first.
const updateTries = 4

// AgentPatch changes an agent. Nil fields keep their value; Version, when set, must be the current one.
type AgentPatch struct {
	Version     *int
	Name        *string
	Description *string
	Model       *outboard.ModelConfig
	KeepEffort  bool // Model named no effort: the old one stays while the model id does
	System      *string
	Tools       *[]outboard.Toolset
	MCPServers  *[]outboard.MCPServer
	Skills      *[]outboard.SkillRef
	Metadata    map[string]*string
	Identity    *outboard.Raw
}

// CreateAgent makes version 1 of a new agent from the definition in a; id, version and times are set here.
func (c *Control) CreateAgent(ctx context.Context, by outboard.Caller, a outboard.Agent) (outboard.Agent, error) {
	if err := requireDeveloper(by, scopeAgents); err != nil {
		return a, err
	}
	if err := checkAgent(&a); err != nil {
		return a, err
	}
	if err := checkSchemas(a.Tools); err != nil {
		return a, err
	}
	now := c.clock()
	a.ID, a.Version = outboard.NewID[outboard.AgentID](outboard.PrefixAgent), 1
	a.CreatedAt, a.UpdatedAt, a.Org = now, now, by.In()
	if err := c.record(ctx, by, "agent.create", string(a.ID), agentPowers(&a)); err != nil {
		return a, err
	}
	if err := c.store.PutAgent(ctx, a); err != nil {
		return a, outboard.Errorf(outboard.KindOf(err), "storing the agent: %w", err)
	}
	return a, nil
}

// Agent returns a version of an agent, 0 for the latest.
func (c *Control) Agent(ctx context.Context, by outboard.Caller, id outboard.AgentID,
	version int) (outboard.Agent, error) {
	if err := requireReader(by); err != nil {
		return outboard.Agent{}, err
	}
	if !outboard.ValidID(outboard.PrefixAgent, string(id)) {
		return outboard.Agent{}, notFound("agent", string(id))
	}
	a, err := c.store.Agent(ctx, id, 0)
	if err := ownedBy(by, a.Org, "agent", string(id), err); err != nil {
		return outboard.Agent{}, err
	}
	if version != 0 {
		a, err = c.store.Agent(ctx, id, version)
	}
	if version != 0 && outboard.KindOf(err) == outboard.NotFound && err != nil {
		return a, outboard.Errorf(outboard.NotFound, "there is no version %d of agent %q", version, id)
	}
	return a, wrapLookup("agent", string(id), err)
}

// Agents returns one page of agents, newest first. A page of large ones is shorter than p.Limit, and more says that
// there may be others.
func (c *Control) Agents(ctx context.Context, by outboard.Caller, p Page) (_ []outboard.Agent, more bool, err error) {
	if err := requireReader(by); err != nil {
		return nil, false, err
	}
	p.Org = by.In()
	list, more, err := gather(func(p Page) ([]outboard.Agent, error) { return c.store.Agents(ctx, p) }, p,
		(*outboard.Agent).Size,
		func(a *outboard.Agent) string { return string(a.ID) })
	return list, more, wrapLookup("agents", "", err)
}

// AgentVersions returns one page of an agent's versions, newest first, as Agents does.
func (c *Control) AgentVersions(ctx context.Context, by outboard.Caller, id outboard.AgentID,
	p Page) (_ []outboard.Agent, more bool, err error) {
	if _, err := c.Agent(ctx, by, id, 0); err != nil {
		return nil, false, err
	}
	list, more, err := gather(func(p Page) ([]outboard.Agent, error) { return c.store.AgentVersions(ctx, id, p) }, p,
		(*outboard.Agent).Size,
		func(a *outboard.Agent) string { return strconv.Itoa(a.Version) })
	return list, more, wrapLookup("agent", string(id), err)
}

// agentPowers is what a record says of an agent: what it may do, not what it is told.
func agentPowers(a *outboard.Agent) any {
	return map[string]any{"version": a.Version, "model": a.Model.ID, "tools": a.Tools, "mcp_servers": a.MCPServers}
}

// UpdateAgent makes a new version, or returns the current one when the patch changes nothing. Conflict: the
// version lock of the patch does not hold.
func (c *Control) UpdateAgent(ctx context.Context, by outboard.Caller, id outboard.AgentID,
	p AgentPatch) (outboard.Agent, error) {
	if err := requireDeveloper(by, scopeAgents); err != nil {
		return outboard.Agent{}, err
	}
	for try := 0; ; try++ {
		old, err := c.Agent(ctx, by, id, 0)
		if err != nil {
			return old, err
		}
		if !old.ArchivedAt.IsZero() {
			return old, invalid("agent %s is archived and cannot be changed", id)
		}
		if p.Version != nil && *p.Version != old.Version {
			return old, outboard.Errorf(outboard.Conflict, "agent %s is at version %d, not %d", id, old.Version,
				*p.Version).
				WithHint("read the agent again and repeat the change on its current version")
		}
		a, err := patchAgent(old, p)
		if err != nil {
			return old, err
		}
		if sameAgent(old, a) {
			store.Unchanged(ctx)
			return old, nil
		}
		a.Version, a.UpdatedAt = old.Version+1, c.clock()
		if err := c.record(ctx, by, "agent.update", string(id), agentPowers(&a)); err != nil {
			return old, err
		}
		err = c.store.PutAgent(ctx, a)
		switch {
		case err == nil:
			return a, nil
		case outboard.KindOf(err) == outboard.Conflict && (p.Version == nil && try < updateTries):
			continue
		case outboard.KindOf(err) == outboard.Conflict:
			return a, outboard.Errorf(outboard.Conflict, "agent %s was changed by somebody else meanwhile", id)
		}
		return a, outboard.Errorf(outboard.KindOf(err), "storing agent %s: %w", id, err)
	}
}

// ArchiveAgent archives an agent for good. Sessions that run it keep running. Archiving twice is the same as once.
func (c *Control) ArchiveAgent(ctx context.Context, by outboard.Caller, id outboard.AgentID) (outboard.Agent, error) {
	if err := requireDeveloper(by, scopeAgents); err != nil {
		return outboard.Agent{}, err
	}
	if _, err := c.Agent(ctx, by, id, 0); err != nil {
		return outboard.Agent{}, err
	}
	if err := c.record(ctx, by, "agent.archive", string(id), nil); err != nil {
		return outboard.Agent{}, err
	}
	a, err := c.store.ArchiveAgent(ctx, id, c.clock())
	return a, wrapLookup("agent", string(id), err)
}

func patchAgent(a outboard.Agent, p AgentPatch) (outboard.Agent, error) {
	set(&a.Name, p.Name)
	set(&a.Description, p.Description)
	set(&a.System, p.System)
	set(&a.Tools, p.Tools)
	set(&a.MCPServers, p.MCPServers)
	set(&a.Skills, p.Skills)
	set(&a.Identity, p.Identity)
	if p.Model != nil {
		m := *p.Model
		if p.KeepEffort && m.ID == a.Model.ID {
			m.Effort = a.Model.Effort
		}
		a.Model = m
	}
	if p.Metadata != nil {
		m, err := mergeMetadata(a.Metadata, p.Metadata, false)
		if err != nil {
			return a, err
		}
		a.Metadata = m
	}
	if err := checkAgent(&a); err != nil || p.Tools == nil {
		return a, err
	}
	return a, checkSchemas(a.Tools)
}

// set replaces a field when the patch names it.
func set[T any](field, patch *T) {
	if patch != nil {
		*field = *patch
	}
}

// sameAgent reports whether two definitions say the same; ids, versions and times aside.
func sameAgent(a, b outboard.Agent) bool {
	return a.Name == b.Name && a.Description == b.Description && a.Model == b.Model && a.System == b.System &&
		sameToolsets(a.Tools, b.Tools) && slices.Equal(a.MCPServers, b.MCPServers) &&
		slices.Equal(a.Skills, b.Skills) &&
		maps.Equal(a.Metadata, b.Metadata) && sameJSON(a.Identity, b.Identity)
}

func sameToolsets(a, b []outboard.Toolset) bool {
	return slices.EqualFunc(a, b, func(x, y outboard.Toolset) bool {
		return x.Kind == y.Kind && x.Name == y.Name && x.Description == y.Description && x.Server == y.Server &&
			sameJSON(x.InputSchema, y.InputSchema) && sameToolConfig(x.Default, y.Default) &&
			slices.EqualFunc(x.Configs, y.Configs, sameToolConfig)
	})
}

func sameToolConfig(a, b outboard.ToolConfig) bool {
	return a.Name == b.Name && a.Enabled == b.Enabled && a.Policy == b.Policy && sameJSON(a.Web, b.Web)
}
