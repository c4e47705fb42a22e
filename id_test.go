package outboard

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
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
	if a := encode58([16]byte{15: 57}); a != strings.Repeat("1", 21)+"z" ||
		encode58([16]byte{14: 1}) != strings.Repeat("1", 20)+"5R" {
		t.Errorf("57 in base 58 is %q", a)
	}
	a := DeriveID[EventID](PrefixEvent, "sevt_1", "x")
	if a != DeriveID[EventID](PrefixEvent, "sevt_1", "x") || a == DeriveID[EventID](PrefixEvent, "sevt_1", "y") {
		t.Error("a derived id is not a function of its parent and label")
	}
	for _, bad := range []string{"", "sesn_", "sesn_1", "env_0123", "sesn_01/../x", "sesn_01\n", "sesn_" +
		strings.Repeat("a", 65), "SESN_0123"} {
		if ValidID(PrefixSession, bad) {
			t.Errorf("%q counts as a session id", bad)
		}
	}
}

// Ids in no order would scatter what a session appends over all pages of its indexes, and make each commit write
// them all.
func TestIDsSortByTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		last := ""
		for range 1000 {
			id := NewID[string](PrefixEvent)
			if id <= last {
				t.Fatalf("%q was made after %q and sorts before it", id, last)
			}
			last = id
			time.Sleep(time.Millisecond)
		}
	})
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

// A queued message has no other time than that of its id.
func TestMadeAt(t *testing.T) {
	before := time.Now().Truncate(time.Millisecond)
	at, ok := MadeAt(NewID[string](PrefixEvent))
	if !ok || at.Before(before) || at.After(time.Now()) {
		t.Errorf("made at %v, %v; want about %v", at, ok, before)
	}
	for _, bad := range []string{"", "sevt_", "sevt_01", "sevt_01short", "sevt_010000000000000000000000000",
		"sevt_01!!!!!!!!!!!!!!!!!!!!!!"} {
		if _, ok := MadeAt(bad); ok {
			t.Errorf("%q has a time", bad)
		}
	}
}
