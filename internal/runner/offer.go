package runner

import (
	"context"
	"fmt"
	"slices"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/tool"
	"github.com/outboard-dev/outboard/internal/tool/registry"
)

// offer hands the custom tools' calls that were asked about, and allowed, to the client. A client runs what it
// is shown, so that is the sending of such a call: permit is asked like before any other, and none is offered
// once an interrupt waits.
func (t *turn) offer(ctx context.Context) error {
	var jobs []*job
	for _, c := range t.view.Calls {
		if !c.Runnable() || c.Requested.Kind != "custom" || stopped(ctx) || len(jobs) == maxIntents {
			continue
		}
		input, err := t.input(c)
		if err != nil {
			return err
		}
		// it takes no sandbox's time
		j := &job{call: c, input: input,
			def: tool.Def{Tool: registry.Tool{Name: c.Requested.Name, Place: registry.InControl}}}
		if j.refused = t.permit(t.ctx, j); j.refused != nil && outboard.KindOf(j.refused) == outboard.Unavailable {
			return j.refused
		}
		jobs = append(jobs, j)
	}
	if len(jobs) == 0 {
		return nil
	}
	_, err := t.Append(t.ctx, func(s *outboard.State) []outboard.Event {
		var events []outboard.Event
		if stopped(ctx) || interruptWaits(s) {
			return nil
		}
		for _, j := range jobs {
			if j.refused != nil {
				events = append(events,
					t.event(new(tool.Failed(j.call.ID, outboard.OutcomeDenied, notExecuted(j.refused)))))
				continue
			}
			events = append(events, outboard.NewOffer(t.durable.Thread, j.call.ID))
		}
		return events
	})
	return err
}

// notExecuted tells the model why a call was not sent.
func notExecuted(err error) string { return "This call was not executed: " + err.Error() }

// input loads the input of a call.
func (t *turn) input(c *outboard.Call) (outboard.Raw, error) {
	ref := c.Requested.InputBlob
	if ref == nil {
		return c.Requested.Input, nil
	}
	b, err := t.Load(t.ctx, *ref)
	if err != nil {
		return nil, fmt.Errorf("loading the input of call %s: %w", c.ID, err)
	}
	return b, nil
}

// last loads the input of the newest call of a tool that ended well, as far as the conversation reaches back;
// nil = none.
func (t *turn) last(name string) (outboard.Raw, error) {
	ended := map[outboard.CallID]bool{}
	for _, m := range slices.Backward(t.view.History) {
		for _, r := range m.Results {
			ended[r.Call] = !r.IsError
		}
		for _, use := range slices.Backward(m.Uses) {
			if use.Name == name && ended[use.Call] {
				return t.input(&outboard.Call{ID: use.Call, Requested: outboard.CallRequested{Input: use.Input,
					InputBlob: use.Blob}})
			}
		}
	}
	return nil, nil
}
