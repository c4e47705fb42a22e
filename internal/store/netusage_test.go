package store_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// Broken if servers that count at the same time let more pass than a budget has, count a host twice, or a
// session is another's.
func TestTakeNet(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		limit := outboard.NetBudget{Requests: 50, Bytes: 1000, Hosts: 3}
		var requests, bytes, hosts atomic.Int64
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for n := range 4 {
					host := string(rune('a'+(i+n)%8)) + ".test"
					got, room, err := s.TakeNet(t.Context(), "sesn_1", limit, store.NetUse{Requests: 3, Bytes: 70},
						host)
					if err != nil {
						t.Error(err)
						return
					}
					if !room && got != (store.NetUse{}) {
						t.Errorf("refused, and got %+v", got)
					}
					if room {
						hosts.Add(1)
					}
					requests.Add(got.Requests)
					bytes.Add(got.Bytes)
				}
			})
		}
		wg.Wait()
		used, err := s.NetUsage(t.Context(), "sesn_1")
		if err != nil || used.Hosts != 3 || used.Requests != requests.Load() || used.Bytes != bytes.Load() ||
			used.Requests > 50 || used.Bytes > 1000 {
			t.Errorf("used %+v, given %d and %d, %v", used, requests.Load(), bytes.Load(), err)
		}
		if hosts.Load() != 12 { // each of eight hosts is asked for four times, and three may
			t.Errorf("%d requests were to a host with room", hosts.Load())
		}
		rest := store.NetUse{Requests: 50 - used.Requests, Bytes: 1000 - used.Bytes}
		if got, room, err := s.TakeNet(t.Context(), "sesn_1", limit, store.NetUse{Requests: 99, Bytes: 9999},
			""); err != nil || !room || got != rest {
			t.Errorf("the rest is %+v, want %+v, %v", got, rest, err)
		}
		if got, _, err := s.TakeNet(t.Context(), "sesn_1", limit, store.NetUse{Requests: 1, Bytes: 1},
			""); err != nil || got != (store.NetUse{}) {
			t.Errorf("beyond the limit: %+v, %v", got, err)
		}
		if err := s.GiveNet(t.Context(), "sesn_1", store.NetUse{Requests: 1, Bytes: 5}); err != nil {
			t.Fatal(err)
		}
		if got, _, err := s.TakeNet(t.Context(), "sesn_1", limit, store.NetUse{Requests: 9, Bytes: 9},
			""); err != nil || got != (store.NetUse{Requests: 1, Bytes: 5}) {
			t.Errorf("what was given back: %+v, %v", got, err)
		}
		if got, room, err := s.TakeNet(t.Context(), "sesn_2", limit, store.NetUse{Requests: 1}, "z.test"); err != nil ||
			!room || got.Requests != 1 {
			t.Errorf("another session: %+v, %v, %v", got, room, err)
		}
		if err := s.ForgetNet(t.Context(), "sesn_2"); err != nil {
			t.Fatal(err)
		}
		if used, err := s.NetUsage(t.Context(), "sesn_2"); err != nil || used != (outboard.NetBudget{}) {
			t.Errorf("after its end: %+v, %v", used, err)
		}
	})
}
