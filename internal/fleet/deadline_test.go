//go:build linux

package fleet

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// silent is a machine that never answers.
type silent struct{ sandbox.Sandbox }

func never(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

func (silent) ID() outboard.SandboxID { return "sbx_01silent" }
func (silent) Start(ctx context.Context, _ guest.Start) (guest.Result, error) {
	return guest.Result{}, never(ctx)
}
func (silent) Wait(ctx context.Context, _ string, _ int64) (guest.Result, error) {
	return guest.Result{}, never(ctx)
}
func (silent) Follow(ctx context.Context, _ string, _ int64, _ func(string)) (guest.Result, error) {
	return guest.Result{}, never(ctx)
}
func (silent) Kill(ctx context.Context, _ string, _ int64) (guest.Result, error) {
	return guest.Result{}, never(ctx)
}
func (silent) Ack(ctx context.Context, _ string, _ int64) error { return never(ctx) }
func (silent) Save(ctx context.Context, _ guest.Save, _ io.Writer) (guest.Saved, error) {
	return guest.Saved{}, never(ctx)
}
func (silent) Load(ctx context.Context, _ string, _ io.Reader) error { return never(ctx) }
func (silent) Put(ctx context.Context, _ string, _ uint32, _ bool, _ io.Reader) error {
	return never(ctx)
}
func (silent) Get(ctx context.Context, _ string, _ io.Writer) error { return never(ctx) }
func (silent) List(ctx context.Context, _ string) ([]guest.Stat, error) {
	return nil, never(ctx)
}
func (silent) Freeze(ctx context.Context) error { return never(ctx) }
func (silent) Thaw(ctx context.Context) error   { return never(ctx) }

// Broken if a machine that hangs can hold a turn for ever, or a hung machine is taken for one that is gone.
func TestEveryCallHasADeadline(t *testing.T) {
	m := newMachine(silent{})
	calls := map[string]struct {
		limit time.Duration
		call  func(context.Context) error
	}{
		"start": {CallTimeout, func(ctx context.Context) error { _, err := m.Start(ctx, guest.Start{}); return err }},
		"wait": {outboard.MaxBashTimeout + WaitGrace,
			func(ctx context.Context) error { _, err := m.Wait(ctx, "", 0); return err }},
		"kill": {CallTimeout, func(ctx context.Context) error { _, err := m.Kill(ctx, "", 0); return err }},
		"ack":  {CallTimeout, func(ctx context.Context) error { return m.Ack(ctx, "", 0) }},
		"save": {TransferTimeout,
			func(ctx context.Context) error { _, err := m.Save(ctx, guest.Save{}, nil); return err }},
		"load": {TransferTimeout, func(ctx context.Context) error { return m.Load(ctx, "", nil) }},
		"put":  {TransferTimeout, func(ctx context.Context) error { return m.Put(ctx, "", 0, false, nil) }},
		"get":  {TransferTimeout, func(ctx context.Context) error { return m.Get(ctx, "", nil) }},
		"list": {CallTimeout, func(ctx context.Context) error { _, err := m.List(ctx, ""); return err }},

		"freeze": {CallTimeout, m.Freeze},
		"thaw":   {CallTimeout, m.Thaw},
	}
	for name, c := range calls {
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			err := c.call(t.Context())
			if d := time.Since(begun); d != c.limit || outboard.KindOf(err) != outboard.Unavailable ||
				!strings.Contains(err.Error(), name) {
				t.Errorf("%s: %v after %v", name, err, d)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := c.call(ctx); !errors.Is(err, context.DeadlineExceeded) ||
				outboard.KindOf(err) == outboard.Unavailable {
				t.Errorf("%s with the caller's deadline: %v", name, err)
			}
		})
	}
	if !m.usable() {
		t.Error("a machine that hangs counts as gone")
	}
}

// hanging is a provider whose machine does not answer, and that cannot make another.
type hanging struct {
	sandbox.Provider
	destroyed []outboard.SandboxID
}

func (*hanging) Name() string                       { return "hanging" }
func (*hanging) Capabilities() sandbox.Capabilities { return sandbox.Capabilities{} }
func (*hanging) Open(ctx context.Context, _ outboard.SandboxID) (sandbox.Sandbox, error) {
	return nil, never(ctx)
}
func (*hanging) Create(context.Context, sandbox.Spec) (sandbox.Sandbox, error) {
	return nil, outboard.Errorf(outboard.Unavailable, "no more machines")
}
func (h *hanging) Destroy(_ context.Context, id outboard.SandboxID) error {
	h.destroyed = append(h.destroyed, id)
	return nil
}

// Broken if a machine that does not answer holds Acquire, goes on acting after the session has given it up, or
// is given up because the caller had no time.
func TestAcquireDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		p := &hanging{Provider: r.provider}
		r.provider = p
		f := r.fleet()
		s := r.session(t)
		id := r.machine(t, s, stateLive, false)
		logReady(t, r, s, id)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := f.Acquire(ctx, r.request(t, s)); outboard.KindOf(err) != outboard.Canceled ||
			len(p.destroyed) != 0 {
			t.Errorf("with no time: %v, destroyed %v", err, p.destroyed)
		}
		begun := time.Now()
		_, err := f.Acquire(t.Context(), r.request(t, s))
		if outboard.KindOf(err) != outboard.Unavailable || time.Since(begun) != OpenTimeout {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
		if len(p.destroyed) != 2 || p.destroyed[0] != id || r.row(t, id).State != stateDestroyed ||
			len(r.rows(t, s)) != 0 {
			t.Errorf("destroyed %v, rows %v", p.destroyed, r.rows(t, s))
		}
	})
}

// Broken if a guest can name an output outside the outputs directory, or one that cannot be shown.
func TestOutputPath(t *testing.T) {
	for in, want := range map[string]string{
		sandbox.Outputs + "/a":        "a",
		sandbox.Outputs + "/d/../é x": "é x",
		"d/a":                         "d/a",
		"../uploads/a":                "",
		"/etc/passwd":                 "",
		sandbox.Outputs:               "",
		sandbox.Outputs + "/../x":     "",
		sandbox.Outputs + "x/a":       "",
		"a\nb":                        "",
		"a\x1b[2J":                    "",
		"a\x00":                       "",
		"a\xff":                       "",
		strings.Repeat("a", 1025):     "",
		strings.Repeat("a", 1024):     strings.Repeat("a", 1024),
	} {
		if got, ok := outputPath(guest.Stat{Path: in}); got != want || ok != (want != "") {
			t.Errorf("%q: %q, %v", in, got, ok)
		}
	}
}
