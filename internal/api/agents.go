package api

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// Page sizes of the wire: default and most.
const (
	agentPage, maxAgentPage = 20, 100
	otherPage, maxOtherPage = 20, 1000
)

type createAgentIn struct {
	Name        string            `json:"name" need:"yes"`
	Model       json.RawMessage   `json:"model" need:"yes"`
	Description string            `json:"description"`
	System      string            `json:"system"`
	Tools       []json.RawMessage `json:"tools"`
	MCPServers  []json.RawMessage `json:"mcp_servers"`
	Skills      []json.RawMessage `json:"skills"`
	Metadata    map[string]string `json:"metadata"`
	Multiagent  json.RawMessage   `json:"multiagent"`
	Identity    json.RawMessage   `json:"execution_identity"`
}

func (in *createAgentIn) agent() (a outboard.Agent, err error) {
	a = outboard.Agent{Name: in.Name, Description: in.Description, System: in.System, Metadata: in.Metadata}
	if err := noMultiagent(in.Multiagent); err != nil {
		return a, err
	}
	if a.Model, _, err = decodeModel("model", in.Model); err != nil {
		return a, err
	}
	if a.Tools, err = decodeTools("tools", in.Tools); err != nil {
		return a, err
	}
	if a.MCPServers, err = decodeServers("mcp_servers", in.MCPServers); err != nil {
		return a, err
	}
	if a.Skills, err = decodeSkills("skills", in.Skills); err != nil {
		return a, err
	}
	a.Identity, err = decodeIdentity("execution_identity", in.Identity)
	return a, err
}

func (s *server) createAgent(r *request) (any, error) {
	var in createAgentIn
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	a, err := in.agent()
	if err != nil {
		return nil, err
	}
	a, err = s.ctl.CreateAgent(r.Context(), r.by, a)
	if err != nil {
		return nil, err
	}
	return showAgent(a), nil
}

func (s *server) getAgent(r *request) (any, error) {
	version := 0
	if v := r.query.Get("version"); v != "" && v != "0" { // 0 is as good as none
		n, err := r.positive("version")
		if err != nil {
			return nil, err
		}
		version = n
	}
	a, err := s.ctl.Agent(r.Context(), r.by, outboard.AgentID(r.PathValue("agent")), version)
	if err != nil {
		return nil, err
	}
	return showAgent(a), nil
}

type updateAgentIn struct {
	Version     field[int]                `json:"version"`
	Name        field[string]             `json:"name"`
	Description field[string]             `json:"description"`
	Model       field[json.RawMessage]    `json:"model"`
	System      field[string]             `json:"system"`
	Tools       field[[]json.RawMessage]  `json:"tools"`
	MCPServers  field[[]json.RawMessage]  `json:"mcp_servers"`
	Skills      field[[]json.RawMessage]  `json:"skills"`
	Metadata    field[map[string]*string] `json:"metadata"`
	Multiagent  json.RawMessage           `json:"multiagent"`
	Identity    field[json.RawMessage]    `json:"execution_identity"`
}

func (in *updateAgentIn) patch() (p control.AgentPatch, err error) {
	if err := noMultiagent(in.Multiagent); err != nil {
		return p, err
	}
	if in.Version.set && !in.Version.null {
		if in.Version.v < 1 {
			return p, bad("version: must be an integer from 1, not %d", in.Version.v)
		}
		p.Version = &in.Version.v
	}
	if p.Name, err = in.Name.keeping("name"); err != nil {
		return p, err
	}
	if in.Model.set {
		if in.Model.null {
			return p, bad("model: cannot be cleared")
		}
		m, effort, err := decodeModel("model", in.Model.v)
		if err != nil {
			return p, err
		}
		p.Model, p.KeepEffort = &m, !effort
	}
	p.Description, p.System, p.Metadata = in.Description.clearing(), in.System.clearing(), in.Metadata.v
	if in.Identity.set {
		id, err := decodeIdentity("execution_identity", in.Identity.v)
		if err != nil {
			return p, err
		}
		p.Identity = &id
	}
	p.Tools, p.MCPServers, p.Skills, err = decodeLists(in.Tools, in.MCPServers, in.Skills)
	return p, err
}

// decodeLists reads the lists of an agent that an update or an override replaces; nil where they are left alone.
func decodeLists(tools, servers,
	skills field[[]json.RawMessage]) (ts *[]outboard.Toolset, ms *[]outboard.MCPServer, ss *[]outboard.SkillRef, err error) {
	if tools.set {
		v, err := decodeTools("tools", tools.v)
		if err != nil {
			return nil, nil, nil, err
		}
		ts = &v
	}
	if servers.set {
		v, err := decodeServers("mcp_servers", servers.v)
		if err != nil {
			return nil, nil, nil, err
		}
		ms = &v
	}
	if skills.set {
		v, err := decodeSkills("skills", skills.v)
		if err != nil {
			return nil, nil, nil, err
		}
		ss = &v
	}
	return ts, ms, ss, nil
}

func (s *server) updateAgent(r *request) (any, error) {
	var in updateAgentIn
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	p, err := in.patch()
	if err != nil {
		return nil, err
	}
	a, err := s.ctl.UpdateAgent(r.Context(), r.by, outboard.AgentID(r.PathValue("agent")), p)
	if err != nil {
		return nil, err
	}
	return showAgent(a), nil
}

func (s *server) archiveAgent(r *request) (any, error) {
	if err := r.empty(); err != nil {
		return nil, err
	}
	a, err := s.ctl.ArchiveAgent(r.Context(), r.by, outboard.AgentID(r.PathValue("agent")))
	if err != nil {
		return nil, err
	}
	return showAgent(a), nil
}

func (s *server) listAgents(r *request) (any, error) {
	q, err := r.rows("agents", agentPage, maxAgentPage)
	if err != nil {
		return nil, err
	}
	list, more, err := s.ctl.Agents(r.Context(), r.by, q.page)
	if err != nil {
		return nil, err
	}
	q.more = more
	return pageOf(q, list, func(a outboard.Agent) (string, time.Time) { return string(a.ID), a.CreatedAt },
		showAgent), nil
}

func (s *server) listAgentVersions(r *request) (any, error) {
	id := outboard.AgentID(r.PathValue("agent"))
	q, err := r.rows("versions of "+string(id), agentPage, maxAgentPage)
	if err != nil {
		return nil, err
	}
	list, more, err := s.ctl.AgentVersions(r.Context(), r.by, id, q.page)
	if err != nil {
		return nil, err
	}
	q.more = more
	return pageOf(q, list, func(a outboard.Agent) (string, time.Time) { return strconv.Itoa(a.Version), a.UpdatedAt },
		showAgent), nil
}
