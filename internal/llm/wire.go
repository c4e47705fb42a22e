package llm

import (
	"context"
	"net/http"

	"github.com/outboard-dev/outboard"
)

// newClient returns the HTTP client of all wires. It follows no redirect: a key must not travel to another place.
func newClient() *http.Client {
	return &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// wire returns the client for a provider's wire.
func (r *Registry) wire(p Provider, info Info, name string) Model {
	return remote{info}
}

type remote struct{ info Info }

// Info implements Model.
func (m remote) Info() Info { return m.info }

// Generate implements Model.
func (m remote) Generate(context.Context, Request, func(Delta)) (*Response, error) {
	return nil, outboard.Errorf(outboard.Unavailable, "model %q: this build has the script model only", m.info.ID)
}
