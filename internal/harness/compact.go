package harness

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/llm"
)

const (
	// fullAt is the share of the context window, in percent, at which the conversation is summarised. The rest
	// must hold a response.
	fullAt = 80
	// slack is the share of the window, in percent, that is left for errors of what is guessed about the rest.
	slack = 5
	// leastOutput is the least room for a response that is worth asking for.
	leastOutput = 1024
	// maxTranscripts bounds the transcripts that are tried, each half as long as the last: text can have a token
	// to every byte or two.
	maxTranscripts = 3
	// maxSummary bounds a summary as its event holds it, where escapes count.
	maxSummary = outboard.MaxEventData / 2
)

// instruction asks for the summary.
const instruction = "The conversation is about to exceed the context window. Write a summary that will replace " +
	"everything above, for " +
	"yourself to continue from. Do not call any tool. Keep: what the user asked for, word for word where it " +
	"matters, and what is still " +
	"open; decisions and their reasons; the state of the work, with exact file paths, names, commands, values and " +
	"the results of the " +
	"last tool calls; what failed and why; the next step. Leave out what no longer matters."

// full reports whether the conversation must be summarised before the next model call.
func (l *loop) full(s *outboard.State) bool {
	if l.model == nil {
		return false
	}
	window := l.model.Info().Context
	return l.tooLong || window > 0 && used(s) > window/100*fullAt
}

// used estimates the tokens of the next request: what the last response counted, and a guess for what came after it.
func used(s *outboard.State) int64 {
	n, from := s.Context, 0
	if n > 0 {
		from = len(s.History)
		for from > 0 && s.History[from-1].Role != "assistant" {
			from--
		}
	}
	for _, m := range s.History[from:] {
		n += llm.Tokens(m)
	}
	return n
}

// compact has the model summarise the conversation and stages the summary. The request needs no intent: it acts
// on nothing, and a crash only makes it be asked again.
func (l *loop) compact(ctx context.Context) error {
	s := l.t.State()
	ictx, cancel := l.interrupted(ctx)
	resp, err := l.summarise(ictx, s)
	interrupted := context.Cause(ictx) == ErrInterrupted
	cancel()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case interrupted && err != nil: // what came of it counts, and that takes a request in the log
		asked := outboard.NewEvent(s.Thread, &outboard.ModelStarted{Model: l.model.Info().ID, Attempt: s.Attempt + 1})
		l.t.Stage(asked)
		return l.cut(ctx, asked.ID, resp, new(voice))
	case err != nil:
		e := *asModelError(err)
		if !e.Retryable {
			e.Type, e.Message = compactionLimit, "the conversation is too long for the model and could not be "+
				"summarised: "+e.Message
		}
		e.Emitted = false // nothing of it was shown
		l.fail(s, &e, came(resp))
		return nil
	}
	summary := summaryOf(resp)
	if summary == "" {
		l.fail(s, &llm.Error{Type: compactionLimit, Message: "the model gave no summary of the conversation"},
			resp.Usage)
		return nil
	}
	l.t.Stage(compacted(s, summary, resp.Usage))
	return nil
}

// summarise asks for the summary. A conversation that the model refuses for its length is told as a transcript
// of what fits.
func (l *loop) summarise(ctx context.Context, s *outboard.State) (*llm.Response, error) {
	refused := l.tooLong
	l.budgeted, l.tooLong = false, false
	req := l.request(s)
	req.Purpose = llm.PurposeSummary
	ask := &outboard.Message{Role: "user", Content: []outboard.Content{outboard.Text(instruction)}}
	req.History = append(slices.Clip(s.History), ask)
	var resp *llm.Response
	var err error
	if !refused {
		resp, err = l.model.Generate(ctx, req, nil)
		refused = isTooLong(err)
	}
	size := min(used(s), l.model.Info().Context) / 100 * fullAt
	for i := 0; refused && i < maxTranscripts; i++ {
		var text string
		if text, err = l.transcript(ctx, s.History, int(size)*llm.BytesPerToken); err != nil {
			break
		}
		req.History = []*outboard.Message{{Role: "user", Content: []outboard.Content{outboard.Text(text)}}, ask}
		req.MaxOutput = l.output(size + overhead(req.System, req.Tools))
		resp, err = l.model.Generate(ctx, req, nil)
		refused = isTooLong(err)
		size /= 2
	}
	return resp, err
}

func isTooLong(err error) bool {
	e, ok := errors.AsType[*llm.Error](err)
	return ok && e.TooLong
}

// compacted is the event of a summary, with the state's base where the event has room for it.
func compacted(s *outboard.State, summary string, used outboard.Usage) outboard.Event {
	p := outboard.ContextCompacted{Summary: summary, Usage: used, Base: s.Base()}
	e := outboard.NewEvent(s.Thread, &p)
	if len(e.Data) <= outboard.MaxEventData {
		return e
	}
	p.Base = nil
	return outboard.NewEvent(s.Thread, &p)
}

func summaryOf(resp *llm.Response) string {
	var parts []string
	for _, b := range resp.Blocks {
		if b.Kind == "text" && b.Text != "" {
			parts = append(parts, b.Text)
		}
	}
	text := strings.TrimSpace(strings.Join(parts, "\n"))
	for encoded(text) > maxSummary {
		text = strings.ToValidUTF8(text[:len(text)*3/4], "")
	}
	return text
}
