package store_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// A follower must see every event once and in order while two processes append, whichever of them it watches
// from; else a client's picture of the session silently differs from the log.
func TestFollowUnderConcurrentAppends(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		const writers, each = 4, 60
		stores := []*store.Store{storetest.Open(t, cfg), storetest.Open(t, cfg)}
		id := newSession(t, stores[0]).ID
		ctx := within(t)
		var wg sync.WaitGroup
		for i := range writers {
			wg.Go(func() {
				for range each {
					if _, err := stores[i%2].Append(ctx, id, 0, store.Any, said("x")); err != nil {
						t.Errorf("append: %v", err)
					}
				}
			})
		}
		for i := range 6 {
			wg.Go(func() {
				after := int64(i)
				for e, err := range stores[i%2].Follow(ctx, id, after) {
					if err != nil {
						t.Errorf("follower %d: %v", i, err)
						return
					}
					if e.Seq != after+1 {
						t.Errorf("follower %d got %d after %d", i, e.Seq, after)
						return
					}
					if after = e.Seq; after == writers*each+1 {
						return
					}
				}
				t.Errorf("follower %d ended at %d", i, after)
			})
		}
		wg.Wait()
	})
}

// A follower must hear of a commit of another process without the poller on Postgres, and within PollFallback on
// SQLite.
func TestFollowAcrossProcesses(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		s, other := storetest.Open(t, cfg), storetest.Open(t, cfg)
		id := newSession(t, s).ID
		ctx, cancel := context.WithCancel(within(t))
		seen := make(chan int64, 10)
		var wg sync.WaitGroup
		wg.Go(func() {
			for e, err := range s.Follow(ctx, id, 0) {
				if err != nil {
					t.Errorf("follow: %v", err)
				}
				seen <- e.Seq
			}
		})
		<-seen
		var slowest time.Duration
		for range 3 {
			start := time.Now()
			mustAppend(t, other, id, said("x"))
			select {
			case <-seen:
				slowest = max(slowest, time.Since(start))
			case <-ctx.Done():
				t.Fatal(context.Cause(ctx))
			}
		}
		if slowest > 3*outboard.PollFallback {
			t.Errorf("heard of a commit after %v", slowest)
		}
		t.Logf("slowest wake-up %v", slowest)
		cancel()
		wg.Wait()
	})
}

// Following must end as documented: silently with its context, with NotFound when the session is deleted, by
// whomever, and with Unavailable when the store closes.
func TestFollowEnds(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		s, other := storetest.Open(t, cfg), storetest.Open(t, cfg)
		follow := func(ctx context.Context, id outboard.SessionID) (first chan struct{}, end chan error) {
			first, end = make(chan struct{}), make(chan error, 1)
			go func() {
				var last error
				for e, err := range s.Follow(ctx, id, 0) {
					if last = err; err == nil && e.Seq == 1 {
						close(first)
					}
				}
				end <- last
			}()
			return first, end
		}
		ctx, cancel := context.WithCancel(t.Context())
		first, end := follow(ctx, newSession(t, s).ID)
		<-first
		cancel()
		mustBe(t, <-end, nil)
		for _, by := range []*store.Store{s, other} {
			id := newSession(t, s).ID
			first, end = follow(within(t), id)
			<-first
			if err := by.DeleteSession(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			mustKind(t, <-end, outboard.NotFound, string(id))
		}
		first, end = follow(within(t), newSession(t, s).ID)
		<-first
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		mustKind(t, <-end, outboard.Unavailable, "closed")
		_, err := s.Append(t.Context(), "sesn_1", 0, store.Any, said("x"))
		mustKind(t, err, outboard.Unavailable, "closed")
		_, err = s.Session(t.Context(), "sesn_1")
		mustKind(t, err, outboard.Unavailable, "closed")
	})
}

// A watcher must get a signal for a commit of any process, and none may block the writer that nobody drains.
func TestWatch(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		s, other := storetest.Open(t, cfg), storetest.Open(t, cfg)
		id := newSession(t, s).ID
		ch, stop := s.Watch(id)
		for range 5 {
			mustAppend(t, s, id, said("x"))
		}
		<-ch
		ctx := within(t)
		mustAppend(t, other, id, said("x"))
		select {
		case <-ch:
		case <-ctx.Done():
			t.Fatal(context.Cause(ctx))
		}
		stop()
		mustAppend(t, s, id, said("x"))
	})
}

