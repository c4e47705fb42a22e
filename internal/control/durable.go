package control

import (
	"context"
	"time"

	"github.com/outboard-dev/outboard"
)

// settleWait is how long a request waits for checkpoints that are only on a machine's host: storing what a call
// changed takes a fraction of a second.
const settleWait = 30 * time.Second

// settle waits until every checkpoint of a chain can be read, and puts the rows as they are then in their places.
func (c *Control) settle(ctx context.Context, chain []outboard.Checkpoint) error {
	ctx, cancel := context.WithTimeout(ctx, settleWait)
	defer cancel()
	for i := range chain {
		if chain[i].Durable() {
			continue
		}
		if c.fleet != nil { // nobody else may be at it: a server that only answers stores nothing on its own
			if err := c.fleet.Keep(ctx, chain[i]); err != nil {
				return err
			}
		}
		k, err := c.store.AwaitDurable(ctx, chain[i].ID)
		if err != nil {
			return err
		}
		chain[i] = k
	}
	return nil
}
