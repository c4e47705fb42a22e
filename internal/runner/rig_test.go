//go:build linux

package runner

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/blob"
	"github.com/outboard-dev/outboard/internal/fleet"
	"github.com/outboard-dev/outboard/internal/harness"
	"github.com/outboard-dev/outboard/internal/live"
	"github.com/outboard-dev/outboard/internal/llm"
	"github.com/outboard-dev/outboard/internal/sandboxtest"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
	"github.com/outboard-dev/outboard/internal/tool"
)

// patience bounds every wait of a test, for a machine that is busy with other things.
const patience = 2 * time.Minute

// rig is everything a runner needs, for real: SQLite, blobs on disk, guests as processes, the scripted model.
// Its clock can be moved forward, which is how leases and timers end without waiting.
type rig struct {
	t        testing.TB
	store    *store.Store
	blob     *blob.Dir
	boxes    *sandboxtest.Bare
	fleet    *fleet.Fleet
	models   *llm.Registry
	hub      live.Hub
	offset   atomic.Int64 // of the clock, in nanoseconds
	oracle   string       // a file outside every sandbox that commands append their key to
	log      *slog.Logger
	sessions int
	org      outboard.OrgID // of the sessions to come; "" = the default one
}

func (r *rig) now() time.Time { return time.Now().Add(time.Duration(r.offset.Load())) }

// advance moves the clock. Waits that were computed before look at it again within PollFallback.
func (r *rig) advance(d time.Duration) { r.offset.Add(int64(d)) }

func newRig(t testing.TB, cfg llm.Config) *rig {
	t.Helper()
	return newRigOn(t, cfg, storetest.SQLite(t))
}

