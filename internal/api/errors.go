package api

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// answer is how the wire reports one kind of error.
type answer struct {
	status int
	kind   string
}

// answers maps kinds to the wire.
var answers = map[outboard.Kind]answer{
	outboard.Invalid:         {http.StatusBadRequest, "invalid_request_error"},
	outboard.Unauthenticated: {http.StatusUnauthorized, "authentication_error"},
	outboard.Denied:          {http.StatusForbidden, "permission_error"},
	outboard.NotFound:        {http.StatusNotFound, "not_found_error"},
	// the OpenAPI document has no type of its own for it
	outboard.Conflict:      {http.StatusConflict, "invalid_request_error"},
	outboard.TooLarge:      {http.StatusRequestEntityTooLarge, "request_too_large"},
	outboard.Exhausted:     {http.StatusTooManyRequests, "rate_limit_error"},
	outboard.Unavailable:   {http.StatusServiceUnavailable, "api_error"},
	outboard.Unimplemented: {http.StatusNotImplemented, "api_error"},
	outboard.Canceled:      {499, "api_error"},
	outboard.Internal:      {http.StatusInternalServerError, "api_error"},
}

type errorBody struct {
	Type      string      `json:"type"` // "error"
	Error     errorDetail `json:"error"`
	RequestID string      `json:"request_id"`
}

type errorDetail struct {
	Type    string         `json:"type"`
	Message string         `json:"message"`
	Details map[string]any `json:"details,omitempty"`
}

// errorFor makes the body and status for err. The text of an internal error stays in the server's log, but for
// what is said to be public.
func errorFor(err error, requestID string) (errorBody, int) {
	kind := outboard.KindOf(err)
	a, ok := answers[kind]
	if !ok {
		a = answers[outboard.Internal]
	}
	b := errorBody{Type: "error", Error: errorDetail{Type: a.kind, Message: "internal server error"},
		RequestID: requestID}
	e, ok := errors.AsType[*outboard.Error](err)
	told := outboard.PublicOf(err)
	if !ok || kind == outboard.Internal && told == err.Error() {
		return b, a.status
	}
	b.Error.Message = told
	details := map[string]any{}
	if e.Code != "" {
		details["error_code"] = e.Code
	}
	if hint := outboard.HintOf(err); hint != "" {
		details["hint"] = hint // Outboard's own
	}
	if len(details) > 0 {
		b.Error.Details = details
	}
	return b, a.status
}

// fail answers with err.
func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	body, status := errorFor(err, requestID(r.Context()))
	switch {
	case r.Context().Err() != nil:
		s.log.Debug("client went away", "request", body.RequestID, "path", r.URL.Path)
	case status == http.StatusInternalServerError, status == http.StatusServiceUnavailable:
		s.log.Error("request failed", "request", body.RequestID, "method", r.Method, "path", r.URL.Path, "err", err)
	}
	switch status {
	case http.StatusConflict, http.StatusNotImplemented:
		w.Header().Set("x-should-retry", "false") // it would fail the same way again; SDKs resend these otherwise
	case http.StatusInternalServerError:
		if body.Error.Details != nil { // of which more is known than that it failed
			w.Header().Set("x-should-retry", "false")
		}
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	by, _ := r.Context().Value(callerKey{}).(outboard.Caller)
	s.ctl.Refused(r.Context(), by, control.RefusedRequest{Route: cmp.Or(r.Pattern, r.Method), Path: r.URL.Path,
		From: r.RemoteAddr, Why: err})
	writeJSON(w, status, body)
}

// writeJSON writes v. A client that went away is nobody's error.
func writeJSON(w http.ResponseWriter, status int, v any) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v)
}
