package control

import (
	"context"
	"errors"
	"slices"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/tool/registry"
)

// SessionRequest starts a session.
type SessionRequest struct {
	Agent         outboard.AgentID
	AgentVersion  int // 0 = latest
	EnvironmentID outboard.EnvironmentID
	Title         string
	Metadata      map[string]string
	Resources     []ResourceRequest
	VaultIDs      []string
	Budget        outboard.Cost      // most list cost, 0 = no bound
	Initial       []outboard.Payload // user messages, in order; all or nothing

	// Overrides of the agent for this session only; nil inherits.
	Model      *outboard.ModelConfig
	System     *string
	Tools      *[]outboard.Toolset
	MCPServers *[]outboard.MCPServer
	Skills     *[]outboard.SkillRef
}

// Session is a header with its config.
type Session struct {
	outboard.Header
	Config outboard.SessionConfig
}

// Status is what the wire calls a session's status. A session that has work to take up counts as running
// although no worker has claimed it yet: a client that polls right after it sent a message must not take "idle"
// for "done".
func (c *Control) Status(h *outboard.Header) outboard.Phase {
	if h.Phase == outboard.PhaseIdle && h.Runnable(c.now()) {
		return outboard.PhaseRunning
	}
	return h.Phase
}

// CreateSession starts a session, with its file resources copied and its initial events queued, or does nothing.
func (c *Control) CreateSession(ctx context.Context, by outboard.Caller, r SessionRequest) (Session, error) {
	if err := requireDeveloper(by, scopeSessions); err != nil {
		return Session{}, err
	}
	if err := checkSession(r); err != nil {
		return Session{}, err
	}
	if err := c.checkVaults(ctx, by, r.VaultIDs); err != nil {
		return Session{}, err
	}
	agent, err := c.sessionAgent(ctx, by, r)
	if err != nil {
		return Session{}, err
	}
	if r.Budget > 0 {
		if err := c.budgetable(&agent); err != nil {
			return Session{}, err
		}
	}
	env, err := c.sessionEnvironment(ctx, by, r)
	if err != nil {
		return Session{}, err
	}
	if err := c.alive(ctx, outboard.KillSubject{Agent: agent.ID, Owner: by.Key, Person: by.User,
		Environment: env.ID}); err != nil {
		return Session{}, err
	}
	if err := c.pinTemplate(ctx, by, &env.Config); err != nil {
		return Session{}, err
	}
	now := c.clock()
	h := outboard.Header{ID: outboard.NewID[outboard.SessionID](outboard.PrefixSession),
		Thread: outboard.NewID[outboard.ThreadID](outboard.PrefixThread), Phase: outboard.PhaseIdle, Title: r.Title,
		Metadata: r.Metadata, AgentID: agent.ID, AgentVersion: agent.Version, EnvironmentID: env.ID, CreatedAt: now, UpdatedAt: now, Org: by.In(), User: by.User}
	cfg := outboard.SessionConfig{Agent: agent, Environment: env.ID, Env: env.Config, VaultIDs: r.VaultIDs,
		Budget: r.Budget,
		Owner:  by.Owner()}

	inputs, err := c.spillAll(ctx, h.Org, h.Thread, r.Initial)
	if err != nil {
		return Session{}, err
	}
	undo, err := c.copyFiles(ctx, by, h.ID, r.Resources, &cfg)
	if err != nil {
		return Session{}, err
	}
	events := append([]outboard.Event{outboard.NewEvent(h.Thread, &outboard.SessionCreated{Config: cfg})}, inputs...)
	err = c.record(ctx, by, "session.create", string(h.ID), map[string]any{"agent": agent.ID, "version": agent.Version,
		"environment": env.ID,
		"vaults":      r.VaultIDs, "networking": env.Config.Networking.Mode})
	if err != nil {
		return Session{}, errors.Join(err, undo())
	}
	h, err = c.store.CreateSession(ctx, h, cfg, events...)
	if err != nil {
		return Session{}, errors.Join(outboard.Errorf(outboard.KindOf(err), "storing the session: %w", err), undo())
	}
	return Session{h, cfg}, nil
}

func checkSession(r SessionRequest) error {
	if err := length("title", r.Title, 0, maxTitle); err != nil {
		return err
	}
	if err := checkMetadata(r.Metadata); err != nil {
		return err
	}
	if len(r.Initial) > outboard.MaxInitialEvents {
		return invalid("initial_events must have at most %d events, not %d", outboard.MaxInitialEvents, len(r.Initial))
	}
	for i, p := range r.Initial {
		if p.EventType() != outboard.TypeInputMessage {
			return invalid("initial_events[%d]: only user.message and user.define_outcome may start a session", i)
		}
	}
	return nil
}

