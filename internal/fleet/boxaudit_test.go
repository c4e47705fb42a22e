//go:build linux

package fleet

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// tester is who uses boxes in tests.
var tester = By{Actor: "key_test", Rule: "role test"}

// boxRecords are the audit's records about a box: action, actor and rule.
func (r *rig) boxRecords(t *testing.T, id outboard.BoxID) (out [][3]string) {
	t.Helper()
	all, err := r.store.AuditRecords(t.Context(), store.AuditQuery{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if a.Resource == string(id) {
			out = append(out, [3]string{a.Action, a.Actor, a.Rule})
		}
	}
	return out
}

// Broken if a box is paused, resumed or ended and the audit does not say by whom and why, or says it of a box
// that was left alone.
func TestBoxAudit(t *testing.T) {
	r := newRig(t)
	now := time.Now()
	f := r.fleet(func(c *Config) { c.Now = func() time.Time { return now } })
	b := r.box(t, f, func(b *outboard.Box) { b.OnTimeout = outboard.TimeoutPolicy{Pause: true} })
	visitor := By{Actor: string(b.ID), Rule: "the box's token"}
	end := func(*outboard.Box) time.Time { return now.Add(time.Minute) }
	if _, err := f.PauseBox(t.Context(), tester, b.ID, false); err != nil {
		t.Fatal(err)
	}
	if _, err := f.UseBox(t.Context(), visitor, b.ID, false); outboard.KindOf(err) != outboard.Conflict {
		t.Errorf("a visitor whom the policy does not let wake it: %v", err)
	}
	for range 2 { // the second finds it running
		if _, _, err := f.ResumeBox(t.Context(), tester, b.ID, false, end); err != nil {
			t.Fatal(err)
		}
	}
	now = now.Add(2 * time.Minute)
	if err := f.expireBoxes(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := f.UseBox(t.Context(), visitor, b.ID, true); err != nil {
		t.Fatal(err)
	}
	if _, err := r.store.ChangeBox(t.Context(), b.ID,
		func(b *outboard.Box) error { b.OnTimeout.Pause = false; return nil }); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Hour)
	if err := f.expireBoxes(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := [][3]string{
		{"box.pause", "key_test", "role test"}, {"box.resume", "key_test", "role test"}, {"box.pause", "server",
			"the box's time was over"},
		{"box.resume", string(b.ID), "the box's token"}, {"box.kill", "server", "the box's time was over"},
	}
	if got := r.boxRecords(t, b.ID); !slices.Equal(got, want) {
		t.Errorf("the audit says\n%v, want\n%v", got, want)
	}
}

// Broken if a box is paused or resumed although no record of it could be made, or lives on because of that when
// its time is over.
func TestBoxAuditClosed(t *testing.T) {
	r := newRig(t)
	now := time.Now()
	f := r.fleet(func(c *Config) { c.Now = func() time.Time { return now } })
	running, paused := r.box(t, f), r.box(t, f)
	if _, err := f.PauseBox(t.Context(), tester, paused.ID, true); err != nil { // the control
		t.Fatal(err)
	}
	before, err := r.provider.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r.store.SealAudit(errors.New("closed by the test"))
	if _, err := f.PauseBox(t.Context(), tester, running.ID, true); err == nil {
		t.Error("paused without a record")
	}
	if _, err := f.UseBox(t.Context(), tester, paused.ID, true); err == nil {
		t.Error("resumed without a record")
	}
	after, err := r.provider.List(t.Context())
	if err != nil || !slices.Equal(before, after) {
		t.Errorf("machines were %v and are %v, %v", before, after, err)
	}
	for id, want := range map[outboard.BoxID]outboard.BoxState{running.ID: outboard.BoxRunning,
		paused.ID: outboard.BoxPaused} {
		if b, err := r.store.Box(t.Context(), id); err != nil || b.State != want {
			t.Errorf("the box is %+v, %v", b, err)
		}
	}
	now = now.Add(time.Hour)
	if err := f.expireBoxes(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.store.Box(t.Context(), running.ID); outboard.KindOf(err) != outboard.NotFound {
		t.Errorf("a box past its end: %v", err)
	}
}
