package harness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/llm"
)

const (
	// retryBase and retryMax bound the wait before a model call is made again: the first wait is felt as a
	// hiccup, the last still gives an overloaded provider a minute. The session is rows meanwhile.
	retryBase = 500 * time.Millisecond
	retryMax  = time.Minute
	// DefaultPatience is how long a model may be away before the turn fails: outages of providers last for tens
	// of minutes, and a person who comes back an hour later wants to read what happened.
	DefaultPatience = 45 * time.Minute
)

// Builtin is Outboard's own loop: model call, tool calls, results, until the model ends its turn. The zero value
// is ready.
type Builtin struct {
	// Backoff is how long to wait after the given number of failed attempts, when the provider did not say; nil
	// = exponential from half a second with jitter.
	Backoff func(attempt int) time.Duration
	// Patience is how long, from its first failure on, a model call is tried again while the model is away; 0 =
	// DefaultPatience.
	Patience time.Duration
	// MaxCalls bounds the model calls of one turn; 0 = outboard.MaxModelCalls.
	MaxCalls int
	// Now is the clock of the loop's timers; nil = time.Now. It must be the store's.
	Now func() time.Time
}

var _ Harness = (*Builtin)(nil)

// Name implements Harness.
func (b *Builtin) Name() string { return "outboard" }

// Version implements Harness.
func (b *Builtin) Version() string { return "1" }

