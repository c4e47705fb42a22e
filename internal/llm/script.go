package llm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/text"
)

// ProviderScript is the wire family of the deterministic model. Its models are "script/steps", which runs the
// steps that user messages contain, and "script/<name>", which runs the named script of rules.
// docs/reference/script.md is the language.
//
// A script model keeps no state: where it is follows from the request alone, so any process continues it after
// any crash.
const ProviderScript = "script"

// stepsName is the script that takes its steps from user messages.
const stepsName = "steps"

// Sizes of a script model where the configuration names none.
const (
	scriptContext = 200_000
	scriptOutput  = 64_000
)

// pieceBytes is about how much text a script model emits at a time.
const pieceBytes = 16

// markPrefix begins the line of a summary that holds a script's position.
const markPrefix = "outboard-script: "

// maxMarkText bounds how much of a message or a result a summary remembers for a named script's conditions.
const maxMarkText = 4 << 10

// maxMark bounds the remaining steps that a summary can hold: a summary is one event, and harnesses bound it too.
const maxMark = 64 << 10

// script is a deterministic model. With rules it is a named script, without it is script/steps.
type script struct {
	info  Info
	name  string
	rules []rule
}

// Info implements Model.
func (s *script) Info() Info { return s.info }

// Generate implements Model.
func (s *script) Generate(ctx context.Context, req Request, emit func(Delta)) (*Response, error) {
	if emit == nil {
		emit = func(Delta) {}
	}
	p, err := s.locate(ctx, req)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, s.named(loadError(err))
	}
	if p.bad != nil { // also when a summary is asked for, which would forget it
		return nil, s.failed("%v. Send a YAML list of steps, for example:\n- bash: ls\n- say: done", p.bad)
	}
	if req.Purpose == PurposeSummary {
		text := p.summary(s.rules != nil)
		if len(text) > maxMark {
			return nil, s.failed("the remaining steps are %d bytes; a conversation with more than %d cannot be "+
				"compacted", len(text), maxMark)
		}
		return s.play(ctx, req, p, []step{{kind: "say", text: text}}, emit)
	}
	if s.rules == nil {
		now, _ := take(p.queue)
		return s.play(ctx, req, p, now, emit)
	}
	r, err := s.match(&p)
	if err != nil {
		return nil, err
	}
	return s.play(ctx, req, p, r.steps, emit)
}

// failed makes the error for a script that cannot go on: trying again would fail again.
func (s *script) failed(format string, args ...any) error {
	return &Error{Type: Failed, Status: 400, Message: "model " + s.info.ID + ": " + fmt.Sprintf(format, args...)}
}

// position is where a script is in a conversation.
type position struct {
	responses int    // model responses so far
	since     int    // of those, since the newest user message
	user      string // the newest user message

	// The newest response's calls and results, while they are the current turn's.
	tools   []string
	result  string
	isError bool

	queue []step // script/steps: what the current turn's messages still want done
	bad   error  // the current turn holds a message that is no list of steps
}

// mark is a position as a summary carries it.
type mark struct {
	Responses int               `json:"responses"`
	Since     int               `json:"since,omitempty"`
	User      string            `json:"user,omitempty"`
	Tools     []string          `json:"tools,omitempty"`
	Result    string            `json:"result,omitempty"`
	IsError   bool              `json:"is_error,omitempty"`
	Steps     []json.RawMessage `json:"steps,omitempty"`
}

