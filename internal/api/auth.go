package api

import (
	"net/http"
	"strings"

	"github.com/outboard-dev/outboard"
)

// orgHeader names the organization that the operator of the server acts in.
const orgHeader = "Outboard-Organization"

// caller authenticates a request by either credential style: X-Api-Key (clients of API version 2023-06-01) or
// Authorization: Bearer (2026-10-21, and any client given a token). A request that carries both must mean the
// same key.
func (s *server) caller(r *http.Request) (outboard.Caller, error) {
	key, err := keyOf(r)
	if err != nil {
		return outboard.Caller{}, err
	}
	by, err := s.ctl.Authenticate(r.Context(), key)
	if err != nil {
		return by, err
	}
	return s.ctl.ActIn(r.Context(), by, r.Header.Get(orgHeader))
}

// keyOf returns the key of a request, "" = it has none.
func keyOf(r *http.Request) (string, error) {
	key := r.Header.Get("X-Api-Key")
	bearer := ""
	if scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		bearer = strings.TrimSpace(token)
	}
	if key == "" {
		key = bearer
	}
	if bearer != "" && bearer != key {
		return "", outboard.Errorf(outboard.Unauthenticated, "X-Api-Key and Authorization carry different keys")
	}
	return key, nil
}
