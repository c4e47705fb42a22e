//go:build linux

package runner

import (
	"slices"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/llm"
)

// ticket is a tool of the client with a schema worth the name.
func ticket(schema string) []outboard.Toolset {
	return []outboard.Toolset{allTools[0], {Kind: "custom", Name: "ticket", Description: "d",
		InputSchema: outboard.Raw(schema)}}
}

const ticketSchema = `{"type":"object","properties":{"n":{"type":"integer"},"to":{"enum":["ann","bob"]}},"required":["n"],"additionalProperties":false}`

// results are what the model was told, by call.
func results(s *outboard.State) map[outboard.CallID]outboard.ToolResult {
	out := map[outboard.CallID]outboard.ToolResult{}
	for _, m := range s.History {
		for _, r := range m.Results {
			out[r.Call] = r
		}
	}
	return out
}

// If this fails, a client is handed a call that its tool does not take, or the session waits for an answer to
// it, or the calls beside it suffer for it.
func TestCustomInputsAreHeldToTheirSchema(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.start(nil)
	id := r.session("script/steps", ticket(ticketSchema))
	r.say(id, "- parallel:", "  - call: {name: ticket, input: {n: 1, to: ann}}",
		"  - call: {name: ticket, input: {n: one, cc: x}}",
		"  - bash: echo two", `  - call: {name: ticket, input: '{"n": 1'}`, "  - call: {name: ticket, input: '[1]'}", "- say: done")
	s := r.rests(id, "requires_action")
	if len(s.Calls) != 5 || !slices.Equal(s.Stop.EventIDs, []outboard.EventID{s.Calls[0].ID}) {
		t.Fatalf("parked on %v, want the call that fits alone\n%s", s.Stop.EventIDs, r.dump(id))
	}
	for i, want := range map[int]string{
		1: "invalid input for ticket: /cc: is not a known field; /n: must be integer, not string",
		3: "invalid input for ticket: the arguments are not JSON (unexpected end of JSON input); write them as one " +
			"JSON object",
		4: "invalid input for ticket: expected a JSON object with the arguments",
	} {
		c := s.Calls[i]
		if c.Requested.Kind != "custom" || c.Requested.Decision != outboard.Deny || c.Requested.Policy != "" ||
			c.Requested.Reason != want {
			t.Errorf("call %d: %+v", i, c.Requested)
		}
		if c.Started != nil || c.Finished == nil || c.Finished.Outcome != outboard.OutcomeError ||
			!c.Finished.IsError || finalText(*c.Finished) != want {
			t.Errorf("call %d ended as %+v", i, c.Finished)
		}
	}
	if c := s.Calls[2]; c.Finished == nil || c.Finished.Outcome != outboard.OutcomeOK {
		t.Errorf("the command beside them: %+v", c.Finished)
	}
	r.send(id, &outboard.InputToolResult{Call: s.Calls[0].ID, Custom: true,
		Content: []outboard.Content{outboard.Text("T-1")}})
	end := r.rests(id, "end_turn")
	told := results(end)
	if len(told) != 5 || told[s.Calls[0].ID].IsError || !told[s.Calls[1].ID].IsError || !told[s.Calls[4].ID].IsError {
		t.Errorf("the model was told %+v", told)
	}
	if calls := payloads[*outboard.CallRequested](r, id); string(calls[3].Input) != `"{\"n\": 1"` {
		t.Errorf("what the model wrote is in the log as %s", calls[3].Input)
	}
}

// If this fails, a session waits in requires_action for a call that nobody will answer, or the outcome of a
// refused call can get lost between two appends.
func TestARefusedCustomCallDoesNotPark(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.start(nil)
	id := r.session("script/steps", ticket(ticketSchema))
	r.say(id, "- call: {name: ticket, input: {}}", "- say: sorry")
	s := r.rests(id, "end_turn")
	if types := r.types(id); slices.Contains(types, "turn.resumed") {
		t.Errorf("the session parked: %v", types)
	}
	for _, told := range results(s) {
		if !told.IsError || !strings.Contains(told.Content[0].Text, "/n: is required") {
			t.Errorf("the model was told %+v", told)
		}
	}
	types := r.types(id)
	i := slices.Index(types, "call.requested")
	if i < 0 || !slices.Equal(types[i:i+4], []string{"call.requested", "model.finished", "call.finished",
		"model.started"}) {
		t.Fatalf("order of events: %v", types)
	}
}

