package runner

import (
	"cmp"
	"slices"
	"sync"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// orgs shares a worker's slots among organizations. Where there are several, none has more than its share, and of those
// that wait the one that has the fewest is next, and of equals the one that was not served for longest.
type orgs struct {
	share int

	mu     sync.Mutex
	shared bool                     // as the last claim found it
	held   map[outboard.OrgID]int   // slots
	served map[outboard.OrgID]int64 // when it last took one, in slots taken
	taken  int64                    // slots, ever
}

func newOrgs(share int) orgs {
	return orgs{share: share, held: map[outboard.OrgID]int{}, served: map[outboard.OrgID]int64{}}
}

// fair returns what a claim asks; nil where there is one organization.
func (o *orgs) fair(shared bool) func([]outboard.OrgID) []store.Room {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.shared = shared; !shared {
		return nil
	}
	return o.rooms
}

// rooms are those of organizations that have sessions waiting, in the order in which they are served.
func (o *orgs) rooms(waiting []outboard.OrgID) (rooms []store.Room) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, org := range waiting {
		if room := o.share - o.held[org]; room > 0 {
			rooms = append(rooms, store.Room{Org: org, Sessions: room})
		}
	}
	slices.SortStableFunc(rooms, func(a, b store.Room) int {
		return cmp.Or(cmp.Compare(b.Sessions, a.Sessions), cmp.Compare(o.served[a.Org], o.served[b.Org]))
	})
	return rooms
}

// reserve takes a slot of an organization's share, if one is left.
func (o *orgs) reserve(org outboard.OrgID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.shared && o.held[org] >= o.share {
		return false
	}
	o.takeLocked(org)
	return true
}

// take counts a slot that a claim has filled.
func (o *orgs) take(org outboard.OrgID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.takeLocked(org)
}

func (o *orgs) takeLocked(org outboard.OrgID) {
	o.taken++
	o.held[org]++
	o.served[org] = o.taken
}

// give gives a slot back, and reports whether others of the organization may have waited for it.
func (o *orgs) give(org outboard.OrgID) (waited bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	waited = o.shared && o.held[org] >= o.share
	if o.held[org]--; o.held[org] == 0 {
		delete(o.held, org)
	}
	return waited
}
