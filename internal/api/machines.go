package api

import (
	"time"

	"github.com/outboard-dev/outboard"
)

// The machines behind sessions and boxes: Outboard's own resource.

type machineOut struct {
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

func showMachine(b outboard.Sandbox) machineOut {
	return machineOut{Type: "machine", ID: string(b.ID), Session: string(b.Session), Environment: string(b.Environment), Owner: string(b.Owner),
		State: b.State, Why: b.Why, Provider: b.Provider, Host: b.Host, CreatedAt: b.CreatedAt, UpdatedAt: b.UpdatedAt}
}

func machineID(r *request) outboard.SandboxID { return outboard.SandboxID(r.PathValue("machine")) }

func (s *server) listMachines(r *request) (any, error) {
	all, err := s.ctl.Sandboxes(r.Context(), r.by)
	if err != nil {
		return nil, err
	}
	data := make([]machineOut, len(all))
	for i := range all {
		data[i] = showMachine(all[i])
	}
	return map[string]any{"data": data, "next_page": nil}, nil
}

func (s *server) stopMachine(r *request) (any, error) {
	if err := r.empty(); err != nil {
		return nil, err
	}
	b, err := s.ctl.StopSandbox(r.Context(), r.by, machineID(r))
	if err != nil {
		return nil, err
	}
	return showMachine(b), nil
}

func (s *server) killMachine(r *request) (any, error) {
	id := machineID(r)
	return map[string]any{"type": "machine_deleted", "id": id}, s.ctl.KillSandbox(r.Context(), r.by, id)
}
