package llm

import (
	"cmp"
	"context"
	"errors"
	"log/slog"

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
	// maxCount bounds a count that a provider reports: more than a model reads or writes at once, and no price
	// makes it overflow.
	maxCount = 1 << 24
	// ownTokens is what a provider may add to a prompt by itself, such as its instructions for tools.
	ownTokens = 8 << 10
)

// metered says of every answer what it came to: tokens, and what they cost.
type metered struct {
	Model
	log *slog.Logger
}

// Metered returns m with the usage of each response complete: its cost, where the model has a price, and a guess
// where the provider says nothing, since what nobody counts no budget would end. A call that was cut off, or
// that failed with a part of its answer shown, has a Response with nothing but a usage beside its error: the
// provider has read the prompt and may bill it. Counts that the request and the response cannot hold are cut to
// what they can, and counts of nothing are guessed; log is told of each.
func Metered(m Model, log *slog.Logger) Model { return metered{m, log} }

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
	said := *u
	c.bound(u, &req, max(answerTokens(resp), shown/BytesPerToken))
	if said != *u && err == nil {
		c.log.Warn("the model's provider reports a usage that cannot be; another one is charged", "model", c.Info().ID,
			"reported", said, "charged", *u)
	}
	if p := PriceAt(c, req.Speed); p != nil {
		u.Cost = p.Of(*u)
	}
	return resp, err
}

// bound makes a usage one that can be. A token is at least a byte, so that a prompt has no more tokens than
// bytes, and a response no more than was asked for; answer is a guess for what it has at least. Where one side
// is said to be nothing, it is guessed.
func (c metered) bound(u *outboard.Usage, req *Request, answer int64) {
	prompt := PromptTokens(req)
	most := min(BytesPerToken*prompt+toolBytes(req)+ownTokens, maxCount)
	for _, n := range []*int64{&u.Input, &u.CacheRead, &u.CacheWrite5m, &u.CacheWrite1h} {
		*n = min(max(*n, 0), most)
		most -= *n
	}
	if u.Input+u.CacheRead+u.CacheWrite5m+u.CacheWrite1h == 0 {
		u.Input = min(prompt, maxCount)
	}
	longest := max(cmp.Or(req.MaxOutput, c.Info().Output, maxCount), BytesPerToken*answer)
	if u.Output = min(max(u.Output, 0), longest, maxCount); u.Output == 0 {
		u.Output = min(answer, maxCount)
	}
}

// toolBytes is the length of the definitions of tools, of which PromptTokens knows the number only.
func toolBytes(req *Request) int64 {
	n := 0
	for _, t := range req.Tools {
		n += len(t.Name) + len(t.Description) + len(t.InputSchema)
	}
	return int64(n)
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
