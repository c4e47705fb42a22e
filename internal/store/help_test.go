package store_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

func TestMain(m *testing.M) {
	if cfg := os.Getenv(childEnv); cfg != "" {
		os.Exit(appendForever(cfg))
	}
	// each is some thirty steps on a real database; the command line wins
	if err := flag.Set("rapid.checks", "25"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// newSession creates an empty session.
func newSession(tb testing.TB, s *store.Store) outboard.Header {
	tb.Helper()
	h, err := s.CreateSession(tb.Context(), blank(), outboard.SessionConfig{},
		outboard.NewEvent("", &outboard.SessionCreated{}))
	if err != nil {
		tb.Fatalf("creating session: %v", err)
	}
	return h
}

// blank is the header of a session to create.
func blank() outboard.Header {
	return outboard.Header{
		ID:     outboard.NewID[outboard.SessionID](outboard.PrefixSession),
		Thread: outboard.NewID[outboard.ThreadID](outboard.PrefixThread),
	}
}

// newWorker registers a worker.
func newWorker(tb testing.TB, s *store.Store) outboard.WorkerID {
	tb.Helper()
	w := outboard.NewID[outboard.WorkerID](outboard.PrefixWorker)
	if err := s.Register(tb.Context(), w, "host"); err != nil {
		tb.Fatalf("registering worker: %v", err)
	}
	return w
}

// message is a user's message.
func message(text string) outboard.Event {
	return outboard.NewEvent("", &outboard.InputMessage{Content: []outboard.Content{outboard.Text(text)}})
}

// said is an event without an effect on the header.
func said(text string) outboard.Event {
	return outboard.NewEvent("", &outboard.AgentMessage{Content: []outboard.Content{outboard.Text(text)}})
}

func processed(in outboard.Event) outboard.Event {
	return outboard.NewEvent("", &outboard.InputProcessed{Input: in.ID, Of: in.Type})
}

func started(turn int) outboard.Event {
	return outboard.NewEvent("", &outboard.TurnStarted{Turn: turn})
}

func ended(turn int, stop string) outboard.Event {
	return outboard.NewEvent("", &outboard.TurnEnded{Turn: turn, Stop: outboard.StopReason{Type: stop}})
}

func retrying(at time.Time) outboard.Event {
	return outboard.NewEvent("", &outboard.TurnRetrying{Turn: 1, Attempt: 1, At: at.Truncate(time.Microsecond)})
}

// mustAppend appends wherever the head is, without a lease.
func mustAppend(tb testing.TB, s *store.Store, id outboard.SessionID, events ...outboard.Event) []outboard.Event {
	tb.Helper()
	out, err := s.Append(tb.Context(), id, 0, store.Any, events...)
	if err != nil {
		tb.Fatalf("appending: %v", err)
	}
	return out
}

// mustSession returns the header.
func mustSession(tb testing.TB, s *store.Store, id outboard.SessionID) outboard.Header {
	tb.Helper()
	h, err := s.Session(tb.Context(), id)
	if err != nil {
		tb.Fatalf("reading session: %v", err)
	}
	return h
}

// readAll returns the log, after checking that it has no gaps and that its times keep their distance.
func readAll(tb testing.TB, s *store.Store, id outboard.SessionID) []outboard.Event {
	tb.Helper()
	var out []outboard.Event
	for e, err := range s.Read(tb.Context(), id, 0) {
		if err != nil {
			tb.Fatalf("reading log: %v", err)
		}
		if e.Seq != int64(len(out))+1 || e.Session != id {
			tb.Fatalf("event %d of %s is at %d of %s", e.Seq, e.Session, len(out)+1, id)
		}
		if len(out) > 0 && e.Time.Sub(out[len(out)-1].Time) < outboard.EventSpacing {
			tb.Fatalf("event %d comes %v after the one before", e.Seq, e.Time.Sub(out[len(out)-1].Time))
		}
		out = append(out, e)
	}
	return out
}

// mustBe fails unless err is want.
func mustBe(tb testing.TB, err, want error) {
	tb.Helper()
	if !errors.Is(err, want) {
		tb.Fatalf("got error %v, want %v", err, want)
	}
}

// mustKind fails unless err is an error of the kind whose message has all words in it.
func mustKind(tb testing.TB, err error, kind outboard.Kind, words ...string) {
	tb.Helper()
	if err == nil || outboard.KindOf(err) != kind {
		tb.Fatalf("got error %v (%s), want kind %s", err, outboard.KindOf(err), kind)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			tb.Fatalf("error %q does not say %q", err, w)
		}
	}
}

// clock is a time that only the test moves.
type clock struct{ at time.Time }

func newClock() *clock { return &clock{time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)} }

func (c *clock) now() time.Time          { return c.at }
func (c *clock) advance(d time.Duration) { c.at = c.at.Add(d) }

// within is a context for what must happen soon.
func within(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeoutCause(tb.Context(), 20*time.Second, fmt.Errorf("%s waited in vain", tb.Name()))
	tb.Cleanup(cancel)
	return ctx
}

// jsonOf is a value as JSON.
func jsonOf(tb testing.TB, v any) string {
	tb.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		tb.Fatal(err)
	}
	return string(b)
}
