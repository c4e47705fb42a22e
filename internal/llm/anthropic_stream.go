package llm

import (
	"encoding/json"
	"strings"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/text"
)

// anthropicStream puts a streamed message together.
type anthropicStream struct {
	x       *exchange
	ids     *callIDs
	started bool
	stopped bool
	stop    string
	details json.RawMessage
	usage   outboard.Usage
	blocks  []*anthropicBlockStream
}

// anthropicBlockStream is one content block: the object it started as, and the strings that deltas add to.
type anthropicBlockStream struct {
	kind      string
	start     object
	raw       []byte // start's text
	text      joined // text or thinking
	signature joined
	input     joined // partial JSON of a tool_use, as a string
	citations []byte
	done      bool
}

// event takes in one event.
func (s *anthropicStream) event(e anthropic.MessageStreamEventUnion) error {
	if !s.started && e.Type != "message_start" {
		return garbage("%q comes before message_start", text.Clip(e.Type, 40))
	}
	switch e.Type {
	case "message_start":
		s.started = true
		u := e.Message.Usage
		s.usage = outboard.Usage{Input: u.InputTokens, Output: u.OutputTokens, CacheRead: u.CacheReadInputTokens,
			CacheWrite5m: u.CacheCreation.Ephemeral5mInputTokens, CacheWrite1h: u.CacheCreation.Ephemeral1hInputTokens}
		s.cacheWrites(u.CacheCreationInputTokens)
	case "content_block_start":
		return s.open(e)
	case "content_block_delta":
		b, err := s.block(e.Index)
		if err != nil {
			return err
		}
		b.delta(s.x, e.Delta)
	case "content_block_stop":
		b, err := s.block(e.Index)
		if err != nil {
			return err
		}
		b.done = true
	case "message_delta":
		s.finish(e)
	case "message_stop":
		s.stopped = true
	}
	return nil
}

// cacheWrites counts cache writes whose lifetime is not told as the default one.
func (s *anthropicStream) cacheWrites(total int64) {
	s.usage.CacheWrite5m = max(s.usage.CacheWrite5m, total-s.usage.CacheWrite1h)
}

func (s *anthropicStream) open(e anthropic.MessageStreamEventUnion) error {
	if e.Index != int64(len(s.blocks)) {
		return garbage("block %d comes after %d blocks", e.Index, len(s.blocks))
	}
	start, err := parseObject([]byte(e.ContentBlock.RawJSON()))
	if err != nil {
		return err
	}
	b := &anthropicBlockStream{kind: start.text("type"), start: start, raw: []byte(e.ContentBlock.RawJSON())}
	b.text.add(start.get(b.textKey()))
	b.signature.add(start.get("signature"))
	s.blocks = append(s.blocks, b)
	if kind := b.deltaKind(); kind != "" {
		s.x.delta(kind, true, "")
		s.x.delta(kind, false, b.text.value())
	}
	return nil
}

// block returns the block that an event is about.
func (s *anthropicStream) block(index int64) (*anthropicBlockStream, error) {
	if index < 0 || index >= int64(len(s.blocks)) || s.blocks[index].done {
		return nil, garbage("an event is about block %d, which is not open", index)
	}
	return s.blocks[index], nil
}

// textKey is the key of the string that a block's deltas add to.
func (b *anthropicBlockStream) textKey() string {
	if b.kind == "thinking" {
		return "thinking"
	}
	return "text"
}

// deltaKind is the kind of Delta that a block emits, or "".
func (b *anthropicBlockStream) deltaKind() string {
	switch b.kind {
	case "text":
		return "text"
	case "thinking", "redacted_thinking":
		return "thinking"
	}
	return ""
}

func (b *anthropicBlockStream) delta(x *exchange, d anthropic.MessageStreamEventUnionDelta) {
	switch d.Type {
	case "text_delta":
		b.text.add([]byte(d.JSON.Text.Raw()))
		x.delta("text", false, d.Text)
	case "thinking_delta":
		b.text.add([]byte(d.JSON.Thinking.Raw()))
		x.delta("thinking", false, d.Thinking)
	case "signature_delta":
		b.signature.add([]byte(d.JSON.Signature.Raw()))
	case "input_json_delta":
		b.input.add([]byte(d.JSON.PartialJSON.Raw()))
	case "citations_delta":
		if len(b.citations) > 0 {
			b.citations = append(b.citations, ',')
		}
		b.citations = append(b.citations, d.JSON.Citation.Raw()...)
	}
}

