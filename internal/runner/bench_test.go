//go:build linux

package runner

import (
	"log/slog"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/llm"
)

// BenchmarkTurn is a turn with one bash call on a live sandbox: four commits and one exec.
func BenchmarkTurn(b *testing.B) {
	r := newRig(b, llm.Config{})
	r.log = slog.New(slog.DiscardHandler)
	r.start(nil)
	id := r.steps("- bash: 'true'", "- say: done")
	after := r.rests(id, "end_turn").Head
	for b.Loop() {
		r.say(id, "- bash: 'true'", "- say: done")
		for e, err := range r.store.Follow(b.Context(), id, after) {
			if err != nil {
				b.Fatal(err)
			}
			if after = e.Seq; e.Type == outboard.TypeTurnEnded {
				break
			}
		}
	}
}
