package chaos

import (
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
)

// logOf makes a well-formed log of one marked bash call in sandbox sbx_1.
func logOf(t *testing.T, change func([]outboard.Payload) []outboard.Payload) (*history, record) {
	t.Helper()
	const id = outboard.SessionID("sesn_1")
	msg := outboard.NewEvent("sthr_1", &outboard.InputMessage{Content: []outboard.Content{outboard.Text("go")}})
	call := outboard.NewEvent("sthr_1", &outboard.CallRequested{Name: "bash", Kind: "builtin", Decision: outboard.Allow,
		Input: outboard.Raw(`{"command":"echo $OUTBOARD_CALL_KEY"}`)})
	request := outboard.NewEvent("sthr_1", &outboard.ModelStarted{Model: "script/steps"})
	tail := []outboard.Payload{
		&outboard.CallStarted{Call: call.ID, Class: outboard.ClassEffect, Sandbox: "sbx_1"},
		&outboard.CallFinished{Call: call.ID, Outcome: outboard.OutcomeOK},
		&outboard.TurnEnded{Turn: 1, Stop: outboard.StopReason{Type: "end_turn"}},
	}
	if change != nil {
		tail = change(tail)
	}
	events := []outboard.Event{outboard.NewEvent("sthr_1", &outboard.SessionCreated{}), msg,
		outboard.NewEvent("sthr_1", &outboard.TurnStarted{Turn: 1}),
		outboard.NewEvent("sthr_1", &outboard.InputProcessed{Input: msg.ID, Of: outboard.TypeInputMessage}),
		request, call, outboard.NewEvent("sthr_1", &outboard.ModelFinished{Request: request.ID, Stop: "tool_use"})}
	for _, p := range tail {
		events = append(events, outboard.NewEvent("sthr_1", p))
	}
	for i := range events {
		events[i].Session, events[i].Seq = id, int64(i)+1
	}
	h, err := index(id, events)
	if err != nil {
		t.Fatal(err)
	}
	return h, record{acked: []outboard.EventID{msg.ID}, effects: []effect{{outboard.CallKey(id, call.ID), "sbx_1"}}}
}

// A verifier that cannot see a violation proves nothing: each kind is planted and must be named, and a sound log
// must pass.
func TestVerify(t *testing.T) {
	if bad := verify(logOf(t, nil)); len(bad) > 0 {
		t.Fatalf("a sound log is refused: %v", bad)
	}
	h, r := logOf(t, func(p []outboard.Payload) []outboard.Payload {
		fin := p[1].(*outboard.CallFinished)
		fin.IsError, fin.ExitCode = true, new(137)
		return p
	})
	r.effects = nil
	if bad := verify(h, r); len(bad) > 0 {
		t.Errorf("a command that is recorded as killed must not need a mark: %v", bad)
	}
	type tails = func([]outboard.Payload) []outboard.Payload
	planted := []struct {
		name, want string
		tail       tails
		record     func(*record)
	}{
		{"lost message", "is not in the log", nil, func(r *record) { r.acked = append(r.acked, "sevt_gone") }},
		{"executed twice", "was executed 2 times", nil,
			func(r *record) { r.effects = append(r.effects, r.effects[0]) }},
		{"ran elsewhere", "which no intent names", nil, func(r *record) { r.effects[0].sandbox = "sbx_2" }},
		{"effect missing", "not in the workspace", nil, func(r *record) { r.effects = nil }},
		{"failed without a mark", "not in the workspace", func(p []outboard.Payload) []outboard.Payload {
			p[1].(*outboard.CallFinished).ExitCode = new(1)
			return p
		}, func(r *record) { r.effects = nil }},
		{"unfinished", "has 0 outcomes", func(p []outboard.Payload) []outboard.Payload { return append(p[:1:1], p[2]) },
			nil},
		{"resent", "was started 2 times", func(p []outboard.Payload) []outboard.Payload {
			return append([]outboard.Payload{p[0]}, p...)
		}, nil},
		{"baseless unknown", "no sandbox was lost", func(p []outboard.Payload) []outboard.Payload {
			p[1].(*outboard.CallFinished).Outcome = outboard.OutcomeUnknown
			return p
		}, nil},
		{"no sandbox", "was given up without an intent: no room", func(p []outboard.Payload) []outboard.Payload {
			fin := p[1].(*outboard.CallFinished)
			fin.Outcome, fin.IsError, fin.Content = outboard.OutcomeError, true, []outboard.Content{outboard.Text("no room")}
			return p[1:]
		}, func(r *record) { r.effects = nil }},
		{"not ended", "did not reach its end", func(p []outboard.Payload) []outboard.Payload { return p[:2] }, nil},
	}
	for _, c := range planted {
		t.Run(c.name, func(t *testing.T) {
			h, r := logOf(t, c.tail)
			if c.record != nil {
				c.record(&r)
			}
			if bad := strings.Join(verify(h, r), "\n"); !strings.Contains(bad, c.want) {
				t.Errorf("planted violation not named: got %q, want %q", bad, c.want)
			}
		})
	}
}
