package live

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/outboard-dev/outboard"
)

// A reader that gets another session's text, or text with a hole in it, would show what no model said.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h Hub
		ctx, cancel := context.WithCancel(t.Context())
		ch := h.Follow(ctx, "sesn_a")
		h.Publish(Delta{Session: "sesn_b", Text: "not for a"})
		h.Publish(Delta{Session: "sesn_a", Event: "sevt_1", Start: true})
		for range readerBuffer { // one more than fits
			h.Publish(Delta{Session: "sesn_a", Event: "sevt_1", Text: "x"})
		}
		for i := range readerBuffer {
			if d := <-ch; d.Session != "sesn_a" || d.Start != (i == 0) {
				t.Fatalf("delta %d: %+v", i, d)
			}
		}
		h.Publish(Delta{Session: "sesn_a", Event: "sevt_1", Text: "after the hole"})
		h.Publish(Delta{Session: "sesn_a", Event: "sevt_2", Start: true})
		if d := <-ch; d.Event != "sevt_2" {
			t.Errorf("a delta after a hole was delivered: %+v", d)
		}
		cancel()
		synctest.Wait()
		if _, open := <-ch; open {
			t.Error("the channel outlives its context")
		}
		if len(h.readers) != 0 {
			t.Errorf("%d sessions still have readers", len(h.readers))
		}
	})
}

// Publish runs inside a turn: a reader that never reads must not stop it.
func TestPublishNeverBlocks(t *testing.T) {
	var h Hub
	_ = h.Follow(t.Context(), "sesn_a")
	for range 10 * readerBuffer {
		h.Publish(Delta{Session: "sesn_a", Kind: outboard.TypeAgentMessage, Text: "x"})
	}
}
