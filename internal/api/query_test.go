package api

import (
	"slices"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
)

// Fails if an endpoint takes a query parameter that it does not know, does not say which it knows, or refuses
// one that it does.
func TestUnknownQueryParameters(t *testing.T) {
	for _, c := range []struct{ route, query, want string }{
		{"GET /v1/agents", "limit=3&page=x&created_at[gte]=2026-01-01T00:00:00Z&beta=true", ""},
		{"GET /v1/agents", "limt=3",
			"limt: unknown query parameter; this endpoint knows limit, page, include_archived"},
		{"GET /v1/agents", "created_at[ge]=x", "created_at[ge]: unknown"},
		{"GET /v1/agents", "order=asc", "order: unknown"},
		{"POST /v1/agents", "beta=true", ""},
		{"POST /v1/agents", "dry_run=true",
			"dry_run: unknown query parameter; this endpoint knows no query parameters"},
		{"GET /v1/sessions/{session}/events", "types[]=a&types=b&include[]=outboard", ""},
		{"GET /v1/sessions/{session}/events", "limit[]=1", "limit[]: unknown"},
		{"GET /v1/sessions/{session}/events", "%zz", "malformed"},
	} {
		q, err := parseQuery(c.query, queries[c.route])
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) ||
			outboard.KindOf(err) != outboard.Invalid) {
			t.Errorf("%s?%s: %v, want %q", c.route, c.query, err, c.want)
		}
		if c.want == "" && q.values == nil {
			t.Errorf("%s?%s was not read", c.route, c.query)
		}
	}
	if _, err := parseQuery("anything=1", []string{anyParam}); err != nil {
		t.Errorf("what is not built refuses a parameter: %v", err)
	}
}

// Fails if the table of parameters names an endpoint that there is not, so that the real one knows none.
func TestQueriesAreOfRoutes(t *testing.T) {
	var routes []string
	for _, r := range new(server).built() {
		routes = append(routes, r.method+" "+r.path)
	}
	for route := range queries {
		if !slices.Contains(routes, route) {
			t.Errorf("there is no %s", route)
		}
	}
}
