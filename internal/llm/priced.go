package llm

import (
	"context"

	"github.com/outboard-dev/outboard"
)

// priced counts the cost of what a model answers.
type priced struct{ Model }

// Generate implements Model.
func (p priced) Generate(ctx context.Context, req Request, emit func(Delta)) (*Response, error) {
	resp, err := p.Model.Generate(ctx, req, emit)
	if resp != nil {
		resp.Usage.Cost = p.Info().Price.Of(resp.Usage)
	}
	return resp, err
}

// Unpriced is the refusal of a money budget for a model whose cost nobody knows.
func Unpriced(id string) error {
	return outboard.Errorf(outboard.Invalid, "model %q has no list price, so money cannot be budgeted for it", id).WithCode("model_not_budgetable").
		WithHint("give it one in the configuration, in dollars per million tokens: llm: {prices: {%q: {input: 1, output: 5}}}", id)
}
