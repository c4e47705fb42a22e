package runner

import (
	"context"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
)

// Bounds of the cached states. A conversation goes on within seconds or is put aside; one that is put aside is
// rows only.
const (
	// stateTTL is how long after its turn a session's state is kept, in case the next message follows at once.
	stateTTL = 15 * time.Second
	// maxCachedStates and maxStateBytes bound them all, whatever the load. A conversation that fills a model's
	// context of a million tokens takes a few MiB; what is more than half of it all is not kept.
	maxCachedStates = 64
	maxStateBytes   = 64 << 20
)

// stateCache keeps the states of sessions whose turn has just ended, so that the next turn reads only the tail
// of the log. A state is never wrong, only short: the log behind it does not change. Its methods may be called
// from any goroutine.
type stateCache struct {
	mu   sync.Mutex
	kept map[outboard.SessionID]cachedState
	// closed when the turn that is being given up has kept its fold, or has none to keep
	leaving map[outboard.SessionID]chan struct{}
	size    int64
}

// cachedState is a state, about how much memory it takes, and until when it is kept.
type cachedState struct {
	state *outboard.State
	size  int64
	until time.Time
}

// leave says that a turn is about to give its session up, and may keep its fold before done is called. Whoever
// is told of that commit may send the next message, and the next turn begin, before this one has come to keep
// anything: it would read the whole log.
func (f *stateCache) leave(id outboard.SessionID) (done func()) {
	left := make(chan struct{})
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.leaving == nil {
		f.leaving = map[outboard.SessionID]chan struct{}{}
	}
	f.leaving[id] = left
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.leaving[id] == left {
			delete(f.leaving, id)
		}
		close(left)
	}
}

// take returns the session's fold, which is the caller's from now on, or an empty one. It waits for a turn of
// this process that is just being given up.
func (f *stateCache) take(ctx context.Context, id outboard.SessionID) *outboard.State {
	f.mu.Lock()
	if left := f.leaving[id]; left != nil {
		f.mu.Unlock()
		select {
		case <-left:
		case <-ctx.Done():
		}
		f.mu.Lock()
	}
	defer f.mu.Unlock()
	k, ok := f.kept[id]
	if !ok {
		return new(outboard.State)
	}
	f.dropLocked(id)
	return k.state
}

// keep takes over a fold that its turn no longer needs, or lets it go.
func (f *stateCache) keep(id outboard.SessionID, s *outboard.State) {
	k := cachedState{s, s.Size(), time.Now().Add(stateTTL)}
	if k.size > maxStateBytes/2 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dropLocked(id)
	for f.size+k.size > maxStateBytes || len(f.kept) >= maxCachedStates {
		f.dropLocked(f.oldestLocked())
	}
	if f.kept == nil {
		f.kept = map[outboard.SessionID]cachedState{}
	}
	f.kept[id] = k
	f.size += k.size
}

// expire lets go what nobody came back for by now.
func (f *stateCache) expire(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, k := range f.kept {
		if k.until.Before(now) {
			f.dropLocked(id)
		}
	}
}

func (f *stateCache) dropLocked(id outboard.SessionID) {
	f.size -= f.kept[id].size
	delete(f.kept, id)
}

func (f *stateCache) oldestLocked() (oldest outboard.SessionID) {
	for id, k := range f.kept {
		if oldest == "" || k.until.Before(f.kept[oldest].until) {
			oldest = id
		}
	}
	return oldest
}
