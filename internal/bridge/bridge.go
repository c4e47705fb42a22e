// Package bridge speaks the protocol of Cloudflare's sandbox bridge. With it, the sandbox client of
// the OpenAI Agents SDK that takes an explicit worker URL uses boxes of this server: worker_url is
// the server's address with Prefix, the API key is a key of the server.
//
// Invariants:
//   - A handler decodes, makes one control call or asks the sandbox that control gave it, and
//     encodes. Nothing is decided here.
//   - What moves a workspace in or out runs inside the box, with the rights of its user. No archive
//     is read on the host.
//   - Errors are {"error", "code"}. What is not built answers 501 in that shape.
//
// Start reading at Server and the routes in bridge.go.
package bridge

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// Prefix is where the protocol begins on a server: its clients append /v1/sandbox to the address they are given.
const Prefix = "/bridge"

// Limits of a request.
const (
	maxJSON = 1 << 20
	// keep is how long a box lives after its last request; then it is paused, and the next request wakes it.
	keep = time.Hour
	// writeTimeout is how long one write to a stream may take before its reader counts as gone.
	writeTimeout = 30 * time.Second
	// endTimeout bounds what is done for a client that has gone.
	endTimeout = 10 * time.Second
)

// Config makes a handler.
type Config struct {
	Control *control.Control
	Logger  *slog.Logger // nil = discard
	// Ports says where ports of boxes are served: PORT-BOX.domain. domain "" = nowhere. nil = nowhere.
	Ports func() (scheme, domain string)
}

// Server is the handler of everything below Prefix. It is safe for concurrent use and holds no state.
type Server struct {
	ctl *control.Control
	log *slog.Logger
	mux *http.ServeMux

	ports func() (scheme, domain string)
}

// New returns a handler.
func New(cfg Config) *Server {
	s := &Server{ctl: cfg.Control, log: cfg.Logger, mux: http.NewServeMux(), ports: cfg.Ports}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	allowed := map[string][]string{} // methods by path
	for route, verb := range s.routes() {
		s.mux.HandleFunc(route, s.handle(verb))
		method, path, _ := strings.Cut(route, " ")
		allowed[path] = append(allowed[path], method)
	}
	for path, methods := range allowed { // the pattern of all paths would take these too
		slices.Sort(methods)
		s.mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", strings.Join(methods, ", "))
			reply(w, http.StatusMethodNotAllowed, errorBody{r.Method + " is not allowed here, but " +
				strings.Join(methods, " and "), "method_not_allowed"})
		})
	}
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, outboard.Errorf(outboard.NotFound, "there is nothing at %s %s", r.Method, r.URL.Path))
	})
	return s
}

func (s *Server) routes() map[string]func(*request) error {
	const box = Prefix + "/v1/sandbox/{id}"
	return map[string]func(*request) error{
		"POST " + Prefix + "/v1/sandbox":   s.create,
		"DELETE " + box:                    s.remove,
		"GET " + box + "/running":          s.running,
		"POST " + box + "/exec":            s.exec,
		"GET " + box + "/file/{path...}":   s.read,
		"PUT " + box + "/file/{path...}":   s.write,
		"POST " + box + "/persist":         s.persist,
		"POST " + box + "/hydrate":         s.hydrate,
		"GET " + box + "/pty":              s.pty,
		"POST " + box + "/mount":           unbuilt,
		"POST " + box + "/unmount":         unbuilt,
		"POST " + box + "/session":         s.newSession,
		"DELETE " + box + "/session/{sid}": s.endSession,
		"POST " + box + "/tunnel/{port}":   s.openTunnel,
		"DELETE " + box + "/tunnel/{port}": s.closeTunnel,
	}
}

// request is one request of somebody who is known.
type request struct {
	*http.Request
	w  http.ResponseWriter
	by outboard.Caller
}

func (r *request) id() outboard.BoxID { return outboard.BoxID(r.PathValue("id")) }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer s.recover(w, r)
	s.mux.ServeHTTP(w, r)
}

func (s *Server) recover(w http.ResponseWriter, r *http.Request) {
	v := recover()
	if v == nil {
		return
	}
	if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(v) // our own way to cut a connection
	}
	s.log.Error("bridge handler panicked", "method", r.Method, "path", r.URL.Path, "panic", v, "stack",
		string(debug.Stack()))
	fail(w, outboard.Errorf(outboard.Internal, "panic"))
}

