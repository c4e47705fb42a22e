package store_test

import (
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// hostClock is a host's clock that somebody sets.
type hostClock struct {
	mu sync.Mutex
	at time.Time
}

func (c *hostClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *hostClock) set(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = at
}

// If this fails, a host's clock that is set back brings back what had expired, by the running server or by one
// that starts then; or time stands still until the host's has caught up.
func TestClockNeverGoesBack(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		host := &hostClock{at: noon}
		cfg.Now = host.now
		s := storetest.Open(t, cfg)
		if got := s.Now(); !got.Equal(noon) {
			t.Fatalf("at noon: %v", got)
		}
		host.set(noon.Add(time.Hour)) // forward, the clock is believed
		if got := s.Now(); !got.Equal(noon.Add(time.Hour)) {
			t.Fatalf("an hour later: %v", got)
		}
		if err := s.Audit(t.Context(), outboard.AuditRecord{Action: "a"}); err != nil {
			t.Fatal(err)
		}
		host.set(noon.Add(-24 * time.Hour))
		if got := s.Now(); !got.Equal(noon.Add(time.Hour)) {
			t.Errorf("set back by a day: %v", got)
		}
		host.set(noon.Add(-24*time.Hour + 16*time.Minute))
		if got := s.Now(); !got.Equal(noon.Add(time.Hour + 15*time.Minute)) {
			t.Errorf("sixteen minutes later: %v", got)
		}
		if err := s.Audit(t.Context(), outboard.AuditRecord{Action: "b"}); err != nil {
			t.Fatal(err)
		}
		list, err := s.AuditRecords(t.Context(), store.AuditQuery{Limit: 10})
		if err != nil || len(list) != 2 || !list[1].At.After(list[0].At) {
			t.Errorf("the audit: %+v, %v", list, err)
		}

		next := storetest.Open(t, cfg) // after a restart, or another server
		if got := next.Now(); !got.Equal(noon.Add(time.Hour + 15*time.Minute)) {
			t.Errorf("a server that starts now: %v", got)
		}
		cfg.TrustClock = true
		trusting := storetest.Open(t, cfg)
		if got := trusting.Now(); !got.Equal(host.now()) {
			t.Errorf("a server that was told to trust the clock: %v", got)
		}
		host.set(noon.Add(48 * time.Hour)) // the host's clock is right again
		for _, s := range []*store.Store{s, next, trusting} {
			if got := s.Now(); !got.Equal(noon.Add(48 * time.Hour)) {
				t.Errorf("put right: %v", got)
			}
		}
	})
}
