//go:build linux

package sandboxtest

import (
	"slices"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// If this fails, a provider makes machines that are not what was asked for.
func testCreate(t *testing.T, r *rig) {
	a, b := r.create(t), r.create(t)
	want(t, "ID", a.ID(), a.spec.ID)
	want(t, "Generation", a.Generation(), a.spec.Generation)
	want(t, "Isolation", a.Isolation(), r.p.Capabilities().Isolation)
	if r.p.Name() == "" || r.p.Capabilities().Isolation == "" {
		t.Error("a provider without a name or an isolation")
	}
	want(t, "a command in the first", a.sh("echo $OUTBOARD_SUITE"), "value from the spec\n")
	if b.Generation() == a.Generation() {
		t.Error("two sandboxes share a generation")
	}
	s := a.bash("true")
	if _, err := b.Start(ctx(t), s); refusal(err) != guest.WrongGeneration {
		t.Errorf("a call for another sandbox: %v", err)
	}
	_, err := r.p.Create(ctx(t), a.spec)
	wantKind(t, "creating an id that exists", err, outboard.Conflict)
	want(t, "the first after the refused creation", a.sh("echo alive"), "alive\n")
	for _, bad := range []string{"", "../x", "sbx_a/b", "sbx_" + string(make([]byte, 300))} {
		spec := r.spec()
		spec.ID = outboard.SandboxID(bad)
		_, err := r.p.Create(ctx(t), spec)
		wantKind(t, "creating id "+bad, err, outboard.Invalid)
	}
	spec := r.spec()
	spec.Isolation = "isolation-that-nobody-has"
	_, err = r.p.Create(ctx(t), spec)
	wantKind(t, "an isolation nobody has", err, outboard.Unavailable)
	ids, err := r.p.List(ctx(t))
	if err != nil || slices.Contains(ids, spec.ID) {
		t.Errorf("a failed creation is listed: %v, %v", ids, err)
	}
}

// If this fails, a new runner does not find the machine of the one before.
func testOpen(t *testing.T, r *rig) {
	a := r.create(t)
	a.sh("echo hello > f; cd /")
	again, err := r.p.Open(ctx(t), a.spec.ID)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	b := &box{Sandbox: again, t: t, spec: a.spec, keys: 100}
	want(t, "Generation", b.Generation(), a.spec.Generation)
	want(t, "ID", b.ID(), a.spec.ID)
	want(t, "the shell of the first connection", b.sh("pwd; cd - >/dev/null; cat f"), "/\nhello\n")
	if err := a.Sandbox.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	want(t, "after closing the first connection", b.sh("cat f"), "hello\n")
	if _, err := a.Wait(ctx(t), "k", 1); err == nil || sandbox.Gone(err) {
		t.Errorf("a closed connection to a living machine: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	_, err = r.p.Open(ctx(t), outboard.NewID[outboard.SandboxID](outboard.PrefixSandbox))
	wantKind(t, "opening what never was", err, outboard.NotFound)
}

// If this fails, machines or their remains pile up on the host.
func testDestroy(t *testing.T, r *rig) {
	a := r.create(t)
	ids, err := r.p.List(ctx(t))
	if err != nil || !slices.Contains(ids, a.spec.ID) {
		t.Errorf("List: %v, %v", ids, err)
	}
	running := a.bash("sleep 1000")
	if _, err := a.Start(ctx(t), running); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := r.p.Destroy(ctx(t), a.spec.ID); err != nil {
			t.Errorf("Destroy: %v", err)
		}
	}
	if _, err := a.Wait(ctx(t), running.Key, 1); !sandbox.Gone(err) {
		t.Errorf("waiting on a destroyed machine: %v", err)
	}
	if _, err := a.Start(ctx(t), a.bash("true")); !sandbox.Gone(err) {
		t.Errorf("starting on a destroyed machine: %v", err)
	}
	_, err = r.p.Open(ctx(t), a.spec.ID)
	wantKind(t, "opening a destroyed machine", err, outboard.NotFound)
	if ids, err = r.p.List(ctx(t)); err != nil || slices.Contains(ids, a.spec.ID) {
		t.Errorf("a destroyed machine is listed: %v, %v", ids, err)
	}
	if err := r.p.Destroy(ctx(t), outboard.NewID[outboard.SandboxID](outboard.PrefixSandbox)); err != nil {
		t.Errorf("destroying what never was: %v", err)
	}
	if err := r.p.Destroy(ctx(t), "../../etc"); err != nil && outboard.KindOf(err) != outboard.Invalid {
		t.Errorf("destroying a path: %v", err)
	}
}

// If this fails, the loss of a machine looks like a broken connection, or hangs.
func testLost(t *testing.T, r *rig) {
	if r.Kill == nil {
		return
	}
	a := r.create(t)
	running := a.bash("sleep 1000")
	if _, err := a.Start(ctx(t), running); err != nil {
		t.Fatal(err)
	}
	if err := r.Kill(r.p, a.spec.ID); err != nil {
		t.Fatalf("killing: %v", err)
	}
	if _, err := a.Wait(ctx(t), running.Key, 1); !sandbox.Gone(err) {
		t.Errorf("waiting on a killed machine: %v", err)
	}
	_, err := r.p.Open(ctx(t), a.spec.ID)
	wantKind(t, "opening a killed machine", err, outboard.NotFound)
	ids, err := r.p.List(ctx(t))
	if err != nil || !slices.Contains(ids, a.spec.ID) {
		t.Errorf("a dead machine that was not destroyed is not listed: %v, %v", ids, err)
	}
}
