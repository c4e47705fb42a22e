package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/server"
	"github.com/outboard-dev/outboard/internal/store"
)

// maxRun bounds a whole run, so that a session that never ends is a violation and not a hang.
const maxRun = 30 * time.Minute

// Run does it all. The error is for a run that could not be carried out; what it found is in the summary.
func Run(ctx context.Context, cfg Config) (Summary, error) {
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, maxRun)
	defer cancel()
	sum := Summary{Type: "chaos", Database: "sqlite", Seed: cfg.Seed, Sessions: cfg.Sessions, Kills: map[string]int{},
		Violations: []string{}}
	if cfg.DB != "" {
		sum.Database = "postgres"
	}
	troop, err := muster(ctx, cfg)
	if err != nil {
		return sum, err
	}
	defer troop.disband()
	records, err := fight(ctx, cfg, troop, &sum)
	if err != nil {
		return sum, err
	}
	troop.disband()
	if err := judge(ctx, cfg, records, &sum); err != nil {
		return sum, err
	}
	if err := server.RemoveSandboxes(ctx, cfg.Dir, cfg.Guest); err != nil {
		return sum, err
	}
	sum.Seconds = time.Since(start).Seconds()
	sum.OK = len(sum.Violations) == 0
	return sum, nil
}

// fight drives the sessions while the killer works, and ends when the kills are done and every session has come
// to rest.
func fight(ctx context.Context, cfg Config, troop *troop, sum *Summary) (map[outboard.SessionID]*record, error) {
	c, err := troop.client()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	set, err := prepare(ctx, c, cfg)
	if err != nil {
		return nil, err
	}
	var (
		over    = make(chan struct{}) // closed when the last kill is done
		wg      sync.WaitGroup
		mu      sync.Mutex
		failure error
		records = map[outboard.SessionID]*record{}
	)
	for i, id := range set {
		r := &record{}
		records[id] = r
		d := driver{c: c, id: id, rec: r, rng: rand.New(rand.NewPCG(cfg.Seed, uint64(i+1)))}
		wg.Go(func() {
			if err := d.drive(ctx, over); err != nil {
				mu.Lock()
				defer mu.Unlock()
				sum.Violations = append(sum.Violations, fmt.Sprintf("%s: %v", id, err))
			}
		})
	}
	for i := range calmers {
		wg.Go(func() {
			n := calm(ctx, c, rand.New(rand.NewPCG(cfg.Seed, uint64(1<<32+i))), over)
			mu.Lock()
			defer mu.Unlock()
			sum.Stopped += n
		})
	}
	failure = troop.kill(ctx, cfg, sum.Kills)
	close(over)
	wg.Wait()
	for _, r := range records {
		sum.Messages += len(r.acked)
	}
	return records, failure
}

// stopAfter and dropAfter are the environment's thresholds, in seconds, so short that the timer stops and drops
// while others are killed.
const stopAfter, dropAfter = 1, 2

// calmers is how many stop sandboxes at the same time: each waits a while for one that is in use.
const calmers = 3

// calm stops random sandboxes as a long rest would, until over is closed, and returns how many. Most of those it
// asks for are in use.
func calm(ctx context.Context, c *client.Client, rng *rand.Rand, over <-chan struct{}) (stopped int) {
	for {
		var ids []string
		for m, err := range c.Sandboxes(ctx) {
			if err != nil {
				break // the server was killed
			}
			if m.State == "live" && m.Session != "" {
				ids = append(ids, m.ID)
			}
		}
		if len(ids) > 0 {
			if m, err := c.StopSandbox(ctx, ids[rng.IntN(len(ids))]); err == nil && m.State == "stopped" {
				stopped++
			}
		}
		select {
		case <-over:
			return stopped
		case <-ctx.Done():
			return stopped
		case <-time.After(time.Duration(rng.IntN(100)) * time.Millisecond): // the instant is the point
		}
	}
}

