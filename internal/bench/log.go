package bench

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// LogConfig says what `bench log` measures.
type LogConfig struct {
	Dir      string        // on the disk to measure
	Postgres string        // URL; "" leaves the Postgres rows out
	Span     time.Duration // how long each row appends
}

// bars of the log, per dialect: p50 of one session over the floor, rate of 64 sessions over the floor's.
var logBars = map[string]struct{ single, many float64 }{
	"sqlite":   {1.5, 2.5},
	"postgres": {2, 5},
}

// Log measures durable appends of 2 KB events by 1, 64 and 500 sessions at the same time.
func Log(ctx context.Context, cfg LogConfig) ([]Row, error) {
	var rows []Row
	for _, dialect := range []string{"sqlite", "postgres"} {
		sc := store.Config{Path: filepath.Join(cfg.Dir, "bench.db")}
		if dialect == "postgres" {
			if cfg.Postgres == "" {
				continue
			}
			sc = store.Config{URL: cfg.Postgres}
		}
		got, err := logRows(ctx, cfg, dialect, sc)
		if err != nil {
			return rows, fmt.Errorf("measuring %s: %w", dialect, err)
		}
		rows = append(rows, got...)
	}
	return rows, nil
}

func logRows(ctx context.Context, cfg LogConfig, dialect string, sc store.Config) ([]Row, error) {
	st, err := store.Open(ctx, sc)
	if err != nil {
		return nil, err
	}
	defer st.Close()
	bars := logBars[dialect]
	var rows []Row
	var rate64 float64
	for _, sessions := range []int{1, 64, 500} {
		before, err := SyncFloor(cfg.Dir, 200)
		if err != nil {
			return nil, err
		}
		samples, rate, err := appendFor(ctx, st, sessions, cfg.Span)
		if err != nil {
			return nil, err
		}
		after, err := SyncFloor(cfg.Dir, 200)
		if err != nil {
			return nil, err
		}
		floor := slices.Concat(before, after)
		name := fmt.Sprintf("log/%s/%d", dialect, sessions)
		switch sessions {
		case 1:
			rows = append(rows, Latency(name, samples, quantile(floor, 0.5)).AtMost(bars.single))
		case 64:
			rate64 = rate
			rows = append(rows, Rate(name, rate, perSecond(floor), samples).AtLeast(bars.many))
		default:
			row := Rate(name, rate, rate64, samples)
			row.Note = "floor is the rate of 64 sessions; p99 the latency in us"
			rows = append(rows, row.AtLeast(1))
		}
	}
	return rows, nil
}

// appendFor appends 2 KB events from n sessions, each as fast as its last append returns, and gives latencies and the total rate.
func appendFor(ctx context.Context, st *store.Store, n int, span time.Duration) ([]time.Duration, float64, error) {
	heads := make([]outboard.Header, n)
	for i := range heads {
		h := outboard.Header{ID: outboard.NewID[outboard.SessionID](outboard.PrefixSession),
			Thread: outboard.NewID[outboard.ThreadID](outboard.PrefixThread), Phase: outboard.PhaseIdle}
		var err error
		heads[i], err = st.CreateSession(ctx, h, outboard.SessionConfig{}, outboard.NewEvent(h.Thread, &outboard.SessionCreated{}))
		if err != nil {
			return nil, 0, err
		}
	}
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex
		samples []time.Duration
		failure error
	)
	start := time.Now()
	for i := range heads {
		wg.Go(func() {
			got, err := appendOne(ctx, st, heads[i], start.Add(span))
			mu.Lock()
			defer mu.Unlock()
			samples = append(samples, got...)
			if err != nil {
				failure = err
			}
		})
	}
	wg.Wait()
	return samples, float64(len(samples)) / time.Since(start).Seconds(), failure
}

func appendOne(ctx context.Context, st *store.Store, h outboard.Header, until time.Time) ([]time.Duration, error) {
	var samples []time.Duration
	body := []outboard.Content{outboard.Text(strings.Repeat("x", 2048))}
	for time.Now().Before(until) {
		ev := outboard.NewEvent(h.Thread, &outboard.AgentMessage{Content: body})
		begin := time.Now()
		if _, err := st.Append(ctx, h.ID, h.Epoch, h.Head, ev); err != nil {
			return samples, err
		}
		samples = append(samples, time.Since(begin))
		h.Head++
	}
	return samples, nil
}

func perSecond(samples []time.Duration) float64 {
	var sum time.Duration
	for _, d := range samples {
		sum += d
	}
	if sum == 0 {
		return 0
	}
	return float64(len(samples)) / sum.Seconds()
}
