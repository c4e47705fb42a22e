package policy

import (
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
)

// maxMemo bounds the decisions that a set remembers.
const maxMemo = 1024

// memo remembers the decisions of one second. A decision follows from the set and the request alone, and the whole request is the key:
// who, what, taint, budget, grants, and the time in seconds.
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

// recall is Decide for requests that come many times a second. Policies see the time in whole seconds. The verdict is shared: it must
// not be changed.
func (s *Set) recall(r *Request) Verdict {
	q := *r
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
