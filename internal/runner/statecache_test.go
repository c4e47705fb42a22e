//go:build linux

package runner

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboard-dev/outboard"
)

// A turn that begins right behind another must get that one's fold: to read a long log again for every message
// of a quick client would cost more than the turn.
func TestCachedStateOfTheTurnBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f stateCache
		const id = outboard.SessionID("sesn_1")
		got := make(chan *outboard.State, 1)
		done := f.leave(id)
		go func() { got <- f.take(t.Context(), id) }()
		synctest.Wait()
		select {
		case <-got:
			t.Fatal("the next turn did not wait for the fold that is about to be kept")
		default:
		}
		if other := f.take(t.Context(), "sesn_2"); other == nil || other.Head != 0 {
			t.Error("another session has a fold")
		}
		kept := &outboard.State{}
		f.keep(id, kept)
		done()
		if s := <-got; s != kept {
			t.Error("the next turn has another fold")
		}

		done = f.leave(id) // a commit that failed keeps nothing
		go func() { got <- f.take(t.Context(), id) }()
		synctest.Wait()
		done()
		if s := <-got; s == kept || s == nil {
			t.Error("a fold was given out twice, or none")
		}

		f.leave(id) // never done: whoever waits goes with its context
		ctx, cancel := context.WithCancel(t.Context())
		go func() { got <- f.take(ctx, id) }()
		synctest.Wait()
		cancel()
		if s := <-got; s == nil {
			t.Error("no fold at all")
		}
	})
}

// If this fails, sessions that wait keep memory, or those that do not keep more than there is for all of them.
func TestStateCacheIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f stateCache
		of := func(bytes int) *outboard.State {
			s := &outboard.State{Header: outboard.Header{ID: "sesn_1"}}
			// a note in the conversation
			s.Assume(outboard.NewEvent("", &outboard.SandboxLost{Reason: strings.Repeat("x", bytes)}))
			return s
		}
		f.keep("sesn_big", of(maxStateBytes))
		if len(f.kept) != 0 {
			t.Error("a fold that is larger than there is room is kept")
		}
		for i := range 100 {
			f.keep(outboard.SessionID(fmt.Sprint("sesn_", i)), of(1000))
			time.Sleep(time.Millisecond)
		}
		if _, ok := f.kept["sesn_99"]; !ok || len(f.kept) != maxCachedStates {
			t.Errorf("%d states are kept, want the newest %d", len(f.kept), maxCachedStates)
		}
		for i := range 8 {
			f.keep(outboard.SessionID(fmt.Sprint("sesn_large", i)), of(maxStateBytes/3))
		}
		if _, ok := f.kept["sesn_large7"]; !ok || f.size > maxStateBytes {
			t.Errorf("the kept states take %d bytes, more than %d, or the newest is not among them", f.size,
				maxStateBytes)
		}
		f.expire(time.Now())
		if len(f.kept) == 0 {
			t.Error("states are let go before their time")
		}
		time.Sleep(stateTTL + time.Millisecond)
		f.expire(time.Now())
		if len(f.kept) != 0 || f.size != 0 {
			t.Errorf("after their time %d states of %d bytes are kept", len(f.kept), f.size)
		}
	})
}
