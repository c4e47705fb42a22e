package control

import (
	"context"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
)

// revokedFor is how long the count of revoked keys is believed. With aliveEvery it bounds how long a stream
// outlives its key.
const revokedFor = 300 * time.Millisecond

// aliveEvery is how often While asks Alive.
const aliveEvery = 500 * time.Millisecond

// counter is a number of the store that many streams look at.
type counter struct {
	mu   sync.Mutex
	n    int64
	seen time.Time
}

// Alive reports whether the caller may go on: its key is neither over nor revoked, and its person is still
// there. seen is what the last call returned, 0 at first; while nobody loses a key, a call costs nothing. A
// store that does not answer ends nothing.
func (c *Control) Alive(ctx context.Context, by outboard.Caller, seen int64) (int64, error) {
	over := !by.Until.IsZero() && !c.now().Before(by.Until) // unless it was renewed
	n, err := c.revocations(ctx)
	if !over && (err != nil || n+1 == seen) {
		return seen, nil
	}
	if over && by.Kind != outboard.KeyLogin {
		return seen, badKey()
	}
	k, err := c.store.Key(ctx, by.Key)
	if err != nil {
		if outboard.KindOf(err) == outboard.NotFound {
			return seen, badKey()
		}
		return seen, nil
	}
	if _, err := c.holder(ctx, &k); outboard.KindOf(err) == outboard.Unauthenticated && err != nil {
		return seen, err
	}
	return n + 1, nil
}

// While ends a stream, by end, when its caller loses the key or the person behind it is removed. It returns
// then, or when ctx ends.
func (c *Control) While(ctx context.Context, end context.CancelFunc, by outboard.Caller) {
	var seen int64
	endWhen(ctx, end, func() (over bool) {
		var err error
		seen, err = c.Alive(ctx, by, seen)
		return err != nil
	})
}

// endWhen calls end once over reports true, and returns then, or when ctx ends.
func endWhen(ctx context.Context, end context.CancelFunc, over func() bool) {
	tick := time.NewTicker(aliveEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if over() {
			end()
			return
		}
	}
}

func (c *Control) revocations(ctx context.Context) (int64, error) {
	r := &c.revoked
	r.mu.Lock()
	defer r.mu.Unlock()
	if age := time.Since(r.seen); age >= 0 && age < revokedFor {
		return r.n, nil
	}
	n, err := c.store.Revocations(ctx)
	if err == nil {
		r.n, r.seen = n, time.Now()
	}
	return n, err
}

// actsFor refuses to go on with a session whose person was removed.
func (c *Control) actsFor(ctx context.Context, h *outboard.Header) error {
	if h.User == "" {
		return nil
	}
	u, err := c.store.User(ctx, h.User)
	if err != nil {
		return wrapLookup("user", string(h.User), err)
	}
	if !u.RemovedAt.IsZero() {
		return outboard.Errorf(outboard.Conflict, "session %s acts for %s, who was removed from the organization", h.ID,
			quote(u.Email)).
			WithHint("fork it to go on yourself, or let them in again: outboard user restore")
	}
	return nil
}
