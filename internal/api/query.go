package api

import (
	"net/url"
	"slices"
	"strings"
)

// params are a request's query parameters, of which an endpoint reads those that it is said to know.
type params struct {
	values url.Values
	known  []string
}

// Groups of parameters that several endpoints know.
var (
	createdAt = []string{"created_at[gte]", "created_at[gt]", "created_at[lte]", "created_at[lt]"}
	ofRows    = slices.Concat([]string{"limit", "page", "include_archived"}, createdAt)
	paging    = []string{"limit", "page"}
	ofEvents  = slices.Concat([]string{"limit", "page", "order", "types[]", "include[]"}, createdAt)
	ofStream  = []string{"event_deltas[]", "include[]", "after_seq"}
	ofBoxFile = []string{"path", "user"}
)

// anyParam stands for all parameters: what is not built yet says that, whatever it is asked with.
const anyParam = "*"

// queries are the parameters of each endpoint, those included that official clients may send and that change
// nothing here. One that is not listed knows none. beta is known everywhere: SDKs send it with most requests.
var queries = map[string][]string{
	"GET /v1/agents":                  ofRows,
	"GET /v1/agents/{agent}":          {"version"},
	"GET /v1/agents/{agent}/versions": ofRows,
	"GET /v1/environments":            ofRows,
	"GET /v1/sessions": slices.Concat(ofRows,
		[]string{"order", "statuses[]", "include[]", "agent_id", "agent_version", "memory_store_id", "deployment_id"}),
	"GET /v1/sessions/{session}":                           {"include[]"},
	"GET /v1/sessions/{session}/outboard/export":           {"seq"},
	"POST /v1/outboard/import":                             {"environment_id", "model", "title", "trust", "unsigned"},
	"GET /v1/sessions/{session}/outboard/checkpoints":      {"stored"},
	"GET /v1/sessions/{session}/outboard/checkpoints/diff": {"from", "to", "patch"},
	"GET /v1/sessions/{session}/outboard/network/log":      paging,
	"DELETE /v1/sessions/{session}/outboard/network/allow": {"host", "port", "rule"},
	"GET /v1/sessions/{session}/events":                    ofEvents,
	"GET /v1/sessions/{session}/events/stream":             ofStream,
	"GET /v1/sessions/{session}/threads":                   {"limit", "page", "statuses[]"},
	"GET /v1/sessions/{session}/threads/{thread}/events":   ofEvents,
	"GET /v1/sessions/{session}/threads/{thread}/stream":   ofStream,
	"GET /v1/sessions/{session}/resources":                 paging,
	"GET /v1/boxes/{box}/network/log":                      paging,
	"GET /v1/boxes/{box}/processes/{pid}/stream":           {"from"},
	"POST /v1/boxes/{box}/processes/{pid}/input":           {"eof"},
	"GET /v1/boxes/{box}/files":                            slices.Concat(ofBoxFile, []string{"depth"}),
	"DELETE /v1/boxes/{box}/files":                         ofBoxFile,
	"GET /v1/boxes/{box}/files/content":                    ofBoxFile,
	"PUT /v1/boxes/{box}/files/content":                    ofBoxFile,
	"GET /v1/templates":                                    ofRows,
	"GET /v1/templates/{template}/builds":                  ofRows,
	"GET /v1/templates/{template}/builds/{build}/log":      {"from"},
	"DELETE /v1/outboard/images":                           {"name"},
	"POST /v1/outboard/images/import":                      {"name"},
	"GET /v1/files": slices.Concat(ofRows,
		[]string{"scope_id", "ids[]", "after_id", "before_id"}),
	"GET /v1/vaults":                     ofRows,
	"GET /v1/vaults/{vault}/credentials": ofRows,
	"GET /v1/outboard/audit": {"limit", "page", "order", "actor", "action", "decision",
		"text", "since", "until", "whole"},
	"GET /v1/policies":               paging,
	"GET /v1/policies/{policy}":      {"version"},
	"GET /v1/approvals":              {"limit", "page", "state", "session_id"},
	"GET /v1/grants":                 ofRows,
	"GET /v1/budgets":                {"limit", "page", "session_id"},
	"GET /v1/outboard/users":         ofRows,
	"GET /v1/outboard/keys":          ofRows,
	"DELETE /v1/outboard/keys/{key}": {"made"},
	"GET /v1/ssh_keys":               ofRows,
	"GET /v1/models":                 {"limit", "after_id", "before_id", "lifecycle[]"},
}

// parseQuery reads the query string of an endpoint that knows some parameters. A name that it does not know is
// refused: left out, it would be a filter that a client believes in and that does nothing.
func parseQuery(raw string, known []string) (params, error) {
	q, err := url.ParseQuery(raw)
	if err != nil {
		return params{}, bad("the query string is malformed: %v", err)
	}
	p := params{q, known}
	for name := range q {
		if !p.knows(name) {
			has := "no query parameters"
			if len(known) > 0 {
				has = strings.Join(known, ", ")
			}
			return params{}, bad("%s: unknown query parameter; this endpoint knows %s", clip(name), has)
		}
	}
	return p, nil
}

// knows reports whether the endpoint knows a parameter. A list may be sent without its brackets.
func (p params) knows(name string) bool {
	return name == "beta" || slices.Contains(p.known, name) || slices.Contains(p.known, name+"[]") ||
		slices.Contains(p.known, anyParam)
}

// All returns the values of a parameter. To read one that is not in queries is a mistake of this package: it
// would be refused.
func (p params) All(name string) []string {
	if !p.knows(name) {
		panic("api: query parameter " + name + " is read and not known")
	}
	return p.values[name]
}

// Get returns the first value of a parameter, "" without one.
func (p params) Get(name string) string {
	if vs := p.All(name); len(vs) > 0 {
		return vs[0]
	}
	return ""
}

// Has reports whether a parameter was sent.
func (p params) Has(name string) bool { return len(p.All(name)) > 0 }
