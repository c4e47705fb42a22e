//go:build linux

package runner

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/fleet"
	"github.com/outboard-dev/outboard/internal/harness"
	"github.com/outboard-dev/outboard/internal/llm"
)

// If this fails, a refusal is shown as an ordinary end.
func TestRefusal(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.start(nil)
	id := r.steps("- say: no", "- stop: refusal")
	r.rests(id, "refusal")
	if e := payloads[*outboard.TurnEnded](r, id)[0]; !bytes.Contains(e.Details, []byte(`"refusal"`)) {
		t.Errorf("details = %s", e.Details)
	}
}

// If this fails, a model that never ends its turn costs without bound.
func TestModelCallLimit(t *testing.T) {
	r := newRig(t, llm.Config{})
	const most = 60
	r.start(func(c *Config) { c.Harness = &harness.Builtin{Now: r.now, MaxCalls: most} })
	// or it ends sooner
	some := append(slices.Repeat([]string{"- call: {name: none, input: {}}"}, outboard.MaxFutile-1), "- bash: 'true'")
	id := r.steps(slices.Repeat(some, most/len(some)+1)...)
	r.rests(id, "retries_exhausted")
	if f := payloads[*outboard.TurnFailed](r, id)[0]; f.Error.Type != "tool_use_limit_reached_error" ||
		!strings.Contains(f.Error.Message, "60 model calls (limits.model_calls)") {
		t.Errorf("failure = %+v", f.Error)
	}
	if n := len(payloads[*outboard.ModelFinished](r, id)); n != most {
		t.Errorf("%d model calls, want %d", n, most)
	}
}

// If this fails, a long conversation ends in an error of the provider instead of being summarised, or loses its place.
func TestCompaction(t *testing.T) {
	r := newRig(t, llm.Config{Scripts: llm.Scripts{Context: 20_000}})
	r.start(nil)
	id := r.steps(append(slices.Repeat([]string{"- bash: seq 4000"}, 6), "- say: done")...)
	s := r.rests(id, "end_turn")
	if n := len(payloads[*outboard.ContextCompacted](r, id)); n == 0 {
		t.Errorf("nothing was compacted; context %d\n%s", s.Context, r.dump(id))
	}
	if n := len(payloads[*outboard.ModelFinished](r, id)); n != 7 {
		t.Errorf("%d responses, want 7: one per step", n)
	}
	if s.History[0].Role != "summary" {
		t.Errorf("the model's view begins with %s", s.History[0].Role)
	}
}

// If this fails, a conversation that no summary makes small enough is summarised again and again.
func TestCompactionLimit(t *testing.T) {
	r := newRig(t, llm.Config{Scripts: llm.Scripts{Context: 200}})
	r.start(nil)
	id := r.steps("- say: "+strings.Repeat("x", 4000), "- say: never")
	r.rests(id, "retries_exhausted")
	if f := payloads[*outboard.TurnFailed](r, id); f[0].Error.Type != "compaction_limit_reached_error" {
		t.Errorf("failure = %+v", f[0].Error)
	}
	if n := len(payloads[*outboard.ContextCompacted](r, id)); n > 5 {
		t.Errorf("%d compactions", n)
	}
}

// If this fails, large inputs and outputs break the log's limit, or come back changed.
func TestLargeContentGoesToBlobs(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.start(nil)
	big := strings.Repeat("<&> ", 40_000)
	ref, err := r.blob.Put(t.Context(),
		strings.NewReader("- bash: |\n    echo begin; : '"+big+"'\n- bash: seq 20000\n- say: "+big), 0)
	if err != nil {
		t.Fatal(err)
	}
	id := r.session("script/steps", allTools)
	r.send(id, &outboard.InputMessage{Content: []outboard.Content{{Type: "text", Blob: &ref}}})
	r.rests(id, "end_turn")
	req := payloads[*outboard.CallRequested](r, id)[0]
	if req.InputBlob == nil || len(req.Input) > 4 {
		t.Fatalf("input of %d bytes is inline", len(req.Input))
	}
	out := r.outcomes(id)
	if finalText(out[0]) != "begin\n" {
		t.Errorf("call with a large input: %q", finalText(out[0]))
	}
	blob := out[1].Content[0].Blob
	if blob == nil || !out[1].Truncated {
		t.Fatalf("output is inline, truncated %v", out[1].Truncated)
	}
	b, err := (&turn{Runner: New(r.config())}).Load(t.Context(), *blob)
	if err != nil || !bytes.HasPrefix(b, []byte("1\n2\n3\n")) || !bytes.Contains(b, []byte("20000\n")) {
		t.Errorf("loaded %d bytes, %v", len(b), err)
	}
	if m := payloads[*outboard.AgentMessage](r, id)[0]; m.Content[0].Blob == nil {
		t.Error("a large message is inline")
	}
}