// handle finds out who asks, and answers with what went wrong.
func (s *Server) handle(verb func(*request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		scheme, key, ok := strings.Cut(r.Header.Get("Authorization"), " ")
		if !ok || !strings.EqualFold(scheme, "Bearer") {
			key = ""
		}
		by, err := s.ctl.Authenticate(r.Context(), strings.TrimSpace(key))
		if err == nil {
			err = verb(&request{r, w, by})
		}
		if err == nil {
			return
		}
		if outboard.KindOf(err) == outboard.Internal {
			s.log.Error("bridge request failed", "method", r.Method, "path", r.URL.Path, "err", err)
		}
		s.ctl.Refused(r.Context(), by, control.RefusedRequest{Route: r.Pattern, Path: r.URL.Path, From: r.RemoteAddr,
			Why: err})
		fail(w, err)
	}
}

// unbuilt answers for what the protocol has and this server has not.
func unbuilt(r *request) error {
	return outboard.Errorf(outboard.Unimplemented, "%s %s is part of the protocol and not built here: a box mounts "+
		"no buckets, which would need the right to mount "+
		"and a credential inside it; PUT .../file/PATH puts a file in, POST .../hydrate a whole tar, and POST "+
		".../persist gets one out", r.Method, r.URL.Path)
}

// create makes a box. The protocol says nothing about it, so it is the base template, and lives until nobody has
// used it for a while.
func (s *Server) create(r *request) error {
	b, err := s.ctl.CreateBox(r.Context(), r.by, control.BoxSpec{Template: control.BaseTemplate, TTL: keep,
		Metadata: map[string]string{"made_by": "bridge"}, OnTimeout: outboard.TimeoutPolicy{Pause: true, Resume: true}})
	if err != nil {
		return err
	}
	reply(r.w, http.StatusOK, map[string]string{"id": string(b.ID)})
	return nil
}

func (s *Server) remove(r *request) error {
	if err := s.ctl.KillBox(r.Context(), r.by, r.id()); err != nil {
		return err
	}
	r.w.WriteHeader(http.StatusNoContent)
	return nil
}

// running wakes a box that is paused: who asks is about to use it, and would take a paused one for one whose
// workspace is lost.
func (s *Server) running(r *request) error {
	b, _, err := s.ctl.ResumeBox(r.Context(), r.by, r.id(), keep)
	if err != nil {
		return err
	}
	reply(r.w, http.StatusOK, map[string]bool{"running": b.State == outboard.BoxRunning})
	return nil
}

// machine returns the machine of the request's box, and gives the box more time.
func (s *Server) machine(r *request) (control.Sandbox, error) {
	m, err := s.ctl.UseBox(r.Context(), r.by, r.id())
	if err != nil {
		return nil, err
	}
	b, err := s.ctl.Box(r.Context(), r.by, r.id())
	if err == nil && time.Until(b.EndAt) < keep/2 { // not a write for every request
		_, err = s.ctl.ExtendBox(r.Context(), r.by, r.id(), keep)
	}
	return m, err
}

type errorBody struct {
	Error string `json:"error"`
	Code  string `json:"code"`
}

var statuses = map[outboard.Kind]int{
	outboard.Invalid: http.StatusBadRequest, outboard.Unauthenticated: http.StatusUnauthorized, outboard.Denied: http.StatusForbidden,
	outboard.NotFound: http.StatusNotFound, outboard.Conflict: http.StatusConflict, outboard.TooLarge: http.StatusRequestEntityTooLarge,
	outboard.Exhausted: http.StatusTooManyRequests, outboard.Unavailable: http.StatusServiceUnavailable,
	outboard.Unimplemented: http.StatusNotImplemented, outboard.Canceled: 499,
}

// explain is an error as the protocol has it. The text of an internal one does not leave the server.
func explain(err error) (int, errorBody) {
	kind := outboard.KindOf(err)
	if status, ok := statuses[kind]; ok {
		return status, errorBody{outboard.PublicOf(err), string(kind)}
	}
	return http.StatusInternalServerError, errorBody{"internal server error", string(outboard.Internal)}
}

func fail(w http.ResponseWriter, err error) {
	status, body := explain(err)
	reply(w, status, body)
}

// reply writes v as JSON. A client that went away is nobody's error.
func reply(w http.ResponseWriter, status int, v any) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}
