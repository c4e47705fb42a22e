package vault

import (
	"context"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
)

const (
	// keyRetry is how long a key service that has failed is not asked again, and then how long anybody waits for
	// it: while it is away requests fail within that time instead of after kmsTimeout, and when it comes back
	// they pass within twice that time.
	keyRetry = time.Second
	// openTime bounds one attempt, whatever the wrapper's own bound is.
	openTime = 2 * kmsTimeout
)

// opener opens a data key for all who need it: one attempt at a time, whose result is everybody's. Once an
// attempt at a key service has failed, the failure is remembered, and who comes later waits for a moment only.
// An attempt that hangs does not keep the next one from being made, because a service that has come back answers
// a new connection and not always the old one; as each ends after kmsTimeout, there are no more than ten under
// way. The zero value is ready, and safe for concurrent use.
type opener struct {
	mu     sync.Mutex
	now    *opening // the newest attempt under way
	opened *keys    // what the last one that succeeded has opened
	failed error    // of the last one that ended, nil after a success
	id     string   // of the key that failed is about
	at     time.Time
}

type opening struct {
	id    string
	begun time.Time
	done  chan struct{} // closed when the rest is set
	keys  *keys
	err   error
}

// open opens the key with the given id by fn, or joins who is at it. remote says that fn asks a service; else no
// failure is remembered: a file that has been put in its place counts at once.
func (o *opener) open(ctx context.Context, id string, remote bool,
	fn func(context.Context) (*keys, error)) (*keys, error) {
	if !remote {
		return fn(ctx)
	}
	o.mu.Lock()
	if o.opened != nil && o.opened.id == id {
		defer o.mu.Unlock()
		return o.opened, nil
	}
	last := o.failed
	if o.id != id {
		last = nil
	}
	if last != nil && time.Since(o.at) < keyRetry {
		o.mu.Unlock()
		return nil, last
	}
	a := o.now
	if a == nil || a.id != id || last != nil && time.Since(a.begun) >= keyRetry {
		a = o.begin(ctx, id, fn)
	}
	o.mu.Unlock()
	var enough <-chan time.Time
	if last != nil {
		enough = time.After(keyRetry)
	}
	select {
	case <-a.done:
		return a.keys, a.err
	case <-ctx.Done():
		return nil, outboard.Errorf(outboard.Canceled, "waiting for the vault key: %w", context.Cause(ctx))
	case <-enough:
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.failed != nil && o.id == id {
			o.at = time.Now() // it is away still
		}
		return nil, last
	}
}

// begin starts an attempt, which goes on when the caller that began it leaves: others may wait for it. Called
// with mu held.
func (o *opener) begin(ctx context.Context, id string, fn func(context.Context) (*keys, error)) *opening {
	a := &opening{id: id, begun: time.Now(), done: make(chan struct{})}
	o.now = a
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), openTime)
	go func() {
		defer cancel()
		a.keys, a.err = fn(work)
		o.mu.Lock()
		defer o.mu.Unlock()
		switch {
		case a.err == nil:
			o.opened, o.failed = a.keys, nil
		case o.opened == nil || o.opened.id != id: // an old attempt that ends late does not undo a newer success
			o.failed, o.id, o.at = a.err, id, time.Now()
		}
		if o.now == a {
			o.now = nil
		}
		close(a.done)
	}()
	return a
}
