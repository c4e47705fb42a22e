package control

import (
	"context"
	"encoding/json"
	"net/netip"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// Bounds on records of refusals: anybody who reaches the server can be refused, and must not fill its disk.
const (
	refusalEvery = time.Minute // of one source and route
	// sources without a valid key that have a record of their own in that time; the rest share one
	maxStrangers = 10
	maxRefusals  = 2000 // sources and routes that are remembered
)

// Trail returns a context for one request of an API; see store.Trail.
func Trail(ctx context.Context) (context.Context, func() bool) { return store.Trail(ctx) }

// RefusedRequest is one that was answered with 401 or 403.
type RefusedRequest struct {
	Route string // the pattern it matched, or its method
	Path  string
	From  string // the address of who sent it
	Why   error
}

// refusals says which refusals have a record. The zero value is ready.
type refusals struct {
	mu        sync.Mutex
	seen      map[[2]string]*refused // by source and route
	strangers int                    // sources without a key in seen
}

type refused struct {
	at   time.Time // of the last record
	left int64     // refused since then
}

// take counts a refusal, and reports whether it is one to record, with how many before it were not.
func (f *refusals) take(source, route string, stranger bool, now time.Time) (left int64, record bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.seen == nil {
		f.seen = map[[2]string]*refused{}
	}
	r := f.seen[[2]string{source, route}]
	if r == nil {
		f.forget(now)
		if stranger && f.strangers >= maxStrangers || len(f.seen) >= maxRefusals {
			source, route, stranger = "", "", false
			r = f.seen[[2]string{}]
		}
	}
	if r == nil {
		f.seen[[2]string{source, route}] = &refused{at: now}
		if stranger {
			f.strangers++
		}
		return 0, true
	}
	if now.Sub(r.at) < refusalEvery {
		r.left++
		return 0, false
	}
	left, r.left, r.at = r.left, 0, now
	return left, true
}

// forget drops what is older than its time and has nothing to add. Where too many do, the counts are lost. A stranger's
// route is "".
func (f *refusals) forget(now time.Time) {
	for k, r := range f.seen {
		if now.Sub(r.at) >= refusalEvery && (r.left == 0 || len(f.seen) >= maxRefusals) && k != [2]string{} {
			delete(f.seen, k)
			if k[1] == "" {
				f.strangers--
			}
		}
	}
}

// Refused records that somebody was refused: of other errors there is no record. It is refused in any case. Of one
// source and route one a minute has a record; the next one says how many had none. Strangers are told apart by network,
// whatever they asked for.
func (c *Control) Refused(ctx context.Context, by outboard.Caller, r RefusedRequest) {
	if kind := outboard.KindOf(r.Why); kind != outboard.Unauthenticated && kind != outboard.Denied {
		return
	}
	source, route, actor, org, rule := string(by.Key), r.Route, string(by.Key), string(by.In()), "role "+by.Role
	stranger := by.Key == ""
	if stranger {
		source, route, actor, org, rule = network(r.From), "", "stranger", "", "no valid key"
	}
	left, record := c.refusals.take(source, route, stranger, c.now())
	if !record {
		return
	}
	said := map[string]any{"from": r.From, "why": outboard.PublicOf(r.Why)}
	if left > 0 {
		said["left_out"] = left
	}
	detail, err := json.Marshal(said)
	resource := r.Route
	if !stranger { // a stranger writes what it likes into a path
		resource += " " + r.Path
	}
	if err == nil {
		err = c.store.Audit(context.WithoutCancel(ctx), outboard.AuditRecord{At: c.clock(), Org: org, Actor: actor,
			Action:   "api.refused",
			Resource: resource, Decision: outboard.Refused, Rule: rule, Detail: detail})
	}
	if err != nil {
		c.log.Error("a refused request was not recorded", "route", r.Route, "key", by.Key, "err", err)
	}
}

// network is an address as a source: one of IPv6 stands for the 64 bits of its network, of which its holder has all.
func network(addr string) string {
	ap, err := netip.ParseAddrPort(addr)
	if err != nil {
		return addr
	}
	ip, bits := ap.Addr().Unmap().WithZone(""), 32
	if ip.Is6() {
		bits = 64
	}
	return netip.PrefixFrom(ip, bits).Masked().String()
}
