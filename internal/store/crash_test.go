package store_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/store/storetest"
)

// childEnv makes this binary append to the database it names until it is killed.
const childEnv = "OUTBOARD_STORE_TEST_CHILD"

// ack is what the child prints once an append has returned.
type ack struct {
	Session outboard.SessionID
	Seq     int64
	Event   outboard.EventID
}

// appendForever is the child: eight sessions, each appending as fast as it can.
func appendForever(config string) int {
	var cfg store.Config
	if err := json.Unmarshal([]byte(config), &cfg); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	s, err := store.Open(context.Background(), cfg)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var mu sync.Mutex
	out := json.NewEncoder(os.Stdout)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			h, err := s.CreateSession(context.Background(), blank(), outboard.SessionConfig{})
			for err == nil {
				var evs []outboard.Event
				if evs, err = s.Append(context.Background(), h.ID, 0, store.Any, event2K()); err == nil {
					mu.Lock()
					err = out.Encode(ack{h.ID, evs[0].Seq, evs[0].ID})
					mu.Unlock()
				}
			}
			fmt.Fprintln(os.Stderr, err)
		})
	}
	wg.Wait()
	return 1
}

// An append that was acknowledged must survive a kill -9 at any instant; that is what the whole program rests on.
func TestAcknowledgedSurviveKill(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		acked := map[outboard.SessionID][]ack{}
		for round := range 3 {
			killAfter(t, cfg, 200+100*round, acked)
		}
		s := storetest.Open(t, cfg)
		total := 0
		for id, acks := range acked {
			h, log := mustSession(t, s, id), readAll(t, s, id)
			for now := mustSession(t, s, id); now.Head != h.Head; now = mustSession(t, s, id) {
				h, log = now, readAll(t, s, id) // a commit that PostgreSQL had from a killed child has landed
			}
			if h.Head != int64(len(log)) {
				t.Errorf("session %s has head %d and %d events", id, h.Head, len(log))
			}
			for _, a := range acks {
				if a.Seq > int64(len(log)) || log[a.Seq-1].ID != a.Event {
					t.Errorf("acknowledged event %d of %s is gone", a.Seq, id)
				}
			}
			total += len(acks)
		}
		if total < 900 {
			t.Fatalf("only %d appends were acknowledged", total)
		}
	})
}

// killAfter runs a child until it has acknowledged n appends, kills it, and collects what it said.
func killAfter(t *testing.T, cfg store.Config, n int, acked map[outboard.SessionID][]ack) {
	t.Helper()
	text, err := json.Marshal(struct{ Path, URL string }{cfg.Path, cfg.URL})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for i := 0; lines.Scan(); i++ {
		var a ack
		if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
			continue // the line the kill cut off
		}
		acked[a.Session] = append(acked[a.Session], a)
		if i == n {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, ok := errors.AsType[*exec.ExitError](cmd.Wait()); !ok {
		t.Fatal("the child ended before it was killed")
	}
}

// Under concurrency from two processes each append must get its own place, whole, and in the order one client
// sent them; else a follower or a fold sees a history nobody wrote.
func TestConcurrentHistory(t *testing.T) {
	storetest.EachConfig(t, func(t *testing.T, cfg store.Config) {
		stores := []*store.Store{storetest.Open(t, cfg), storetest.Open(t, cfg)}
		var ids []outboard.SessionID
		for range 5 {
			ids = append(ids, newSession(t, stores[0]).ID)
		}
		type op struct {
			session outboard.SessionID
			events  []outboard.Event
		}
		var mu sync.Mutex
		done := map[int][]op{} // by client, in its order
		moved := 0
		var wg sync.WaitGroup
		for client := range 16 {
			wg.Go(func() {
				s := stores[client%2]
				for i := range 40 {
					id, expect := ids[(client+i)%len(ids)], int64(store.Any)
					if client%4 == 0 {
						expect = mustSession(t, s, id).Head
					}
					evs, err := s.Append(t.Context(), id, 0, expect, said("one"), said("two"))
					mu.Lock()
					switch {
					case err == nil:
						done[client] = append(done[client], op{id, evs})
					case errors.Is(err, store.ErrMoved) && expect != store.Any:
						moved++
					default:
						t.Errorf("append: %v", err)
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		want := map[outboard.SessionID]int{}
		logs := map[outboard.SessionID][]outboard.Event{}
		for _, id := range ids {
			logs[id] = readAll(t, stores[1], id)
			want[id] = 1
		}
		for _, ops := range done {
			last := map[outboard.SessionID]int64{}
			for _, o := range ops {
				for i, e := range o.events {
					if logs[o.session][e.Seq-1].ID != e.ID || e.Seq != o.events[0].Seq+int64(i) ||
						e.Seq <= last[o.session] {
						t.Fatalf("event %s was acknowledged at %d of %s", e.ID, e.Seq, o.session)
					}
					last[o.session] = e.Seq
					want[o.session]++
				}
			}
		}
		for id, n := range want {
			if len(logs[id]) != n {
				t.Errorf("session %s has %d events, %d were acknowledged", id, len(logs[id]), n)
			}
		}
		t.Logf("%d appends found the log moved", moved)
	})
}
