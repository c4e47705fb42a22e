package llm

import (
	"encoding/json"
	"strconv"

	"github.com/openai/openai-go/v3"
	"github.com/outboard-dev/outboard"
)

// maxCalls bounds the tool calls of one streamed response, whose indexes a server chooses.
const maxCalls = 1024

// chatStream puts a streamed message together. It keeps every key that deltas bring, known or not: vendors put
// reasoning, and signatures of it, into keys of their own, and want them back.
type chatStream struct {
	x       *exchange
	ids     *callIDs
	message fields
	calls   []*chatCall
	finish  string
	usage   outboard.Usage
	// reasoning is the key that holds it: vendors use one of two names, and some send both.
	reasoning string
	block     string // kind of the block that deltas are emitted for
}

// chatCall is one tool call in the making.
type chatCall struct {
	index int
	rest  fields // every key but index and function
	fn    fields
}

// chunk takes in one chunk.
func (s *chatStream) chunk(c openai.ChatCompletionChunk) error {
	if c.JSON.Usage.Valid() {
		cached := c.Usage.PromptTokensDetails.CachedTokens
		s.usage = outboard.Usage{Input: max(0, c.Usage.PromptTokens-cached), Output: c.Usage.CompletionTokens,
			CacheRead: cached}
	}
	for _, choice := range c.Choices {
		if choice.Index != 0 {
			continue // only one was asked for
		}
		if choice.FinishReason != "" {
			s.finish = choice.FinishReason
		}
		if isNull([]byte(choice.Delta.RawJSON())) {
			continue
		}
		delta, err := parseObject([]byte(choice.Delta.RawJSON()))
		if err != nil {
			return err
		}
		if err := s.delta(delta); err != nil {
			return err
		}
	}
	return nil
}

func (s *chatStream) delta(delta object) error {
	for _, m := range delta {
		if m.key == "tool_calls" {
			if err := s.toolCalls(m.value); err != nil {
				return err
			}
			continue
		}
		if m.key == "role" && s.message.has("role") {
			continue // some servers repeat it
		}
		if err := s.message.add(m.key, m.value); err != nil {
			return err
		}
		switch m.key {
		case "content", "refusal":
			s.emit("text", m.value)
		case "reasoning_content", "reasoning":
			if s.reasoning == "" && decodeString(m.value) != "" {
				s.reasoning = m.key
			}
			if s.reasoning == m.key {
				s.emit("thinking", m.value)
			}
		}
	}
	return nil
}

func (s *chatStream) emit(kind string, raw json.RawMessage) {
	text := decodeString(raw)
	if text == "" {
		return
	}
	if s.block != kind {
		s.block = kind
		s.x.delta(kind, true, "")
	}
	s.x.delta(kind, false, text)
}

