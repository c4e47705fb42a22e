package sdk

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
)

// lookup is a custom tool that keeps what it was run with.
type lookup struct {
	mu   sync.Mutex
	runs []string
}

func (*lookup) Name() string        { return "lookup" }
func (*lookup) Description() string { return "Looks a value up." }
func (*lookup) InputSchema() anthropic.BetaToolInputSchemaParam {
	return anthropic.BetaToolInputSchemaParam{}
}

func (l *lookup) Execute(_ context.Context,
	input json.RawMessage) ([]anthropic.BetaToolResultBlockParamContentUnion, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runs = append(l.runs, string(input))
	return []anthropic.BetaToolResultBlockParamContentUnion{{OfText: &anthropic.BetaTextBlockParam{Text: "42"}}}, nil
}

func (l *lookup) ran() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.runs)
}

// Fails if the SDK's own tool runner, which runs what it sees, runs a custom tool's call that a policy asks
// about before it was allowed, after it was denied, or twice; or does not run one that was allowed.
func TestGoToolRunnerWaitsForApprovals(t *testing.T) {
	base, key := serve(t)
	rec := record(t, base)
	client := anthropic.NewClient(option.WithBaseURL(rec.url), option.WithAPIKey(key))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	f := &flowV1{t: t, ctx: ctx, c: client}
	f.agent()
	f.environment()
	f.session()
	plain := anthropic.NewClient(option.WithBaseURL(base), option.WithAPIKey(key)) // no route of the document's
	f.must(plain.Post(ctx, "v1/policies", map[string]any{"level": "organization",
		"text": `@id("asks") @effect("ask") forbid (principal, action == Action::"custom", resource) when { context.input like "*asked*" };`}, nil))
	tool := &lookup{}
	run := client.Beta.Sessions.Events.NewToolRunner(ctx, f.id,
		anthropic.SessionToolRunnerOptions{Tools: []anthropic.BetaTool{tool},
			Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	calls := make(chan anthropic.DispatchedToolCall, 20)
	go func() {
		defer close(calls)
		for run.Next() {
			calls <- run.Current()
		}
	}()
	defer func() { f.must(run.Close()) }()
	next := func(custom, posted bool) {
		t.Helper()
		if c := <-calls; c.Custom != custom || c.Posted != posted {
			t.Fatalf("the runner dealt with %s: custom %v, posted %v", c.Name, c.Custom, c.Posted)
		}
	}
	// control: it runs what it is shown
	f.rest("end_turn", f.say("- call: {name: lookup, input: {key: free}}\n- say: done\n"))
	next(true, true)
	for _, result := range []string{"allow", "deny"} {
		before := tool.ran()
		asked := f.rest("requires_action", f.say("- call: {name: lookup, input: {key: asked}}\n- say: done\n"))
		if tool.ran() != before {
			t.Fatal("it ran a call that is asked about")
		}
		f.rest("end_turn", anthropic.BetaManagedAgentsEventParamsUnion{
			OfUserToolConfirmation: &anthropic.BetaManagedAgentsUserToolConfirmationEventParams{Type: "user.tool_confirmation",
				ToolUseID: asked, Result: anthropic.BetaManagedAgentsUserToolConfirmationEventParamsResult(result)}})
		next(false, false) // the question itself, which is no call of the runner's
		if result == "allow" {
			next(true, true)
			before++
		}
		if n := tool.ran(); n != before {
			t.Errorf("after %s: %d runs, want %d", result, n, before)
		}
	}
	rec.check(t, loadSpec(t, "github.com/anthropics/anthropic-sdk-go"))
}

// rest sends events and waits until the session rests for that reason. It returns the first call that the
// session then waits for.
func (f *flowV1) rest(stop string, events ...anthropic.BetaManagedAgentsEventParamsUnion) (call string) {
	f.t.Helper()
	stream := f.c.Beta.Sessions.Events.StreamEvents(f.ctx, f.id, anthropic.BetaSessionEventStreamParams{})
	defer stream.Close()
	f.send(events...)
	for stream.Next() {
		if ev := stream.Current(); ev.Type == "session.status_idle" && ev.StopReason.Type == stop {
			if ids := ev.AsSessionStatusIdle().StopReason.AsRequiresAction().EventIDs; len(ids) > 0 {
				return ids[0]
			}
			return ""
		}
	}
	f.t.Fatalf("the stream ended before the session rested with %s: %v", stop, stream.Err())
	return ""
}
