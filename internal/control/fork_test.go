package control_test

import (
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

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
			outboard.NewEvent("", &outboard.ModelFinished{Request: req.ID, Provider: "script", Stop: "end_turn",
				Usage: outboard.Usage{Input: 1}}))
	}
	for i := range n {
		turn(i + 1)
		batch = append(batch,
			outboard.NewEvent("", &outboard.TurnEnded{Turn: i + 1, Stop: outboard.StopReason{Type: "end_turn"}}))
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
		if _, _, err := c.Rewind(t.Context(), admin, f.ID, control.RewindRequest{Seq: 500, Conversation: true,
			Machine: true}); err != nil {
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
	if _, _, err := c.Fork(t.Context(), outboard.Caller{}, s.ID,
		control.ForkRequest{}); outboard.KindOf(err) != outboard.Unauthenticated {
		t.Errorf("a fork by nobody: %v", err)
	}
	if _, _, err := c.Rewind(t.Context(), outboard.Caller{}, s.ID, control.RewindRequest{Seq: 1,
		Machine: true}); outboard.KindOf(err) != outboard.Unauthenticated {
		t.Errorf("a rewind by nobody: %v", err)
	}
	if _, err := c.Export(t.Context(), outboard.Caller{}, s.ID, 0); outboard.KindOf(err) != outboard.Unauthenticated {
		t.Errorf("an export by nobody: %v", err)
	}
	if _, err := c.Import(t.Context(), outboard.Caller{}, strings.NewReader("x"),
		control.ImportRequest{}); outboard.KindOf(err) != outboard.Unauthenticated {
		t.Errorf("an import by nobody: %v", err)
	}
}

// Fails if a rewind or a fork to a state that was given up takes another one without a word, or does not say which
// there are.
func TestThinnedPositions(t *testing.T) {
	c, st, _ := parts(t)
	s := session(t, c)
	var ids []outboard.CheckpointID
	for range 3 {
		k := outboard.Checkpoint{ID: outboard.NewID[outboard.CheckpointID](outboard.PrefixCheckpoint),
			Delta: outboard.BlobRef{Digest: "d", Size: 1}}
		ids = append(ids, k.ID)
		if _, err := st.Commit(t.Context(), store.Commit{Session: s.ID, Expect: store.Any, Checkpoint: &k,
			Events: []outboard.Event{outboard.NewEvent(s.Thread,
				&outboard.CheckpointCreated{Checkpoint: k.ID})}}); err != nil {
			t.Fatal(err)
		}
	}
	list, err := c.Checkpoints(t.Context(), admin, s.ID)
	if err != nil || len(list) != 3 {
		t.Fatalf("%d checkpoints, %v", len(list), err)
	}
	if err := st.Thin(t.Context(), ids[1:2], nil, nil, time.Now()); err != nil {
		t.Fatal(err)
	}
	for what, do := range map[string]func(i int) error{
		"rewind": func(i int) error {
			_, _, err := c.Rewind(t.Context(), admin, s.ID, control.RewindRequest{Seq: list[i].Seq, Machine: true})
			return err
		},
		"restore": func(i int) error {
			_, _, err := c.Rewind(t.Context(), admin, s.ID, control.RewindRequest{Checkpoint: ids[i], Machine: true})
			return err
		},
		"fork": func(i int) error {
			_, _, err := c.Fork(t.Context(), admin, s.ID, control.ForkRequest{Seq: list[i].Seq})
			return err
		},
	} {
		err := do(1)
		for _, want := range []string{"not kept", string(ids[0]), string(ids[2]), "position " +
			strconv.FormatInt(list[0].Seq, 10)} {
			if outboard.KindOf(err) != outboard.Conflict || !strings.Contains(err.Error(), want) {
				t.Errorf("%s of one that was given up, without %q: %v", what, want, err)
			}
		}
		if err := do(0); err != nil {
			t.Errorf("control: %s: %v", what, err)
		}
	}
	if list, err = c.Checkpoints(t.Context(), admin, s.ID); err != nil || list[1].Durable || !list[2].Durable {
		t.Errorf("listed as %+v, %v", list, err)
	}
}
