package e2b

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// goneBody is how the proxy says that a box does not run.
type goneBody struct {
	SandboxID string `json:"sandboxId"`
	Message   string `json:"message"`
	Port      uint16 `json:"port,omitempty"`
	Code      int    `json:"code"`
}

// gone answers that a box is not there, or not running: 502 is what the SDKs take for that.
func gone(w http.ResponseWriter, id outboard.BoxID) {
	reply(w, http.StatusBadGateway, goneBody{SandboxID: string(id), Message: "The sandbox was not found",
		Code: http.StatusBadGateway})
}

// visit is a request to a box.
type visit struct {
	*http.Request
	w   http.ResponseWriter
	s   *Server
	box outboard.Box
	m   control.Sandbox
}

// box answers a request to a port of a box.
func (s *Server) box(w http.ResponseWriter, r *http.Request, id outboard.BoxID, port uint16) {
	if port != envdPort {
		s.port(w, r, id, port)
		return
	}
	cors(w)
	if r.Method == http.MethodOptions {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	token, open := r.Header.Get("X-Access-Token"), r.URL.Path == "/health" || r.URL.Path == "/files"
	admitted := func(b *outboard.Box) bool { return control.HasSecret(b.Secret, token) }
	b, err := s.ctl.BoxSecret(r.Context(), id, func(b *outboard.Box) bool { return open || admitted(b) })
	if err == nil && r.URL.Path == "/files" && !admitted(&b) {
		err = checkSignature(r, &b, s.ctl.Now())
	}
	s.enter(w, r, id, b, err)
}

// signedFiles answers a request for a file whose signature says which box it is for.
func (s *Server) signedFiles(w http.ResponseWriter, r *http.Request) {
	cors(w)
	id, err := s.handed.signer(r)
	if err != nil {
		s.stranger(r, "signed file", err)
		fail(w, err)
		return
	}
	b, err := s.ctl.BoxSecret(r.Context(), id, func(b *outboard.Box) bool { return signed(r, b.Secret) })
	if err == nil {
		err = checkSignature(r, &b, s.ctl.Now()) // it may be over
	}
	s.enter(w, r, id, b, err)
}

// enter lets an admitted request at the machine.
func (s *Server) enter(w http.ResponseWriter, r *http.Request, id outboard.BoxID, b outboard.Box, err error) {
	ctx, end := context.WithCancel(r.Context())
	defer end()
	v := &visit{Request: r.WithContext(ctx), w: w, s: s, box: b}
	if err == nil {
		v.m, err = s.ctl.VisitBox(ctx, b)
	}
	if err == nil {
		go s.ctl.WhileHeld(ctx, end, b)
	}
	s.stranger(r, "agent", err)
	switch kind := outboard.KindOf(err); {
	case err == nil:
		v.envd()
	case kind == outboard.NotFound, kind == outboard.Conflict:
		gone(w, id)
	default:
		fail(w, err)
	}
}

// cors lets pages use a box: what admits them is the token, which no browser sends by itself.
func cors(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE")
	h.Set("Access-Control-Allow-Headers", "*")
	h.Set("Access-Control-Expose-Headers", "Grpc-Status, Grpc-Message, Grpc-Status-Details-Bin, "+
		"Content-Disposition, Content-Range")
	h.Set("Access-Control-Max-Age", "7200")
}

// envd routes a request to the agent.
func (v *visit) envd() {
	name, rpc := strings.CutPrefix(v.URL.Path, "/process.Process/")
	if !rpc {
		name, rpc = strings.CutPrefix(v.URL.Path, "/filesystem.Filesystem/")
	}
	if rpc {
		v.rpc(name)
		return
	}
	switch v.Method + " " + v.URL.Path {
	case "GET /health":
		v.w.WriteHeader(http.StatusNoContent)
	case "GET /metrics":
		v.metrics()
	case "GET /envs":
		reply(v.w, http.StatusOK, v.box.Environ())
	case "GET /files", "HEAD /files":
		v.readFile()
	case "POST /files":
		v.writeFiles()
	case "POST /files/compose":
		v.compose()
	default:
		fail(v.w, outboard.Errorf(outboard.NotFound, "there is nothing at %s", v.URL.Path))
	}
}

// user returns the OS user that a request is for; "" is the default one.
func (v *visit) user() string {
	if u := v.URL.Query().Get("username"); u != "" {
		return u
	}
	if b64, ok := strings.CutPrefix(v.Header.Get("Authorization"), "Basic "); ok {
		if b, err := base64.StdEncoding.DecodeString(b64); err == nil {
			name, _, _ := strings.Cut(string(b), ":")
			return name
		}
	}
	return ""
}

func (v *visit) ref(path string) control.FileRef {
	return control.FileRef{Path: control.Name(path), User: v.user()}
}

// failed answers a plain request that the machine did not carry out.
func (v *visit) failed(err error) {
	e, ok := errors.AsType[*control.Refusal](err)
	switch kind := outboard.KindOf(err); {
	case v.Context().Err() != nil:
	case !ok && (kind == outboard.NotFound || kind == outboard.Unavailable || kind == outboard.Internal):
		gone(v.w, v.box.ID) // the machine has ended, or the connection to it has
	case !ok:
		fail(v.w, err)
	default:
		status := refusals[e.Code].http
		if status == 0 {
			status = http.StatusInternalServerError
		}
		reply(v.w, status, errorBody{status, e.Message})
	}
}

// refusal is how a machine's refusal is shown: as a status, and as the code of an RPC.
type refusal struct {
	http int
	rpc  string
}

var refusals = map[string]refusal{
	"not_found": {http.StatusNotFound, "not_found"},
	"invalid":   {http.StatusBadRequest, "invalid_argument"},
	"conflict":  {http.StatusConflict, "already_exists"},
	"denied":    {http.StatusUnauthorized, "unauthenticated"},
	"busy":      {http.StatusTooManyRequests, "resource_exhausted"},
	"full":      {http.StatusInsufficientStorage, "resource_exhausted"},
	"internal":  {http.StatusInternalServerError, "internal"},
}

func (v *visit) metrics() {
	samples := v.s.ctl.VisitSamples(v.box)
	var m metricOut
	if len(samples) > 0 {
		m = showSample(samples[len(samples)-1])
	}
	reply(v.w, http.StatusOK, map[string]any{"ts": m.TimestampUnix, "cpu_count": m.CPUCount,
		"cpu_used_pct": m.CPUUsedPct,
		"mem_total":    m.MemTotal, "mem_used": m.MemUsed, "mem_cache": m.MemCache, "mem_total_mib": m.MemTotal >> 20,
		"mem_used_mib": m.MemUsed >> 20, "disk_used": m.DiskUsed, "disk_total": m.DiskTotal})
}
