package doors

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// activity knows when somebody last wanted something of a server. It is safe for concurrent use.
type activity struct {
	mu   sync.Mutex
	open int       // requests that are being answered
	last time.Time // when one last began or ended
}

// watch counts the requests of a handler.
func (v *activity) watch(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v.add(1)
		defer v.add(-1)
		next.ServeHTTP(w, r)
	})
}

func (v *activity) add(n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.open += n
	v.last = time.Now()
}

// rest returns for how long nothing has been asked; 0 while something is being answered.
func (v *activity) rest() time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.open > 0 {
		return 0
	}
	return time.Since(v.last)
}

// idleLook is how often at most a server looks whether it is idle.
const idleLook = 10 * time.Second

// AwaitIdle returns true when a server has had no request and nothing to do for as long as idle, and false when
// ctx ends first. Work that cannot be seen counts as work.
func (d *Doors) AwaitIdle(ctx context.Context, idle time.Duration) bool {
	if idle <= 0 {
		<-ctx.Done()
		return false
	}
	d.active.add(0)
	t := time.NewTicker(max(min(idleLook, idle/4), 10*time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-t.C:
		}
		if d.active.rest() < idle {
			continue
		}
		busy, err := d.server.Busy(ctx)
		if err != nil {
			d.log.Warn("whether the server is idle is not known", "err", err)
		}
		if busy || err != nil {
			d.active.add(0) // idle begins when the work ends
			continue
		}
		return true
	}
}
