package api

import (
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

type sessionOut struct {
	Type          string            `json:"type"`
	ID            string            `json:"id"`
	Status        string            `json:"status"`
	Title         *string           `json:"title"`
	Metadata      map[string]string `json:"metadata"`
	Agent         sessionAgentOut   `json:"agent"`
	EnvironmentID string            `json:"environment_id"`
	Resources     []resourceOut     `json:"resources"`
	VaultIDs      []string          `json:"vault_ids"`
	Outcomes      []struct{}        `json:"outcome_evaluations"`
	Usage         usageOut          `json:"usage"`
	Stats         statsOut          `json:"stats"`
	Budget        *limitOut         `json:"budget"`
	DeploymentID  *string           `json:"deployment_id"`
	CreatedAt     string            `json:"created_at"`
	UpdatedAt     string            `json:"updated_at"`
	ArchivedAt    *string           `json:"archived_at"`
	Outboard      *sessionOwn       `json:"outboard,omitempty"` // only for those who ask
}

type resourceOut struct {
	Type      string `json:"type"`
	ID        string `json:"id"`
	FileID    string `json:"file_id"`
	MountPath string `json:"mount_path"`
	CreatedAt string `json:"created_at"`
	UpdatedAt string `json:"updated_at"`
}

type usageOut struct {
	Input         int64         `json:"input_tokens"`
	Output        int64         `json:"output_tokens"`
	CacheRead     int64         `json:"cache_read_input_tokens"`
	CacheCreation cacheCreation `json:"cache_creation"`
	Active        float64       `json:"active_seconds"`
	ListCost      *moneyOut     `json:"list_cost,omitempty"` // the wire has none rather than null
	ServerTools   serverTools   `json:"server_tool_use"`
}

// serverTools counts what the wire bills by the request, which this server does not: its web_fetch runs here, and
// web_search is not built.
type serverTools struct {
	Searches int64 `json:"web_search_requests"`
	Fetches  int64 `json:"web_fetch_requests"`
}

type cacheCreation struct {
	Hour        int64 `json:"ephemeral_1h_input_tokens"`
	FiveMinutes int64 `json:"ephemeral_5m_input_tokens"`
}

type statsOut struct {
	Duration float64 `json:"duration_seconds"`
	Active   float64 `json:"active_seconds"`
}

type threadOut struct {
	Type          string         `json:"type"`
	ID            string         `json:"id"`
	SessionID     string         `json:"session_id"`
	WorkflowRunID *string        `json:"workflow_run_id"`
	Status        string         `json:"status"`
	Agent         threadAgentOut `json:"agent"`
	ParentID      *string        `json:"parent_thread_id"`
	CreatedAt     string         `json:"created_at"`
	UpdatedAt     string         `json:"updated_at"`
	ArchivedAt    *string        `json:"archived_at"`
	Usage         *usageOut      `json:"usage"`
	Stats         *statsOut      `json:"stats"`
}

// active is how long the session has been running in all, up to now.
func active(h *outboard.Header, now time.Time) float64 {
	d := h.Active
	if !h.RunningSince.IsZero() && h.Phase == outboard.PhaseRunning {
		d += max(0, now.Sub(h.RunningSince))
	}
	return d.Seconds()
}

func showUsage(h *outboard.Header, now time.Time) usageOut {
	u := h.Usage
	return usageOut{u.Input, u.Output, u.CacheRead, cacheCreation{u.CacheWrite1h, u.CacheWrite5m}, active(h, now),
		listCost(u.Cost), serverTools{}}
}

func showStats(h *outboard.Header, now time.Time) statsOut {
	end := now
	if !h.ArchivedAt.IsZero() {
		end = h.UpdatedAt // frozen at the final update
	}
	return statsOut{max(0, end.Sub(h.CreatedAt)).Seconds(), active(h, now)}
}

func showResource(r outboard.Resource) resourceOut {
	return resourceOut{r.Kind, string(r.ID), string(r.File), r.MountPath, stamp(r.CreatedAt), stamp(r.UpdatedAt)}
}

func showResources(rs []outboard.Resource) []resourceOut {
	out := make([]resourceOut, 0, len(rs))
	for _, r := range rs {
		out = append(out, showResource(r))
	}
	return out
}

func (s *server) showSession(v control.Session) sessionOut {
	now := s.now()
	return sessionOut{Type: "session", ID: string(v.ID), Status: string(s.ctl.Status(&v.Header)),
		Title:    textOrNull(v.Title),
		Metadata: orEmpty(v.Metadata), Agent: showSessionAgent(&v.Config.Agent), EnvironmentID: string(v.EnvironmentID),
		Resources: showResources(v.Config.Resources), VaultIDs: some(v.Config.VaultIDs), Outcomes: []struct{}{},
		Usage: showUsage(&v.Header, now), Stats: showStats(&v.Header,
			now), Budget: showLimit(v.Config.Budget), CreatedAt: stamp(v.CreatedAt),
		UpdatedAt: stamp(v.UpdatedAt), ArchivedAt: stampOrNull(v.ArchivedAt)}
}

// showThread is the session's only thread, the primary one.
func (s *server) showThread(v control.Session) threadOut {
	now := s.now()
	out := threadOut{Type: "session_thread", ID: string(v.Thread), SessionID: string(v.ID),
		Status: string(s.ctl.Status(&v.Header)),
		Agent:  showThreadAgent(&v.Config.Agent), CreatedAt: stamp(v.CreatedAt), UpdatedAt: stamp(v.UpdatedAt),
		ArchivedAt: stampOrNull(v.ArchivedAt)}
	if v.Stop != nil || v.Active > 0 { // null until the first idle transition
		out.Usage = new(showUsage(&v.Header, now))
	}
	if out.Usage != nil || v.Phase != outboard.PhaseIdle { // null until the first transition
		out.Stats = new(showStats(&v.Header, now))
	}
	return out
}
