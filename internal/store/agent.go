package store

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	"github.com/outboard-dev/outboard"
)

const insertAgentSQL = `INSERT INTO agents (id, version, created_at, archived_at, org) VALUES (?, 1, ?, ?, ?)`

const raiseAgentSQL = `UPDATE agents SET version = ? WHERE id = ? AND version = ?`

const insertVersionOfAgentSQL = `INSERT INTO agent_versions (agent, version, body) VALUES (?, ?, ?)`

// PutAgent inserts one version of an agent: 1 for a new agent, else the one after the latest. Conflict if that version
// exists, or the one before it does not.
func (s *Store) PutAgent(ctx context.Context, a outboard.Agent) error {
	return s.update(ctx, "storing agent", func(t tx) error {
		var n int64 = 1
		var err error
		if a.Version == 1 {
			_, err = t.exec(ctx, insertAgentSQL, string(a.ID), micros(a.CreatedAt), micros(a.ArchivedAt),
				orgText(a.Org))
		} else {
			n, err = t.exec(ctx, raiseAgentSQL, a.Version, string(a.ID), a.Version-1)
		}
		if s.d.unique(err) || err == nil && n == 0 {
			return outboard.Errorf(outboard.Conflict, "agent %s is not at version %d", a.ID, a.Version-1)
		}
		if err != nil {
			return err
		}
		_, err = t.exec(ctx, insertVersionOfAgentSQL, string(a.ID), a.Version, mustJSON(a))
		return err
	})
}

// agentCols are the columns scanAgent reads. Archiving is of the agent, not of one version.
const agentCols = `v.body, a.archived_at, a.org FROM agents AS a JOIN agent_versions AS v ON v.agent = a.id`

func scanAgent(sc scanner) (outboard.Agent, error) {
	var a outboard.Agent
	var body string
	var archived int64
	if err := sc.Scan(&body, &archived, &a.Org); err != nil {
		return a, err
	}
	if err := json.Unmarshal([]byte(body), &a); err != nil {
		return a, outboard.Errorf(outboard.Internal, "decoding agent: %w", err)
	}
	a.ArchivedAt = timeOf(archived)
	return a, nil
}

const latestAgentSQL = `SELECT ` + agentCols + ` AND v.version = a.version WHERE a.id = ?`

const agentVersionSQL = `SELECT ` + agentCols + ` WHERE a.id = ? AND v.version = ?`

// Agent returns a version of an agent; version 0 is the latest.
func (s *Store) Agent(ctx context.Context, id outboard.AgentID, version int) (outboard.Agent, error) {
	if version == 0 {
		return one(ctx, s, "agent", id, scanAgent, latestAgentSQL, string(id))
	}
	return one(ctx, s, "agent", string(id)+" version "+strconv.Itoa(version), scanAgent, agentVersionSQL, string(id),
		version)
}

// Page selects rows newest first. Cursor is the id (for versions: the decimal version) of the last row of the
// page before.
type Page struct {
	Org             outboard.OrgID // "" = of all
	Cursor          string
	Limit           int // 0 = 100
	IncludeArchived bool
	From, To        time.Time // created_at, both inclusive; zero = open
}

// list turns a page into conditions on table, which is ordered by (created_at, id).
func (s *Store) list(ctx context.Context, table string, p Page) (where, error) {
	var w where
	w.in(p.Org)
	if !p.From.IsZero() {
		w.add(`created_at >= ?`, micros(p.From))
	}
	if !p.To.IsZero() {
		w.add(`created_at <= ?`, micros(p.To))
	}
	return w, s.cursor(ctx, &w, table, p.Cursor, false)
}

// Agents returns one page of latest versions.
func (s *Store) Agents(ctx context.Context, p Page) ([]outboard.Agent, error) {
	w, err := s.list(ctx, "agents", p)
	if err != nil {
		return nil, err
	}
	if !p.IncludeArchived {
		w.add(`archived_at = 0`)
	}
	query := `SELECT ` + agentCols + ` AND v.version = a.version` + w.String() + order("created_at, id", false) +
		` LIMIT ?`
	return collect(ctx, s, "listing agents", scanAgent, query, append(w.args, limitOr(p.Limit, defaultPage))...)
}

// AgentVersions returns one page of an agent's versions, newest first. NotFound if there is no such agent.
func (s *Store) AgentVersions(ctx context.Context, id outboard.AgentID, p Page) ([]outboard.Agent, error) {
	if _, err := s.Agent(ctx, id, 0); err != nil {
		return nil, err
	}
	w := where{conds: []string{`a.id = ?`}, args: []any{string(id)}}
	if p.Cursor != "" {
		v, err := strconv.ParseInt(p.Cursor, 10, 32)
		if err != nil {
			return nil, outboard.Errorf(outboard.Invalid, "the page cursor %q is not a version", p.Cursor)
		}
		w.add(`v.version < ?`, v)
	}
	query := `SELECT ` + agentCols + w.String() + order("v.version", false) + ` LIMIT ?`
	return collect(ctx, s, "listing versions of an agent", scanAgent, query,
		append(w.args, limitOr(p.Limit, defaultPage))...)
}

const archiveAgentSQL = `UPDATE agents SET archived_at = ? WHERE id = ? AND archived_at = 0`

// ArchiveAgent marks all versions archived at t and returns the latest. Archiving twice keeps the first time.
func (s *Store) ArchiveAgent(ctx context.Context, id outboard.AgentID, t time.Time) (outboard.Agent, error) {
	err := s.update(ctx, "archiving agent", func(w tx) error {
		_, err := w.exec(ctx, archiveAgentSQL, micros(t), string(id))
		return err
	})
	if err != nil {
		return outboard.Agent{}, err
	}
	return s.Agent(ctx, id, 0)
}
