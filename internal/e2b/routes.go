package e2b

import (
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// request is one request of the control plane.
type request struct {
	*http.Request
	w     http.ResponseWriter
	by    outboard.Caller
	parts []string // what the route's {} stand for
}

// route is one method on one path. A path is matched by its escaped segments, because ids of snapshots may have
// a slash in them.
type route struct {
	method string
	path   []string
	verb   func(r *request) (status int, body any, err error)
}

func at(method, path string, verb func(r *request) (int, any, error)) route {
	return route{method, strings.Split(path, "/")[1:], verb}
}

// controlPlane is the surface of the control plane. What E2B has besides answers 501.
func (s *Server) controlPlane() []route {
	return []route{
		at("POST", "/sandboxes", s.create(15*time.Second)),
		at("POST", "/v2/sandboxes", s.create(300*time.Second)),
		at("GET", "/sandboxes", s.listRunning),
		at("GET", "/v2/sandboxes", s.list),
		at("GET", "/sandboxes/metrics", s.metricsOf),
		at("GET", "/sandboxes/{}", s.get),
		at("DELETE", "/sandboxes/{}", s.kill),
		at("POST", "/sandboxes/{}/connect", s.connect),
		at("POST", "/v2/sandboxes/{}/connect", s.connect),
		at("POST", "/sandboxes/{}/resume", s.resume),
		at("POST", "/sandboxes/{}/pause", s.pause),
		at("POST", "/sandboxes/{}/timeout", s.timeout),
		at("POST", "/sandboxes/{}/refreshes", s.refresh),
		at("PUT", "/sandboxes/{}/network", s.setNetwork),
		at("POST", "/sandboxes/{}/snapshots", s.snapshot),
		at("POST", "/sandboxes/{}/fork", s.fork),
		at("GET", "/sandboxes/{}/metrics", s.metrics),
		at("GET", "/sandboxes/{}/logs", s.logsV1),
		at("GET", "/v2/sandboxes/{}/logs", s.logs),
		at("GET", "/snapshots", s.snapshots),
		at("POST", "/v3/templates", s.requestBuild),
		at("POST", "/v2/templates/{}/builds/{}", s.startBuild),
		at("GET", "/templates/{}/builds/{}/status", s.buildStatus),
		at("GET", "/templates/{}/builds/{}/logs", s.buildLogs),
		at("GET", "/templates", s.listTemplates),
		at("GET", "/v2/templates", s.listTemplates),
		at("POST", "/templates/tags", s.assignTags),
		at("DELETE", "/templates/tags", s.removeTags),
		at("GET", "/templates/aliases/{}", s.alias),
		at("GET", "/templates/{}", s.getTemplate),
		at("GET", "/templates/{}/tags", s.listTags),
		at("GET", "/templates/{}/files/{}", s.uploadLink),
		at("DELETE", "/templates/{}", s.deleteTemplate),
	}
}

// unbuilt is what E2B has besides on the same subjects, and unbuiltParts are the subjects that it has besides.
var (
	unbuilt = []route{
		at("POST", "/templates", nil), at("POST", "/v2/templates", nil), at("POST", "/templates/{}", nil), at("POST",
			"/templates/{}/builds/{}", nil),
		at("PATCH", "/templates/{}", nil), at("PATCH", "/v2/templates/{}", nil),
	}
	unbuiltParts = []string{"volumes", "volumecontent", "secrets", "teams", "nodes", "admin", "access-tokens",
		"api-keys"}
)

// refused records that somebody was refused at the control plane.
func (s *Server) refused(r *http.Request, by outboard.Caller, route string, err error) {
	s.ctl.Refused(r.Context(), by, control.RefusedRequest{Route: "e2b " + route, Path: r.URL.Path, From: r.RemoteAddr,
		Why: err})
}

// stranger records that somebody was refused who shows no key, but the token of a box or a signature. No error is none.
func (s *Server) stranger(r *http.Request, what string, err error) {
	if err != nil {
		s.refused(r, outboard.Caller{}, what, err)
	}
}

// control answers a request of the control plane.
func (s *Server) control(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/health" {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	if r.Method == http.MethodPut && strings.HasPrefix(r.URL.Path, "/templates/") && r.URL.Query().Has("signature") {
		s.signedUpload(w, r)
		return
	}
	by, err := s.ctl.Authenticate(r.Context(), apiKey(r))
	if err != nil {
		s.refused(r, by, r.Method, err)
		fail(w, err)
		return
	}
	// what cannot be read is left out of Query, as if nobody had asked
	if _, err := url.ParseQuery(r.URL.RawQuery); err != nil {
		fail(w, outboard.Errorf(outboard.Invalid, "the query cannot be read: %w", err))
		return
	}
	parts := strings.Split(r.URL.EscapedPath(), "/")[1:]
	for _, rt := range s.routes {
		args, ok := rt.match(parts)
		if !ok || rt.method != r.Method {
			continue
		}
		status, body, err := rt.verb(&request{Request: r, w: w, by: by, parts: args})
		switch {
		case err != nil:
			if outboard.KindOf(err) == outboard.Internal {
				s.log.Error("e2b request failed", "method", r.Method, "path", r.URL.Path, "err", err)
			}
			s.refused(r, by, rt.method+" /"+strings.Join(rt.path, "/"), err)
			fail(w, err)
		case status == http.StatusNoContent:
			w.WriteHeader(status)
		default:
			reply(w, status, body)
		}
		return
	}
	known := func(rt route) bool { _, ok := rt.match(parts); return ok }
	if slices.ContainsFunc(s.routes, known) && !slices.ContainsFunc(unbuilt,
		func(rt route) bool { return rt.method == r.Method && known(rt) }) {
		reply(w, http.StatusMethodNotAllowed, errorBody{http.StatusMethodNotAllowed, r.Method + " is not allowed here"})
		return
	}
	switch {
	case slices.ContainsFunc(unbuilt, known), slices.Contains(unbuiltParts, parts[0]):
		fail(w, outboard.Errorf(outboard.Unimplemented, "%s %s is part of the E2B API and not built here", r.Method,
			r.URL.Path))
	default:
		fail(w, outboard.Errorf(outboard.NotFound, "there is nothing at %s", r.URL.Path))
	}
}

