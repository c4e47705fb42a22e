package api

import (
	"time"

	"github.com/outboard-dev/outboard"
)

// The sandboxes behind sessions and boxes: Outboard's own resource.

type sandboxOut struct {
	Type        string    `json:"type"` // "machine"
	ID          string    `json:"id"`
	Session     string    `json:"session_id"` // "" of a box
	Environment string    `json:"environment_id"`
	Owner       string    `json:"owner"`
	State       string    `json:"state"` // creating, live, stopping, stopped
	Why         string    `json:"why"`
	Provider    string    `json:"provider"`
	Host        string    `json:"host"`
	CreatedAt   time.Time `json:"created_at"`
	UpdatedAt   time.Time `json:"updated_at"`
}

func showSandbox(b outboard.Sandbox) sandboxOut {
	return sandboxOut{Type: "machine", ID: string(b.ID), Session: string(b.Session), Environment: string(b.Environment),
		Owner: string(b.Owner),
		State: b.State, Why: b.Why, Provider: b.Provider, Host: b.Host, CreatedAt: b.CreatedAt, UpdatedAt: b.UpdatedAt}
}

func sandboxID(r *request) outboard.SandboxID { return outboard.SandboxID(r.PathValue("sandbox")) }

func (s *server) listSandboxes(r *request) (any, error) {
	all, err := s.ctl.Sandboxes(r.Context(), r.by)
	if err != nil {
		return nil, err
	}
	data := make([]sandboxOut, len(all))
	for i := range all {
		data[i] = showSandbox(all[i])
	}
	return map[string]any{"data": data, "next_page": nil}, nil
}

func (s *server) stopSandbox(r *request) (any, error) {
	if err := r.empty(); err != nil {
		return nil, err
	}
	b, err := s.ctl.StopSandbox(r.Context(), r.by, sandboxID(r))
	if err != nil {
		return nil, err
	}
	return showSandbox(b), nil
}

func (s *server) killSandbox(r *request) (any, error) {
	id := sandboxID(r)
	return map[string]any{"type": "machine_deleted", "id": id}, s.ctl.KillSandbox(r.Context(), r.by, id)
}
