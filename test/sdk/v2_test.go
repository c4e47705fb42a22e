package sdk

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/anthropics/anthropic-sdk-go/v2"
	"github.com/anthropics/anthropic-sdk-go/v2/option"
)

// Fails if the Go SDK of the 2026-10-21 generation cannot drive a whole session, or an answer departs from its
// OpenAPI document.
func TestGoV2(t *testing.T) {
	base, key := serve(t)
	rec := record(t, base)
	client := anthropic.NewClient(option.WithBaseURL(rec.url), option.WithAPIKey(key))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	f := &flowV2{t: t, ctx: ctx, c: client}
	f.agent()
	f.environment()
	f.session()
	f.turn()
	f.confirm()
	f.custom()
	f.interrupt()
	f.history()
	f.end()
	rec.check(t, loadSpec(t, "github.com/anthropics/anthropic-sdk-go/v2"))
}

// flowV2 is one session and the ids it is made of.
type flowV2 struct {
	t                *testing.T
	ctx              context.Context
	c                anthropic.Client
	agentID, envID   string
	id               string
	streamed, listed []string
}

func (f *flowV2) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *flowV2) agent() {
	ask := anthropic.BetaManagedAgentsBashToolConfigParamsPermissionPolicyUnion{
		OfAlwaysAsk: &anthropic.BetaManagedAgentsAlwaysAskPolicyParam{Type: "always_ask"}}
	a, err := f.c.Beta.Agents.New(f.ctx, anthropic.BetaAgentNewParams{
		Name:        "proof",
		Model:       anthropic.BetaManagedAgentsModelConfigParams{ID: "script/steps"},
		System:      anthropic.String("You are a test."),
		Description: anthropic.String("made by the SDK"),
		Metadata:    map[string]string{"team": "sdk"},
		Tools: []anthropic.BetaAgentNewParamsToolUnion{
			{OfAgentToolset20260401: &anthropic.BetaManagedAgentsAgentToolset20260401Params{Type: "agent_toolset_20260401",
				Configs: []anthropic.BetaManagedAgentsAgentToolConfigParamsUnion{
					{OfBash: &anthropic.BetaManagedAgentsBashToolConfigParams{PermissionPolicy: ask}}}}},
			{OfCustom: &anthropic.BetaManagedAgentsCustomToolParams{Type: "custom", Name: "lookup",
				Description: "Looks a value up.",
				InputSchema: anthropic.BetaManagedAgentsCustomToolInputSchemaParam{Type: "object"}}},
		},
	})
	f.must(err)
	f.agentID = a.ID
	got, err := f.c.Beta.Agents.Get(f.ctx, a.ID, anthropic.BetaAgentGetParams{})
	f.must(err)
	if got.Name != "proof" || got.Version != 1 || len(got.Tools) != 2 || got.Metadata["team"] != "sdk" {
		f.t.Errorf("agent: %s", got.RawJSON())
	}
	_, err = f.c.Beta.Agents.Update(f.ctx, a.ID, anthropic.BetaAgentUpdateParams{Version: anthropic.Int(7),
		Name: anthropic.String("x")})
	if e, ok := errors.AsType[*anthropic.Error](err); !ok || e.StatusCode != http.StatusConflict {
		f.t.Errorf("update of the wrong version: %v", err)
	}
	up, err := f.c.Beta.Agents.Update(f.ctx, a.ID, anthropic.BetaAgentUpdateParams{Version: anthropic.Int(1),
		Name: anthropic.String("proof 2")})
	f.must(err)
	if up.Version != 2 {
		f.t.Errorf("version after an update: %d", up.Version)
	}
	_, err = f.c.Beta.Agents.Versions.List(f.ctx, a.ID, anthropic.BetaAgentVersionListParams{})
	f.must(err)
	_, err = f.c.Beta.Agents.List(f.ctx, anthropic.BetaAgentListParams{Limit: anthropic.Int(5)})
	f.must(err)
}