// toolCalls takes in pieces of tool calls.
func (s *chatStream) toolCalls(list json.RawMessage) error {
	if isNull(list) {
		return nil
	}
	var pieces []json.RawMessage
	if err := json.Unmarshal(list, &pieces); err != nil {
		return garbage("tool_calls is no list")
	}
	for _, raw := range pieces {
		piece, err := parseObject(raw)
		if err != nil {
			return err
		}
		c, err := s.call(piece)
		if err != nil {
			return err
		}
		for _, m := range piece {
			switch m.key {
			case "index":
			case "id", "type":
				if !c.rest.has(m.key) && decodeString(m.value) != "" {
					err = c.rest.add(m.key, m.value)
				}
			case "function":
				err = c.function(m.value)
			default:
				err = c.rest.add(m.key, m.value)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// call returns the call that a piece belongs to: by index; and where a server gives none, or the same to all, by id.
func (s *chatStream) call(piece object) (*chatCall, error) {
	id := piece.text("id")
	index, err := strconv.Atoi(string(piece.get("index")))
	if err != nil {
		index = -1
	}
	for i := len(s.calls) - 1; i >= 0; i-- {
		c := s.calls[i]
		known := decodeString(c.rest.value("id"))
		other := id != "" && known != "" && id != known
		if !other && (index < 0 || c.index == index) {
			return c, nil
		}
	}
	if len(s.calls) >= maxCalls {
		return nil, garbage("more than %d tool calls", maxCalls)
	}
	c := &chatCall{index: index}
	s.calls = append(s.calls, c)
	return c, nil
}

// function takes in a piece of a call's function. The name comes whole, maybe more than once; the arguments come
// in pieces.
func (c *chatCall) function(raw json.RawMessage) error {
	if isNull(raw) {
		return nil
	}
	o, err := parseObject(raw)
	if err != nil {
		return err
	}
	for _, m := range o {
		switch {
		case m.key == "name" && (c.fn.has("name") || decodeString(m.value) == ""):
		case m.key == "arguments" && len(m.value) > 0 && m.value[0] == '{': // an object instead of its text
			err = c.fn.add("arguments", appendString(nil, string(m.value)))
		default:
			err = c.fn.add(m.key, m.value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// response is the whole message, once the stream has ended.
func (s *chatStream) response() (*Response, error) {
	if s.finish == "" {
		return nil, cut()
	}
	r := &Response{Provider: TypeChat, Usage: s.usage}
	if text := decodeString(s.message.value(s.reasoning)); text != "" {
		r.Blocks = append(r.Blocks, Block{Kind: "thinking", Text: text})
	}
	for _, key := range []string{"content", "refusal"} {
		if text := decodeString(s.message.value(key)); text != "" {
			r.Blocks = append(r.Blocks, Block{Kind: "text", Text: text})
		}
	}
	var calls [][]byte
	for i, c := range s.calls {
		block, raw, err := c.finish(s.ids)
		if last := i == len(s.calls)-1; last && (s.finish == "length" || s.finish == "content_filter") &&
			(err != nil || !block.complete()) {
			continue // cut in the middle of its arguments: there is no call to make
		}
		if err != nil {
			return nil, err
		}
		r.Blocks = append(r.Blocks, block)
		calls = append(calls, raw)
	}
	r.Stop = stopOf(s.finish, r.Blocks)
	if isString(s.message.value("refusal")) && r.Stop == "end_turn" {
		r.Stop = "refusal"
	}
	var err error
	r.Raw, err = packRaw(s.whole(calls))
	return r, err
}

// whole is the message as one JSON object.
func (s *chatStream) whole(calls [][]byte) []byte {
	o := s.message.object()
	if s.message.value("role") == nil {
		o = append(object{{"role", json.RawMessage(`"assistant"`)}}, o...)
	}
	if len(calls) > 0 {
		o.set("tool_calls", joinList(calls))
	}
	if o.get("content") == nil {
		o.set("content", []byte("null"))
	}
	return o.appendTo(nil)
}

// finish returns a call's block and its JSON.
func (c *chatCall) finish(ids *callIDs) (Block, []byte, error) {
	own := decodeString(c.rest.value("id"))
	b := Block{Kind: "tool_use", ToolUseID: ids.take(own), Name: decodeString(c.fn.value("name"))}
	rest := c.rest.object()
	if b.ToolUseID != own {
		rest.set("id", appendString(nil, b.ToolUseID))
	}
	if rest.get("type") == nil {
		rest.set("type", []byte(`"function"`))
	}
	fn := c.fn.object()
	if name := safeName(b.Name); name != b.Name {
		fn.set("name", appendString(nil, name))
	}
	text := argumentsText(fn.get("arguments"))
	b.Input = toolInput(text)
	// servers refuse a call without, or with others
	if !isString(fn.get("arguments")) || text == "" || !isObject(b.Input) {
		fn.set("arguments", appendString(nil, string(asObject(b.Input))))
	}
	rest.set("function", fn.appendTo(nil))
	return b, rest.appendTo(nil), nil
}
