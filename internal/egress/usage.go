package egress

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// usage counts what a session sends out, against its budget: allowed hosts are the way by which data really leaves.
//
// The counters are rows that all servers share. A gateway takes of them in chunks, before it lets anything pass,
// and spends a chunk from memory. A chunk that a crash loses stays counted, so that no restart gives back what
// was used.
type usage struct {
	store *store.Store
	id    string // of the counters: the session, or the sandbox without one
	limit outboard.NetBudget
	ports int // that use it; under the gateway's lock
	now   func() time.Time

	mu    sync.Mutex
	left  store.NetUse // taken and not spent
	took  time.Time    // when requests were taken last, and how many chunks of them
	many  int64
	hosts map[string]struct{}
}

func newUsage(s *store.Store, id string, b outboard.NetBudget, now func() time.Time) *usage {
	b.Requests, b.Bytes, b.Hosts = cmp.Or(b.Requests, defaultRequests), cmp.Or(b.Bytes, defaultBytes), cmp.Or(b.Hosts,
		defaultHosts)
	return &usage{store: s, id: id, limit: b, now: now, hosts: map[string]struct{}{}}
}

// chunk is how much is taken at a time: little enough of a small budget that servers can share it.
func chunk(limit, most int64) int64 { return min(max(1, limit/64), most) }

// take fetches what is missing for some requests and bytes, and more. u.mu is held.
func (u *usage) take(need store.NetUse, host string) (room bool, err error) {
	var want store.NetUse
	if missing := need.Requests - u.left.Requests; missing > 0 {
		now := u.now()
		if u.many = min(2*u.many, maxChunks); now.Sub(u.took) > chunkLasts {
			u.many = 1
		}
		u.took = now
		want.Requests = missing + chunk(u.limit.Requests, u.many*chunkRequests) - 1
	}
	if missing := need.Bytes - u.left.Bytes; missing > 0 {
		want.Bytes = missing + chunk(u.limit.Bytes, chunkBytes) - 1
	}
	// of its own: what is taken must not be lost with a request
	ctx, cancel := context.WithTimeout(context.Background(), takeTimeout)
	defer cancel()
	got, room, err := u.store.TakeNet(ctx, u.id, u.limit, want, host)
	u.left.Requests += got.Requests
	u.left.Bytes += got.Bytes
	return room, err
}

// admit counts one request of which n bytes have come, or refuses it.
func (u *usage) admit(host string, n int64) *refusal {
	u.mu.Lock()
	defer u.mu.Unlock()
	over := func(format string, args ...any) *refusal {
		no := refuse(http.StatusTooManyRequests, "budget", format, args...)
		if no.hint = "raise config.outboard.networking.budget of the environment, and start a new session"; outboard.BoxID(u.id).Valid() {
			no.hint = "raise egress.boxes.budget of the server's configuration"
		}
		return no
	}
	_, known := u.hosts[host]
	if !known || u.left.Requests < 1 || u.left.Bytes < n {
		unknown := host
		if known {
			unknown = ""
		}
		room, err := u.take(store.NetUse{Requests: 1, Bytes: n}, unknown)
		switch {
		case err != nil:
			return refuse(http.StatusServiceUnavailable, "budget", "what this session has sent cannot be counted")
		case !room:
			return over("this session has reached its %d hosts", u.limit.Hosts)
		}
		u.hosts[host] = struct{}{} // no more than the limit
	}
	switch {
	case u.left.Requests < 1:
		return over("this session has made its %d requests", u.limit.Requests)
	case u.left.Bytes < n:
		return over("this session has sent its %d bytes", u.limit.Bytes)
	}
	u.left.Requests--
	u.left.Bytes -= n
	return nil
}

// sent counts bytes of a body, and reports whether they may go.
func (u *usage) sent(n int) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.left.Bytes < int64(n) {
		if _, err := u.take(store.NetUse{Bytes: int64(n)}, ""); err != nil || u.left.Bytes < int64(n) {
			return false
		}
	}
	u.left.Bytes -= int64(n)
	return true
}

// give gives back what is left of the chunks.
func (u *usage) give() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	left := u.left
	u.left = store.NetUse{}
	if left == (store.NetUse{}) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), takeTimeout)
	defer cancel()
	return u.store.GiveNet(ctx, u.id, left)
}

// counted is a request body against the budget.
type counted struct {
	io.ReadCloser
	usage  *usage
	effect *effect
}

// Read fails when the budget is used up, which ends the request.
func (c *counted) Read(b []byte) (int, error) {
	n, err := c.ReadCloser.Read(b)
	if n > 0 {
		c.effect.touch()
	}
	if n > 0 && !c.usage.sent(n) {
		return 0, errOverBudget
	}
	if err != nil && err != io.EOF {
		err = fmt.Errorf("%w: %w", errBody, err)
	}
	return n, err
}

// errBody is what failed on the client's side.
var errBody = errors.New("the request's body broke off, or is not framed as HTTP wants it")

var errOverBudget = outboard.Errorf(outboard.Exhausted, "this session has sent the bytes it may send")
