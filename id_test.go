package outboard

import (
	"strings"
	"testing"
)

// Ids that collide, change form or cannot be recognised would mix up sessions.
func TestIDs(t *testing.T) {
	seen := map[SessionID]bool{}
	for range 10_000 {
		id := NewID[SessionID](PrefixSession)
		if seen[id] || len(id) != len("sesn_01")+22 || !ValidID(PrefixSession, string(id)) {
			t.Fatalf("bad id %q", id)
		}
		seen[id] = true
	}
	a := DeriveID[EventID](PrefixEvent, "sevt_1", "x")
	if a != DeriveID[EventID](PrefixEvent, "sevt_1", "x") || a == DeriveID[EventID](PrefixEvent, "sevt_1", "y") {
		t.Error("a derived id is not a function of its parent and label")
	}
	for _, bad := range []string{"", "sesn_", "sesn_1", "env_0123", "sesn_01/../x", "sesn_01\n", "sesn_" + strings.Repeat("a", 65), "SESN_0123"} {
		if ValidID(PrefixSession, bad) {
			t.Errorf("%q counts as a session id", bad)
		}
	}
}

// An error's kind decides status and exit codes, so it must survive wrapping and keep its cause.
func TestErrorKinds(t *testing.T) {
	cause := Errorf(NotFound, "session %q does not exist", "x")
	err := Errorf(Conflict, "archiving: %w", cause)
	if KindOf(err) != Conflict || KindOf(err.Unwrap()) != NotFound || KindOf(nil) != Internal {
		t.Errorf("kinds: %v %v %v", KindOf(err), KindOf(err.Unwrap()), KindOf(nil))
	}
	if h := err.WithHint("try %d", 1); h.Hint != "try 1" || err.Hint != "" {
		t.Error("WithHint must copy")
	}
}
