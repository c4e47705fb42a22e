//go:build linux

package fleet

import (
	"context"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// meddler gives a box more time while its machine is being frozen.
type meddler struct {
	sandbox.Provider
	during func()
}

func (p *meddler) Create(ctx context.Context, s sandbox.Spec) (sandbox.Sandbox, error) {
	sb, err := p.Provider.Create(ctx, s)
	return meddling{sb, p}, err
}

type meddling struct {
	sandbox.Sandbox
	p *meddler
}

func (s meddling) Freeze(ctx context.Context) error {
	err := s.Sandbox.Freeze(ctx)
	s.p.during()
	return err
}

// Broken if a box whose client gave it more time is paused or ended all the same: before the timer came to it,
// or while it was at it.
func TestBoxGivenMoreTime(t *testing.T) {
	r := newRig(t)
	z := &freezer{Provider: r.provider}
	m := &meddler{Provider: z, during: func() {}}
	r.provider = m
	now := time.Now()
	f := r.fleet(func(c *Config) { c.Now = func() time.Time { return now } })
	refresh := func(id outboard.BoxID) {
		if _, err := r.store.ChangeBox(t.Context(), id,
			func(b *outboard.Box) error { b.EndAt = now.Add(time.Hour); return nil }); err != nil {
			t.Error(err)
		}
	}
	pauses := func(b *outboard.Box) { b.OnTimeout = outboard.TimeoutPolicy{Pause: true} }
	before, within, ends, left := r.box(t, f, pauses), r.box(t, f, pauses), r.box(t, f), r.box(t, f, pauses)
	m.during = func() { refresh(within.ID) }
	now = now.Add(2 * time.Minute)
	due := map[outboard.BoxID]outboard.Box{}
	all, err := r.store.DueBoxes(t.Context(), host, now)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range all {
		due[b.ID] = b
	}
	refresh(before.ID)
	refresh(ends.ID)
	for _, b := range []outboard.Box{before, within, ends} {
		if err := f.expireBox(t.Context(), due[b.ID]); outboard.KindOf(err) != outboard.NotFound {
			t.Errorf("ending a box that has time again: %v", err)
		}
		if row, err := r.store.Box(t.Context(), b.ID); err != nil || row.State != outboard.BoxRunning ||
			!row.EndAt.After(now) {
			t.Errorf("a box that was given more time: %+v, %v", row, err)
		}
		if got := say(t, f, b.ID, false, "echo here"); got != "here\n" {
			t.Errorf("its machine says %q", got)
		}
	}
	if z.thaws.Load() == 0 {
		t.Error("the machine of the box that was being frozen was not thawed")
	}
	for _, b := range []outboard.Box{before, ends} {
		if got := r.boxRecords(t, b.ID); len(got) != 0 {
			t.Errorf("the audit says of a box that was left alone: %v", got)
		}
	}
	m.during = func() {}
	if err := f.expireBox(t.Context(), due[left.ID]); err != nil { // the control
		t.Fatal(err)
	}
	if row, err := r.store.Box(t.Context(), left.ID); err != nil || row.State != outboard.BoxPaused {
		t.Errorf("a box whose time is over: %+v, %v", row, err)
	}
}
