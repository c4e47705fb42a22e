package control

import (
	"context"
	"sync"

	"github.com/outboard-dev/outboard"
)

// turns lets so many do something at a time, and keeps one turn that no organization alone can take.
type turns struct {
	all chan struct{} // capacity two or more
	mu  sync.Mutex
	of  map[outboard.OrgID]*orgTurns
}

// orgTurns are those of an organization.
type orgTurns struct {
	n    int           // who have a turn or wait for one
	free chan struct{} // capacity one less than that of all
}

func newTurns(n int) *turns {
	return &turns{all: make(chan struct{}, n), of: map[outboard.OrgID]*orgTurns{}}
}

// enter waits for a turn. The organization's own comes first: who waits for that keeps nobody else from theirs.
// The caller calls leave.
func (t *turns) enter(ctx context.Context, org outboard.OrgID) (leave func(), err error) {
	o := t.join(org)
	taken := 0
	leave = func() {
		if taken > 1 {
			<-t.all
		}
		if taken > 0 {
			<-o.free
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		if o.n--; o.n == 0 {
			delete(t.of, org)
		}
	}
	for _, slots := range []chan struct{}{o.free, t.all} {
		select {
		case slots <- struct{}{}:
			taken++
		case <-ctx.Done():
			leave()
			return nil, context.Cause(ctx)
		}
	}
	return leave, nil
}

func (t *turns) join(org outboard.OrgID) *orgTurns {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.of[org]
	if o == nil {
		o = &orgTurns{free: make(chan struct{}, cap(t.all)-1)}
		t.of[org] = o
	}
	o.n++
	return o
}
