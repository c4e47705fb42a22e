package policy

import (
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
)

// If this fails, somebody who signs in again, or uses another key of theirs, has a rate limit to themselves once more.
func TestLimitPerOwner(t *testing.T) {
	l := &Limit{Action: "bash", Per: "owner", Max: 1, Every: time.Hour}
	counter := func(user outboard.UserID, key outboard.KeyID) string {
		return l.key(&Request{Action: "bash", Owner: outboard.Owner{User: user, Key: key}})
	}
	if counter("user_1", "apikey_1") != counter("user_1", "apikey_2") {
		t.Error("a person's keys are counted by themselves")
	}
	if counter("user_1", "apikey_1") == counter("user_2", "apikey_1") ||
		counter("", "apikey_1") == counter("", "apikey_2") {
		t.Error("two owners are counted together")
	}
}