// sessionAgent resolves the agent a session runs: the stored version with the overrides laid over it.
func (c *Control) sessionAgent(ctx context.Context, by outboard.Caller, r SessionRequest) (outboard.Agent, error) {
	a, err := c.Agent(ctx, by, r.Agent, r.AgentVersion)
	if err != nil {
		return a, err
	}
	if !a.ArchivedAt.IsZero() {
		return a, invalid("agent %s is archived and starts no more sessions", a.ID)
	}
	set(&a.System, r.System)
	set(&a.Tools, r.Tools)
	set(&a.MCPServers, r.MCPServers)
	set(&a.Skills, r.Skills)
	if r.Model != nil {
		a.Model = *r.Model
		a.Model.Effort = "" // an override's effort is ignored: the model's default holds
	}
	if err := checkAgent(&a); err != nil {
		return a, err
	}
	if r.Tools != nil {
		if err := checkSchemas(a.Tools); err != nil {
			return a, err
		}
	}
	if r.Tools != nil && len(a.Tools) == 0 && len(a.Skills) > 0 {
		return a, invalid("tools cannot be cleared while skills are effective")
	}
	if err := checkRunnable(&a); err != nil {
		return a, err
	}
	if c.models != nil {
		if _, err := c.models.Resolve(a.Model.ID); err != nil {
			return a, err
		}
	}
	return a, nil
}

// checkRunnable refuses what a definition may hold but no session can do yet: to accept it would be a promise
// nobody keeps.
func checkRunnable(a *outboard.Agent) error {
	if len(a.Skills) > 0 {
		return unbuilt("agent %s has skills, which are not built yet", a.ID).WithHint("override skills with []")
	}
	if len(a.MCPServers) > 0 {
		return unbuilt("agent %s has MCP servers, which are not built yet", a.ID).
			WithHint("override tools and mcp_servers")
	}
	for _, t := range a.Tools {
		for _, cfg := range t.Configs {
			if b, _ := registry.Lookup(cfg.Name); t.Kind == "builtin" && b.Unbuilt != "" && cfg.Enabled {
				return unbuilt("agent %s enables %s, which is not built yet", a.ID, b.Name).WithHint("%s", b.Unbuilt)
			}
		}
	}
	return nil
}

func (c *Control) sessionEnvironment(ctx context.Context, by outboard.Caller,
	r SessionRequest) (outboard.Environment, error) {
	env, err := c.Environment(ctx, by, r.EnvironmentID)
	if err != nil {
		return env, err
	}
	if !env.ArchivedAt.IsZero() {
		return env, invalid("environment %s is archived and starts no more sessions", env.ID).
			WithCode("environment_archived")
	}
	if env.Config.Kind == "self_hosted" {
		if len(r.Resources) > 0 {
			return env, invalid("environment %s is self_hosted and takes no file resources", env.ID)
		}
		return env, unbuilt("environment %s is self_hosted, which needs the work queue, which is not built yet",
			env.ID).
			WithHint("use a cloud environment: its sandboxes run on this server")
	}
	return env, nil
}

// Session returns one session.
func (c *Control) Session(ctx context.Context, by outboard.Caller, id outboard.SessionID) (Session, error) {
	h, err := c.header(ctx, by, id)
	if err != nil {
		return Session{}, err
	}
	cfg, err := c.store.SessionConfig(ctx, id)
	return Session{h, cfg}, wrapLookup("session", string(id), err)
}

func (c *Control) header(ctx context.Context, by outboard.Caller, id outboard.SessionID) (outboard.Header, error) {
	if err := requireReader(by); err != nil {
		return outboard.Header{}, err
	}
	if !outboard.ValidID(outboard.PrefixSession, string(id)) {
		return outboard.Header{}, notFound("session", string(id))
	}
	h, err := c.store.Session(ctx, id)
	if err := ownedBy(by, h.Org, "session", string(id), err); err != nil {
		return outboard.Header{}, err
	}
	return h, nil
}

