package api

import (
	"io"
	"strconv"

	"github.com/outboard-dev/outboard"
)

// workspace sends the session's newest saved workspace as a tar: Outboard's own, and what diff, apply and pull
// are made from.
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

// sentWorkspace sends what the session's workspace began as: what diff and apply compare with on a machine that
// did not send it.
func (s *server) sentWorkspace(r *request) (any, error) {
	f, kind, body, err := s.ctl.SentWorkspace(r.Context(), r.by, outboard.SessionID(r.PathValue("session")))
	if err != nil {
		return nil, err
	}
	defer body.Close()
	h := r.w.Header()
	h.Set("Content-Type", "application/x-tar")
	if kind != "tar" {
		h.Set("Content-Type", "application/gzip")
	}
	h.Set("Content-Length", strconv.FormatInt(f.Blob.Size, 10))
	h.Set("Content-Disposition", `attachment; filename="sent.`+kind+`"`)
	h.Set("X-Content-Type-Options", "nosniff")
	if _, err := io.Copy(r.w, body); err != nil {
		s.cut(r, err)
	}
	return nil, nil
}