func newRigOn(t testing.TB, cfg llm.Config, sc store.Config) *rig {
	t.Helper()
	r := &rig{t: t, oracle: filepath.Join(t.TempDir(), "oracle"), log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	sc.Now = r.now
	r.store = storetest.Open(t, sc)
	var err error
	if r.blob, err = blob.NewDir(filepath.Join(t.TempDir(), "blobs")); err != nil {
		t.Fatal(err)
	}
	if r.models, err = llm.NewRegistry(cfg); err != nil {
		t.Fatal(err)
	}
	r.boxes = sandboxtest.NewBare(t).(*sandboxtest.Bare)
	r.fleet = r.newFleet()
	return r
}

// newFleet is what one process has of the fleet.
func (r *rig) newFleet() *fleet.Fleet {
	return fleet.New(fleet.Config{Store: r.store, Blob: r.blob, Provider: r.boxes, Host: "here", Logger: r.log})
}

func (r *rig) config() Config {
	return Config{Store: r.store, Blob: r.blob, Fleet: r.fleet, Models: r.models, Live: &r.hub, Logger: r.log,
		Host: "here", Now: r.now,
		Grace: 10 * time.Second, Fetcher: tool.NewFetcher(tool.FetcherConfig{}),
		Harness: &harness.Builtin{Now: r.now, Backoff: func(int) time.Duration { return 0 }}}
}

// start starts a runner that is stopped when the test ends.
func (r *rig) start(change func(*Config)) *Runner {
	r.t.Helper()
	cfg := r.config()
	if change != nil {
		change(&cfg)
	}
	n := New(cfg)
	if err := n.Start(context.Background()); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(n.Stop)
	return n
}

var allTools = []outboard.Toolset{
	{Kind: "builtin", Default: outboard.ToolConfig{Enabled: true, Policy: outboard.AlwaysAllow}},
	{Kind: "custom", Name: "ticket",
		InputSchema: outboard.Raw(`{"type":"object","properties":{"n":{"type":"integer"}}}`)},
}

// asks is a toolset in which the named tools ask first.
func asks(names ...string) []outboard.Toolset {
	sets := slices.Clone(allTools)
	for _, n := range names {
		sets[0].Configs = append(slices.Clone(sets[0].Configs), outboard.ToolConfig{Name: n, Enabled: true,
			Policy: outboard.AlwaysAsk})
	}
	return sets
}

// session creates a session of model with the tools.
func (r *rig) session(model string, sets []outboard.Toolset) outboard.SessionID {
	r.t.Helper()
	return r.sessionWith(outboard.SessionConfig{Agent: outboard.Agent{ID: "agent_1", Version: 1,
		Model: outboard.ModelConfig{ID: model}, Tools: sets},
		Env: outboard.EnvConfig{Kind: "cloud"}})
}

// sessionWith creates a session of a configuration.
func (r *rig) sessionWith(cfg outboard.SessionConfig) outboard.SessionID {
	r.t.Helper()
	r.sessions++
	h := outboard.Header{ID: outboard.NewID[outboard.SessionID](outboard.PrefixSession), AgentID: "agent_1",
		AgentVersion: 1, Org: r.org,
		Thread: outboard.NewID[outboard.ThreadID](outboard.PrefixThread), Phase: outboard.PhaseIdle}
	h, err := r.store.CreateSession(r.t.Context(), h, cfg, outboard.NewEvent(h.Thread,
		&outboard.SessionCreated{Config: cfg}))
	if err != nil {
		r.t.Fatal(err)
	}
	return h.ID
}

// steps is a session of the step model with all tools and one message.
func (r *rig) steps(lines ...string) outboard.SessionID {
	r.t.Helper()
	id := r.session("script/steps", allTools)
	r.say(id, lines...)
	return id
}

func (r *rig) send(id outboard.SessionID, payloads ...outboard.Payload) []outboard.EventID {
	r.t.Helper()
	h, err := r.store.Session(r.t.Context(), id)
	if err != nil {
		r.t.Fatal(err)
	}
	var events []outboard.Event
	var ids []outboard.EventID
	for _, p := range payloads {
		e := outboard.NewEvent(h.Thread, p)
		events, ids = append(events, e), append(ids, e.ID)
	}
	if _, err := r.store.Append(r.t.Context(), id, 0, store.Any, events...); err != nil {
		r.t.Fatal(err)
	}
	return ids
}

// say sends a message of script steps.
func (r *rig) say(id outboard.SessionID, lines ...string) outboard.EventID {
	r.t.Helper()
	return r.send(id, &outboard.InputMessage{Content: []outboard.Content{outboard.Text(strings.Join(lines, "\n"))}})[0]
}

// until follows the log until cond holds of the fold after some event, and returns that fold.
func (r *rig) until(id outboard.SessionID, what string, cond func(*outboard.State) bool) *outboard.State {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	s := new(outboard.State)
	for e, err := range r.store.Follow(ctx, id, 0) {
		if err != nil {
			r.t.Fatal(err)
		}
		if err := s.Apply(&e); err != nil {
			r.t.Fatal(err)
		}
		if cond(s) {
			return s
		}
	}
	r.t.Fatalf("%s: did not happen\n%s", what, r.dump(id))
	return nil
}

// rests waits for the end of turn n: idle with that stop reason and no message left.
func (r *rig) rests(id outboard.SessionID, stop string) *outboard.State {
	r.t.Helper()
	return r.until(id, "resting with "+stop, func(s *outboard.State) bool {
		return s.Phase == outboard.PhaseIdle && s.Stop != nil && s.Stop.Type == stop &&
			(stop == "requires_action" || len(s.Waiting) == 0)
	})
}

func (r *rig) events(id outboard.SessionID) []outboard.Event {
	r.t.Helper()
	var out []outboard.Event
	for e, err := range r.store.Read(context.Background(), id, 0) {
		if err != nil {
			r.t.Fatal(err)
		}
		out = append(out, e)
	}
	return out
}

// payloads returns the payloads of one type, in order.
func payloads[P outboard.Payload](r *rig, id outboard.SessionID) []P {
	r.t.Helper()
	var out []P
	for _, e := range r.events(id) {
		p, err := e.Decode()
		if err != nil {
			r.t.Fatal(err)
		}
		if p, ok := p.(P); ok {
			out = append(out, p)
		}
	}
	return out
}

func (r *rig) dump(id outboard.SessionID) string {
	var b strings.Builder
	for _, e := range r.events(id) {
		fmt.Fprintf(&b, "%3d %-20s %.300s\n", e.Seq, e.Type, e.Data)
	}
	return b.String()
}

// types returns the log's event types, without the first.
func (r *rig) types(id outboard.SessionID) []string {
	var out []string
	for _, e := range r.events(id)[1:] {
		out = append(out, string(e.Type))
	}
	return out
}

// mark is a command that tells the oracle it ran.
func (r *rig) mark() string { return "echo $OUTBOARD_CALL_KEY >> " + r.oracle }

// marks counts, per call key, how often a command ran.
func (r *rig) marks() map[string]int {
	b, err := os.ReadFile(r.oracle)
	if err != nil && !os.IsNotExist(err) {
		r.t.Fatal(err)
	}
	n := map[string]int{}
	for key := range strings.FieldsSeq(string(b)) {
		n[key]++
	}
	return n
}

// outcomes returns the outcome of each call, in order of the requests.
func (r *rig) outcomes(id outboard.SessionID) []outboard.CallFinished {
	r.t.Helper()
	var out []outboard.CallFinished
	fins := payloads[*outboard.CallFinished](r, id)
	for _, e := range r.events(id) {
		for _, f := range fins {
			if e.Type == outboard.TypeCallRequested && f.Call == e.ID {
				out = append(out, *f)
			}
		}
	}
	return out
}

func finalText(f outboard.CallFinished) string { return outboard.PlainText(f.Content) }

type atomicInt struct{ n atomic.Int64 }

func (a *atomicInt) add(n int) { a.n.Add(int64(n)) }
func (a *atomicInt) get() int  { return int(a.n.Load()) }
