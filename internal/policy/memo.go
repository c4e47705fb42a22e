package policy

import (
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
)

const (
	// maxMemo bounds the decisions that a set remembers.
	maxMemo = 1024
	// maxAsked bounds the arguments of a request whose decision is remembered.
	maxAsked = 1 << 10
)

// memo remembers the decisions of one second. A decision follows from the set and the request alone, and the
// whole request is the key: who, what, taint, budget, grants, and the time in seconds.
type memo struct {
	mu       sync.Mutex
	second   int64
	verdicts map[question]Verdict
}

// question is a request by its values: what a pointer of it points to may change.
type question struct {
	Request                // without Context.Left
	left    outboard.Spend // what that said
	told    bool           // it said something
}

// recall is Decide for a request that may come again within the second: those of the network do many times, and
// a tool call is decided when the model makes it and again before it is sent. Policies see the time in whole
// seconds. The verdict is shared: it must not be changed.
func (s *Set) recall(r *Request) Verdict {
	q := *r
	if c := &q.Context; len(c.Input)+len(c.Command)+len(c.Path)+len(c.URL) > maxAsked {
		return s.Decide(r)
	}
	q.Context.Now = r.Context.Now.UTC().Truncate(time.Second)
	key := question{Request: q}
	if left := r.Context.Left; left != nil {
		key.left, key.told, key.Context.Left = *left, true, nil
	}
	second := key.Context.Now.Unix()
	m := &s.memo
	m.mu.Lock()
	v, ok := m.verdicts[key]
	m.mu.Unlock()
	if ok {
		return v
	}
	v = s.Decide(&q)
	if v.Alarm != "" {
		return v
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.verdicts == nil || m.second != second || len(m.verdicts) >= maxMemo {
		m.second, m.verdicts = second, map[question]Verdict{}
	}
	m.verdicts[key] = v
	return v
}
