package control

import (
	"context"

	"github.com/outboard-dev/outboard"
)

// ownIDs decides whose the agent and the environment of the session are. Budgets, policies, kills and limits go
// by these ids, and whoever wrote the file chose them: one that the importing organization has stays, and any
// other becomes one that nobody has. What is another organization's and what nobody has ever heard of are
// treated alike, for who imports could tell them apart otherwise.
func (m *importing) ownIDs(ctx context.Context, by outboard.Caller) error {
	s := &m.session
	_, err := m.c.Agent(ctx, by, s.AgentID, 0)
	if err != nil && outboard.KindOf(err) != outboard.NotFound {
		return err
	}
	if err != nil {
		s.AgentID = outboard.NewID[outboard.AgentID](outboard.PrefixAgent)
	}
	_, err = m.c.Environment(ctx, by, s.Environment)
	if err != nil && outboard.KindOf(err) != outboard.NotFound {
		return err
	}
	if err != nil {
		s.Environment = outboard.NewID[outboard.EnvironmentID](outboard.PrefixEnvironment)
	}
	m.owned(&s.Config)
	return nil
}

// owned lays over a config what was decided about the session: the ids, and the environment, which was checked.
// The configs in the log need it as well, since a fork at a position of the log begins with the one that held
// there.
func (m *importing) owned(cfg *outboard.SessionConfig) {
	s := &m.session
	cfg.Agent.ID, cfg.Environment, cfg.Env = s.AgentID, s.Environment, s.Config.Env
}

// rename makes a payload of the log this server's, and reports whether it has changed it.
func (m *importing) rename(p outboard.Payload) bool {
	switch p := p.(type) {
	case *outboard.SessionCreated:
		m.owned(&p.Config)
	case *outboard.SessionForked:
		m.owned(&p.Config)
	// or the next export would look for the file under a name that only the first server knows
	case *outboard.FileHarvested:
		id, came := m.newFiles[p.File]
		if came {
			p.File = id
		}
		return came
	case *outboard.ContextCompacted: // nobody has checked its base against the log
		had := p.Base != nil
		p.Base = nil
		return had
	default:
		return false
	}
	return true
}
