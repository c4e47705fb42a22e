package store

import (
	"testing"
	"testing/synctest"
	"time"
)

// If this fails, a crowd of senders pays for many small commits, or a few of them wait for others who do not come.
func TestAuditGather(t *testing.T) {
	for _, c := range []struct {
		name   string
		likely int           // what the last group says
		ago    time.Duration // when it was
		come   int           // records that come at once
		later  int           // and when the writer has begun to wait
		group  int
		wait   bool
	}{
		{name: "one alone", likely: 1, come: 1, group: 1},
		{name: "most of a crowd are here", likely: 12, come: 9, group: 9},
		{name: "most of a crowd come", likely: 12, come: 1, later: 8, group: 9},
		{name: "the crowd is gone", likely: 12, come: 2, later: 3, group: 5, wait: true},
		{name: "the crowd was long ago", likely: 12, ago: time.Second, come: 2, group: 2},
		{name: "no statement is longer", likely: maxGroup, come: 1, later: quickRows - 1, group: quickRows},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := &auditQueue{enough: make(chan struct{}, 1), likely: c.likely, passed: time.Now().Add(-c.ago)}
				enter := func(n int) {
					for range n {
						if _, err := q.enter(&auditing{turn: make(chan bool, 1)}); err != nil {
							t.Fatal(err)
						}
					}
				}
				enter(c.come)
				begin, group := time.Now(), make(chan int, 1)
				go func() { group <- len(q.gather()) }()
				synctest.Wait()
				enter(c.later)
				if got := <-group; got != c.group {
					t.Errorf("the group has %d records, want %d", got, c.group)
				}
				want := time.Duration(0)
				if c.wait {
					want = longWait
				}
				if got := time.Since(begin); got != want {
					t.Errorf("the writer waited for %v, want %v", got, want)
				}
				if len(q.enough) > 0 || q.want > 0 {
					t.Error("the next writer would be told that enough have come for this one")
				}
			})
		})
	}
}

// If this fails, one small group makes the writers forget how many senders there are, and all groups that follow
// are small; or they wait for a crowd that has gone.
func TestAuditCrowdFades(t *testing.T) {
	for _, c := range []struct{ before, group, waiting, want int }{
		{before: 64, group: 15, waiting: 5, want: 56},
		{before: 9, group: 3, waiting: 2, want: 7},
		{before: 16, group: 12, waiting: 8, want: 20},
		{before: fewSenders, group: 3, waiting: 2, want: 5}, // no crowd
	} {
		q := &auditQueue{likely: c.before, group: c.group}
		for range c.waiting {
			q.waiting = append(q.waiting, &auditing{turn: make(chan bool, 1)})
		}
		if q.next(); q.likely != c.want {
			t.Errorf("after a group of %d and with %d waiting, %d of %d are likely, want %d", c.group, c.waiting,
				q.likely, c.before, c.want)
		}
	}
}
