package api

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// exportSession sends a session as one file: Outboard's own, described in docs/reference/export.md.
func (s *server) exportSession(r *request) (any, error) {
	var seq int64
	if v := r.query.Get("seq"); v != "" {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n < 1 {
			return nil, bad("seq: must be an integer from 1, not %q", clip(v))
		}
		seq = n
	}
	x, err := s.ctl.Export(r.Context(), r.by, outboard.SessionID(r.PathValue("session")), seq)
	if err != nil {
		return nil, err
	}
	h := r.w.Header()
	h.Set("Content-Type", "application/zstd")
	h.Set("Content-Disposition", `attachment; filename="`+x.Name()+`"`)
	h.Set("X-Content-Type-Options", "nosniff")
	signedBy(h, x.SignedBy())
	h.Set("Outboard-Seq", strconv.FormatInt(x.Seq(), 10))
	if left := x.LeftBehind(); len(left) > 0 {
		h.Set("Outboard-Left-Behind", strings.Join(left, ", "))
	}
	if err := x.Write(r.Context(), r.w); err != nil {
		s.cut(r, err)
	}
	return nil, nil
}

// importSession makes a session from such a file, which is the request's body.
func (s *server) importSession(r *request) (any, error) {
	q := control.ImportRequest{Environment: outboard.EnvironmentID(r.query.Get("environment_id")),
		Model: r.query.Get("model")}
	if r.query.Has("title") {
		q.Title = new(r.query.Get("title"))
	}
	q.Trust, q.Unsigned = r.query.All("trust"), r.query.Get("unsigned") == "true"
	v, err := s.ctl.Import(r.Context(), r.by, http.MaxBytesReader(r.w, r.Body, control.MaxImport), q)
	if err != nil {
		return nil, err
	}
	signedBy(r.w.Header(), v.SignedBy)
	out := s.showSession(v.Session)
	return out, s.addOwn(r, v.Session, &out)
}

// signedBy names the public key that signed an export.
func signedBy(h http.Header, key string) {
	if key != "" {
		h.Set("Outboard-Signed-By", key)
	}
}