// Reading a long session must take the memory of a page: one that is loaded whole would take the server down with it.
func TestReadLongSession(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		const events, batch = 100_000, 250
		id := newSession(t, s).ID
		text := strings.Repeat("x", 300)
		for range events / batch {
			evs := make([]outboard.Event, batch)
			for i := range evs {
				evs[i] = said(text)
			}
			mustAppend(t, s, id, evs...)
		}
		heap := func() uint64 {
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		before, most, n := heap(), uint64(0), 0
		start := time.Now()
		for e, err := range s.Read(t.Context(), id, 0) {
			if err != nil {
				t.Fatal(err)
			}
			if n++; e.Seq != int64(n) {
				t.Fatalf("event %d comes at %d", e.Seq, n)
			}
			if n%10_000 == 0 {
				most = max(most, heap())
			}
		}
		if n != events+1 {
			t.Fatalf("read %d events, want %d", n, events+1)
		}
		if most > before+8<<20 {
			t.Errorf("reading took %d KiB of memory", (most-before)>>10)
		}
		t.Logf("read %d events in %v", n, time.Since(start))
		longQueries(t, s, id, events)
	})
}

// longQueries checks that the questions asked all the time do not walk a long log.
func longQueries(t *testing.T, s *store.Store, id outboard.SessionID, events int) {
	in := message("the only input")
	mustAppend(t, s, id, in)
	for name, ask := range map[string]func() (int, error){
		"waiting": func() (int, error) {
			evs, err := s.Waiting(t.Context(), id)
			return len(evs), err
		},
		"newest": func() (int, error) {
			evs, err := s.Events(t.Context(), id, store.EventQuery{Desc: true, Limit: 1})
			return len(evs), err
		},
		"by id": func() (int, error) {
			_, err := s.Event(t.Context(), id, in.ID)
			return 1, err
		},
		"inputs": func() (int, error) {
			evs, err := s.Events(t.Context(), id,
				store.EventQuery{Types: []outboard.EventType{outboard.TypeInputMessage}})
			return len(evs), err
		},
	} {
		start := time.Now()
		n, err := ask()
		if err != nil || n != 1 {
			t.Fatalf("%s: %d, %v", name, n, err)
		}
		t.Logf("%s of %d events: %v", name, events, time.Since(start))
	}
	_, err := s.Event(t.Context(), id, "sevt_none")
	if e, ok := errors.AsType[*outboard.Error](err); !ok || e.Kind != outboard.NotFound {
		t.Fatalf("an event that is not there: %v", err)
	}
}

// Ten thousand idle watchers must cost the store no goroutine and one subscription each, whatever the database.
func TestIdleWatchersAreCheap(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		mustAppend(t, s, newSession(t, s).ID, said("x")) // connects
		before := runtime.NumGoroutine()
		for range 10_000 {
			_, stop := s.Watch(blank().ID)
			defer stop()
		}
		if n := runtime.NumGoroutine(); n > before+2 { // a driver may be at work on its own
			t.Errorf("%d goroutines for 10,000 watchers", n-before)
		}
	})
}

// A follower that is slow, or was told of several things at once, must miss nothing: neither events beyond what
// is kept for it nor the end of the session.
func TestFollowSlowly(t *testing.T) {
	storetest.Each(t, func(t *testing.T, s *store.Store) {
		id := newSession(t, s).ID
		ctx := within(t)
		var seen []int64
		var end error
		for e, err := range s.Follow(ctx, id, 0) {
			if err != nil {
				end = err
				break
			}
			if seen = append(seen, e.Seq); e.Seq != int64(len(seen)) {
				t.Fatalf("got %v", seen)
			}
			switch e.Seq {
			case 1: // few: they are kept
				mustAppend(t, s, id, said("x"), said("y"))
				mustAppend(t, s, id, said("z"))
			case 4: // more than are kept
				for range 4 {
					var many []outboard.Event
					for range 100 {
						many = append(many, said("x"))
					}
					mustAppend(t, s, id, many...)
				}
			case 404: // larger than is kept
				mustAppend(t, s, id, said(strings.Repeat("x", 200<<10)), said(strings.Repeat("y", 200<<10)))
			case 406:
				mustAppend(t, s, id, said("last"))
				if err := s.DeleteSession(ctx, id); err != nil {
					t.Fatal(err)
				}
			}
		}
		if len(seen) < 406 || outboard.KindOf(end) != outboard.NotFound {
			t.Errorf("saw %d events, then %v", len(seen), end)
		}
	})
}
