package control_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/store"
)

// session makes one with an agent that has nothing special.
func session(t testing.TB, c *control.Control) control.Session {
	t.Helper()
	a, err := c.CreateAgent(t.Context(), admin, outboard.Agent{Name: "a",
		Model: outboard.ModelConfig{ID: "script/steps"}})
	if err != nil {
		t.Fatal(err)
	}
	name := "e"
	e, err := c.CreateEnvironment(t.Context(), admin, control.EnvironmentPatch{Name: &name})
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.CreateSession(t.Context(), admin, control.SessionRequest{Agent: a.ID, EnvironmentID: e.ID})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func say(text string) *outboard.InputMessage {
	return &outboard.InputMessage{Content: []outboard.Content{outboard.Text(text)}}
}

// Fails if a crash between writing the key file and storing the key locks everybody out, or a second start makes
// a second key.
func TestEnsureAdminKey(t *testing.T) {
	c, _, _ := parts(t)
	lost, secret := "", ""
	if _, err := c.EnsureAdminKey(t.Context(),
		func(s string) error { lost = s; return os.ErrPermission }); !errors.Is(err, os.ErrPermission) {
		t.Fatalf("a key that cannot be saved: %v", err)
	}
	if _, err := c.Authenticate(t.Context(), lost); outboard.KindOf(err) != outboard.Unauthenticated {
		t.Errorf("a key that was not saved lets in: %v", err)
	}
	made, err := c.EnsureAdminKey(t.Context(), func(s string) error { secret = s; return nil })
	if err != nil || !made {
		t.Fatalf("made %v, %v", made, err)
	}
	by, err := c.Authenticate(t.Context(), secret)
	if err != nil || by.Role != "admin" {
		t.Errorf("caller %v, %v", by, err)
	}
	made, err = c.EnsureAdminKey(t.Context(), func(string) error { t.Error("saved twice"); return nil })
	if made || err != nil {
		t.Errorf("second start: %v, %v", made, err)
	}
}

// Fails if a verb works for a caller that nobody authenticated.
func TestZeroCaller(t *testing.T) {
	c, _, _ := parts(t)
	s := session(t, c)
	var nobody outboard.Caller
	_, _, agents := c.Agents(t.Context(), nobody, control.Page{Limit: 1})
	_, one := c.Session(t.Context(), nobody, s.ID)
	_, sent := c.Send(t.Context(), nobody, s.ID, []outboard.Payload{say("x")})
	_, events := c.Events(t.Context(), nobody, s.ID, control.EventQuery{})
	del := c.DeleteSession(t.Context(), nobody, s.ID)
	_, _, files := c.OpenFile(t.Context(), nobody, "file_01x")
	var follow error
	for _, err := range c.Follow(t.Context(), nobody, s.ID, 0) {
		follow = err
		break
	}
	for i, err := range []error{agents, one, sent, events, del, files, follow} {
		if outboard.KindOf(err) != outboard.Unauthenticated {
			t.Errorf("verb %d: %v", i, err)
		}
	}
}

// Fails if an update that changes nothing makes a version, or one that was decided on an old version overwrites
// a newer one.
func TestAgentVersions(t *testing.T) {
	c, _, _ := parts(t)
	a, err := c.CreateAgent(t.Context(), admin, outboard.Agent{Name: "a",
		Model: outboard.ModelConfig{ID: "m", Effort: "low"},
		Tools: []outboard.Toolset{{Kind: "custom", Name: "c", Description: "d",
			InputSchema: []byte(`{"type":"object","properties":{}}`)}}})
	if err != nil {
		t.Fatal(err)
	}
	same := []outboard.Toolset{{Kind: "custom", Name: "c", Description: "d",
		InputSchema: []byte(`{ "properties":{}, "type":"object" }`)}}
	for _, p := range []control.AgentPatch{{}, {Name: new("a")}, {Tools: &same},
		{Model: &outboard.ModelConfig{ID: "m"}, KeepEffort: true}} {
		if got, err := c.UpdateAgent(t.Context(), admin, a.ID, p); err != nil || got.Version != 1 {
			t.Errorf("%+v: version %d, %v", p, got.Version, err)
		}
	}
	got, err := c.UpdateAgent(t.Context(), admin, a.ID, control.AgentPatch{Model: &outboard.ModelConfig{ID: "other"},
		KeepEffort: true})
	if err != nil || got.Version != 2 || got.Model.Effort != "" {
		t.Errorf("another model: %+v, %v", got.Model, err)
	}
	if _, err := c.UpdateAgent(t.Context(), admin, a.ID,
		control.AgentPatch{Version: new(1)}); outboard.KindOf(err) != outboard.Conflict {
		t.Errorf("a no-op on an old version: %v", err)
	}
	old, err := c.Agent(t.Context(), admin, a.ID, 1)
	if err != nil || old.Model.ID != "m" {
		t.Errorf("version 1: %+v, %v", old, err)
	}
}

// Fails if a stuck session's inbox can grow without end.
func TestInboxLimit(t *testing.T) {
	c, _, _ := parts(t)
	s := session(t, c)
	batch := make([]outboard.Payload, outboard.MaxSendEvents)
	for i := range batch {
		batch[i] = say("x")
	}
	for range outboard.MaxInbox / outboard.MaxSendEvents {
		if _, err := c.Send(t.Context(), admin, s.ID, batch); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Send(t.Context(), admin, s.ID, batch[:1]); outboard.KindOf(err) != outboard.Exhausted {
		t.Errorf("one more than the limit: %v", err)
	}
}

// Fails if content over the log's limits is refused, cut, or stored inside the log.
func TestLargeContentMovesOut(t *testing.T) {
	c, _, _ := parts(t)
	s := session(t, c)
	many := &outboard.InputMessage{}
	for i := range 1000 {
		many.Content = append(many.Content, outboard.Text(strings.Repeat(fmt.Sprint(i%10), 2000)))
	}
	control := say(strings.Repeat("\x01", outboard.MaxInlineContent)) // six bytes each as JSON
	for _, p := range []*outboard.InputMessage{say(strings.Repeat("x", 1<<20)), many, control} {
		want := make([]string, len(p.Content))
		for i, b := range p.Content {
			want[i] = b.Text
		}
		evs, err := c.Send(t.Context(), admin, s.ID, []outboard.Payload{p})
		if err != nil {
			t.Fatal(err)
		}
		if n := len(evs[0].Data); n > outboard.MaxEventData {
			t.Errorf("%d bytes in the log", n)
		}
		got, err := evs[0].Decode()
		if err != nil {
			t.Fatal(err)
		}
		for i, b := range got.(*outboard.InputMessage).Content {
			text := b.Text
			if b.Blob != nil {
				raw, err := c.Load(t.Context(), *b.Blob)
				if err != nil {
					t.Fatal(err)
				}
				text = string(raw)
			}
			if text != want[i] {
				t.Fatalf("block %d has %d bytes, want %d", i, len(text), len(want[i]))
			}
		}
	}
}

// Fails if an answer gets in after its call has ended, or when another answer came first while it was being checked.
func TestLateAnswers(t *testing.T) {
	c, st, _ := parts(t)
	s := session(t, c)
	call := outboard.NewEvent(s.Thread, &outboard.CallRequested{Name: "bash", Kind: "builtin", Input: []byte(`{}`),
		Decision: outboard.Ask, Policy: outboard.AlwaysAsk})
	open := outboard.NewEvent(s.Thread, &outboard.CallRequested{Name: "bash", Kind: "builtin", Input: []byte(`{}`),
		Decision: outboard.Ask, Policy: outboard.AlwaysAsk})
	if _, err := st.Append(t.Context(), s.ID, 0, store.Any, call, open,
		outboard.NewEvent(s.Thread, &outboard.CallFinished{Call: call.ID,
			Outcome: outboard.OutcomeCanceled})); err != nil {
		t.Fatal(err)
	}
	confirm := func(id outboard.CallID, allow bool) error {
		_, err := c.Send(t.Context(), admin, s.ID,
			[]outboard.Payload{&outboard.InputConfirmation{Call: id, Allow: allow}})
		return err
	}
	if err := confirm(call.ID, true); outboard.KindOf(err) != outboard.Invalid ||
		!strings.Contains(err.Error(), string(call.ID)) {
		t.Errorf("an answer to an ended call: %v", err)
	}
	errs := make(chan error, 8)
	for i := range 8 {
		go func() { errs <- confirm(open.ID, i%2 == 0) }()
	}
	won := 0
	for range 8 {
		if err := <-errs; err == nil {
			won++
		} else if k := outboard.KindOf(err); k != outboard.Invalid && k != outboard.Conflict {
			t.Errorf("%s: %v", k, err)
		}
	}
	about, err := st.EventsAbout(t.Context(), s.ID, open.ID)
	if err != nil || len(about) != 1 || won != 4 {
		t.Errorf("%d answers recorded, %d of 4 equal ones accepted, %v", len(about), won, err)
	}
}
