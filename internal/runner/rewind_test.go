//go:build linux

package runner

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/llm"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// rewind takes a session that rests back to where its n-th turn ended, as control does.
func (r *rig) rewind(id outboard.SessionID, n int, conversation, machine bool) {
	r.t.Helper()
	p := &outboard.SessionRewound{Conversation: conversation, Machine: machine}
	s := new(outboard.State)
	for _, e := range r.events(id) {
		if err := s.Apply(&e); err != nil {
			r.t.Fatal(err)
		}
		if e.Type == outboard.TypeTurnEnded && s.Turn == n {
			p.To = e.Seq
			if machine {
				p.Checkpoint = s.Checkpoint
			}
		}
	}
	if machine && s.Sandbox != nil {
		p.Sandbox = s.Sandbox.Sandbox
	}
	r.send(id, p)
}

// endOfTurn waits for it.
func (r *rig) endOfTurn(id outboard.SessionID, n int) {
	r.t.Helper()
	turn := 0
	ctx := r.t.Context()
	for e, err := range r.store.Follow(ctx, id, 0) {
		if err != nil {
			r.t.Fatal(err)
		}
		p, err := e.Decode()
		if err != nil {
			r.t.Fatal(err)
		}
		if end, ok := p.(*outboard.TurnEnded); ok {
			if turn = end.Turn; turn == n {
				return
			}
		}
	}
	r.t.Fatalf("turn %d did not end\n%s", n, r.dump(id))
}

// simulateRewind plays a session that is taken back, on one process after another that die at the given points,
// and returns its log, what the last turn saw of the files, and how many points the last process passed.
func simulateRewind(t *testing.T, sc store.Config, conversation, machine bool,
	deaths ...int) (log, saw string, points int) {
	t.Helper()
	r := newRigOn(t, llm.Config{}, sc)
	id := r.session("script/steps", allTools)
	var last *mortal
	over := make(chan struct{})
	var host sync.WaitGroup
	host.Go(func() {
		for _, at := range append(slices.Clone(deaths), -1) {
			last = newMortal(at)
			r.start(func(c *Config) { c.fault, c.Fleet = last.fault, r.newFleet() })
			select {
			case <-last.dead:
				r.advance(outboard.LeaseTTL + time.Second)
			case <-over:
				return
			}
		}
		<-over
	})
	r.say(id, "- bash: echo one > f; "+r.mark(), "- say: first")
	r.endOfTurn(id, 1)
	r.say(id, "- bash: echo two > f; echo x > g; "+r.mark(), "- say: second")
	r.endOfTurn(id, 2)
	r.rewind(id, 1, conversation, machine)
	r.say(id, "- bash: cat f; ls; "+r.mark(), "- say: third")
	r.endOfTurn(id, 3)
	close(over)
	host.Wait()
	marks := r.marks()
	fins := payloads[*outboard.CallFinished](r, id)
	for i, f := range fins {
		if n := marks[outboard.CallKey(id, f.Call)]; n != 1 || f.Outcome != outboard.OutcomeOK {
			t.Errorf("call %d: %s, ran %d times\n%s", i, f.Outcome, n, r.dump(id))
		}
	}
	log = canonical(t, r.events(id))
	log = strings.NewReplacer(r.oracle, "ORACLE").Replace(log)
	return log, strings.Join(strings.Fields(finalText(*fins[len(fins)-1])), " "), last.points()
}

// If this fails, a session that was taken back goes on with files it should not have, or a process that dies
// near a rewind changes what comes after it.
func TestDyingAroundARewind(t *testing.T) {
	for name, c := range map[string]struct {
		conversation, machine bool
		saw                   string
	}{"both": {true, true, "one f"}, "machine": {false, true, "one f"}, "conversation": {true, false, "two f g"}} {
		t.Run(name, func(t *testing.T) {
			want, saw, points := simulateRewind(t, storetest.SQLite(t), c.conversation, c.machine)
			if saw != c.saw || points < 14 {
				t.Fatalf("the last turn saw %q, want %q, and passed %d points\n%s", saw, c.saw, points, want)
			}
			step := 1
			if testing.Short() || name != "both" {
				step = 5
			}
			for k := 0; k < points; k += step {
				t.Run(fmt.Sprint(k), func(t *testing.T) {
					got, saw, _ := simulateRewind(t, storetest.SQLite(t), c.conversation, c.machine, k)
					if saw != c.saw || plain(got) != plain(want) {
						t.Errorf("after dying at point %d of %d the last turn saw %q and the log is\n%s\nwant %q "+
							"and\n%s", k, points, saw, got, c.saw, want)
					}
				})
			}
		})
	}
}

var differs = regexp.MustCompile(`ckpt_\w+|"to":\d+`)

// plain leaves out which checkpoint a machine came from, and where a rewind went to: a repeated intent moves positions.
func plain(log string) string { return differs.ReplaceAllString(log, "-") }

// If this fails, the model goes on from a conversation that the user took back, whether the fold was kept in
// memory or read again.
func TestModelDoesNotSeeWhatWasTakenBack(t *testing.T) {
	for _, fresh := range []bool{false, true} {
		r := newRig(t, llm.Config{})
		run := r.start(nil)
		id := r.steps("- bash: echo one", "- say: first")
		r.endOfTurn(id, 1)
		r.say(id, "- say: second")
		r.endOfTurn(id, 2)
		r.rewind(id, 1, true, false)
		if fresh {
			run.Stop()
			r.start(nil)
		}
		r.say(id, "- say: third")
		r.endOfTurn(id, 3)
		s, err := outboard.Fold(r.events(id))
		if err != nil {
			t.Fatal(err)
		}
		var users []string
		for _, m := range s.History {
			if m.Role == "user" {
				users = append(users, outboard.PlainText(m.Content))
			}
		}
		if len(users) != 2 || !strings.Contains(users[1], "third") {
			t.Errorf("fresh %v: the conversation is %q\n%s", fresh, users, r.dump(id))
		}
	}
}