// prepare makes the agent, the environment and the sessions.
func prepare(ctx context.Context, c *client.Client, cfg Config) ([]outboard.SessionID, error) {
	agent, err := c.CreateAgent(ctx, map[string]any{"name": "chaos", "model": "script/steps",
		"tools": []any{map[string]any{"type": "agent_toolset_20260401"}}})
	if err != nil {
		return nil, fmt.Errorf("creating the agent: %w", err)
	}
	env, err := c.CreateEnvironment(ctx, map[string]any{"name": fmt.Sprintf("chaos-%d", time.Now().UnixNano()),
		"config": map[string]any{"type": "cloud",
			"outboard": map[string]any{"lifecycle": map[string]int{"stop_after_seconds": stopAfter,
				"drop_after_seconds": dropAfter}}}})
	if err != nil {
		return nil, fmt.Errorf("creating the environment: %w", err)
	}
	ids := make([]outboard.SessionID, cfg.Sessions)
	for i := range ids {
		s, err := c.CreateSession(ctx, client.NewSession{Agent: agent.ID, EnvironmentID: env.ID,
			Title: fmt.Sprintf("chaos %d", i)})
		if err != nil {
			return nil, fmt.Errorf("creating session %d: %w", i, err)
		}
		ids[i] = outboard.SessionID(s.ID)
	}
	return ids, nil
}

// judge reads every log and fills the summary.
func judge(ctx context.Context, cfg Config, records map[outboard.SessionID]*record, sum *Summary) error {
	st, err := store.Open(ctx, store.Config{Path: server.SQLitePath(cfg.Dir), URL: cfg.DB})
	if err != nil {
		return fmt.Errorf("opening the log to judge it: %w", err)
	}
	defer st.Close()
	for id, r := range records {
		var events []outboard.Event
		for e, err := range st.Read(ctx, id, 0) {
			if err != nil {
				return fmt.Errorf("reading the log of %s: %w", id, err)
			}
			events = append(events, e)
		}
		h, err := index(id, events)
		if err != nil {
			return err
		}
		head, err := st.Session(ctx, id)
		if err != nil {
			return err
		}
		sum.count(h, head)
		sum.Violations = append(sum.Violations, verify(h, *r)...)
		if err := sum.judgeDrops(ctx, st, h); err != nil {
			return err
		}
	}
	if sum.Dropped == 0 {
		sum.Violations = append(sum.Violations, "no sandbox was dropped")
	}
	return nil
}

// judgeDrops looks at each sandbox of a session that the audit says was dropped: its row says so too, the log
// says what comes back, and that is stored.
func (s *Summary) judgeDrops(ctx context.Context, st *store.Store, h *history) error {
	for id, lost := range h.parted {
		drops, err := st.AuditRecords(ctx, store.AuditQuery{Action: "sandbox.drop", Text: string(id), Limit: 10})
		if err != nil {
			return fmt.Errorf("reading the audit: %w", err)
		}
		row, err := st.Sandbox(ctx, id)
		if err != nil {
			return fmt.Errorf("reading the row of %s: %w", id, err)
		}
		if len(drops) == 0 || row.State != "destroyed" {
			continue // lost otherwise, or dropping it was cut short by the end
		}
		s.Dropped++
		if lost.again {
			s.Restored++
		}
		if lost.restore == "" {
			continue // nothing had been saved
		}
		k, err := st.Checkpoint(ctx, lost.restore)
		if err != nil || !k.Durable() {
			s.Violations = append(s.Violations, fmt.Sprintf("%s: sandbox %s was dropped, but its checkpoint %s is "+
				"not stored: %v", h.id, id, lost.restore, err))
		}
	}
	return nil
}

func (s *Summary) count(h *history, head outboard.Header) {
	s.Events += len(h.events)
	s.Calls += len(h.requested)
	s.Lost += len(h.lost)
	for _, f := range h.finished {
		if f[0].Outcome == outboard.OutcomeUnknown {
			s.Unknown++
		}
	}
	for _, e := range h.events {
		if e.Type == outboard.TypeTurnStarted {
			s.Takeovers--
		}
	}
	s.Takeovers += int(head.Epoch)
}

// binary returns the program to run, by default the one that is running.
func binary(cfg Config) (string, error) {
	if cfg.Binary != "" {
		return cfg.Binary, nil
	}
	path, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding the outboard program: %w", err)
	}
	return path, nil
}
