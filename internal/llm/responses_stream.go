package llm

import (
	"cmp"
	"encoding/json"
	"slices"

	"github.com/openai/openai-go/v3/responses"
	"github.com/outboard-dev/outboard"
)

// responsesStream puts a streamed response together. The finished items come whole, with the event that ends each.
type responsesStream struct {
	x        *exchange
	ids      *callIDs
	items    []item
	ended    bool
	stop     string
	usage    outboard.Usage
	refused  bool
	lastKind string // of the block that deltas are emitted for
	lastKey  string
}

// item is one output item, as it came.
type item struct {
	index int64
	raw   []byte

	kind   string // once it was read
	broken bool   // a call whose arguments are no object, or not all of them
}

// event takes in one event. Kinds that are not known carry nothing that is needed.
func (s *responsesStream) event(e responses.ResponseStreamEventUnion) error {
	switch e.Type {
	case "response.output_text.delta", "response.refusal.delta":
		s.delta("text", e)
	case "response.reasoning_summary_text.delta", "response.reasoning_text.delta":
		s.delta("thinking", e)
	case "response.output_item.done":
		s.items = append(s.items, item{index: e.OutputIndex, raw: []byte(e.Item.RawJSON())})
	case "response.completed", "response.incomplete":
		return s.end(e.Response)
	case "response.failed", "response.cancelled":
		return openAIEventError([]byte(e.Response.RawJSON()))
	case "error":
		return openAIEventError([]byte(e.RawJSON()))
	}
	return nil
}

// delta emits a piece. Each part of an item (and each summary of a reasoning item) is a block of its own.
func (s *responsesStream) delta(kind string, e responses.ResponseStreamEventUnion) {
	key := e.ItemID
	if kind == "text" { // the parts of a reasoning item are one block
		key += string(rune('a' + e.ContentIndex%26))
	}
	start := kind != s.lastKind || key != s.lastKey
	s.lastKind, s.lastKey = kind, key
	if start {
		s.x.delta(kind, true, "")
	}
	s.x.delta(kind, false, e.Delta)
}

func (s *responsesStream) end(r responses.Response) error {
	s.ended = true
	s.stop = r.IncompleteDetails.Reason
	u := r.Usage
	cached, written := u.InputTokensDetails.CachedTokens, u.InputTokensDetails.CacheWriteTokens
	s.usage = outboard.Usage{Input: max(0, u.InputTokens-cached-written), Output: u.OutputTokens, CacheRead: cached,
		CacheWrite5m: written}
	if len(s.items) > 0 {
		return nil
	}
	for i, it := range r.Output { // a server that sends the items with the end only
		s.items = append(s.items, item{index: int64(i), raw: []byte(it.RawJSON())})
	}
	return nil
}

// response is the whole response, once the stream has ended.
func (s *responsesStream) response() (*Response, error) {
	if !s.ended {
		return nil, cut()
	}
	r := &Response{Provider: TypeResponses, Usage: s.usage}
	slices.SortStableFunc(s.items, func(a, b item) int { return cmp.Compare(a.index, b.index) })
	var kept [][]byte
	reasoned := 0 // the items at the end of kept that are reasoning
	for i, it := range s.items {
		blocks, err := s.blocks(&it)
		if s.cut(&it, i == len(s.items)-1, err) {
			continue // in the middle of its arguments: there is no call to make
		}
		if err != nil {
			return nil, err
		}
		r.Blocks = append(r.Blocks, blocks...)
		kept = append(kept, it.raw)
		if reasoned++; it.kind != "reasoning" {
			reasoned = 0
		}
	}
	if s.stop != "" { // the server refuses reasoning that nothing follows from
		kept = kept[:len(kept)-reasoned]
	}
	r.Stop = stopOf(s.stop, r.Blocks)
	if s.refused && r.Stop == "end_turn" {
		r.Stop = "refusal"
	}
	var err error
	r.Raw, err = packRaw(joinList(kept))
	return r, err
}

// cut reports whether an item is a call that the end of the response cut off, so that nobody is told of it: by
// the limit on output, or by a filter. What else may have ended it, the model is told that its arguments were no
// good, and calls again.
func (s *responsesStream) cut(it *item, last bool, err error) bool {
	switch s.stop {
	case "max_output_tokens":
		return last && (it.broken || err != nil)
	case "content_filter":
		return it.broken
	}
	return false
}

// outputItem is what is read of an output item.
type outputItem struct {
	Type      string          `json:"type"`
	CallID    string          `json:"call_id"`
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
	Status    string          `json:"status"`
	Content   []struct {
		Type    string `json:"type"`
		Text    string `json:"text"`
		Refusal string `json:"refusal"`
	} `json:"content"`
	Summary []struct {
		Text string `json:"text"`
	} `json:"summary"`
}

// blocks is the normalised view of an item.
func (s *responsesStream) blocks(from *item) ([]Block, error) {
	var it outputItem
	if err := json.Unmarshal(from.raw, &it); err != nil {
		return nil, garbage("an output item: %v", err)
	}
	from.kind = it.Type
	var out []Block
	switch it.Type {
	case "message":
		for _, c := range it.Content {
			if c.Type == "refusal" {
				s.refused = true
				c.Text = c.Refusal
			}
			out = append(out, Block{Kind: "text", Text: c.Text})
		}
	case "reasoning":
		b := Block{Kind: "thinking"}
		for _, c := range it.Content {
			b.Text += c.Text
		}
		for _, c := range it.Summary {
			b.Text += c.Text
		}
		out = append(out, b)
	case "function_call":
		b, err := s.call(&it, from)
		if err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	return out, nil
}

// call is an item that is a call. What of it the wire would not take back is replaced in the item's text.
func (s *responsesStream) call(it *outputItem, from *item) (b Block, err error) {
	text := argumentsText(it.Arguments)
	b = Block{Kind: "tool_use", ToolUseID: s.ids.take(it.CallID), Name: it.Name, Input: toolInput(text)}
	if it.Status == "incomplete" && s.stop != "" { // even if what came of it reads like an object
		b.Input = appendString(nil, text)
	}
	set := func(key, value string) {
		if err == nil {
			from.raw, err = setMember(from.raw, key, appendString(nil, value))
		}
	}
	if !isObject(b.Input) || !isString(it.Arguments) || text == "" {
		set("arguments", string(asObject(b.Input)))
	}
	if name := safeName(it.Name); name != it.Name {
		set("name", name)
	}
	if b.ToolUseID != it.CallID {
		set("call_id", b.ToolUseID)
	}
	from.broken = !b.complete()
	return b, err
}
