package api

import (
	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

type killOut struct {
	Type     string  `json:"type"`
	ID       string  `json:"id"`
	Scope    string  `json:"scope"`
	Target   *string `json:"target_id"`
	Level    string  `json:"level"`
	Reason   *string `json:"reason"`
	By       *string `json:"by"`
	At       string  `json:"created_at"`
	LiftedAt *string `json:"lifted_at"`
}

func showKill(k outboard.Kill) killOut {
	return killOut{"kill", string(k.ID), string(k.Scope), textOrNull(k.Target), string(k.Level), textOrNull(k.Reason),
		textOrNull(k.By), stamp(k.At),
		stampOrNull(k.LiftedAt)}
}

type inFlightOut struct {
	Session string `json:"session_id"`
	Event   string `json:"event_id"`
	What    string `json:"what"`
	Outcome string `json:"outcome"`
}

type killReportOut struct {
	Type     string        `json:"type"`
	Kill     killOut       `json:"kill"`
	InFlight []inFlightOut `json:"in_flight"`
	Partial  bool          `json:"in_flight_partial"`
	Machines int           `json:"machines_left"`
	Flows    int           `json:"flows_left"`
	Took     float64       `json:"took_seconds"`
}

func showKillReport(r control.KillReport) killReportOut {
	out := killReportOut{"kill_report", showKill(r.Kill), []inFlightOut{}, r.Partial, r.Machines, r.Flows,
		r.Took.Seconds()}
	for _, f := range r.InFlight {
		out.InFlight = append(out.InFlight, inFlightOut{string(f.Session), string(f.Call), f.What, f.Outcome})
	}
	return out
}

func (s *server) kill(r *request) (any, error) {
	var in struct {
		ID     string `json:"id"`
		Scope  string `json:"scope" need:"yes"`
		Target string `json:"target_id"`
		Level  string `json:"level"`
		Reason string `json:"reason"`
		Ahead  bool   `json:"ahead"`
	}
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	k := outboard.Kill{ID: outboard.KillID(in.ID), Scope: outboard.KillScope(in.Scope), Target: in.Target,
		Level: outboard.KillLevel(in.Level), Reason: in.Reason}
	rep, err := s.ctl.Kill(r.Context(), r.by, control.NewKill{Kill: k, Ahead: in.Ahead})
	if err != nil {
		return nil, err
	}
	return showKillReport(rep), nil
}

func (s *server) listKills(r *request) (any, error) {
	list, err := s.ctl.Kills(r.Context(), r.by)
	if err != nil {
		return nil, err
	}
	out := listOut[killOut]{Data: []killOut{}}
	for _, k := range list {
		out.Data = append(out.Data, showKill(k))
	}
	return out, nil
}

func (s *server) liftKill(r *request) (any, error) {
	id := outboard.KillID(r.PathValue("kill"))
	if err := s.ctl.LiftKill(r.Context(), r.by, id); err != nil {
		return nil, err
	}
	return deletedOut{string(id), "kill_lifted"}, nil
}
