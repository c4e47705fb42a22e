package harness

import (
	"context"
	"slices"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/llm"
)

// askBudget reserves what the model call that is due may use up. An interrupt cuts the waiting for it.
func (l *loop) askBudget(ctx context.Context) error {
	s := l.t.State()
	ictx, cancel := l.t.Interrupted(ctx)
	budget, err := l.t.Budget(ictx, l.need)
	interrupted := context.Cause(ictx) == ErrInterrupted
	cancel()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil && interrupted:
		return l.t.Sync(ctx)
	case err != nil:
		return err
	}
	l.budget, l.budgeted, l.budgetedAt = budget, true, s.Head
	return nil
}

// need is what the model call that is due may come to.
func (l *loop) need() Need {
	s := l.t.State()
	need := Need{Input: used(s) + overhead(l.t.System(), l.t.Tools())}
	for _, in := range s.Waiting {
		need.Input += int64(len(in.Event.Data)) / llm.BytesPerToken
	}
	if l.model != nil {
		need.Output = l.model.Info().Output
	}
	return need
}

// interrupted is Turn.Interrupted for a model call: the end of the running time that is paid for interrupts as well.
func (l *loop) interrupted(ctx context.Context) (context.Context, context.CancelFunc) {
	ictx, cancel := l.t.Interrupted(ctx)
	if l.budget.Until.IsZero() {
		return ictx, cancel
	}
	dctx, stop := context.WithDeadlineCause(ictx, l.budget.Until, ErrInterrupted)
	return dctx, func() { stop(); cancel() }
}

func interruptWaits(s *outboard.State) bool {
	return slices.ContainsFunc(s.Waiting,
		func(in outboard.Input) bool { return in.Event.Type == outboard.TypeInputInterrupt })
}
