package e2b

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// credentialHeaders are those in which clients show credentials of this server. Programs in boxes have theirs in
// the same ones, so the values decide which is which.
var credentialHeaders = []string{"Authorization", "X-Api-Key", "X-Access-Token"}

// ownCredentials returns what of a request's credentialHeaders is meant for a program in box b. The rest opens
// something of this server: a client that sends its key along with everything, as many do, would give it to
// whatever listens in the box.
func (s *Server) ownCredentials(ctx context.Context, in http.Header, b *outboard.Box) (http.Header, error) {
	own := http.Header{}
	for _, name := range credentialHeaders {
		for _, value := range in[name] {
			ours, err := s.opens(ctx, value, b)
			if err != nil {
				return nil, err
			}
			if !ours {
				own[name] = append(own[name], value)
			}
		}
	}
	return own, nil
}

// opens reports whether a header's value has a token of box b in it, or a key of this server.
func (s *Server) opens(ctx context.Context, value string, b *outboard.Box) (bool, error) {
	for _, text := range tokensIn(value) {
		if control.HasSecret(b.Secret, text) || b.Traffic != "" && control.HasSecret(b.Traffic, text) {
			return true, nil
		}
		if ours, err := s.ctl.IsKey(ctx, plainKey(text)); ours || err != nil {
			return ours, err
		}
	}
	return false, nil
}

// tokensIn are what may be a token in a header's value: each of its words, and of the name and password of basic
// authentication each.
func tokensIn(value string) []string {
	words := strings.Fields(value)
	if len(words) == 2 && strings.EqualFold(words[0], "Basic") {
		if b, err := base64.StdEncoding.DecodeString(words[1]); err == nil {
			return strings.SplitN(string(b), ":", 2)
		}
	}
	return words
}

// plainKey is a key without the shape that some SDKs insist on.
func plainKey(key string) string {
	if digits, ok := strings.CutPrefix(key, keyPrefix); ok {
		if b, err := hex.DecodeString(digits); err == nil {
			return string(b)
		}
	}
	return key
}