// locate replays the conversation: every user message of the current turn adds its steps to the queue, every
// response since has taken its part from it. What an earlier turn left undone (it was interrupted, or it failed)
// is dropped.
func (s *script) locate(ctx context.Context, req Request) (position, error) {
	p, over := s.resume(req)
	before := over.messages
	for i, m := range req.History[before:] {
		current := req.TurnSeq == 0 || m.Seq > req.TurnSeq
		switch m.Role {
		case "summary":
			p = position{}
			p.restore(outboard.PlainText(m.Content), current)
		case "assistant":
			p.responses++
			p.since++
			if !current { // what it called is of an earlier turn, and that has taken nothing of this one's queue
				over.messages, over.found = before+i+1, counts{p.responses, p.since}
				continue
			}
			p.tools, p.result, p.isError = nil, "", false
			for _, u := range m.Uses {
				p.tools = append(p.tools, u.Name)
			}
			_, p.queue = take(p.queue)
		case "tool":
			if !current {
				p.tools = nil
				continue
			}
			if err := p.results(ctx, req, m.Results); err != nil {
				return p, err
			}
		case "user":
			if req.TurnSeq != 0 && m.Seq == 0 {
				continue // an instruction of the harness, not of the log
			}
			p.since = 0
			if s.rules == nil && !current {
				continue // script/steps takes nothing from earlier turns, however many there are
			}
			text, err := plainText(ctx, req, m.Content)
			if err != nil {
				return p, err
			}
			if p.user = text; s.rules != nil {
				continue
			}
			if err := p.add(text); err != nil && p.bad == nil {
				p.bad = err
			}
		}
	}
	if s.rules == nil && req.TurnSeq != 0 {
		located.keep(req, over.messages, over.found)
	}
	return p, nil
}

// resume is where locate begins: for script/steps, which takes nothing from earlier turns but their number,
// after those.
func (s *script) resume(req Request) (p position, over prefix[counts]) {
	if s.rules != nil || req.TurnSeq == 0 {
		return p, over
	}
	k := located.of(req)
	if k.messages == 0 || req.History[k.messages-1].Seq > req.TurnSeq {
		return p, over
	}
	p.responses, p.since = k.found.responses, k.found.since
	return p, k
}

// results takes in what the newest calls gave.
func (p *position) results(ctx context.Context, req Request, results []outboard.ToolResult) error {
	var texts []string
	for _, r := range results {
		text, err := plainText(ctx, req, r.Content)
		if err != nil {
			return err
		}
		texts = append(texts, text)
		p.isError = p.isError || r.IsError
	}
	p.result = strings.Join(texts, "\n")
	return nil
}

// add queues the steps of one message.
func (p *position) add(text string) error {
	steps, err := parsed.steps(text)
	p.queue = append(p.queue, steps...)
	return err
}

// take splits the queue after the steps of the next response: up to and with the first call, else all of it.
func take(queue []step) (now, rest []step) {
	for i := range queue {
		if queue[i].ends() {
			return queue[:i+1], queue[i+1:]
		}
	}
	return queue, nil
}

// summary is the text that stands for the conversation after a compaction. Only a named script looks back at texts.
func (p *position) summary(rules bool) string {
	m := mark{Responses: p.responses, Since: p.since}
	if rules {
		m.User, m.Tools, m.Result, m.IsError = text.Clip(p.user, maxMarkText), p.tools, text.Clip(p.result,
			maxMarkText), p.isError
	}
	for _, st := range p.queue {
		m.Steps = append(m.Steps, st.src)
	}
	line, _ := json.Marshal(m) // plain fields and valid JSON: cannot fail
	return fmt.Sprintf("Summary of the conversation so far: %d model responses.\n%s%s", p.responses, markPrefix, line)
}

// restore reads the position out of a summary. Another model's summary holds none: the script starts afresh.
func (p *position) restore(summary string, current bool) {
	for line := range strings.Lines(summary) {
		text, ok := strings.CutPrefix(strings.TrimSpace(line), markPrefix)
		if !ok {
			continue
		}
		var m mark
		if err := json.Unmarshal([]byte(text), &m); err != nil {
			if current {
				p.bad = fmt.Errorf("the position in the summary cannot be read: %w", err)
			}
			return
		}
		p.responses, p.since, p.user = m.Responses, m.Since, m.User
		if !current {
			return
		}
		p.tools, p.result, p.isError = m.Tools, m.Result, m.IsError
		if steps, err := json.Marshal(m.Steps); len(m.Steps) > 0 && err == nil {
			p.bad = p.add(string(steps))
		}
		return
	}
}

