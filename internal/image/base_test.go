package image

import (
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
)

// If this failed, what somebody else writes would become an option, a path or another suite for a program that
// runs as root.
func TestParseBase(t *testing.T) {
	for in, want := range map[string]Base{"debootstrap:bookworm": {"bookworm", "minbase"},
		"debootstrap:trixie:buildd": {"trixie", "buildd"}, "debootstrap:noble:standard": {"noble", "standard"},
		"debootstrap:kali-rolling": {"kali-rolling", "minbase"}} {
		if got, err := ParseBase(in); err != nil || got != want {
			t.Errorf("%s: %+v, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "host", "bookworm", "debootstrap", "debootstrap:", "debootstrap::minbase",
		"debootstrap:bookworm:", "debootstrap:bookworm:-", "debootstrap:bookworm:fakechroot", "debootstrap:Bookworm",
		"debootstrap:--help", "debootstrap:../x", "debootstrap:a..b", "debootstrap:a/b", "debootstrap:a b", "debootstrap:a\n", "debootstrap:a:minbase:b", "debootstrap:" + strings.Repeat("a", 100)} {
		if got, err := ParseBase(in); outboard.KindOf(err) != outboard.Invalid || err == nil {
			t.Errorf("%q: %+v, %v", in, got, err)
		}
	}
}
