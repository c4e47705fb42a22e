package egress

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/outboard-dev/outboard"
)

// usage counts what a session sends out, against its budget: allowed hosts are the way by which data really leaves. It lives as long as
// the gateway.
type usage struct {
	mu       sync.Mutex
	limit    outboard.NetBudget
	requests int64
	bytes    int64
	hosts    map[string]struct{}
}

func newUsage(b outboard.NetBudget) *usage {
	b.Requests, b.Bytes, b.Hosts = cmp.Or(b.Requests, defaultRequests), cmp.Or(b.Bytes, defaultBytes), cmp.Or(b.Hosts, defaultHosts)
	return &usage{limit: b, hosts: map[string]struct{}{}}
}

// admit counts one request of which n bytes have come, or refuses it.
func (u *usage) admit(host string, n int64) *refusal {
	u.mu.Lock()
	defer u.mu.Unlock()
	over := func(format string, args ...any) *refusal {
		return &refusal{status: http.StatusTooManyRequests, rule: "budget", reason: fmt.Sprintf(format, args...),
			hint: "raise config.outboard.networking.budget of the environment, and start a new session"}
	}
	_, known := u.hosts[host]
	switch {
	case u.requests >= u.limit.Requests:
		return over("this session has made its %d requests", u.limit.Requests)
	case u.bytes+n > u.limit.Bytes:
		return over("this session has sent its %d bytes", u.limit.Bytes)
	case !known && len(u.hosts) >= u.limit.Hosts:
		return over("this session has reached its %d hosts", u.limit.Hosts)
	}
	u.requests++
	u.bytes += n
	u.hosts[host] = struct{}{}
	return nil
}

// sent counts bytes of a body, and reports whether they may go.
func (u *usage) sent(n int) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.bytes += int64(n)
	return u.bytes <= u.limit.Bytes
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
	return n, err
}

var errOverBudget = outboard.Errorf(outboard.Exhausted, "this session has sent the bytes it may send")
