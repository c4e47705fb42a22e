package store_test

import (
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// Two requests that share a grant for one request would be one request too many.
func TestNetGrants(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		s := storetest.Open(t, cfg)
		id := newSession(t, s).ID
		once := outboard.NetGrant{ID: outboard.NewID[outboard.NetGrantID](outboard.PrefixNetGrant), Session: id,
			Host: "a.test", Uses: 1, By: "k", CreatedAt: time.Now()}
		ever := outboard.NetGrant{ID: outboard.NewID[outboard.NetGrantID](outboard.PrefixNetGrant), Session: id,
			Host: "b.test", Port: 8443, Uses: -1, WebSocket: true, By: "k",
			CreatedAt: time.Now()}
		for _, g := range []outboard.NetGrant{once, ever} {
			if err := s.AllowNet(t.Context(), g, outboard.Answer{}, nil); err != nil {
				t.Fatal(err)
			}
		}
		var wg sync.WaitGroup
		won := make(chan bool, 8)
		for range cap(won) {
			wg.Go(func() {
				ok, err := s.UseNetGrant(t.Context(), once.ID)
				if err != nil {
					t.Error(err)
				}
				won <- ok
			})
		}
		wg.Wait()
		close(won)
		n := 0
		for ok := range won {
			if ok {
				n++
			}
		}
		if n != 1 {
			t.Errorf("one use was taken %d times", n)
		}
		left, err := s.NetGrants(t.Context(), id)
		if err != nil || len(left) != 1 || left[0].Host != "b.test" || left[0].Port != 8443 || left[0].Uses != -1 ||
			!left[0].WebSocket {
			t.Errorf("left: %+v, %v", left, err)
		}
	})
}
