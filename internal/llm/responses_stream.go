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
}

// event takes in one event. Kinds that are not known carry nothing that is needed.
func (s *responsesStream) event(e responses.ResponseStreamEventUnion) error {
	switch e.Type {
	case "response.output_text.delta", "response.refusal.delta":
		s.delta("text", e)
	case "response.reasoning_summary_text.delta", "response.reasoning_text.delta":
		s.delta("thinking", e)
	case "response.output_item.done":
		s.items = append(s.items, item{e.OutputIndex, []byte(e.Item.RawJSON())})
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
		s.items = append(s.items, item{int64(i), []byte(it.RawJSON())})
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
	for i, it := range s.items {
		blocks, err := s.blocks(it.raw)
		if err != nil && s.stop == "max_output_tokens" && i == len(s.items)-1 {
			continue // cut in the middle of its arguments: there is no call to make
		}
		if err != nil {
			return nil, err
		}
		r.Blocks = append(r.Blocks, blocks...)
		kept = append(kept, it.raw)
	}
	r.Stop = stopOf(s.stop, r.Blocks)
	if s.refused && r.Stop == "end_turn" {
		r.Stop = "refusal"
	}
	var err error
	r.Raw, err = packRaw(joinList(kept))
	return r, err
}

// outputItem is what is read of an output item.
type outputItem struct {
	Type      string `json:"type"`
	CallID    string `json:"call_id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
	Status    string `json:"status"`
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
func (s *responsesStream) blocks(raw []byte) ([]Block, error) {
	var it outputItem
	if err := json.Unmarshal(raw, &it); err != nil {
		return nil, garbage("an output item: %v", err)
	}
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
		if it.CallID == "" || it.Name == "" {
			return nil, garbage("a tool call has no id or no name")
		}
		if it.Status == "incomplete" {
			return nil, garbage("the arguments of tool %q are incomplete", it.Name)
		}
		in, err := toolInput(it.Name, it.Arguments)
		if err != nil {
			return nil, err
		}
		out = append(out, Block{Kind: "tool_use", ToolUseID: it.CallID, Name: it.Name, Input: in})
	}
	return out, nil
}
