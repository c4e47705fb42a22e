package llm

import (
	"context"
	"errors"

	"github.com/outboard-dev/outboard"
)

// What a prompt is guessed by, where no model has counted it.
const (
	// BytesPerToken is a cautious guess for text.
	BytesPerToken = 4
	// toolTokens is a guess for what one tool's definition takes of a prompt.
	toolTokens = 300
	// imageTokens stands for one image or binary document.
	imageTokens = 1600
	// maxCount bounds a count that a provider reports: more than a model reads or writes at once, and no price makes it overflow.
	maxCount = 1 << 24
)

// metered says of every answer what it came to: tokens, and what they cost.
type metered struct{ Model }

// Metered returns m with the usage of each response complete: its cost, where the model has a price, and a guess where the provider says
// nothing, since what nobody counts no budget would end. A call that was cut off, or that failed with a part of its answer shown, has a
// Response with nothing but a usage beside its error: the provider has read the prompt and may bill it.
func Metered(m Model) Model { return metered{m} }

// Generate implements Model.
func (c metered) Generate(ctx context.Context, req Request, emit func(Delta)) (*Response, error) {
	shown := int64(0)
	resp, err := c.Model.Generate(ctx, req, func(d Delta) {
		shown += int64(len(d.Text))
		if emit != nil {
			emit(d)
		}
	})
	if e, ok := errors.AsType[*Error](err); resp == nil && err != nil && (ctx.Err() != nil || ok && e.Emitted) {
		resp = &Response{Usage: outboard.Usage{Input: PromptTokens(&req), Output: shown / BytesPerToken}}
	}
	if resp == nil {
		return nil, err
	}
	u := &resp.Usage
	for _, n := range []*int64{&u.Input, &u.Output, &u.CacheRead, &u.CacheWrite5m, &u.CacheWrite1h} {
		*n = min(max(*n, 0), maxCount)
	}
	if u.Tokens() == 0 {
		u.Input, u.Output = PromptTokens(&req), answerTokens(resp)
	}
	if p := PriceAt(c, req.Speed); p != nil {
		u.Cost = p.Of(*u)
	}
	return resp, err
}

// PromptTokens guesses what a request comes to.
func PromptTokens(req *Request) int64 {
	n := int64(len(req.System))/BytesPerToken + toolTokens*int64(len(req.Tools))
	for _, m := range req.History {
		n += Tokens(m)
	}
	return n
}

// answerTokens guesses what a response came to. What a provider keeps to itself of the model's reasoning is not in it.
func answerTokens(r *Response) int64 {
	n := 0
	for _, b := range r.Blocks {
		n += len(b.Text) + len(b.Name) + len(b.Input)
	}
	return int64(n+BytesPerToken-1) / BytesPerToken
}

// Tokens guesses what a message takes of a prompt.
func Tokens(m *outboard.Message) int64 {
	if len(m.Raw) > 0 {
		return int64(len(m.Raw)) / BytesPerToken
	}
	if m.RawBlob != nil {
		return m.RawBlob.Size / BytesPerToken
	}
	n := contentTokens(m.Content)
	for _, u := range m.Uses {
		n += int64(len(u.Input)) / BytesPerToken
		if u.Blob != nil {
			n += u.Blob.Size / BytesPerToken
		}
	}
	for _, r := range m.Results {
		n += contentTokens(r.Content)
	}
	return n
}

func contentTokens(blocks []outboard.Content) int64 {
	var n int64
	for _, b := range blocks {
		n += int64(len(b.Text)) / BytesPerToken
		if b.Blob != nil {
			n += b.Blob.Size / BytesPerToken
		}
		if src := b.Source; src != nil {
			switch {
			case src.Type == "text":
				n += int64(len(src.Data)) / BytesPerToken
			case src.Blob != nil && src.Encoding == "text":
				n += src.Blob.Size / BytesPerToken
			default:
				n += imageTokens
			}
		}
		n += contentTokens(b.Parts)
	}
	return n
}
