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

// If this fails, somebody who comes while a command waits is not shown what it said last, is shown what a command
// said that has ended,
// or lines of commands take the room of a message's text.
func TestCallOutput(t *testing.T) {
	var h Hub
	line := func(call outboard.EventID, text string) {
		h.Publish(Delta{Session: "sesn_a", Event: call, Kind: CallOutput, Text: text})
	}
	line("sevt_1", "one")
	line("sevt_1", "two")
	line("sevt_2", "other")
	line("sevt_2", "")
	ch := h.Follow(t.Context(), "sesn_a")
	if other := h.Follow(t.Context(), "sesn_b"); len(other) != 0 {
		t.Errorf("another session's reader is shown %+v", <-other)
	}
	if len(ch) != 1 {
		t.Fatalf("%d lines wait for a reader that comes later, want 1", len(ch))
	}
	if d := <-ch; d.Text != "two" || d.Event != "sevt_1" {
		t.Errorf("it is shown %+v", d)
	}
	for range 2 * readerBuffer {
		line("sevt_1", "again")
	}
	h.Publish(Delta{Session: "sesn_a", Event: "sevt_3", Start: true})
	for range readerBuffer/2 - 1 {
		h.Publish(Delta{Session: "sesn_a", Event: "sevt_3", Text: "x"})
	}
	line("sevt_1", "")
	text := 0
	for len(ch) > 0 {
		if d := <-ch; d.Event == "sevt_3" {
			text++
		}
	}
	if text != readerBuffer/2 {
		t.Errorf("%d pieces of text came through, want %d", text, readerBuffer/2)
	}
	if len(h.lines) != 0 {
		t.Errorf("lines of calls that have ended are kept: %v", h.lines)
	}
}
