package config

import (
	"net/netip"
	"strings"

	"github.com/outboard-dev/outboard"
)

// CheckHosts refuses what is no name that a request can arrive under: a server that is to be called by it would
// refuse everybody who does.
func CheckHosts(names []string) error {
	for _, n := range names {
		if _, err := netip.ParseAddr(n); err != nil && n != "*" && !isHostName(n) {
			return outboard.Errorf(outboard.Invalid, "the server cannot be called by %q: a host is a name alone, "+
				"such as outboard.example.com", n)
		}
	}
	return nil
}

// isHostName reports whether s is a plain host name. One with letters of other alphabets arrives in its xn-- form.
func isHostName(s string) bool {
	for label := range strings.SplitSeq(strings.ToLower(s), ".") {
		if label == "" || len(label) > 63 || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}
	return len(s) <= 253
}
