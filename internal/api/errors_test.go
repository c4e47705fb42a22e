package api

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/outboard-dev/outboard"
)

// Fails if a client is told what an error says to the operator alone.
func TestPublicErrors(t *testing.T) {
	_, damaged := (&outboard.Event{ID: "sevt_1", Type: outboard.TypeAgentMessage, Data: outboard.Raw("{")}).Decode()
	_, unknown := (&outboard.Event{ID: "sevt_1", Type: "agent.novel"}).Decode()
	down := outboard.Errorf(outboard.Unavailable, "database x on /run/pg cannot be reached").
		WithPublic("the database is away")
	for _, c := range []struct {
		err    error
		status int
		told   string
	}{
		{fmt.Errorf("looking up a key: %w", down), http.StatusServiceUnavailable,
			"looking up a key: the database is away"},
		{errors.New("x.go:1"), http.StatusInternalServerError, "internal server error"},
		{fmt.Errorf("listing: %w", damaged), http.StatusInternalServerError,
			"listing: event sevt_1 (agent.message) of the session's log is damaged"},
		{unknown, http.StatusInternalServerError,
			`event sevt_1 of the session's log has the type "agent.novel", which this server does not know`},
		{outboard.Errorf(outboard.Invalid, "name: required"), http.StatusBadRequest, "name: required"},
	} {
		if body, status := errorFor(c.err, "req_x"); status != c.status || body.Error.Message != c.told {
			t.Errorf("%v: %d %q", c.err, status, body.Error.Message)
		}
	}
}
