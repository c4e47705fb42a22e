// Package api is the public HTTP API. It owns the wire of Managed Agents, so that the official SDKs
// and tools need only another base URL. Outboard's own additions share its style and appear only
// where a client asks for them (include[]=outboard).
//
// Invariants:
//   - A handler decodes, makes one control call and encodes. Nothing is decided here.
//   - Every response, errors included, is JSON with a request-id header.
//   - What the wire defines and this server does not do answers 501, never a pretended success.
//
// It never reads the store, a sandbox or a secret.
//
// Start reading at the route table in routes.go, then follow one handler. The wire*.go files hold
// the shapes. The translate*.go files turn log events into wire events and client events into
// inputs; both are pure.
package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// Config makes a handler.
type Config struct {
	Control *control.Control
	Logger  *slog.Logger // nil = discard
	// Hosts are the names this server may be called by, besides IP addresses and localhost; "*" allows any. A
	// request under another name is refused: it is how a web page reaches a loopback server through a name of
	// its own (DNS rebinding).
	Hosts []string
	// Keepalive is how often a silent stream sends a comment; 0 = 30 s, as the wire does.
	Keepalive time.Duration
	// WriteTimeout is how long one write to a stream may take before its reader counts as gone; 0 = 30 s.
	WriteTimeout time.Duration
	Now          func() time.Time // nil = time.Now
	// Unrecorded is told the route of a request that succeeded and changes something, but left no record in the
	// audit: a mistake of this program. nil = the log is told.
	Unrecorded func(route string)
}

const (
	defaultKeepalive    = 30 * time.Second
	defaultWriteTimeout = 30 * time.Second
)

// server holds what handlers share.
type server struct {
	ctl          *control.Control
	log          *slog.Logger
	hosts        []string
	keepalive    time.Duration
	writeTimeout time.Duration
	now          func() time.Time
	unrecorded   func(route string)
}

// New returns the handler. Streams end when their request's context does, so whoever serves it cancels the base
// context before it waits for connections.
func New(cfg Config) http.Handler {
	s := &server{ctl: cfg.Control, log: cfg.Logger, hosts: cfg.Hosts, keepalive: cfg.Keepalive,
		writeTimeout: cfg.WriteTimeout, now: cfg.Now, unrecorded: cfg.Unrecorded}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.keepalive <= 0 {
		s.keepalive = defaultKeepalive
	}
	if s.writeTimeout <= 0 {
		s.writeTimeout = defaultWriteTimeout
	}
	if s.now == nil {
		s.now = time.Now
	}
	if s.unrecorded == nil {
		s.unrecorded = func(route string) { s.log.Error("a change has no record in the audit", "route", route) }
	}
	return s.recovering(s.hosted(s.fromHere(s.routes())))
}

type requestIDKey struct{}

// requestID returns the id that the response's request-id header carries.
func requestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

// recovering names the request and turns a panic into a 500 with its stack in the log.
func (s *server) recovering(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := outboard.NewID[string](outboard.PrefixRequest)
		w.Header().Set("request-id", id)
		r = r.WithContext(context.WithValue(r.Context(), requestIDKey{}, id))
		defer func() {
			v := recover()
			if v == nil {
				return
			}
			if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				panic(v) // net/http's own way to cut a response short
			}
			s.log.Error("handler panicked", "request", id, "method", r.Method, "path", r.URL.Path, "panic", v, "stack",
				string(debug.Stack()))
			s.fail(w, r, outboard.Errorf(outboard.Internal, "panic"))
		}()
		next.ServeHTTP(w, r)
	})
}
