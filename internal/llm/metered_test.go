package llm

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
)

// silent is a model whose provider reports what it likes.
type silent struct {
	usage outboard.Usage
	err   error
}

func (silent) Info() Info {
	return Info{ID: "x/silent", Output: 5000, Price: &Price{Input: maxRate, Output: maxRate}}
}

func (s silent) Generate(_ context.Context, _ Request, emit func(Delta)) (*Response, error) {
	emit(Delta{Kind: "text", Text: strings.Repeat("a", 400)})
	if s.err != nil {
		return nil, s.err
	}
	return &Response{Blocks: []Block{{Kind: "text", Text: strings.Repeat("a", 400)}}, Usage: s.usage}, nil
}

// If this fails, a model whose provider reports no usage, or nonsense, costs nothing, so that no budget ends it;
// or an answer that was cut off does, which the provider bills.
func TestWhatNobodyCountsIsGuessed(t *testing.T) {
	req := Request{System: strings.Repeat("s", 4000), Tools: []Tool{{Name: "bash"}},
		History: []*outboard.Message{{Role: "user",
			Content: []outboard.Content{outboard.Text(strings.Repeat("u", 800))}}}}
	guess := outboard.Usage{Input: 1000 + toolTokens + 200, Output: 100}
	most := BytesPerToken*guess.Input + int64(len("bash")) + ownTokens
	var log strings.Builder
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx   context.Context
		model silent
		want  outboard.Usage
	}{
		"told": {t.Context(), silent{usage: outboard.Usage{Input: 7, Output: 1, CacheRead: 3}},
			outboard.Usage{Input: 7, Output: 1, CacheRead: 3}},
		"no prompt": {t.Context(), silent{usage: outboard.Usage{Output: 90}},
			outboard.Usage{Input: guess.Input, Output: 90}},
		"no answer": {t.Context(), silent{usage: outboard.Usage{CacheRead: 90}},
			outboard.Usage{CacheRead: 90, Output: guess.Output}},
		"half negative": {t.Context(), silent{usage: outboard.Usage{Input: -9, Output: 90}},
			outboard.Usage{Input: guess.Input, Output: 90}},
		"cache beyond": {t.Context(), silent{usage: outboard.Usage{Input: 7, Output: 1, CacheRead: 1 << 40}},
			outboard.Usage{Input: 7, Output: 1, CacheRead: most - 7}},
		"not told": {t.Context(), silent{}, guess},
		"negative": {t.Context(), silent{usage: outboard.Usage{Input: -5, Output: -1}}, guess},
		"beyond reason": {t.Context(), silent{usage: outboard.Usage{Input: 1 << 62, Output: 1 << 62}},
			outboard.Usage{Input: most, Output: 5000}},
		"interrupted": {gone, silent{err: context.Canceled}, guess},
		"broken off":  {t.Context(), silent{err: &Error{Type: Failed, Emitted: true}}, guess},
		"refused":     {t.Context(), silent{err: &Error{Type: Failed}}, outboard.Usage{}},
	} {
		log.Reset()
		resp, err := Metered(c.model, slog.New(slog.NewTextHandler(&log, nil))).Generate(c.ctx, req, nil)
		if !errors.Is(err, c.model.err) {
			t.Errorf("%s: %v", name, err)
		}
		if told := c.model.usage == c.want; c.model.err == nil && told == strings.Contains(log.String(), "cannot be") {
			t.Errorf("%s: the log says %q", name, log.String())
		}
		if resp == nil {
			resp = &Response{}
		}
		got := resp.Usage
		if got.Tokens() > 0 && got.Cost <= 0 {
			t.Errorf("%s: %d tokens cost %v", name, got.Tokens(), got.Cost)
		}
		if got.Cost = 0; got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