func (f *flowV2) environment() {
	e, err := f.c.Beta.Environments.New(f.ctx, anthropic.BetaEnvironmentNewParams{Name: "proof"})
	f.must(err)
	f.envID = e.ID
	_, err = f.c.Beta.Environments.Update(f.ctx, e.ID,
		anthropic.BetaEnvironmentUpdateParams{Description: anthropic.String("d")})
	f.must(err)
	_, err = f.c.Beta.Environments.List(f.ctx, anthropic.BetaEnvironmentListParams{})
	f.must(err)
}

func (f *flowV2) session() {
	s, err := f.c.Beta.Sessions.New(f.ctx, anthropic.BetaSessionNewParams{EnvironmentID: f.envID,
		Title: anthropic.String("proof"),
		Agent: anthropic.BetaSessionNewParamsAgentUnion{OfString: anthropic.String(f.agentID)}})
	f.must(err)
	f.id = s.ID
	if s.Status != "idle" || s.Agent.Version != 2 {
		f.t.Errorf("session: %s", s.RawJSON())
	}
	_, err = f.c.Beta.Sessions.Update(f.ctx, s.ID,
		anthropic.BetaSessionUpdateParams{Title: anthropic.String("proof 2")})
	f.must(err)
	_, err = f.c.Beta.Sessions.List(f.ctx, anthropic.BetaSessionListParams{AgentID: anthropic.String(f.agentID)})
	f.must(err)
	_, err = f.c.Beta.Sessions.Get(f.ctx, "sesn_011111111111111111111111", anthropic.BetaSessionGetParams{})
	if e, ok := errors.AsType[*anthropic.Error](err); !ok || e.StatusCode != http.StatusNotFound || e.RequestID == "" {
		f.t.Errorf("a session that is not there: %v", err)
	}
}

func (f *flowV2) send(events ...anthropic.BetaManagedAgentsEventParamsUnion) {
	f.t.Helper()
	_, err := f.c.Beta.Sessions.Events.Send(f.ctx, f.id, anthropic.BetaSessionEventSendParams{Events: events})
	f.must(err)
}

func (f *flowV2) say(script string) anthropic.BetaManagedAgentsEventParamsUnion {
	return anthropic.BetaManagedAgentsEventParamsUnion{OfUserMessage: &anthropic.BetaManagedAgentsUserMessageEventParams{Type: "user.message",
		Content: []anthropic.BetaManagedAgentsUserMessageEventParamsContentUnion{
			{OfText: &anthropic.BetaManagedAgentsTextBlockParam{Type: "text", Text: script}}}}}
}

// until sends events on an open stream and reads to the first event of a type. It returns what it read.
func (f *flowV2) until(kind string,
	events ...anthropic.BetaManagedAgentsEventParamsUnion) []anthropic.BetaManagedAgentsStreamSessionEventsUnion {
	f.t.Helper()
	stream := f.c.Beta.Sessions.Events.StreamEvents(f.ctx, f.id, anthropic.BetaSessionEventStreamParams{
		EventDeltas: []anthropic.BetaManagedAgentsDeltaType{"agent.message", "agent.thinking"}})
	defer stream.Close()
	f.send(events...)
	var out []anthropic.BetaManagedAgentsStreamSessionEventsUnion
	for stream.Next() {
		ev := stream.Current()
		out = append(out, ev)
		if ev.ID != "" {
			f.streamed = append(f.streamed, ev.ID)
		}
		if ev.Type == kind {
			return out
		}
	}
	f.t.Fatalf("the stream ended before %s: %v", kind, stream.Err())
	return nil
}

// pending returns the one call that the session waits for.
func (f *flowV2) pending(evs []anthropic.BetaManagedAgentsStreamSessionEventsUnion) string {
	f.t.Helper()
	last := evs[len(evs)-1].AsSessionStatusIdle()
	need := last.StopReason.AsRequiresAction()
	if last.StopReason.Type != "requires_action" || len(need.EventIDs) != 1 {
		f.t.Fatalf("stop reason: %s", last.StopReason.RawJSON())
	}
	return need.EventIDs[0]
}

