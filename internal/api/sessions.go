package api

import (
	"encoding/json"
	"slices"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

type createSessionIn struct {
	Agent       json.RawMessage   `json:"agent" need:"yes"`
	Environment string            `json:"environment_id" need:"yes"`
	Title       string            `json:"title"`
	Metadata    map[string]string `json:"metadata"`
	Resources   []json.RawMessage `json:"resources"`
	VaultIDs    []string          `json:"vault_ids"`
	Initial     []json.RawMessage `json:"initial_events"`
	Budget      json.RawMessage   `json:"budget"`
}

func (in *createSessionIn) request() (q control.SessionRequest, err error) {
	q = control.SessionRequest{EnvironmentID: outboard.EnvironmentID(in.Environment), Title: in.Title,
		Metadata: in.Metadata, VaultIDs: in.VaultIDs}
	if !isNull(in.Budget) {
		if q.Budget, err = decodeBudget(in.Budget); err != nil {
			return q, err
		}
	}
	if len(in.Initial) > outboard.MaxInitialEvents {
		return q, bad("initial_events: at most %d events, not %d", outboard.MaxInitialEvents, len(in.Initial))
	}
	if err := decodeSessionAgent(in.Agent, &q); err != nil {
		return q, err
	}
	for i, raw := range in.Resources {
		res, err := decodeResource(control.At("resources", i), raw)
		if err != nil {
			return q, err
		}
		q.Resources = append(q.Resources, res)
	}
	q.Initial, err = decodeEvents("initial_events", in.Initial)
	return q, err
}

// decodeSessionAgent reads which agent a session runs: an id, a version of one, or one with overrides.
func decodeSessionAgent(raw json.RawMessage, q *control.SessionRequest) error {
	if json.Unmarshal(raw, &q.Agent) == nil {
		return nil
	}
	kind, err := unionType("agent", raw)
	if err != nil {
		return err
	}
	switch kind {
	case "agent":
		var in struct {
			Type    string           `json:"type"`
			ID      outboard.AgentID `json:"id" need:"yes"`
			Version *int             `json:"version"`
		}
		if err := object("agent", raw, &in); err != nil {
			return err
		}
		q.Agent = in.ID
		return agentVersion(in.Version, q)
	case "agent_with_overrides":
		return decodeOverrides(raw, q)
	}
	return bad("agent.type: must be agent or agent_with_overrides, not %q", clip(kind))
}

func agentVersion(v *int, q *control.SessionRequest) error {
	if v == nil {
		return nil
	}
	if *v < 0 {
		return bad("agent.version: must be an integer from 1, or 0 for the latest, not %d", *v)
	}
	q.AgentVersion = *v
	return nil
}

func decodeOverrides(raw json.RawMessage, q *control.SessionRequest) error {
	var in struct {
		Type       string                   `json:"type"`
		ID         outboard.AgentID         `json:"id" need:"yes"`
		Version    *int                     `json:"version"`
		Model      field[json.RawMessage]   `json:"model"`
		System     field[string]            `json:"system"`
		Tools      field[[]json.RawMessage] `json:"tools"`
		MCPServers field[[]json.RawMessage] `json:"mcp_servers"`
		Skills     field[[]json.RawMessage] `json:"skills"`
	}
	if err := object("agent", raw, &in); err != nil {
		return err
	}
	if in.Model.null {
		return bad("agent.model: cannot be cleared")
	}
	if in.Model.set {
		m, _, err := decodeModel("agent.model", in.Model.v)
		if err != nil {
			return err
		}
		q.Model = &m
	}
	q.Agent, q.System = in.ID, in.System.clearing()
	var err error
	if q.Tools, q.MCPServers, q.Skills, err = decodeLists(in.Tools, in.MCPServers, in.Skills); err != nil {
		return err
	}
	return agentVersion(in.Version, q)
}

func (s *server) createSession(r *request) (any, error) {
	var in createSessionIn
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	q, err := in.request()
	if err != nil {
		return nil, err
	}
	v, err := s.ctl.CreateSession(r.Context(), r.by, q)
	if err != nil {
		return nil, err
	}
	return s.showSession(v), nil
}

func (s *server) getSession(r *request) (any, error) {
	v, err := s.ctl.Session(r.Context(), r.by, outboard.SessionID(r.PathValue("session")))
	if err != nil {
		return nil, err
	}
	return s.showOwn(r, v)
}

type updateSessionIn struct {
	Title    field[string]             `json:"title"`
	Metadata field[map[string]*string] `json:"metadata"`
	VaultIDs json.RawMessage           `json:"vault_ids"`
	Agent    json.RawMessage           `json:"agent"`
	Budget   json.RawMessage           `json:"budget"`
}

func (in *updateSessionIn) patch() (p control.SessionPatch, err error) {
	if in.VaultIDs != nil {
		return p, bad("vault_ids: cannot change on a session")
	}
	if in.Budget != nil {
		p.Budget = new(outboard.Cost) // null removes it
		if !isNull(in.Budget) {
			if *p.Budget, err = decodeBudget(in.Budget); err != nil {
				return p, err
			}
		}
	}
	if in.Title.set && !in.Title.null && in.Title.v == "" {
		return p, bad("title: must not be empty; null clears it")
	}
	p.Title, p.Metadata = in.Title.clearing(), in.Metadata.v
	if isNull(in.Agent) {
		return p, nil
	}
	var a struct {
		Tools      field[[]json.RawMessage] `json:"tools"`
		MCPServers field[[]json.RawMessage] `json:"mcp_servers"`
	}
	if err := object("agent", in.Agent, &a); err != nil {
		return p, err
	}
	p.Tools, p.MCPServers, _, err = decodeLists(a.Tools, a.MCPServers, field[[]json.RawMessage]{})
	return p, err
}

func (s *server) updateSession(r *request) (any, error) {
	var in updateSessionIn
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	p, err := in.patch()
	if err != nil {
		return nil, err
	}
	v, err := s.ctl.UpdateSession(r.Context(), r.by, outboard.SessionID(r.PathValue("session")), p)
	if err != nil {
		return nil, err
	}
	return s.showSession(v), nil
}

func (s *server) archiveSession(r *request) (any, error) {
	if err := r.empty(); err != nil {
		return nil, err
	}
	v, err := s.ctl.ArchiveSession(r.Context(), r.by, outboard.SessionID(r.PathValue("session")))
	if err != nil {
		return nil, err
	}
	return s.showSession(v), nil
}

func (s *server) deleteSession(r *request) (any, error) {
	id := outboard.SessionID(r.PathValue("session"))
	if err := s.ctl.DeleteSession(r.Context(), r.by, id); err != nil {
		return nil, err
	}
	return deletedOut{string(id), "session_deleted"}, nil
}

// sessionListOut is the one list that can also be walked backwards.
type sessionListOut struct {
	listOut[sessionOut]
	PrevPage *string `json:"prev_page"`
}

// statuses are the session statuses of the wire.
var statuses = []string{"rescheduling", "running", "idle", "terminated"}

// sessionFilter reads the parameters of the session list. nothing tells that no session can match.
func (r *request) sessionFilter() (f control.SessionFilter, cur cursor, nothing bool, err error) {
	order, err := r.oneOf("order", "desc", "asc")
	if err != nil {
		return f, cur, false, err
	}
	if cur, err = parseCursor(r.query.Get("page"), "sessions", order); err != nil {
		return f, cur, false, err
	}
	f.Asc, f.Cursor = (order == "asc") != cur.Back, outboard.SessionID(cur.After)
	if f.Limit, err = r.limit(otherPage, maxOtherPage); err != nil {
		return f, cur, false, err
	}
	if f.IncludeArchived, err = r.flag("include_archived"); err != nil {
		return f, cur, false, err
	}
	phases, err := r.list("statuses", len(statuses)*2, statuses...)
	if err != nil {
		return f, cur, false, err
	}
	for _, p := range phases {
		f.Phases = append(f.Phases, outboard.Phase(p))
	}
	f.Agent = outboard.AgentID(r.query.Get("agent_id"))
	if v := r.query.Get("agent_version"); v != "" && v != "0" {
		if f.AgentVersion, err = r.positive("agent_version"); err != nil {
			return f, cur, false, err
		}
		if f.Agent == "" {
			f.AgentVersion = 0 // the wire applies it only together with agent_id
		}
	}
	t, err := r.between()
	if err != nil {
		return f, cur, false, err
	}
	if err := cur.within(t); err != nil {
		return f, cur, false, err
	}
	f.From = t.from
	if !t.to.IsZero() {
		f.Until = t.to.Add(1000) // exclusive, a microsecond later
	}
	return f, cur, r.query.Get("memory_store_id") != "" || r.query.Get("deployment_id") != "", nil
}

func (s *server) listSessions(r *request) (any, error) {
	f, cur, nothing, err := r.sessionFilter()
	if err != nil {
		return nil, err
	}
	own, err := r.own()
	if err != nil {
		return nil, err
	}
	var list []control.Session
	early := false
	limit := f.Limit
	f.Limit++
	if !nothing {
		if list, early, err = s.ctl.Sessions(r.Context(), r.by, f); err != nil {
			return nil, err
		}
	}
	more := early || len(list) > limit
	list = list[:min(limit, len(list))]
	if cur.Back {
		slices.Reverse(list)
	}
	out := sessionListOut{listOut: listOut[sessionOut]{Data: []sessionOut{}}}
	for _, v := range list {
		shown := s.showSession(v)
		if own {
			err := s.addOwn(r, v, &shown)
			if err != nil && outboard.KindOf(err) == outboard.NotFound {
				continue // deleted since the page was read
			}
			if err != nil {
				return nil, err
			}
		}
		out.Data = append(out.Data, shown)
	}
	if len(list) > 0 {
		first, last := list[0], list[len(list)-1]
		next := cursor{List: cur.List, Order: cur.Order, After: string(last.ID), At: last.CreatedAt.UnixMicro()}
		prev := cursor{List: cur.List, Order: cur.Order, After: string(first.ID), At: first.CreatedAt.UnixMicro(),
			Back: true}
		if more || cur.Back {
			out.NextPage = next.token()
		}
		if cur.Back && more || !cur.Back && cur.After != "" {
			out.PrevPage = prev.token()
		}
		if cur.Back && !more {
			out.PrevPage = nil
		}
	}
	return out, nil
}
