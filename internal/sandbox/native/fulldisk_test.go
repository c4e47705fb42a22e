//go:build linux

package native_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

const (
	// fillDisk takes all of a disk: names in a directory, then what is left to the last block, then the room
	// left in the blocks of the directory, which it does not have when it is made anew.
	fillDisk = `mkdir n && long=$(printf %0200d 0) && i=0
while [ $i -lt 3000 ]; do : > n/$i$long; i=$((i+1)); done
cat /dev/urandom > big
while printf x > s$i; do i=$((i+1)); done; rm s$i
while [ $i -lt 6500 ]; do true > n/$i$long; i=$((i+1)); done 2>/dev/null
exit 0`
	sumDisk = `md5sum < big; find . | sort | md5sum; ls n | wc -l`
)

// tightLimits are the limits of a sandbox whose disk is soon full.
var tightLimits = outboard.SandboxLimits{DiskBytes: 64 << 20}

// fillUp makes the disk of a sandbox as full as its programs can.
func (b *testSandbox) fillUp(t *testing.T) {
	t.Helper()
	if out, code := b.run(t, "/bin/sh", "-c", "cd /workspace\n"+fillDisk); code != 0 ||
		!strings.Contains(out, "No space left") {
		t.Fatalf("filling the disk: exit status %d: %s", code, out)
	}
}

// reload saves a sandbox, ends it, and returns another one that begins with what was saved.
func (b *testSandbox) reload(t *testing.T, p *native.Provider) *testSandbox {
	t.Helper()
	var tar bytes.Buffer
	if _, err := b.Save(t.Context(), guest.Save{Epoch: 1, Next: "next"}, &tar); err != nil {
		t.Fatal("saving:", err)
	}
	if err := p.Destroy(t.Context(), b.ID()); err != nil {
		t.Fatal(err)
	}
	id := newID()
	s, err := p.Create(t.Context(), sandbox.Spec{ID: id, Generation: "g-" + string(id), Limits: tightLimits})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if err := s.Load(t.Context(), "next", &tar); err != nil {
		t.Fatal("loading:", err)
	}
	return &testSandbox{Sandbox: s}
}

// TestFullDiskLoads: a checkpoint of a disk that was full could not be loaded, nor any later one of its session,
// or the room that loading needs beyond the limit would be room for programs too.
func TestFullDiskLoads(t *testing.T) {
	p, _ := newProvider(t)
	needDisks(t, p)
	b := create(t, p, sandbox.Spec{Limits: tightLimits})
	b.fillUp(t)
	want := b.sh(t, "cd /workspace\n"+sumDisk)
	for range 2 { // what was loaded is full too
		b = b.reload(t, p)
		if got := b.sh(t, "cd /workspace\n"+sumDisk); got != want {
			t.Fatalf("loaded:\n%s, not\n%s", got, want)
		}
		for _, at := range []string{"/workspace", "/tmp", "/var/tmp"} {
			if out, code := b.run(t, "/bin/sh", "-c", "cd "+at+" && head -c 2000000 /dev/zero > more; s=$?; rm "+
				"more; exit $s"); code == 0 || !strings.Contains(out, "No space left") {
				t.Errorf("2 MB more in %s: exit status %d: %s", at, code, out)
			}
		}
	}
	var tar bytes.Buffer
	if _, err := b.Save(t.Context(), guest.Save{Epoch: 1, Next: "next"}, &tar); err != nil {
		t.Fatal(err)
	}
	b = create(t, p, sandbox.Spec{Limits: outboard.SandboxLimits{DiskBytes: 32 << 20}})
	err := b.Load(t.Context(), "next", &tar)
	if e, ok := errors.AsType[*guest.Error](err); !ok || e.Code != guest.Full {
		t.Errorf("loading what does not fit: %v", err)
	}
}

// TestFullDiskShell: on a disk that is full from the first command on, as after a restore, no command of a shell
// would run, not even the one that makes room.
func TestFullDiskShell(t *testing.T) {
	p, _ := newProvider(t)
	needDisks(t, p)
	b := create(t, p, sandbox.Spec{Limits: tightLimits})
	b.shell(t, "c0", "y=kept")
	b.fillUp(t)
	if out := b.shell(t, "long", "echo $y; : "+strings.Repeat("long", 5000)); out != "kept\n" {
		t.Errorf("a long command in a shell that was there before: %q", out)
	}
	b = b.reload(t, p)
	if out := b.shell(t, "c1", "cd n; echo \"in ${PWD##*/}\"; x='a b'; echo more > ../more"); !strings.Contains(out,
		"in n\n") || !strings.Contains(out, "No space left") {
		t.Errorf("the first command: %q", out)
	}
	if out := b.shell(t, "c2", "echo \"$x\" in ${PWD##*/}"); out != "a b in n\n" {
		t.Errorf("the second command: %q", out)
	}
	if out := b.shell(t, "much", "seq 9999"); !strings.Contains(out, "bytes of output were not kept]\n") ||
		!strings.HasSuffix(out, "\n9998\n9999\n") {
		t.Errorf("one that says much: %q", out)
	}
	if out := b.op(t, "w", "write", `{"file_path": "/workspace/more", "content": "x"}`); !strings.Contains(out,
		"disk_bytes") {
		t.Errorf("the write tool: %q", out)
	}
	if out := b.shell(t, "c3",
		"rm ../big && head -c 20000000 /dev/zero > ../fits && wc -c < ../fits"); out != "20000000\n" {
		t.Errorf("making room: %q", out)
	}
	if out := b.shell(t, "c4", "echo \"$x\" in ${PWD##*/}"); out != "a b in n\n" {
		t.Errorf("with room again: %q", out)
	}
}
