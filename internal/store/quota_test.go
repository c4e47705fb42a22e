package store_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// Broken if callers that count at the same time all find room, a quota counts what is not alive, or the answer
// does not name the limit.
func TestAddSandboxQuota(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		row := func() outboard.Sandbox {
			return outboard.Sandbox{ID: outboard.NewID[outboard.SandboxID](outboard.PrefixSandbox),
				Environment: "env_1", Owner: "apikey_1",
				Host: "h", State: "creating", CreatedAt: time.Now(), UpdatedAt: time.Now()}
		}
		var mu sync.Mutex
		var wg sync.WaitGroup
		var made []outboard.Sandbox
		for range 12 {
			wg.Go(func() {
				b := row()
				err := s.AddSandbox(t.Context(), b, store.Quota{Environment: 5, Owner: 4})
				if err == nil {
					mu.Lock()
					made = append(made, b)
					mu.Unlock()
				} else if outboard.KindOf(err) != outboard.Exhausted ||
					!strings.Contains(err.Error(), "owner apikey_1 has 4 sandboxes alive, and may have 4 "+
						"(sandbox.max_sandboxes_per_owner of the server's configuration)") {
					t.Errorf("refused: %v", err)
				}
			})
		}
		wg.Wait()
		if len(made) != 4 {
			t.Fatalf("%d of 4", len(made))
		}
		for i, state := range []string{"stopped", "destroyed", "live"} {
			made[i].State = state
			if err := s.PutSandbox(t.Context(), made[i]); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 3 { // two are not alive
			if err := s.AddSandbox(t.Context(), row(), store.Quota{Owner: 4}); (err == nil) != (i < 2) {
				t.Errorf("after some ended, %d: %v", i, err)
			}
		}
		person := func(key outboard.KeyID) error {
			b := row()
			b.Owner, b.Person = key, "user_1"
			return s.AddSandbox(t.Context(), b, store.Quota{Owner: 2})
		}
		if err := errors.Join(person("apikey_3"), person("apikey_4")); err != nil {
			t.Errorf("a person's two: %v", err)
		}
		if err := person("apikey_5"); err == nil || !strings.Contains(err.Error(),
			"owner user_1 has 2 sandboxes alive") {
			t.Errorf("a person's third, with a third key: %v", err)
		}
		moves := func(session outboard.SessionID, host string) error {
			b := row()
			b.Environment, b.Owner, b.Session, b.Host = "env_3", "apikey_6", session, host
			return s.AddSandbox(t.Context(), b, store.Quota{Environment: 2, Owner: 2})
		}
		if err := errors.Join(moves("sesn_1", "h"), moves("sesn_2", "h"), moves("sesn_1", "h2"),
			moves("sesn_2", "h2")); err != nil {
			t.Errorf("sessions whose host is down go on on another one: %v", err)
		}
		if err := moves("sesn_3", "h2"); outboard.KindOf(err) != outboard.Exhausted ||
			!strings.Contains(err.Error(), "has 2 sandboxes alive") {
			t.Errorf("another session beside it: %v", err)
		}
		other := row()
		other.Environment, other.Owner = "env_2", "apikey_2"
		if err := s.AddSandbox(t.Context(), other, store.Quota{Environment: 1, Owner: 1}); err != nil {
			t.Errorf("another's: %v", err)
		}
		for own, key := range map[bool]string{true: "config.outboard.lifecycle.max_sandboxes of the environment",
			false: "sandbox.max_sandboxes_per_environment of the server's configuration"} {
			other.ID = row().ID
			err := s.AddSandbox(t.Context(), other, store.Quota{Environment: 1, Own: own})
			if want := "environment env_2 has 1 sandbox alive, and may have 1 (" + key + ")"; err == nil ||
				err.Error() != want {
				t.Errorf("a second one: %v, want %s", err, want)
			}
		}
	})
}
