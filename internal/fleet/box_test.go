//go:build linux

package fleet

import (
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
)

// box makes a box that ends in a minute.
func (r *rig) box(t *testing.T, f *Fleet, change ...func(*outboard.Box)) outboard.Box {
	t.Helper()
	b := outboard.Box{ID: outboard.NewBoxID(), Env: outboard.EnvConfig{Kind: "cloud"},
		Vars:  map[string]string{"FROM": "the box"},
		EndAt: time.Now().Add(time.Minute)}
	for _, c := range change {
		c(&b)
	}
	b, err := f.CreateBox(t.Context(), b, outboard.BlobRef{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.releaseBoxes)
	return b
}

// say runs a command in a box and returns what it wrote.
func say(t *testing.T, f *Fleet, id outboard.BoxID, wake bool, command string) string {
	t.Helper()
	m, err := f.UseBox(t.Context(), tester, id, wake)
	if err != nil {
		t.Fatalf("using box %s: %v", id, err)
	}
	var out strings.Builder
	_, _, err = m.StartProcess(t.Context(), guest.ProcessStart{Argv: []string{"/bin/sh", "-c", command}},
		func(e guest.ProcessEvent) error {
			out.Write(e.Data)
			return nil
		})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// If this fails, a box does not survive the server, or loses its files when it sleeps, or its machine stays when
// it is killed.
func TestBox(t *testing.T) {
	r := newRig(t)
	f := r.fleet()
	b := r.box(t, f)
	if got := say(t, f, b.ID, false, "echo $FROM; echo kept > ~/file"); got != "the box\n" {
		t.Errorf("a command said %q", got)
	}
	f.Stop()
	g := r.fleet() // the next process
	t.Cleanup(g.releaseBoxes)
	if err := g.reap(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := say(t, g, b.ID, false, "cat ~/file"); got != "kept\n" {
		t.Errorf("after a restart: %q", got)
	}
	if _, err := g.PauseBox(t.Context(), tester, b.ID, true); err != nil {
		t.Fatal(err)
	}
	if ids, err := r.provider.List(t.Context()); err != nil || len(ids) != 0 {
		t.Errorf("asleep without memory there is %v, %v", ids, err)
	}
	if _, err := g.PauseBox(t.Context(), tester, b.ID, true); outboard.KindOf(err) != outboard.Conflict {
		t.Errorf("pausing twice: %v", err)
	}
	if _, err := g.UseBox(t.Context(), tester, b.ID, false); outboard.KindOf(err) != outboard.Conflict {
		t.Errorf("using a paused box: %v", err)
	}
	if got := say(t, g, b.ID, true, "cat ~/file"); got != "kept\n" {
		t.Errorf("woken: %q", got)
	}
	if row, err := r.store.Box(t.Context(), b.ID); err != nil || row.State != outboard.BoxRunning ||
		!row.EndAt.After(time.Now()) {
		t.Errorf("the row: %+v, %v", row, err)
	}
	_, files, err := g.SaveBox(t.Context(), b.ID)
	if err != nil {
		t.Fatal(err)
	}
	c := outboard.Box{ID: outboard.NewBoxID(), EndAt: time.Now().Add(time.Minute)}
	if _, err := g.CreateBox(t.Context(), c, files); err != nil {
		t.Fatal(err)
	}
	if got := say(t, g, c.ID, false, "cat ~/file; echo other > ~/file"); got != "kept\n" {
		t.Errorf("from the snapshot: %q", got)
	}
	if got := say(t, g, b.ID, false, "cat ~/file"); got != "kept\n" {
		t.Errorf("a copy changed the original: %q", got)
	}
	for want := range 2 {
		if err := g.KillBox(t.Context(), b.ID); (outboard.KindOf(err) == outboard.NotFound) != (want == 1) {
			t.Errorf("killing, %d: %v", want, err)
		}
	}
	if ids, err := r.provider.List(t.Context()); err != nil || len(ids) != 1 {
		t.Errorf("after the kill there is %v, %v", ids, err)
	}
}

// If this fails, boxes run past their end, or end before it.
func TestBoxExpires(t *testing.T) {
	r := newRig(t)
	now := time.Now()
	f := r.fleet(func(c *Config) { c.Now = func() time.Time { return now } })
	short := r.box(t, f)
	long := r.box(t, f, func(b *outboard.Box) { b.EndAt = now.Add(time.Hour) })
	sleeper := r.box(t, f, func(b *outboard.Box) { b.OnTimeout = outboard.TimeoutPolicy{Pause: true, Resume: true} })
	say(t, f, sleeper.ID, false, "echo dream > ~/file")
	now = now.Add(2 * time.Minute)
	if err := f.expireBoxes(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.store.Box(t.Context(), short.ID); outboard.KindOf(err) != outboard.NotFound {
		t.Errorf("a box past its end: %v", err)
	}
	if b, err := r.store.Box(t.Context(), long.ID); err != nil || b.State != outboard.BoxRunning {
		t.Errorf("a box with time left: %+v, %v", b, err)
	}
	if b, err := r.store.Box(t.Context(), sleeper.ID); err != nil || b.State != outboard.BoxPaused {
		t.Errorf("a box that sleeps: %+v, %v", b, err)
	}
	if got := say(t, f, sleeper.ID, false, "cat ~/file"); got != "dream\n" {
		t.Errorf("woken by use: %q", got)
	}
}

// If this fails, a box whose machine died answers for ever as if it lived, or machines that no box has stay.
func TestBoxLost(t *testing.T) {
	r := newRig(t)
	f := r.fleet()
	b := r.box(t, f)
	if err := r.provider.Destroy(t.Context(), b.Machine); err != nil {
		t.Fatal(err)
	}
	if _, err := f.UseBox(t.Context(), tester, b.ID, true); err == nil {
		m, _ := f.UseBox(t.Context(), tester, b.ID, true)
		m.Processes(t.Context())
	}
	if _, err := f.UseBox(t.Context(), tester, b.ID, true); outboard.KindOf(err) != outboard.NotFound {
		t.Errorf("using a box whose machine is gone: %v", err)
	}
	stray := r.machine(t, "", stateLive, true)
	kept := r.box(t, f)
	f.releaseBoxes()
	if err := f.reap(t.Context()); err != nil {
		t.Fatal(err)
	}
	ids, err := r.provider.List(t.Context())
	if err != nil || len(ids) != 1 || ids[0] != kept.Machine || ids[0] == stray {
		t.Errorf("after reaping there is %v, %v", ids, err)
	}
}

// If this fails, one organization has every box that the installation may have, running or paused, or resuming
// passes by the bound.
func TestBoxesOfOneOrganization(t *testing.T) {
	r := newRig(t)
	f := r.fleet(func(c *Config) { c.OrgShare = 1 })
	const most, other = MaxRunningBoxes / 100, outboard.OrgID("org_other")
	var last outboard.Box
	for range most {
		last = outboard.Box{ID: outboard.NewBoxID(), Org: other, State: outboard.BoxRunning, CreatedAt: time.Now(),
			EndAt: time.Now().Add(time.Hour)}
		if err := r.store.AddBox(t.Context(), last); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.RoomForBox(t.Context(), other, false); outboard.KindOf(err) != outboard.Exhausted ||
		!strings.Contains(err.Error(), string(other)) {
		t.Errorf("one more: %v", err)
	}
	if err := f.RoomForBox(t.Context(), other, true); outboard.KindOf(err) != outboard.Exhausted {
		t.Errorf("a paused one that is to run: %v", err)
	}
	if err := f.RoomForBox(t.Context(), outboard.DefaultOrg, false); err != nil {
		t.Errorf("one of another organization: %v", err)
	}
	if err := r.store.DeleteBox(t.Context(), last.ID); err != nil {
		t.Fatal(err)
	}
	if err := f.RoomForBox(t.Context(), other, false); err != nil {
		t.Errorf("after one is gone: %v", err)
	}
}
