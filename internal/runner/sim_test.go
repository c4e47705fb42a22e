//go:build linux

package runner

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/llm"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

var seed = flag.Uint64("seed", 1, "seed of the random deaths of the crash simulation")

// mortal makes a runner die at the at-th point before or after a commit: from there on none of its writes
// reaches the store, as if its process had been killed. It is never told that it is dead; it finds itself
// fenced, and the next process finds its lease over.
type mortal struct {
	mu   sync.Mutex
	at   int // negative = immortal
	seen int
	dead chan struct{} // closed on death
}

func newMortal(at int) *mortal { return &mortal{at: at, dead: make(chan struct{})} }

func (m *mortal) fault(point string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-m.dead:
		return store.ErrFenced
	default:
	}
	if !strings.HasSuffix(point, "commit") {
		return nil
	}
	m.seen++
	if m.seen-1 != m.at {
		return nil
	}
	close(m.dead)
	return store.ErrFenced
}

func (m *mortal) points() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seen
}

// simulate plays one session with everything in it, on one process after another: each dies at the given point.
// It returns the canonical log, and how many points the last process passed.
func simulate(t *testing.T, deaths ...int) (log string, points int) {
	t.Helper()
	return simulateOn(t, storetest.SQLite(t), deaths...)
}

func simulateOn(t *testing.T, sc store.Config, deaths ...int) (log string, points int) {
	t.Helper()
	r := newRigOn(t, llm.Config{}, sc)
	g := newGate(t)
	id := r.session("script/steps", asks("write"))
	r.say(id, "- parallel:", "  - bash: echo one; "+r.mark(), "  - bash: echo two; "+r.mark(), "- fail: 529",
		"- bash: echo three; "+r.mark()+"; cat "+g.path,
		"- parallel:", "  - write: {path: /workspace/f, content: x}", "  - call: {name: ticket, input: {}}", "  - bash: echo four; "+r.mark(),
		"  - call: {name: ticket, input: {n: one}}",
		"- say: done")
	var last *mortal
	over := make(chan struct{})
	var host sync.WaitGroup
	host.Go(func() {
		for _, at := range append(slices.Clone(deaths), -1) {
			last = newMortal(at)
			r.start(func(c *Config) { c.fault, c.Fleet = last.fault, r.newFleet() })
			select {
			case <-last.dead:
				r.advance(outboard.LeaseTTL + time.Second)
			case <-over:
				return
			}
		}
		<-over
	})
	r.until(id, "the third call runs", func(s *outboard.State) bool {
		return len(s.Calls) == 1 && strings.Contains(string(s.Calls[0].Requested.Input), "three") &&
			s.Calls[0].Started != nil
	})
	r.say(id, "- say: steered")
	g.pass()
	s := r.rests(id, "requires_action")
	r.send(id, &outboard.InputConfirmation{Call: s.Calls[0].ID, Allow: true},
		&outboard.InputToolResult{Call: s.Calls[1].ID, Custom: true, Content: []outboard.Content{outboard.Text("T-1")}})
	r.rests(id, "end_turn")
	close(over)
	host.Wait()
	marks := r.marks()
	for i, e := range r.events(id) {
		p, _ := e.Decode()
		if c, ok := p.(*outboard.CallRequested); ok && c.Name == "bash" && marks[outboard.CallKey(id, e.ID)] != 1 {
			t.Errorf("the command of event %d ran %d times\n%s", i, marks[outboard.CallKey(id, e.ID)], r.dump(id))
		}
	}
	log = canonical(t, r.events(id))
	return strings.NewReplacer(r.oracle, "ORACLE", g.path, "GATE").Replace(log), last.points()
}

// canonical writes a log without what may differ between two runs of the same session: ids, epochs, times,
// attempts, who held the machine, and the order in which parallel calls came to their ends.
func canonical(t *testing.T, events []outboard.Event) string {
	t.Helper()
	names := map[string]string{}
	inputs := map[string]string{}
	started := map[string]bool{}
	var lines, ends []string
	for _, e := range events {
		var p map[string]any
		if err := json.Unmarshal(e.Data, &p); err != nil {
			t.Fatal(err)
		}
		for _, k := range []string{"epoch", "key", "generation", "sandbox", "checkpoint", "deadline", "digest",
			"duration_us", "at", "attempt", "request", "usage", "expires_at", "wake_at", "since"} {
			delete(p, k)
		}
		if id, ok := p["tool_use_id"].(string); ok {
			names[string(e.ID)] = id
		}
		if stop, ok := p["stop"].(map[string]any); ok {
			for i, id := range anys(stop["event_ids"]) {
				anys(stop["event_ids"])[i] = names[id.(string)]
			}
		}
		if id, ok := p["call"].(string); ok {
			p["call"] = names[id]
		}
		if id, ok := p["input"].(string); ok {
			p["input"] = inputs[id]
		}
		b, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		line := fmt.Sprintf("%s %s", e.Type, b)
		switch {
		case e.Type.IsInput(): // when a client sent it is not the runner's doing; when it was processed is
			inputs[string(e.ID)] = line
			continue
		case e.Type == outboard.TypeCheckpointCreated, e.Type == outboard.TypeCallStarted && started[line]:
			continue
		case e.Type == outboard.TypeCallFinished:
			ends = append(ends, line)
			continue
		}
		started[line] = e.Type == outboard.TypeCallStarted
		slices.Sort(ends)
		lines = append(append(lines, ends...), line)
		ends = nil
	}
	return strings.Join(append(lines, ends...), "\n")
}

