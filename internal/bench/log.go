package bench

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
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
	Span     time.Duration // how long each row appends, in turns with the others
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

// logRounds is how many times the crowds of log take their turns, each beside floors of its own: the machine's
// disk and processors change their speed within seconds, and all rows are to see the same of them.
const logRounds = 6

// logCrowd is some sessions that append at the same time, and what was measured of them.
type logCrowd struct {
	heads   []outboard.Header
	samples []time.Duration // latencies of appends
	floor   []time.Duration // syncs, just before and after
	busy    time.Duration
}

func logRows(ctx context.Context, cfg LogConfig, dialect string, sc store.Config) ([]Row, error) {
	st, err := store.Open(ctx, sc)
	if err != nil {
		return nil, err
	}
	defer st.Close()
	var one, many, most logCrowd
	for n, c := range map[int]*logCrowd{1: &one, 64: &many, 500: &most} {
		if c.heads, err = logSessions(ctx, st, n); err != nil {
			return nil, err
		}
	}
	for range logRounds {
		for _, c := range []*logCrowd{&one, &many, &most} {
			if err := c.turn(ctx, st, cfg.Dir, cfg.Span/logRounds); err != nil {
				return nil, err
			}
		}
	}
	bars, name := logBars[dialect], "log/"+dialect
	last := Rate(name+"/500", most.rate(), many.rate(), most.samples)
	last.Note = "floor is the rate of 64 sessions; p99 the latency in us"
	return []Row{
		Latency(name+"/1", one.samples, quantile(one.floor, 0.5)).AtMost(bars.single),
		Rate(name+"/64", many.rate(), perSecond(many.floor), many.samples).AtLeast(bars.many),
		last.AtLeast(1),
	}, nil
}

func logSessions(ctx context.Context, st *store.Store, n int) ([]outboard.Header, error) {
	heads := make([]outboard.Header, n)
	for i := range heads {
		h := outboard.Header{ID: outboard.NewID[outboard.SessionID](outboard.PrefixSession),
			Thread: outboard.NewID[outboard.ThreadID](outboard.PrefixThread), Phase: outboard.PhaseIdle}
		var err error
		heads[i], err = st.CreateSession(ctx, h, outboard.SessionConfig{},
			outboard.NewEvent(h.Thread, &outboard.SessionCreated{}))
		if err != nil {
			return nil, err
		}
	}
	return heads, nil
}

// turn appends 2 KB events from every session for a span, each as fast as its last append returns.
func (c *logCrowd) turn(ctx context.Context, st *store.Store, dir string, span time.Duration) error {
	if err := c.sync(dir); err != nil {
		return err
	}
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex
		failure error
	)
	start := time.Now()
	for i := range c.heads {
		wg.Go(func() {
			got, err := appendOne(ctx, st, &c.heads[i], start.Add(span))
			mu.Lock()
			defer mu.Unlock()
			c.samples = append(c.samples, got...)
			failure = cmp.Or(failure, err)
		})
	}
	wg.Wait()
	c.busy += time.Since(start)
	return cmp.Or(failure, c.sync(dir))
}

func (c *logCrowd) sync(dir string) error {
	got, err := SyncFloor(dir, 50)
	c.floor = append(c.floor, got...)
	return err
}

func (c *logCrowd) rate() float64 { return float64(len(c.samples)) / c.busy.Seconds() }

func appendOne(ctx context.Context, st *store.Store, h *outboard.Header, until time.Time) ([]time.Duration, error) {
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