func (s *anthropicStream) finish(e anthropic.MessageStreamEventUnion) {
	if r := string(e.Delta.StopReason); r != "" {
		s.stop = r
	}
	if raw := e.Delta.JSON.StopDetails.Raw(); !isNull([]byte(raw)) {
		s.details = json.RawMessage(raw)
	}
	u := e.Usage // cumulative; older servers send the output count only
	if u.JSON.OutputTokens.Valid() {
		s.usage.Output = u.OutputTokens
	}
	if u.JSON.InputTokens.Valid() {
		s.usage.Input = u.InputTokens
	}
	if u.JSON.CacheReadInputTokens.Valid() {
		s.usage.CacheRead = u.CacheReadInputTokens
	}
	if u.JSON.CacheCreationInputTokens.Valid() {
		s.cacheWrites(u.CacheCreationInputTokens)
	}
}

// response is the whole message, once the stream has ended.
func (s *anthropicStream) response() (*Response, error) {
	if !s.stopped {
		return nil, cut()
	}
	r := &Response{Provider: TypeAnthropic, Usage: s.usage, Details: s.details}
	var kept [][]byte
	thought := 0 // the blocks at the end of kept that are reasoning
	for i, b := range s.blocks {
		block, known, err := b.block(s.ids)
		if i == len(s.blocks)-1 && s.cut(b, &block, err) {
			continue // cut in its arguments, or before them: there is no call to make
		}
		if err != nil {
			return nil, err
		}
		if known {
			r.Blocks = append(r.Blocks, block)
		}
		if b.kind == "text" && strings.TrimSpace(block.Text) == "" {
			continue // models write such, and their server refuses it
		}
		kept = append(kept, b.raw)
		if thought++; b.deltaKind() != "thinking" {
			thought = 0
		}
	}
	r.Stop = stopOf(s.stop, r.Blocks)
	var err error
	r.Raw, err = packRaw(joinList(kept[:len(kept)-thought])) // the server refuses a message that ends with reasoning
	return r, err
}

// cut reports whether the last block is a call that the end of the response cut off: by the limit on output, or
// by a filter.
func (s *anthropicStream) cut(b *anthropicBlockStream, block *Block, err error) bool {
	if s.stop != "max_tokens" && s.stop != "refusal" {
		return false
	}
	return err != nil || b.kind == "tool_use" && (len(b.input.body) == 0 || !block.complete())
}

// block finishes a block: its start takes in what the deltas brought. Known is false for kinds that only travel back.
func (b *anthropicBlockStream) block(ids *callIDs) (out Block, known bool, err error) {
	switch b.kind {
	case "text":
		if len(b.citations) > 0 {
			b.set("citations", append(append([]byte{'['}, b.citations...), ']'), &err)
		}
		b.set("text", b.text.literal(), &err)
		return Block{Kind: "text", Text: b.text.value()}, true, err
	case "thinking":
		b.set("thinking", b.text.literal(), &err)
		b.set("signature", b.signature.literal(), &err)
		return Block{Kind: "thinking", Text: b.text.value()}, true, err
	case "redacted_thinking":
		return Block{Kind: "thinking"}, true, nil
	case "tool_use":
		own := b.start.text("id")
		out = Block{Kind: "tool_use", ToolUseID: ids.take(own), Name: b.start.text("name")}
		if out.ToolUseID != own {
			b.set("id", appendString(nil, out.ToolUseID), &err)
		}
		if name := safeName(out.Name); name != out.Name {
			b.set("name", appendString(nil, name), &err)
		}
		if text := b.input.value(); text != "" {
			out.Input = toolInput(text)
		} else if out.Input = b.start.get("input"); isObject(out.Input) {
			return out, true, err
		} else {
			out.Input = toolInput(argumentsText(out.Input))
		}
		b.set("input", asObject(out.Input), &err)
		return out, true, err
	}
	return out, false, nil
}

// set replaces a value in the block's text, unless err is already set.
func (b *anthropicBlockStream) set(key string, value []byte, err *error) {
	if *err == nil {
		b.raw, *err = setMember(b.raw, key, value)
	}
}

// stopOf maps a wire's reason to ours. What a response contains decides where wires or servers are loose about it.
func stopOf(reason string, blocks []Block) string {
	switch reason {
	case "max_tokens", "model_context_window_exceeded", "length", "max_output_tokens":
		return "max_tokens"
	case "refusal", "content_filter":
		return "refusal"
	}
	for _, b := range blocks {
		if b.Kind == "tool_use" {
			return "tool_use"
		}
	}
	return "end_turn"
}