// Sessions returns one page of at most f.Limit sessions, newest first unless f.Asc. A page of large ones is shorter,
// and more says that there may be others.
func (c *Control) Sessions(ctx context.Context, by outboard.Caller,
	f SessionFilter) (out []Session, more bool, err error) {
	if err := requireReader(by); err != nil {
		return nil, false, err
	}
	var sum int64
	f.Org = by.In()
	wanted := f.Phases
	if slices.Contains(wanted, outboard.PhaseRunning) && !slices.Contains(wanted, outboard.PhaseIdle) {
		f.Phases = append(slices.Clone(wanted), outboard.PhaseIdle) // Status may call an idle row running
	}
	for len(out) < f.Limit {
		page, err := c.store.Sessions(ctx, f)
		if err != nil {
			return nil, false, wrapLookup("sessions", "", err)
		}
		for _, h := range page {
			if len(wanted) > 0 && !slices.Contains(wanted, c.Status(&h)) || len(out) == f.Limit {
				continue
			}
			cfg, err := c.store.SessionConfig(ctx, h.ID)
			if outboard.KindOf(err) == outboard.NotFound && err != nil {
				continue // deleted since the page was read
			}
			if err != nil {
				return nil, false, wrapLookup("session", string(h.ID), err)
			}
			out = append(out, Session{h, cfg})
			if sum += cfg.Agent.Size() + cfg.Env.Size(); sum >= pageBytes {
				return out, true, nil
			}
		}
		if len(page) < f.Limit {
			break
		}
		f.Cursor = page[len(page)-1].ID
	}
	return out, false, nil
}

// SessionPatch changes a session. Nil fields keep their value.
type SessionPatch struct {
	Title      *string
	Metadata   map[string]*string
	Tools      *[]outboard.Toolset // only while idle
	MCPServers *[]outboard.MCPServer
	Budget     *outboard.Cost // 0 removes it, for good
}

// UpdateSession applies a patch and records it in the log, if it changes anything.
func (c *Control) UpdateSession(ctx context.Context, by outboard.Caller, id outboard.SessionID,
	p SessionPatch) (Session, error) {
	if err := requireDeveloper(by, scopeSessions); err != nil {
		return Session{}, err
	}
	return c.edit(ctx, by, id, func(s *Session) (store.Commit, error) {
		var change outboard.SessionUpdated
		if p.Title != nil && *p.Title != s.Title {
			if err := length("title", *p.Title, 0, maxTitle); err != nil {
				return store.Commit{}, err
			}
			change.Title, s.Title = p.Title, *p.Title
		}
		if p.Metadata != nil {
			m, err := mergeMetadata(s.Metadata, p.Metadata, false)
			if err != nil {
				return store.Commit{}, err
			}
			if !equalMetadata(m, s.Metadata) {
				change.Metadata, s.Metadata = m, m
			}
		}
		if err := c.patchTools(s, p, &change); err != nil {
			return store.Commit{}, err
		}
		budget, err := c.patchBudget(ctx, s, p, &change)
		if err != nil {
			return store.Commit{}, err
		}
		if change.Title == nil && change.Metadata == nil && change.Tools == nil && change.MCPServers == nil &&
			change.Budget == nil {
			return store.Commit{}, nil
		}
		// a title changes nothing that a session may do
		if change.Tools != nil || change.MCPServers != nil || change.Budget != nil {
			if err := c.record(ctx, by, "session.update", string(s.ID), change); err != nil {
				return store.Commit{}, err
			}
		}
		return store.Commit{Events: []outboard.Event{outboard.NewEvent(s.Thread, &change)}, Config: &s.Config,
			Budget: budget}, nil
	})
}

// patchTools lays the tool changes of a patch over the session's own copy of the agent.
func (c *Control) patchTools(s *Session, p SessionPatch, change *outboard.SessionUpdated) error {
	if p.Tools == nil && p.MCPServers == nil {
		return nil
	}
	if st := c.Status(&s.Header); st != outboard.PhaseIdle {
		return invalid("session %s is %s: its tools change only while it is idle", s.ID, st)
	}
	a := s.Config.Agent
	if p.Tools != nil && !sameToolsets(a.Tools, *p.Tools) {
		a.Tools, change.Tools = *p.Tools, p.Tools
	}
	if p.MCPServers != nil && !slices.Equal(a.MCPServers, *p.MCPServers) {
		a.MCPServers, change.MCPServers = *p.MCPServers, p.MCPServers
	}
	if err := checkAgent(&a); err != nil {
		return err
	}
	if change.Tools != nil {
		if err := checkSchemas(a.Tools); err != nil {
			return err
		}
	}
	if err := checkRunnable(&a); err != nil {
		return err
	}
	s.Config.Agent = a
	return nil
}

