//go:build linux

package fleet

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// sticky is a provider whose machines do not start, and are hard to remove.
type sticky struct {
	sandbox.Provider
	why    error
	let    chan struct{} // closed: they can be removed
	gone   chan struct{} // closed with the first that is
	gaveUp chan struct{} // closed when nobody waits for that any more
}

// Create makes one that does not start.
func (p *sticky) Create(context.Context, sandbox.Spec) (sandbox.Sandbox, error) { return nil, p.why }

// Destroy waits until it may.
func (p *sticky) Destroy(ctx context.Context, id outboard.SandboxID) error {
	select {
	case <-p.let:
		defer close(p.gone)
		return p.Provider.Destroy(ctx, id)
	case <-ctx.Done():
		close(p.gaveUp)
		return ctx.Err()
	}
}

func newSticky(p sandbox.Provider, why error) *sticky {
	return &sticky{Provider: p, why: why, let: make(chan struct{}), gone: make(chan struct{}),
		gaveUp: make(chan struct{})}
}

// Broken if a client waits for the removal of a sandbox that could not be made, is told that what it named is
// missing, or what was half made is never removed.
func TestUnstarted(t *testing.T) {
	for name, c := range map[string]struct {
		why  error
		kind outboard.Kind
		text string
	}{
		"it ended": {outboard.Errorf(outboard.NotFound, "sandbox x ended while it was made"), outboard.Unavailable,
			"before it was ready"},
		"it is broken": {errors.New("what only the server knows"), outboard.Internal, ""},
		"it was slow": {outboard.Errorf(outboard.Unavailable, "the sandbox was not ready within 30s"),
			outboard.Unavailable, "was not ready"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			p := newSticky(r.provider, c.why)
			f := r.fleet(func(c *Config) { c.Provider = p })
			b := outboard.Box{ID: outboard.NewBoxID(), Template: "base", Env: outboard.EnvConfig{Kind: "cloud"},
				EndAt: time.Now().Add(time.Hour)}
			began := time.Now()
			_, err := f.CreateBox(t.Context(), b, outboard.BlobRef{})
			if outboard.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.text) {
				t.Errorf("the client is told %v", err)
			}
			if took := time.Since(began); took < unmakePatience || took > 5*unmakePatience {
				t.Errorf("it was told after %v", took)
			}
			rows, err := r.store.Sandboxes(t.Context(), host, "")
			if err != nil || len(rows) != 1 || rows[0].State != stateCreating {
				t.Fatalf("control: nothing is left to be removed: %+v, %v", rows, err)
			}
			if _, ok := f.unused(rows[0].ID); ok {
				t.Error("somebody else may remove it meanwhile")
			}
			close(p.let)
			<-p.gone
			f.Stop()
			if row := r.row(t, rows[0].ID); row.State != stateDestroyed {
				t.Errorf("it is %s", row.State)
			}
		})
	}
}

// Broken if a server does not end before a sandbox is removed that could not be made.
func TestUnstartedAtTheEnd(t *testing.T) {
	r := newRig(t)
	p := newSticky(r.provider, errors.New("broken"))
	f := r.fleet(func(c *Config) { c.Provider = p })
	b := outboard.Box{ID: outboard.NewBoxID(), Template: "base", Env: outboard.EnvConfig{Kind: "cloud"},
		EndAt: time.Now().Add(time.Hour)}
	if _, err := f.CreateBox(t.Context(), b, outboard.BlobRef{}); err == nil {
		t.Fatal("control: it was made")
	}
	began := time.Now()
	f.Stop()
	if took := time.Since(began); took < unmakePatience/2 || took > 5*unmakePatience {
		t.Errorf("the end took %v", took)
	}
	<-p.gaveUp
	rows, err := r.store.Sandboxes(t.Context(), host, "")
	if err != nil || len(rows) != 1 {
		t.Fatalf("%+v, %v", rows, err)
	}
	if err := r.fleet().reap(t.Context()); err != nil { // of the next server
		t.Fatal(err)
	}
	if row := r.row(t, rows[0].ID); row.State != stateDestroyed {
		t.Errorf("the next server leaves it %s", row.State)
	}
}
