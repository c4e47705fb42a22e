// Package e2b speaks the E2B API. Programs written for its SDKs use boxes of this server after two
// addresses are changed (E2B_API_URL and E2B_SANDBOX_URL, or E2B_DOMAIN). A handler decodes, makes
// one control call or asks the sandbox that control gave it, and encodes. Nothing is decided here.
//
// One listener takes three kinds of requests, told apart in this order:
//
//   - With the headers E2b-Sandbox-Id and E2b-Sandbox-Port, or under a host name
//     "{port}-{id}.{anything}": to a box. Port 49983 is envd, the agent that E2B has in its
//     sandboxes, which this package plays itself. Other ports are the box's own.
//   - A signed /files without either: to the box whose secret the signature proves, of those whose
//     secrets this server has handed out lately.
//   - Everything else: the control plane.
//
// Invariants:
//   - The control plane asks for an API key, envd for the box's access token, and a port for the
//     box's traffic token, or for nothing where the owner said so.
//   - "The sandbox is gone" is 502 before an answer has begun, and a cut connection after: the SDKs
//     understand nothing else.
//   - What is not built answers 501.
//
// Start reading at the route table in routes.go.
package e2b

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// Config makes a handler.
type Config struct {
	Control *control.Control
	Logger  *slog.Logger // nil = discard
	// Domain is what the host names of boxes end in, with ":port" where that is not the scheme's own. "" =
	// "localhost" with the port of each request, which browsers and curl resolve.
	Domain string
	// PublicPorts lets everybody visit the ports of sandboxes whose makers did not say allowPublicTraffic, as
	// E2B does. Otherwise they ask for the sandbox's traffic access token.
	PublicPorts bool
}

// Server is the handler. Close ends its watchers and idle connections.
type Server struct {
	ctl      *control.Control
	log      *slog.Logger
	domain   string
	public   bool // see Config.PublicPorts
	handed   handed
	routes   []route
	ports    *http.Transport
	grpc     *http.Transport
	watchers watchers
	unzipped int64 // of a compressed body, at most
	began    time.Time
}

// New returns a server.
func New(cfg Config) *Server {
	s := &Server{ctl: cfg.Control, log: cfg.Logger, domain: cfg.Domain, public: cfg.PublicPorts, unzipped: maxUnzipped,
		began: time.Now().UTC()}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.routes = s.controlPlane()
	s.ports, s.grpc = s.portTransport(), s.grpcTransport()
	s.watchers.init()
	return s
}

// Close ends what goes on between requests.
func (s *Server) Close() {
	s.watchers.close()
	s.ports.CloseIdleConnections()
	s.grpc.CloseIdleConnections()
}

// Limits of a request.
const (
	maxJSON = 1 << 20 // a control-plane body or an RPC message; input and files are streamed or cut by the SDKs
	// unaryTimeout bounds what a box is asked that has an end of its own.
	unaryTimeout = time.Minute
	// writeTimeout is how long one write to a stream may take before its reader counts as gone.
	writeTimeout = 30 * time.Second
)

// envdPort is where E2B's agent listens inside its sandboxes.
const envdPort = 49983

// ServeHTTP tells the kinds of requests apart.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer s.recover(w, r)
	id, port, ok, err := target(r)
	switch {
	case err != nil:
		fail(w, err)
	case r.ProtoMajor == 2 && (!ok || port == envdPort):
		misdirected(w)
	case ok:
		s.box(w, r, id, port)
	case r.URL.Path == "/files" && r.URL.Query().Has("signature"):
		s.signedFiles(w, r)
	default:
		s.control(w, r)
	}
}

func (s *Server) recover(w http.ResponseWriter, r *http.Request) {
	v := recover()
	if v == nil {
		return
	}
	if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(v) // our own way to cut a connection
	}
	s.log.Error("e2b handler panicked", "method", r.Method, "path", r.URL.Path, "panic", v, "stack",
		string(debug.Stack()))
	fail(w, outboard.Errorf(outboard.Internal, "panic"))
}

// target reads which box and port a request is for: by headers first, then by the host's name.
func target(r *http.Request) (id outboard.BoxID, port uint16, ok bool, err error) {
	box, number := r.Header.Get("E2b-Sandbox-Id"), r.Header.Get("E2b-Sandbox-Port")
	if box == "" && number == "" {
		if number, box, ok = portName(hostOf(r)); !ok {
			return "", 0, false, nil
		}
	}
	box, _, _ = strings.Cut(box, "-") // older ids go on with a client's
	n, perr := strconv.ParseUint(number, 10, 16)
	if box == "" || perr != nil || n == 0 {
		return "", 0, false, outboard.Errorf(outboard.Invalid,
			"E2b-Sandbox-Id and E2b-Sandbox-Port must name a sandbox and a port")
	}
	return outboard.BoxID(strings.ToLower(box)), uint16(n), true, nil
}

// portName takes a host's name apart that is one of a box's port.
func portName(host string) (number, box string, ok bool) {
	label, _, found := strings.Cut(host, ".")
	if number, box, ok = strings.Cut(label, "-"); !found || !ok || number == "" ||
		strings.Trim(number, "0123456789") != "" {
		return "", "", false
	}
	return number, box, true
}

// ForProgram reports whether a request is for a program that serves a port of a box, and none of this package.
func ForProgram(r *http.Request) bool {
	_, port, ok, err := target(r)
	return ok && err == nil && port != envdPort
}

func hostOf(r *http.Request) string {
	if host, _, err := net.SplitHostPort(r.Host); err == nil {
		return host
	}
	return r.Host
}

// domainFor returns what the names of boxes end in for who asks.
func (s *Server) domainFor(r *http.Request) string {
	if s.domain != "" {
		return s.domain
	}
	if _, port, err := net.SplitHostPort(r.Host); err == nil {
		return "localhost:" + port
	}
	return "localhost"
}

// errorBody is the shape of every error outside of an RPC.
type errorBody struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// statuses maps kinds to the wire.
var statuses = map[outboard.Kind]int{
	outboard.Invalid: http.StatusBadRequest, outboard.Unauthenticated: http.StatusUnauthorized, outboard.Denied: http.StatusForbidden,
	outboard.NotFound: http.StatusNotFound, outboard.Conflict: http.StatusConflict, outboard.TooLarge: http.StatusRequestEntityTooLarge,
	outboard.Exhausted: http.StatusTooManyRequests, outboard.Unavailable: http.StatusServiceUnavailable,
	outboard.Unimplemented: http.StatusNotImplemented, outboard.Canceled: 499,
}

// fail answers with err. The text of an internal error does not leave the server.
func fail(w http.ResponseWriter, err error) {
	status, ok := statuses[outboard.KindOf(err)]
	body := errorBody{Code: status, Message: outboard.PublicOf(err)}
	if !ok {
		status, body = http.StatusInternalServerError, errorBody{http.StatusInternalServerError,
			"internal server error"}
	}
	if status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "5")
	}
	reply(w, status, body)
}

// reply writes v as JSON. A client that went away is nobody's error.
func reply(w http.ResponseWriter, status int, v any) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	if v != nil {
		_ = json.NewEncoder(w).Encode(v)
	}
}

// unary bounds what a box is asked.
func unary(r *http.Request) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(r.Context(), unaryTimeout, outboard.Errorf(outboard.Unavailable,
		"the sandbox did not answer within %s", unaryTimeout))
}