func (rt route) match(parts []string) ([]string, bool) {
	if len(parts) != len(rt.path) {
		return nil, false
	}
	var args []string
	for i, want := range rt.path {
		got, err := url.PathUnescape(parts[i])
		switch {
		case err != nil:
			return nil, false
		case want == "{}" && got != "":
			args = append(args, got)
		case want != got:
			return nil, false
		}
	}
	return args, true
}

// keyPrefix begins a key in the shape that some SDKs insist on: what follows is a key of this server in hexadecimal.
const keyPrefix = "e2b_"

// APIKey returns a key of this server in the shape that every E2B SDK takes.
func APIKey(secret string) string { return keyPrefix + hex.EncodeToString([]byte(secret)) }

func apiKey(r *http.Request) string {
	key := r.Header.Get("X-Api-Key")
	if scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " "); key == "" && ok &&
		strings.EqualFold(scheme, "Bearer") {
		key = strings.TrimSpace(token)
	}
	return plainKey(key)
}

// id returns the box that the path names.
func (r *request) id() outboard.BoxID {
	id, _, _ := strings.Cut(r.parts[0], "-")
	return outboard.BoxID(id)
}

// decode reads a JSON body. None at all is an empty object; what is not known is ignored, as the SDKs move on
// faster than servers.
func decode(w http.ResponseWriter, r *http.Request, v any) error {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxJSON))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return outboard.Errorf(outboard.TooLarge, "the request body is larger than %d bytes", maxJSON)
	}
	if err != nil {
		return outboard.Errorf(outboard.Invalid, "reading the request body: %w", err)
	}
	if len(b) == 0 {
		return nil
	}
	return control.DecodeJSON(b, v)
}
