package control_test

import (
	"runtime"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/store"
)

// long makes a session of n turns, each a message and an answer of about 1 KB, and one that is open.
func long(t testing.TB, c *control.Control, st *store.Store, s control.Session, n int) outboard.Header {
	t.Helper()
	text := strings.Repeat("x", 1000)
	var batch []outboard.Event
	flush := func() {
		t.Helper()
		if _, err := st.Append(t.Context(), s.ID, 0, store.Any, batch...); err != nil {
			t.Fatal(err)
		}
		batch = nil
	}
	turn := func(i int) {
		in := outboard.NewEvent("", say(text))
		req := outboard.NewEvent("", &outboard.ModelStarted{Model: "script/steps", Attempt: 1})
		batch = append(batch, in, outboard.NewEvent("", &outboard.TurnStarted{Turn: i}),
			outboard.NewEvent("", &outboard.InputProcessed{Input: in.ID, Of: in.Type}), req,
			outboard.NewEvent("", &outboard.AgentMessage{Content: []outboard.Content{outboard.Text(text)}}),
			outboard.NewEvent("", &outboard.ModelFinished{Request: req.ID, Provider: "script", Stop: "end_turn", Usage: outboard.Usage{Input: 1}}))
	}
	for i := range n {
		turn(i + 1)
		batch = append(batch, outboard.NewEvent("", &outboard.TurnEnded{Turn: i + 1, Stop: outboard.StopReason{Type: "end_turn"}}))
		if len(batch) > outboard.MaxAppend-8 {
			flush()
		}
	}
	turn(n + 1)
	flush()
	got, err := c.Session(t.Context(), admin, s.ID)
	if err != nil {
		t.Fatal(err)
	}
	return got.Header
}

// Fails if a fork or a rewind of a long session reads, or holds, all of it.
func TestForkOfALongSession(t *testing.T) {
	c, st, _ := parts(t)
	s := session(t, c)
	h := long(t, c, st, s, 3000)
	if h.Head < 20_000 {
		t.Fatalf("the log has only %d events", h.Head)
	}
	spent := func(do func()) uint64 {
		var a, b runtime.MemStats
		runtime.ReadMemStats(&a)
		do()
		runtime.ReadMemStats(&b)
		return b.TotalAlloc - a.TotalAlloc
	}
	fork := func(seq int64) (made []control.Session) {
		t.Helper()
		made, at, err := c.Fork(t.Context(), admin, s.ID, control.ForkRequest{Seq: seq})
		if err != nil || at > seq || at < seq-7 {
			t.Fatalf("forked at %d for %d, %v", at, seq, err)
		}
		return made
	}
	const most = 2 << 20 // the log has some 12 MB
	for _, seq := range []int64{h.Head, h.Head / 2, 10} {
		if n := spent(func() { fork(seq) }); n > most {
			t.Errorf("a fork at %d of %d allocates %d KB", seq, h.Head, n>>10)
		}
	}
	if n := spent(func() { // positive control: to read the log costs more than that
		for _, err := range st.Read(t.Context(), s.ID, 0) {
			if err != nil {
				t.Fatal(err)
			}
		}
	}); n < most {
		t.Errorf("reading the log allocates only %d KB", n>>10)
	}
	f := fork(h.Head / 2)[0]
	if n := spent(func() {
		if _, _, err := c.Rewind(t.Context(), admin, f.ID, control.RewindRequest{Seq: 500, Conversation: true, Machine: true}); err != nil {
			t.Fatal(err)
		}
	}); n > most {
		t.Errorf("a rewind allocates %d KB", n>>10)
	}
}

// Fails if a fork is somebody else's than the one who made it, or has vaults that nobody gave it.
func TestForkIsItsMakers(t *testing.T) {
	c, _, _ := parts(t)
	s := session(t, c)
	other := outboard.Caller{Key: "apikey_01other", Name: "other", Role: "admin"}
	made, _, err := c.Fork(t.Context(), other, s.ID, control.ForkRequest{})
	if err != nil || made[0].Config.Owner.Key != other.Key || len(made[0].Config.VaultIDs) != 0 {
		t.Errorf("the fork is %+v, %v", made, err)
	}
	if _, _, err := c.Fork(t.Context(), outboard.Caller{}, s.ID, control.ForkRequest{}); outboard.KindOf(err) != outboard.Unauthenticated {
		t.Errorf("a fork by nobody: %v", err)
	}
	if _, _, err := c.Rewind(t.Context(), outboard.Caller{}, s.ID, control.RewindRequest{Seq: 1, Machine: true}); outboard.KindOf(err) != outboard.Unauthenticated {
		t.Errorf("a rewind by nobody: %v", err)
	}
	if _, err := c.Export(t.Context(), outboard.Caller{}, s.ID, 0); outboard.KindOf(err) != outboard.Unauthenticated {
		t.Errorf("an export by nobody: %v", err)
	}
	if _, err := c.Import(t.Context(), outboard.Caller{}, strings.NewReader("x"), control.ImportRequest{}); outboard.KindOf(err) != outboard.Unauthenticated {
		t.Errorf("an import by nobody: %v", err)
	}
}
