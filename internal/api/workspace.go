package api

import "github.com/outboard-dev/outboard"

// workspace sends the session's newest saved workspace as a tar: Outboard's own, and what diff, apply and pull are made from.
func (s *server) workspace(r *request) (any, error) {
	ws, err := s.ctl.Workspace(r.Context(), r.by, outboard.SessionID(r.PathValue("session")))
	if err != nil {
		return nil, err
	}
	defer ws.Close()
	h := r.w.Header()
	h.Set("Content-Type", "application/x-tar")
	h.Set("Content-Disposition", `attachment; filename="workspace.tar"`)
	h.Set("X-Content-Type-Options", "nosniff")
	if err := ws.Write(r.Context(), r.w); err != nil {
		s.cut(r, err)
	}
	return nil, nil
}
