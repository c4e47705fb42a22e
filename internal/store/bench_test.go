package store_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// BenchmarkAppend appends 2 KB events from concurrent sessions, one commit each, and reports latency and rate
// beside those of a 4 KiB write with fdatasync, probed right before and after.
func BenchmarkAppend(b *testing.B) {
	b.Run("sqlite", func(b *testing.B) { benchAppend(b, storetest.SQLite(b)) })
	b.Run("postgres", func(b *testing.B) { benchAppend(b, store.Config{URL: storetest.Postgres(b)}) })
}

func benchAppend(b *testing.B, cfg store.Config) {
	s := storetest.Open(b, cfg)
	for _, n := range []int{1, 64, 500} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			ids := make([]outboard.SessionID, n)
			for i := range ids {
				ids[i] = newSession(b, s).ID
			}
			before, beforeRate := probeFloor(b)
			var mu sync.Mutex
			var took []time.Duration
			work := make(chan struct{})
			var wg sync.WaitGroup
			for _, id := range ids {
				wg.Go(func() {
					var mine []time.Duration
					for range work {
						ev := event2K()
						t := time.Now()
						if _, err := s.Append(b.Context(), id, 0, store.Any, ev); err != nil {
							b.Error(err)
						}
						mine = append(mine, time.Since(t))
					}
					mu.Lock()
					defer mu.Unlock()
					took = append(took, mine...)
				})
			}
			start := time.Now()
			for b.Loop() {
				work <- struct{}{}
			}
			close(work)
			wg.Wait()
			rate := float64(len(took)) / time.Since(start).Seconds()
			after, afterRate := probeFloor(b)
			floor := (before + after) / 2
			slices.Sort(took)
			p := func(q int) time.Duration { return took[len(took)*q/100] }
			b.ReportMetric(float64(p(50).Microseconds()), "p50-us")
			b.ReportMetric(float64(p(99).Microseconds()), "p99-us")
			b.ReportMetric(float64(floor.Microseconds()), "floor-us")
			b.ReportMetric(float64(p(50))/float64(floor), "p50/floor")
			b.ReportMetric(rate, "events/s")
			b.ReportMetric(2*rate/(beforeRate+afterRate), "rate/floor")
		})
	}
}

// event2K is an event with about 2 KB of data.
func event2K() outboard.Event {
	return outboard.NewEvent("",
		&outboard.AgentMessage{Content: []outboard.Content{outboard.Text(strings.Repeat("x", 2000))}})
}

// probeFloor appends 4 KiB to a file and syncs it, again and again: the median time of that, and how often it
// went a second.
func probeFloor(b *testing.B) (p50 time.Duration, rate float64) {
	b.Helper()
	f, err := os.Create(filepath.Join(b.TempDir(), "floor"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	page := make([]byte, 4096)
	took := make([]time.Duration, 1000)
	start := time.Now()
	for i := range took {
		t := time.Now()
		if _, err := f.Write(page); err != nil {
			b.Fatal(err)
		}
		if err := fdatasync(f); err != nil {
			b.Fatal(err)
		}
		took[i] = time.Since(t)
	}
	rate = float64(len(took)) / time.Since(start).Seconds()
	slices.Sort(took)
	return took[len(took)/2], rate
}