// If this fails, a session whose agent was saved before schemas were checked can call its tools no more.
func TestASchemaThatCannotBeUsedPasses(t *testing.T) {
	for name, schema := range map[string]string{"none": ``, "no schema": `{"type":"object","properties":7}`,
		"look-ahead": `{"properties":{"n":{"pattern":"(?=a)"}}}`,
		"remote":     `{"$ref":"http://127.0.0.1:1/schema"}`} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, llm.Config{})
			r.start(nil)
			id := r.session("script/steps", ticket(schema))
			r.say(id, "- parallel:", "  - call: {name: ticket, input: {n: one}}",
				"  - call: {name: ticket, input: '[1]'}", "- say: done")
			s := r.rests(id, "requires_action")
			if !slices.Equal(s.Stop.EventIDs, []outboard.EventID{s.Calls[0].ID}) {
				t.Fatalf("parked on %v, want the object alone\n%s", s.Stop.EventIDs, r.dump(id))
			}
			r.send(id, &outboard.InputToolResult{Call: s.Calls[0].ID, Custom: true,
				Content: []outboard.Content{outboard.Text("T-1")}})
			r.rests(id, "end_turn")
		})
	}
}

// If this fails, a call that names no tool ends the turn, where the model could have made it again.
func TestCallWithoutAName(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.start(nil)
	id := r.steps(`- parallel: [call: {name: "", input: {n: 1}}, bash: "true"]`,
		`- call: {name: "`+strings.Repeat("x", 300)+`"}`, "- bash: "+r.mark(), "- say: done")
	r.rests(id, "end_turn")
	out := r.outcomes(id)
	if len(out) != 4 || !out[0].IsError || !strings.Contains(finalText(out[0]), "names no tool; available: bash") ||
		!strings.Contains(finalText(out[2]), "no tool named") {
		t.Fatalf("outcomes: %+v", out)
	}
	if out[3].Outcome != outboard.OutcomeOK || len(r.marks()) != 1 {
		t.Errorf("the call after it: %+v, %d ran", out[3], len(r.marks()))
	}
}

// If this fails, a model that only ever makes calls which cannot be made runs up to the limit of model calls, or
// one that finds its way back is stopped.
func TestFutileCallsEnd(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.start(nil)
	bad := func(n int) (steps []string) {
		for i := range n {
			steps = append(steps, []string{`- call: {name: ""}`, `- call: {name: bash, input: "{"}`,
				`- call: {name: bash, input: {cmd: x}}`}[i%3])
		}
		return steps
	}
	id := r.steps(slices.Concat(bad(outboard.MaxFutile-1), []string{"- bash: 'true'"}, bad(outboard.MaxFutile-1),
		[]string{"- say: done"})...)
	r.rests(id, "end_turn") // control
	id = r.steps(slices.Concat(bad(outboard.MaxFutile+1), []string{"- say: done"})...)
	s := r.rests(id, "retries_exhausted")
	if failed := payloads[*outboard.TurnFailed](r, id); len(failed) != 1 || failed[0].Error.Type != llm.Failed ||
		!strings.Contains(failed[0].Error.Message, "20 responses in a row") {
		t.Errorf("failed: %+v", failed)
	}
	if s.ModelCalls != outboard.MaxFutile {
		t.Errorf("after %d model calls, want %d", s.ModelCalls, outboard.MaxFutile)
	}
	r.say(id, "- say: again")
	r.until(id, "the next turn",
		func(s *outboard.State) bool { return s.Turn == 2 && s.Stop != nil && s.Stop.Type == "end_turn" })
}