func anys(v any) []any { s, _ := v.([]any); return s }

// If this fails, a process that dies at the wrong moment changes what a session does: an event is lost or
// doubled, a command runs twice or never, or the session does not reach its end.
func TestDyingAtEveryAppendGivesTheSameLog(t *testing.T) {
	want, points := simulate(t)
	if points < 16 {
		t.Fatalf("only %d points to die at; the session is not what it should be:\n%s", points, want)
	}
	for k := range points {
		t.Run(fmt.Sprint(k), func(t *testing.T) {
			if got, _ := simulate(t, k); got != want {
				t.Errorf("after dying at point %d of %d the log is\n%s\nwant\n%s", k, points, got, want)
			}
		})
	}
}

// If this fails, what holds on SQLite does not hold where several machines share a Postgres.
func TestDyingOnPostgresGivesTheSameLog(t *testing.T) {
	want, points := simulate(t)
	rng := rand.New(rand.NewPCG(*seed, 1))
	for range 3 {
		deaths := []int{rng.IntN(points), rng.IntN(points / 2)}
		if got, _ := simulateOn(t, store.Config{URL: storetest.Postgres(t)}, deaths...); got != want {
			t.Errorf("seed %d, deaths at %v: the log is\n%s\nwant\n%s", *seed, deaths, got, want)
		}
	}
}

// If this fails, two deaths do what one does not.
func TestDyingAgainAndAgainGivesTheSameLog(t *testing.T) {
	want, points := simulate(t)
	rng := rand.New(rand.NewPCG(*seed, 0))
	for i := range 6 {
		deaths := make([]int, 2+rng.IntN(4))
		for i := range deaths {
			deaths[i] = rng.IntN(points / 2)
		}
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			if got, _ := simulate(t, deaths...); got != want {
				t.Errorf("seed %d, deaths at %v: the log is\n%s\nwant\n%s", *seed, deaths, got, want)
			}
		})
	}
}

// If this fails, two processes that both believe to hold a session, as after a pause or a clock that jumped, get
// into each other's way.
func TestStolenLeases(t *testing.T) {
	r := newRig(t, llm.Config{})
	for range 3 {
		r.start(func(c *Config) { c.Fleet = r.newFleet() })
	}
	var ids []outboard.SessionID
	for range 6 {
		ids = append(ids, r.steps("- bash: sleep 0.2; "+r.mark(), "- parallel:", "  - bash: "+r.mark(), "  - glob: '*'",
			"  - bash: sleep 0.1; "+r.mark(),
			"- bash: "+r.mark(), "- say: done"))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var thieves sync.WaitGroup
	for _, id := range ids {
		thieves.Go(func() {
			for e, err := range r.store.Follow(ctx, id, 0) {
				if err != nil || e.Type != outboard.TypeCallStarted && e.Type != outboard.TypeModelStarted {
					continue
				}
				// every lease is over; who still works does not know
				r.advance(outboard.LeaseTTL + time.Second)
				if err := r.store.Deregister(ctx, "wkr_none"); err != nil && ctx.Err() == nil { // wakes the claimers
					t.Error(err)
				}
			}
		})
	}
	stolen := int64(0)
	for _, id := range ids {
		r.rests(id, "end_turn")
		marks := r.marks()
		for i, f := range r.outcomes(id) {
			if f.Outcome != outboard.OutcomeOK || i != 2 && marks[outboard.CallKey(id, f.Call)] != 1 {
				t.Errorf("call %d of %s: %s, ran %d times\n%s", i, id, f.Outcome, marks[outboard.CallKey(id, f.Call)],
					r.dump(id))
			}
		}
		for _, s := range payloads[*outboard.CallStarted](r, id) {
			stolen = max(stolen, s.Epoch)
		}
	}
	cancel()
	thieves.Wait()
	t.Logf("sessions changed hands up to %d times", stolen-1)
	if stolen < 2 {
		t.Error("no session changed hands: the test did not test anything")
	}
}
