package harness

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/llm"
)

// maxName bounds what is kept of the names that a response uses for its calls. Wires allow 64 to 128 characters.
const maxName = 256

// respond turns a response into the events that record it: its blocks in their order, the outcomes of calls that
// are refused, and model.finished. A response that cannot be recorded is garbage, returned as the failure of the
// model call; the error is ours.
func (l *loop) respond(ctx context.Context, request outboard.EventID, resp *llm.Response,
	v *voice) ([]outboard.Event, *llm.Error, error) {
	if why := garbage(resp); why != "" {
		return nil, &llm.Error{Type: llm.Failed, Message: "the model gave an unusable response: " + why,
			Emitted: true}, nil
	}
	w := &writer{l: l, ctx: ctx, thread: l.t.State().Thread, used: resp.Usage}
	for _, b := range resp.Blocks {
		switch b.Kind {
		case "thinking":
			w.event(v.take(outboard.NewEvent(w.thread, w.thinking(b.Text))))
		case "text":
			if b.Text != "" {
				w.event(v.take(outboard.NewEvent(w.thread, &outboard.AgentMessage{Content: w.text(b.Text)})))
			}
		case "tool_use":
			w.call(b)
		}
	}
	fin := &outboard.ModelFinished{Request: request, Provider: resp.Provider, Raw: resp.Raw, Stop: resp.Stop,
		Usage:   resp.Usage,
		Details: resp.Details}
	if large(resp.Raw) {
		fin.Raw, fin.RawBlob = nil, w.spill(resp.Raw)
	}
	w.event(outboard.NewEvent(w.thread, fin))
	for _, p := range w.refused {
		w.event(outboard.NewEvent(w.thread, p))
	}
	if w.err != nil {
		return nil, nil, fmt.Errorf("recording a model response: %w", w.err)
	}
	return w.events, nil, nil
}

// garbage says why a response cannot be recorded, or "".
func garbage(r *llm.Response) string {
	calls := 0
	for _, b := range r.Blocks {
		if b.Kind == "tool_use" {
			calls++
		}
	}
	switch {
	case calls > maxCalls:
		return fmt.Sprintf("%d tool calls, over the limit of %d", calls, maxCalls)
	case len(r.Blocks) > maxBlocks:
		return fmt.Sprintf("%d blocks, over the limit of %d", len(r.Blocks), maxBlocks)
	case len(r.Raw) > 0 && !json.Valid(r.Raw):
		return "its raw form is not JSON"
	case len(r.Details) > 0 && (!json.Valid(r.Details) || large(r.Details)):
		return "its stop details are not JSON, or too long"
	}
	return ""
}

// large reports whether a value goes to a blob.
func large[T string | outboard.Raw](v T) bool {
	return len(v) > outboard.MaxInlineContent || encoded(v) > outboard.MaxInlineContent
}

// encoded is the length of a value as an event holds it: escapes can make it six times as long.
func encoded[T string | outboard.Raw](v T) int {
	b, err := json.Marshal(v)
	if err != nil {
		return len(v) // not JSON, which garbage and call see to
	}
	return len(b)
}

// writer collects the events of one response. The first failing spill sticks in err.
type writer struct {
	l       *loop
	ctx     context.Context
	thread  outboard.ThreadID
	events  []outboard.Event
	refused []*outboard.CallFinished
	used    outboard.Usage // by the response, and by what judged its calls
	err     error
}

func (w *writer) event(e outboard.Event) { w.events = append(w.events, e) }

func (w *writer) spill(b []byte) *outboard.BlobRef {
	if w.err != nil {
		return nil
	}
	ref, err := w.l.t.Spill(w.ctx, b)
	w.err = err
	return &ref
}

func (w *writer) text(s string) []outboard.Content {
	if !large(s) {
		return []outboard.Content{outboard.Text(s)}
	}
	return []outboard.Content{{Type: "text", Blob: w.spill([]byte(s))}}
}

func (w *writer) thinking(s string) *outboard.AgentThinking {
	if !large(s) {
		return &outboard.AgentThinking{Text: s}
	}
	return &outboard.AgentThinking{Blob: w.spill([]byte(s))}
}

// call records a call with the policy's decision. One that may not run gets its outcome in the same append, with
// the reason.
func (w *writer) call(b llm.Block) {
	input := b.Input
	if len(input) == 0 {
		input = json.RawMessage("{}")
	}
	if !json.Valid(input) { // kept as a JSON string: it is what the model wrote, and validation names it
		input, _ = json.Marshal(string(input))
	}
	req, over, judged, err := w.l.t.Decide(w.ctx, strings.ToValidUTF8(b.Name[:min(len(b.Name), maxName)], ""), input,
		w.used)
	if err != nil {
		w.err = cmp.Or(w.err, err)
		return
	}
	req.ToolUseID, req.Input, req.InputBlob = b.ToolUseID, input, nil
	if large(input) {
		req.Input, req.InputBlob = nil, w.spill(input)
	}
	e := outboard.NewEvent(w.thread, &req)
	w.event(e)
	if judged != nil {
		judged.Call, w.used = e.ID, w.used.Add(judged.Usage)
		w.event(outboard.NewEvent(w.thread, judged))
	}
	if over != "" {
		w.refused = append(w.refused, refused(e.ID, over, req.Reason))
	}
}