func (f *flowV2) ended(evs []anthropic.BetaManagedAgentsStreamSessionEventsUnion, kinds ...string) {
	f.t.Helper()
	var seen []string
	for _, e := range evs {
		seen = append(seen, e.Type)
	}
	for _, k := range kinds {
		if !slices.Contains(seen, k) {
			f.t.Errorf("no %s in %v", k, seen)
		}
	}
	if r := evs[len(evs)-1].AsSessionStatusIdle().StopReason.Type; r != "end_turn" {
		f.t.Errorf("stop reason %s", r)
	}
}

func (f *flowV2) turn() {
	evs := f.until("session.status_idle", f.say("- think: first a file\n- write: {path: /workspace/a.txt, content: "+
		"hello}\n- read: /workspace/a.txt\n- say: done\n"))
	f.ended(evs, "session.status_running", "user.message", "agent.thinking", "agent.tool_use", "agent.tool_result",
		"agent.message",
		"span.model_request_start", "span.model_request_end", "session.usage", "event_start", "event_delta")
}

func (f *flowV2) confirm() {
	evs := f.until("session.status_idle", f.say("- bash: cat /workspace/a.txt\n- say: done\n"))
	evs = f.until("session.status_idle", anthropic.BetaManagedAgentsEventParamsUnion{
		OfUserToolConfirmation: &anthropic.BetaManagedAgentsUserToolConfirmationEventParams{Type: "user.tool_confirmation",
			ToolUseID: f.pending(evs), Result: "allow"}})
	f.ended(evs, "user.tool_confirmation", "agent.tool_result", "agent.message")
}

func (f *flowV2) custom() {
	evs := f.until("session.status_idle", f.say("- call: {name: lookup, input: {key: k}}\n- say: done\n"))
	evs = f.until("session.status_idle", anthropic.BetaManagedAgentsEventParamsUnion{
		OfUserCustomToolResult: &anthropic.BetaManagedAgentsUserCustomToolResultEventParams{Type: "user.custom_tool_result",
			CustomToolUseID: f.pending(evs), Content: []anthropic.BetaManagedAgentsUserCustomToolResultEventParamsContentUnion{
				{OfText: &anthropic.BetaManagedAgentsTextBlockParam{Type: "text", Text: "42"}}}}})
	f.ended(evs, "user.custom_tool_result", "agent.message")
}

func (f *flowV2) interrupt() {
	f.until("span.model_request_start", f.say("- sleep: 90s\n- say: never\n"))
	evs := f.until("session.status_idle", anthropic.BetaManagedAgentsEventParamsUnion{
		OfUserInterrupt: &anthropic.BetaManagedAgentsUserInterruptEventParams{Type: "user.interrupt"}})
	f.ended(evs, "user.interrupt")
}

// history compares what was streamed with what is listed, page by page.
func (f *flowV2) history() {
	pager := f.c.Beta.Sessions.Events.ListAutoPaging(f.ctx, f.id,
		anthropic.BetaSessionEventListParams{Limit: anthropic.Int(7)})
	for pager.Next() {
		f.listed = append(f.listed, pager.Current().ID)
	}
	f.must(pager.Err())
	for _, id := range f.streamed {
		if !slices.Contains(f.listed, id) {
			f.t.Errorf("event %s was streamed and is not listed", id)
		}
	}
	threads, err := f.c.Beta.Sessions.Threads.List(f.ctx, f.id, anthropic.BetaSessionThreadListParams{})
	f.must(err)
	if len(threads.Data) != 1 {
		f.t.Errorf("%d threads", len(threads.Data))
	}
}

func (f *flowV2) end() {
	s, err := f.c.Beta.Sessions.Archive(f.ctx, f.id, anthropic.BetaSessionArchiveParams{})
	f.must(err)
	if s.Status != "terminated" {
		f.t.Errorf("archived session: %s", s.RawJSON())
	}
	_, err = f.c.Beta.Sessions.Delete(f.ctx, f.id, anthropic.BetaSessionDeleteParams{})
	f.must(err)
	_, err = f.c.Beta.Environments.Archive(f.ctx, f.envID, anthropic.BetaEnvironmentArchiveParams{})
	f.must(err)
	_, err = f.c.Beta.Agents.Archive(f.ctx, f.agentID, anthropic.BetaAgentArchiveParams{})
	f.must(err)
}
