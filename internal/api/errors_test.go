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
	down := outboard.Errorf(outboard.Unavailable, "database x on /run/pg cannot be reached").WithPublic("the database is away")
	for _, c := range []struct {
		err    error
		status int
		told   string
	}{
		{fmt.Errorf("looking up a key: %w", down), http.StatusServiceUnavailable, "the database is away"},
		{errors.New("x.go:1"), http.StatusInternalServerError, "internal server error"},
		{outboard.Errorf(outboard.Invalid, "name: required"), http.StatusBadRequest, "name: required"},
	} {
		if body, status := errorFor(c.err, "req_x"); status != c.status || body.Error.Message != c.told {
			t.Errorf("%v: %d %q", c.err, status, body.Error.Message)
		}
	}
}