// ArchiveSession makes a session read-only, for good, and destroys its sandbox. Archiving twice is the same as once.
func (c *Control) ArchiveSession(ctx context.Context, by outboard.Caller, id outboard.SessionID) (Session, error) {
	if err := requireDeveloper(by, scopeSessions); err != nil {
		return Session{}, err
	}
	h, err := c.header(ctx, by, id)
	if err == nil && h.Phase == outboard.PhaseTerminated {
		store.Unchanged(ctx)
		return c.Session(ctx, by, id)
	}
	s, err := c.edit(ctx, by, id, func(s *Session) (store.Commit, error) {
		if err := c.atRest(s, "archived"); err != nil {
			return store.Commit{}, err
		}
		if err := c.record(ctx, by, "session.archive", string(id), nil); err != nil {
			return store.Commit{}, err
		}
		return store.Commit{Events: []outboard.Event{outboard.NewEvent(s.Thread, &outboard.SessionArchived{})}}, nil
	})
	if err != nil {
		return s, err
	}
	c.closeApprovals(ctx, id, nil)
	c.settleLost(ctx, id)
	c.destroy(ctx, id)
	return s, nil
}

// DeleteSession removes a session and everything of it.
func (c *Control) DeleteSession(ctx context.Context, by outboard.Caller, id outboard.SessionID) error {
	if err := requireDeveloper(by, scopeSessions); err != nil {
		return err
	}
	h, err := c.header(ctx, by, id)
	if err != nil {
		return err
	}
	if err := c.atRest(&Session{Header: h}, "deleted"); err != nil {
		return err
	}
	if err := c.record(ctx, by, "session.delete", string(id), nil); err != nil {
		return err
	}
	if err := c.store.DeleteSession(ctx, id); err != nil {
		return wrapLookup("session", string(id), err)
	}
	c.closeApprovals(ctx, id, nil)
	c.settleLost(ctx, id)
	c.destroy(ctx, id)
	return nil
}

// atRest refuses a session that is working.
func (c *Control) atRest(s *Session, verb string) error {
	switch st := c.Status(&s.Header); st {
	case outboard.PhaseRunning, outboard.PhaseRetrying:
		return invalid("session %s is %s and cannot be %s", s.ID, st, verb).
			WithHint("send user.interrupt and wait until it is idle")
	}
	return nil
}

// destroy removes the session's sandbox. The session's end is durable already, so a failure here is the reaper's
// to repair.
func (c *Control) destroy(ctx context.Context, id outboard.SessionID) {
	if c.fleet == nil {
		return
	}
	if err := c.fleet.Destroy(context.WithoutCancel(ctx), id); err != nil {
		c.log.Warn("destroying the sandbox of an ended session", "session", id, "err", err)
	}
}

// editTries bounds how often an edit is decided again because the log moved. A running session appends all the
// time, but each try is one read and one append.
const editTries = 32

// edit decides a commit on the session as it is and applies it only if nothing was appended meanwhile. decide
// changes s to what the session will be; a commit without events changes nothing.
func (c *Control) edit(ctx context.Context, by outboard.Caller, id outboard.SessionID,
	decide func(s *Session) (store.Commit, error)) (Session, error) {
	for try := 1; ; try++ {
		s, err := c.Session(ctx, by, id)
		if err != nil {
			return s, err
		}
		if s.Phase == outboard.PhaseTerminated {
			return s, archived(id)
		}
		cm, err := decide(&s)
		if err != nil || len(cm.Events) == 0 {
			return s, err
		}
		cm.Session, cm.Expect = id, s.Head
		_, err = c.store.Commit(ctx, cm)
		switch {
		case err == nil:
			return c.Session(ctx, by, id)
		case errors.Is(err, store.ErrMoved) && try < editTries:
			continue
		}
		return s, commitErr(id, err)
	}
}

func archived(id outboard.SessionID) error {
	return invalid("session %s was stopped (archived): its log stays, and it takes nothing more", id).
		WithHint("outboard fork %s goes on in a new session, with its conversation and its files", id)
}

// commitErr says what a refused commit means to a client.
func commitErr(id outboard.SessionID, err error) error {
	switch {
	case errors.Is(err, store.ErrTerminated):
		return archived(id)
	case outboard.KindOf(err) == outboard.NotFound:
		return notFound("session", string(id))
	case errors.Is(err, store.ErrMoved):
		return outboard.Errorf(outboard.Conflict, "session %s keeps changing: %w", id, err)
	}
	return outboard.Errorf(outboard.KindOf(err), "appending to session %s: %w", id, err)
}

func equalMetadata(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if w, ok := b[k]; !ok || v != w {
			return false
		}
	}
	return true
}
