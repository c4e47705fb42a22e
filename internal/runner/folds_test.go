//go:build linux

package runner

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/outboard-dev/outboard"
)

// A turn that begins right behind another must get that one's fold: to read a long log again for every message of a quick client would
// cost more than the turn.
func TestFoldOfTheTurnBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f folds
		const id = outboard.SessionID("sesn_1")
		got := make(chan *outboard.State, 1)
		done := f.leave(id)
		go func() { got <- f.take(t.Context(), id).state }()
		synctest.Wait()
		select {
		case <-got:
			t.Fatal("the next turn did not wait for the fold that is about to be kept")
		default:
		}
		if other := f.take(t.Context(), "sesn_2").state; other == nil || other.Head != 0 {
			t.Error("another session has a fold")
		}
		kept := &outboard.State{}
		f.keep(id, fold{state: kept, size: 1})
		done()
		if s := <-got; s != kept {
			t.Error("the next turn has another fold")
		}

		done = f.leave(id) // a commit that failed keeps nothing
		go func() { got <- f.take(t.Context(), id).state }()
		synctest.Wait()
		done()
		if s := <-got; s == kept || s == nil {
			t.Error("a fold was given out twice, or none")
		}

		f.leave(id) // never done: whoever waits goes with its context
		ctx, cancel := context.WithCancel(t.Context())
		go func() { got <- f.take(ctx, id).state }()
		synctest.Wait()
		cancel()
		if s := <-got; s == nil {
			t.Error("no fold at all")
		}
	})
}