// play makes the steps of one response happen.
func (s *script) play(ctx context.Context, req Request, p position, steps []step, emit func(Delta)) (*Response, error) {
	pl := player{ctx: ctx, emit: emit, skip: req.Attempt, resp: &Response{Provider: ProviderScript, Stop: "end_turn"}}
	for i := range steps {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		if err := pl.step(steps[i], steps[i+1:]); err != nil {
			return nil, s.named(err)
		}
	}
	if !pl.said && pl.resp.Stop == "end_turn" {
		pl.block("text", "done")
	}
	n := 0
	for i := range pl.resp.Blocks {
		if b := &pl.resp.Blocks[i]; b.Kind == "tool_use" {
			n++
			b.ToolUseID = fmt.Sprintf("toolu_%d_%d", p.responses+1, n)
		}
	}
	pl.resp.Usage = outboard.Usage{Input: tokens(requestBytes(req)), Output: tokens(pl.out)}
	return pl.resp, nil
}

// named adds the model's name to a scripted failure.
func (s *script) named(err error) error {
	if e, ok := errors.AsType[*Error](err); ok {
		e.Message = "model " + s.info.ID + ": " + e.Message
	}
	return err
}

// player builds one response.
type player struct {
	ctx  context.Context
	emit func(Delta)
	skip int // failures that earlier attempts have already used up
	resp *Response
	out  int64 // bytes of output
	said bool
}

func (pl *player) step(st step, rest []step) error {
	switch st.kind {
	case "say":
		pl.said = true
		pl.block("text", st.text)
	case "think":
		pl.block("thinking", st.text)
	case "sleep":
		return pause(pl.ctx, st.wait)
	case "fail":
		return pl.fail(st.fail, rest)
	case "stop":
		pl.resp.Stop = st.text
		if st.text == "refusal" {
			pl.resp.Details = json.RawMessage(`{"type":"refusal","category":null,"explanation":"scripted"}`)
		}
	case "call":
		for _, c := range st.calls {
			pl.resp.Blocks = append(pl.resp.Blocks, Block{Kind: "tool_use", Name: c.name, Input: c.input})
			pl.out += int64(len(c.name) + len(c.input))
		}
		pl.resp.Stop = "tool_use"
	}
	return nil
}

// block adds a block of text or reasoning and emits it in pieces.
func (pl *player) block(kind, text string) {
	pl.resp.Blocks = append(pl.resp.Blocks, Block{Kind: kind, Text: text})
	pl.out += int64(len(text))
	pl.stream(kind, text)
}

func (pl *player) stream(kind, text string) {
	pl.emit(Delta{Kind: kind, Start: true})
	for len(text) > 0 && pl.ctx.Err() == nil {
		n := min(pieceBytes, len(text))
		for n < len(text) && text[n]&0xC0 == 0x80 {
			n++ // never inside a character
		}
		pl.emit(Delta{Kind: kind, Text: text[:n]})
		text = text[n:]
	}
}

// fail fails unless enough attempts have failed already. Its text is the beginning of what the response would
// have said.
func (pl *player) fail(f failure, rest []step) error {
	if pl.skip >= f.times {
		pl.skip -= f.times
		return nil
	}
	if f.after > 0 {
		var text strings.Builder
		for _, st := range rest {
			if st.kind == "say" && text.Len() < f.after {
				text.WriteString(st.text)
			}
		}
		said := strings.ToValidUTF8(text.String()[:min(text.Len(), f.after)], ".")
		pl.stream("text", said+strings.Repeat(".", max(0, f.after-len(said))))
	}
	e := statusError(f.status)
	e.Message = "scripted failure"
	if f.status != 0 {
		e.Message = fmt.Sprintf("scripted failure with status %d", f.status)
	}
	e.RetryAfter = f.retryAfter
	e.Emitted = f.after > 0 || len(pl.resp.Blocks) > 0
	return e
}

// pause waits, but not longer than ctx.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