// Run implements Harness. Each round plans from the state. What the plan appends is appended before anything
// else happens; only when it has nothing to append is its action done.
func (b *Builtin) Run(ctx context.Context, t Turn) error {
	l := &loop{Builtin: b, t: t, metered: true}
	for t.Held() {
		l.model, l.modelErr = t.Model()
		// it rested; what it resumes with is asked for anew
		if s := t.State(); l.budget.Broke != "" && s.Broke() && s.Head > l.budgetedAt {
			l.budget, l.budgeted = Budget{}, false
		}
		events, act := l.plan(t.State())
		if act == actBudget && !interruptWaits(t.State()) { // else it has its effect first
			if err := l.askBudget(ctx); err != nil {
				return err
			}
			continue
		}
		if act == actRun || act == actStop {
			t.Stage(events...)
			if err := l.runCalls(ctx); err != nil {
				return err
			}
			continue
		}
		fresh := true
		appended, err := t.Append(ctx, func(s *outboard.State) []outboard.Event {
			if !fresh { // the log has moved since
				events, _ = l.plan(s)
			}
			fresh = false
			return events
		})
		if err != nil {
			return err
		}
		if appended {
			continue
		}
		switch act {
		case actGenerate:
			err = l.generate(ctx)
		case actCompact:
			err = l.compact(ctx)
		default:
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// loop is one Run.
type loop struct {
	*Builtin
	t        Turn
	model    llm.Model
	modelErr error

	metered    bool   // a model call needs a budget
	budget     Budget // of the call that is due, once asked for
	budgeted   bool
	budgetedAt int64 // the log's head then

	tooLong bool // the model just refused the conversation for its length, which it knows better than used
}

func (b *Builtin) now() time.Time {
	if b.Now != nil {
		return b.Now()
	}
	return time.Now()
}

// wait returns how long to wait before the next attempt.
func (b *Builtin) wait(attempt int, asked time.Duration) time.Duration {
	if asked > 0 {
		return asked
	}
	if b.Backoff != nil {
		return b.Backoff(attempt)
	}
	d := min(retryBase<<min(attempt-1, 16), retryMax)
	return d/2 + rand.N(d)
}

// runCalls runs the open calls, or stops them when an interrupt waits.
func (l *loop) runCalls(ctx context.Context) error {
	ictx, cancel := l.t.Interrupted(ctx)
	err := l.t.RunCalls(ictx)
	interrupted := context.Cause(ictx) == ErrInterrupted
	cancel()
	if err == nil && interrupted {
		err = l.t.Sync(ctx) // so that the next plan sees the interrupt
	}
	return err
}

// request makes the model call that the state asks for.
func (l *loop) request(s *outboard.State) llm.Request {
	req := llm.Request{
		Model:    s.Config.Agent.Model.ID,
		System:   l.t.System(),
		Tools:    l.t.Tools(),
		History:  slices.Clip(s.History),
		Effort:   s.Config.Agent.Model.Effort,
		Speed:    s.Config.Agent.Model.Speed,
		Geo:      s.Config.Agent.Model.Geo,
		Load:     l.t.Load,
		CacheKey: string(s.Thread),
		Attempt:  s.Attempt,
		TurnSeq:  s.TurnSeq,
	}
	prompt := used(s) // what the model has counted has the rest in it
	if s.Context == 0 {
		prompt += overhead(req.System, req.Tools)
	}
	req.MaxOutput = l.output(prompt)
	return req
}

// output is the bound on a response to a prompt of so many tokens: what is paid for, and what fits into the
// window beside it. Many servers refuse a request that asks for more than that. 0 = the model's own limit.
func (l *loop) output(prompt int64) int64 {
	info := l.model.Info()
	most := info.Output
	if l.budget.MaxOutput > 0 {
		most = min(most, l.budget.MaxOutput)
	}
	room := info.Context*(100-slack)/100 - prompt
	if info.Context > 0 && room < most {
		return min(most, max(room, leastOutput))
	}
	return l.budget.MaxOutput
}

// overhead is a guess for what goes along with every conversation.
func overhead(system string, tools []llm.Tool) int64 {
	return llm.PromptTokens(&llm.Request{System: system, Tools: tools})
}

// generate makes the model call that stands in the log as State.Request, started by this process or by one that
// died, and stages how it ended.
func (l *loop) generate(ctx context.Context) error {
	s := l.t.State()
	if l.modelErr != nil {
		l.fail(s, unresolved(l.modelErr), outboard.Usage{})
		return nil
	}
	if !l.budgeted { // a process that died had begun the call
		if err := l.askBudget(ctx); err != nil {
			return err
		}
		if s = l.t.State(); s.Request == "" {
			return nil
		}
		if l.budget.Broke != "" {
			l.t.Stage(outboard.NewEvent(s.Thread, &outboard.ModelFailed{Request: s.Request,
				Error: outboard.Failure{Message: "no budget pays for it"}}))
			return nil
		}
	}
	l.budgeted = false
	req, request := l.request(s), s.Request
	ictx, cancel := l.interrupted(ctx)
	voice := &voice{t: l.t, ids: map[outboard.EventType][]outboard.EventID{}}
	resp, err := l.model.Generate(ictx, req, voice.emit)
	interrupted := context.Cause(ictx) == ErrInterrupted
	cancel()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case interrupted:
		return l.cut(ctx, request, resp, voice)
	case err != nil:
		e := asModelError(err)
		if l.tooLong = e.TooLong && !e.Emitted; l.tooLong { // not the end: it is summarised next
			l.t.Stage(outboard.NewEvent(s.Thread, &outboard.ModelFailed{Request: request,
				Error: outboard.Failure{Type: e.Type, Message: e.Message}}))
			return nil
		}
		if e.Picture && !e.Emitted && s.HasMedia() { // it goes on without
			failure := outboard.Failure{Type: e.Type, Message: e.Message + hintPicture}
			l.t.Stage(outboard.NewEvent(s.Thread, &outboard.ModelFailed{Request: request, Error: failure,
				Usage: came(resp), Pictures: true}))
			return nil
		}
		l.fail(s, e, came(resp))
		return nil
	}
	events, garbage, err := l.respond(ctx, request, resp, voice)
	if err != nil {
		return err
	}
	if garbage != nil {
		l.fail(s, garbage, resp.Usage)
		return nil
	}
	l.t.Stage(events...)
	return nil
}

// hintPicture is added to what a provider says of a picture.
const hintPicture = " (pictures and documents are left out from here on; to take back the message that brought " +
	"them: outboard rewind SESSION@SEQ --conversation)"

// textCut ends an answer that was interrupted, for the model and for whoever reads it.
const textCut = "[The user interrupted this answer here.]"

// cut ends a model call that was interrupted, and lets the next plan see the interrupt. The text that was shown
// is kept as the model's, since the user speaks of it next; thinking and calls are not.
func (l *loop) cut(ctx context.Context, request outboard.EventID, resp *llm.Response, v *voice) error {
	w := &writer{l: l, ctx: ctx, thread: l.t.State().Thread}
	for i, text := range v.texts {
		if text == "" { // it had begun, and nothing of it was shown
			v.take(outboard.Event{Type: outboard.TypeAgentMessage})
			continue
		}
		content := w.text(text)
		if i == len(v.texts)-1 {
			content = append(content, outboard.Text(textCut))
		}
		w.event(v.take(outboard.NewEvent(w.thread, &outboard.AgentMessage{Content: content})))
	}
	if w.err != nil {
		return fmt.Errorf("recording an interrupted answer: %w", w.err)
	}
	if len(w.events) > 0 {
		w.event(outboard.NewEvent(w.thread, &outboard.ModelFinished{Request: request, Stop: "interrupted",
			Usage: came(resp)}))
	} else {
		w.event(outboard.NewEvent(w.thread, &outboard.ModelFailed{Request: request,
			Error: outboard.Failure{Message: ErrInterrupted.Message},
			Usage: came(resp)}))
	}
	l.t.Stage(w.events...)
	return l.t.Sync(ctx)
}

// came is what a model call came to that did not end well: what arrived is paid for.
func came(resp *llm.Response) outboard.Usage {
	if resp == nil {
		return outboard.Usage{}
	}
	return resp.Usage
}

// asModelError gives every failure of a model call the shape of the wire's.
func asModelError(err error) *llm.Error {
	if e, ok := errors.AsType[*llm.Error](err); ok {
		return e
	}
	return &llm.Error{Type: unknownError, Message: "the model call failed: " + err.Error(), Err: err}
}

func unresolved(err error) *llm.Error {
	return &llm.Error{Type: llm.Failed, Message: err.Error(), Err: err}
}

// Failure types of the wire that no model client gives.
const (
	unknownError    = "unknown_error"
	toolLimit       = "tool_use_limit_reached_error"
	compactionLimit = "compaction_limit_reached_error"
)

// fail stages how a failed model call continues: with another attempt later, or with the end of the turn. What
// was shown of a response is not in the log: the call is made again, and its new text takes the place of the
// old.
func (l *loop) fail(s *outboard.State, e *llm.Error, used outboard.Usage) {
	attempt, now, since := s.Attempt+1, l.now(), s.FailingSince
	if s.Attempt == 0 {
		since = now
	}
	failure := outboard.Failure{Type: e.Type, Message: e.Message, Retry: "exhausted"}
	wait, patience := l.wait(attempt, e.RetryAfter), cmp.Or(l.Patience, DefaultPatience)
	again := e.Retryable && now.Add(wait).Sub(since) <= patience
	switch {
	case again:
		failure.Retry = "retrying"
	case e.Retryable && e.RetryAfter > patience:
		failure.Message += fmt.Sprintf(" (it asks to wait %v, longer than limits.model_patience, which is %v)",
			e.RetryAfter.Round(time.Second), patience)
	case e.Retryable:
		failure.Message += fmt.Sprintf(" (tried %d times in %v; limits.model_patience is %v)", attempt, now.Sub(since).
			Round(time.Second), patience)
	}
	p := l.planner(s)
	if s.Request != "" {
		p.add(&outboard.ModelFailed{Request: s.Request, Error: failure, Usage: used})
		used = outboard.Usage{}
	}
	if again {
		p.add(&outboard.TurnRetrying{Turn: s.Turn, Attempt: attempt, At: now.Add(wait), Since: since, Error: failure,
			Usage: used})
	} else {
		p.add(&outboard.TurnFailed{Turn: s.Turn, Error: failure, Usage: used})
	}
	l.t.Stage(p.events...)
}

// voice broadcasts deltas and remembers under which ids.
type voice struct {
	t     Turn
	ids   map[outboard.EventType][]outboard.EventID
	texts []string // of the messages that were shown, without thinking
}

func (v *voice) emit(d llm.Delta) {
	kind := outboard.TypeAgentMessage
	if d.Kind == "thinking" {
		kind = outboard.TypeAgentThinking
	}
	if d.Start || len(v.ids[kind]) == 0 {
		id := outboard.NewID[outboard.EventID](outboard.PrefixEvent)
		v.ids[kind] = append(v.ids[kind], id)
		v.t.Emit(id, kind, true, "")
	}
	if d.Text != "" {
		if kind == outboard.TypeAgentMessage {
			v.say(len(v.ids[kind]), d.Text)
		}
		ids := v.ids[kind]
		v.t.Emit(ids[len(ids)-1], kind, false, d.Text)
	}
}

// say adds to the text of the n-th message.
func (v *voice) say(n int, text string) {
	if n > maxBlocks {
		return
	}
	for len(v.texts) < n {
		v.texts = append(v.texts, "")
	}
	v.texts[n-1] += text
}

// take gives an event the id of the next broadcast block of its type, if there was one.
func (v *voice) take(e outboard.Event) outboard.Event {
	if ids := v.ids[e.Type]; len(ids) > 0 {
		e.ID, v.ids[e.Type] = ids[0], ids[1:]
	}
	return e
}
