//go:build linux

package native_test

import (
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// Broken if what Push remembers of calls that changed nothing hides a change, of this connection or of another
// one, or the end of the sandbox.
func TestPushAfterUnchangedCalls(t *testing.T) {
	p := layered(t)
	m := start(t, p, "")
	unchanged := func(b *testSandbox) {
		t.Helper()
		for range 3 { // the first is looked up, the others remembered
			bash(t, b, "true")
			if _, pushed := push(t, b); pushed.Changed {
				t.Error("no change is a change")
			}
		}
	}
	unchanged(m)
	bash(t, m, "echo one > /workspace/f")
	first, pushed := push(t, m)
	if !pushed.Changed {
		t.Fatal("a change after unchanged calls was not seen")
	}
	unchanged(m)
	if _, err := m.Sandbox.(sandbox.Layered).Push(t.Context(), newCheckpoint(), ""); err != nil {
		t.Fatal(err)
	}
	if pushed, err := m.Sandbox.(sandbox.Layered).Push(t.Context(), newCheckpoint(), "ckpt_never"); err != nil ||
		!pushed.Changed {
		t.Errorf("since a checkpoint that was never made: %+v, %v", pushed, err)
	}

	other, err := p.Open(t.Context(), m.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	o := &testSandbox{Sandbox: other, last: first, calls: 100}
	unchanged(o)
	bash(t, o, "echo two > /workspace/f")
	if _, pushed := push(t, o); !pushed.Changed {
		t.Error("a change after unchanged calls on the second connection was not seen")
	}
	if pushed, err := m.Sandbox.(sandbox.Layered).Push(t.Context(), newCheckpoint(), first); err != nil ||
		!pushed.Changed {
		t.Errorf("what the other connection pushed is no change: %+v, %v", pushed, err)
	}
	unchanged(o)

	if err := p.Destroy(t.Context(), m.ID()); err != nil {
		t.Fatal(err)
	}
	if pushed, err := o.Sandbox.(sandbox.Layered).Push(t.Context(), newCheckpoint(),
		o.last); outboard.KindOf(err) != outboard.NotFound {
		t.Errorf("of a sandbox that has ended: %+v, %v", pushed, err)
	}
	_, err = o.Start(t.Context(), guest.Start{Key: "late", Epoch: 1, Generation: o.Generation()})
	if !sandbox.Gone(err) {
		t.Errorf("the control, a call after the end: %v", err)
	}
}