// If this fails, a host that cannot isolate ends the turn in an internal error, or worse runs the command anyway.
func TestNoSandboxProvider(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.start(func(c *Config) {
		c.Fleet = fleet.New(fleet.Config{Store: r.store, Blob: r.blob, Host: "here",
			Logger: slog.New(slog.DiscardHandler)})
	})
	id := r.steps("- bash: "+r.mark(), "- say: sorry")
	r.rests(id, "end_turn")
	if out := r.outcomes(id)[0]; out.Outcome != outboard.OutcomeError ||
		!strings.Contains(finalText(out), "outboard doctor") {
		t.Errorf("outcome = %+v", out)
	}
	if len(r.marks()) != 0 {
		t.Error("the command ran")
	}
}

// panics is a harness that panics in its first turn, and then works.
type panics struct {
	harness.Builtin
	left atomicInt
}

func (p *panics) Run(ctx context.Context, t harness.Turn) error {
	if p.left.get() > 0 {
		p.left.add(-1)
		t.Stage(outboard.NewEvent(t.State().Thread, &outboard.TurnStarted{Turn: 1}))
		panic("boom")
	}
	return p.Builtin.Run(ctx, t)
}

// If this fails, a bug in one turn takes the process down, or makes the session fail for ever.
func TestPanicEndsOneTurn(t *testing.T) {
	r := newRig(t, llm.Config{})
	h := &panics{}
	h.left.add(1)
	r.start(func(c *Config) { c.Harness = h })
	id := r.steps("- say: hello")
	r.rests(id, "retries_exhausted")
	f := payloads[*outboard.TurnFailed](r, id)
	if len(f) != 1 || f[0].Error.Type != "unknown_error" || strings.Contains(f[0].Error.Message, "boom") {
		t.Errorf("turn.failed = %+v", f)
	}
	r.say(id, "- say: hello")
	r.rests(id, "end_turn")
}

// If this fails, an archived session keeps on working.
func TestArchiveStopsTheTurn(t *testing.T) {
	r := newRig(t, llm.Config{})
	n := r.start(nil)
	id := r.steps("- sleep: 1h", "- say: never")
	r.until(id, "the model runs", func(s *outboard.State) bool { return s.Request != "" })
	r.send(id, &outboard.SessionArchived{})
	n.Stop() // would take its grace time if the model call went on
	if types := r.types(id); types[len(types)-1] != "session.archived" {
		t.Errorf("log ends with %v", types)
	}
}

// If this fails, live readers see text under an id that never becomes an event, or see nothing.
func TestDeltasCarryTheIDOfTheirEvent(t *testing.T) {
	r := newRig(t, llm.Config{})
	id := r.steps("- think: deep thought", "- say: hello there, this is more than one piece of text")
	deltas := r.hub.Follow(t.Context(), id)
	r.start(nil)
	r.rests(id, "end_turn")
	said, after := map[outboard.EventID]string{}, map[outboard.EventID]int64{}
	for len(deltas) > 0 {
		d := <-deltas
		said[d.Event] += d.Text
		after[d.Event] = d.After
	}
	began := int64(0)
	for _, e := range r.events(id) {
		p, _ := e.Decode()
		want := ""
		switch p := p.(type) {
		case *outboard.ModelStarted:
			began = e.Seq
			continue
		case *outboard.AgentMessage:
			want = outboard.PlainText(p.Content)
		case *outboard.AgentThinking:
			want = p.Text
		default:
			continue
		}
		if said[e.ID] != want {
			t.Errorf("%s %s: live text %q, logged %q", e.Type, e.ID, said[e.ID], want)
		}
		if began == 0 || after[e.ID] != began {
			t.Errorf("%s %s: its live text comes after event %d, its model request began with %d", e.Type, e.ID,
				after[e.ID], began)
		}
		delete(said, e.ID)
	}
	if len(said) > 0 {
		t.Errorf("live text without an event: %v", said)
	}
}
