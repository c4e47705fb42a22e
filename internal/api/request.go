package api

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/text"
)

// request is one authenticated request.
type request struct {
	*http.Request
	w     http.ResponseWriter
	by    outboard.Caller
	query params
}

// verb answers a request with a value to encode. A nil value means that it has answered itself.
type verb func(r *request) (any, error)

type callerKey struct{}

// handle authenticates, refuses query parameters that are not known, bounds the body, runs a verb and encodes what it
// returns. Who is refused is recorded by fail; what is changed, by the verb of control, which is held to that here.
func (s *server) handle(route string, v verb, known []string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		by, err := s.caller(r)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		ctx, accounted := control.Trail(context.WithValue(r.Context(), callerKey{}, by))
		r = r.WithContext(ctx)
		q, err := parseQuery(r.URL.RawQuery, known)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		out, err := v(&request{Request: r, w: w, by: by, query: q})
		if err != nil {
			s.fail(w, r, err)
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead && silent[route] == "" && !accounted() {
			s.unrecorded(route)
		}
		if out != nil {
			writeJSON(w, http.StatusOK, out)
		}
	}
}

// silent are the routes that may change something without a record of the audit, and why.
var silent = map[string]string{
	"POST /v1/sessions/{session}": "tools and budgets have a record; a " +
		"title and metadata change nothing that may happen",
	"POST /v1/sessions/{session}/events": "what is sent is in the session's log, " +
		"with who sent it; answers have a record",
	"POST /v1/sessions/{session}/threads/{thread}/archive": "it changes nothing: the primary thread " +
		"ends with its session",
	"POST /v1/boxes/{box}/processes": "it happens inside the sandbox; what " +
		"leaves it has records of its own",
	"POST /v1/boxes/{box}/processes/{pid}/input":                          "as above",
	"POST /v1/boxes/{box}/processes/{pid}/resize":                         "as above",
	"POST /v1/boxes/{box}/processes/{pid}/signal":                         "as above",
	"PUT /v1/boxes/{box}/files/content":                                   "as above",
	"DELETE /v1/boxes/{box}/files":                                        "as above",
	"POST /v1/policies/test":                                              "it changes nothing",
	"POST /v1/outboard/audit/checkpoint":                                  "it signs the audit and changes nothing",
	"POST /v1/vaults/{vault}/credentials/{credential}/mcp_oauth_validate": "where it opens a secret, that has a record",
	"POST /v1/vaults/{vault}/credentials/{credential}/outboard/test":      "as above",
}

// body reads the whole request body within its limit.
func (r *request) body() ([]byte, error) {
	b, err := io.ReadAll(http.MaxBytesReader(r.w, r.Body, outboard.MaxBody))
	if err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return nil, outboard.Errorf(outboard.TooLarge, "the request body is larger than %d bytes", outboard.MaxBody)
		}
		return nil, bad("reading the request body: %w", err)
	}
	return b, nil
}

// decode reads a JSON body into v, strictly.
func (r *request) decode(v any) error {
	b, err := r.body()
	if err != nil {
		return err
	}
	if err := control.CheckJSON(b); err != nil {
		return err
	}
	return object("", b, v)
}

// empty refuses a body with anything in it: for verbs that take none.
func (r *request) empty() error {
	var none struct{}
	b, err := r.body()
	if err != nil || len(strings.TrimSpace(string(b))) == 0 {
		return err
	}
	if err := control.CheckJSON(b); err != nil {
		return err
	}
	return object("", b, &none)
}

// limit reads the limit parameter. The wire has no least for it: 0 is as good as none.
func (r *request) limit(def, most int) (int, error) {
	s := r.query.Get("limit")
	if s == "" || s == "0" {
		return def, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > most {
		return 0, bad("limit: must be 1 to %d, not %q", most, clip(s))
	}
	return n, nil
}

// flag reads a boolean parameter.
func (r *request) flag(name string) (bool, error) {
	switch s := r.query.Get(name); s {
	case "", "false":
		return false, nil
	case "true":
		return true, nil
	default:
		return false, bad("%s: must be true or false, not %q", name, clip(s))
	}
}

// instant reads a time parameter; zero when absent.
func (r *request) instant(name string) (time.Time, error) {
	s := r.query.Get(name)
	if s == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return t, bad("%s: must be an RFC 3339 time, not %q", name, clip(s))
	}
	return t.UTC(), nil
}

// oneOf reads a parameter with a closed set of values; the first is the default.
func (r *request) oneOf(name string, values ...string) (string, error) {
	s := r.query.Get(name)
	if s == "" {
		return values[0], nil
	}
	if !slices.Contains(values, s) {
		return "", bad("%s: must be one of %s, not %q", name, strings.Join(values, ", "), clip(s))
	}
	return s, nil
}

// list reads a bracketed array parameter whose values must be in allowed, when allowed is given.
func (r *request) list(name string, most int, allowed ...string) ([]string, error) {
	vs := r.query.All(name + "[]")
	if len(vs) == 0 {
		vs = r.query.All(name)
	}
	if len(vs) > most {
		return nil, bad("%s[]: at most %d values, not %d", name, most, len(vs))
	}
	for _, v := range vs {
		if len(allowed) > 0 && !slices.Contains(allowed, v) {
			return nil, bad("%s[]: must be of %s, not %q", name, strings.Join(allowed, ", "), clip(v))
		}
	}
	return vs, nil
}

// between is a range of times as the wire's created_at filters give it, in whole microseconds and inclusive at
// both ends.
type between struct{ from, to time.Time }

func (r *request) between() (b between, err error) {
	for _, op := range []string{"gte", "gt", "lte", "lt"} {
		t, err := r.instant("created_at[" + op + "]")
		if err != nil {
			return b, err
		}
		if t.IsZero() {
			continue
		}
		µs := t.Truncate(time.Microsecond)
		switch op {
		case "gt":
			µs = µs.Add(time.Microsecond)
		case "gte":
			if µs.Before(t) {
				µs = µs.Add(time.Microsecond)
			}
		case "lt":
			if !µs.Before(t) {
				µs = µs.Add(-time.Microsecond)
			}
		}
		if op[0] == 'g' && µs.After(b.from) {
			b.from = µs
		}
		if op[0] == 'l' && (b.to.IsZero() || µs.Before(b.to)) {
			b.to = µs
		}
	}
	return b, nil
}

// holds reports whether t is in the range.
func (b between) holds(t time.Time) bool {
	return !t.Before(b.from) && (b.to.IsZero() || !t.After(b.to))
}

// clip shortens a client's string for an error.
func clip(s string) string { return text.Clip(s, 100) }
