//go:build linux

package native_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

// slots returns the directories of what was made ahead.
func slots(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "shelf", "*", "plot_*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestAhead: a sandbox on a place that was made ahead would differ from others, or a place would be left behind
// or used twice.
func TestAhead(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "s")
	p := openProvider(t, native.Config{Dir: dir, Ahead: 2})
	specs := []sandbox.Spec{{}, {Limits: outboard.SandboxLimits{Pids: 40}},
		{Network: &sandbox.Network{CA: []byte(testCA)}}, {}}
	var boxes []*testSandbox
	for range 3 {
		for _, spec := range specs {
			p.PoolFilled()
			b := create(t, p, spec)
			boxes = append(boxes, b)
			if out := b.sh(t, "hostname; id -u; ls -ld /workspace /tmp /dev/shm | awk '{print $3}' | sort -u | tr "+
				"'\\n' ' '"); out != "outboard\n1000\nroot user " &&
				p.Capabilities().SeparateID {
				t.Errorf("inside: %q", out)
			}
			if _, err := p.Create(t.Context(),
				sandbox.Spec{ID: b.ID(), Generation: "again"}); outboard.KindOf(err) != outboard.Conflict {
				t.Errorf("the same id again: %v", err)
			}
		}
	}
	boxes[0].sh(t, "echo "+canary+" > /workspace/f; echo "+canary+" > /tmp/f; echo "+canary+" > /var/tmp/f")
	for _, b := range boxes[1:] {
		if out := b.sh(t, "cat /workspace/f /tmp/f /var/tmp/f"); strings.Contains(out, canary) {
			t.Errorf("%s sees what another wrote: %q", b.ID(), out)
		}
	}
	p.PoolFilled()
	if got := slots(t, dir); len(got) != 2*3 {
		t.Errorf("control: %d places ahead, want two of each of three kinds: %v", len(got), got)
	}
	for _, b := range boxes {
		if err := p.Destroy(t.Context(), b.ID()); err != nil {
			t.Error(err)
		}
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	for _, pattern := range []string{dir + "/shelf/*", dir + "/sbx_*"} {
		if left, _ := filepath.Glob(pattern); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
	}
	if left := ours(t, dir); len(left) != 0 {
		t.Errorf("uid ranges left behind: %v", left)
	}
}

// TestAheadTakenInVain: each Create that comes to nothing while places are made would leave one more of them for good.
func TestAheadTakenInVain(t *testing.T) {
	for name, cfg := range map[string]native.Config{"cold": {Ahead: 2}, "warm": {Ahead: 1, Warm: 1}} {
		t.Run(name, func(t *testing.T) {
			cfg.Dir = filepath.Join(t.TempDir(), "s")
			p := openProvider(t, cfg)
			create(t, p, sandbox.Spec{})
			p.PoolFilled()
			if got := slots(t, cfg.Dir); len(got) != 2 {
				t.Fatalf("control: %d places ahead: %v", len(got), got)
			}
			if !p.TakeInVain() {
				t.Fatal("control: none could be taken")
			}
			if got, guests := slots(t, cfg.Dir), waiting(t, cfg.Dir); len(got) != 2 || len(guests) != cfg.Warm {
				t.Errorf("%d places ahead, of which %d have a guest: %v", len(got), len(guests), got)
			}
		})
	}
}

// ours returns the reservations of uid ranges for what is below dir, with the cgroups that they name where those exist.
func ours(t *testing.T, dir string) []string {
	t.Helper()
	reserved, err := native.Reserved(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for owner, group := range reserved {
		out = append(out, owner)
		if groups, _ := filepath.Glob("/sys/fs/cgroup/*/outboard/" + group); len(groups) > 0 {
			out = append(out, groups...)
		}
	}
	return out
}

// TestAheadKilled: a server that is killed would leave the places it made, with their cgroups and uid ranges, for ever.
func TestAheadKilled(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "s")
	id := newID()
	kept := startServer(t, dir, id)
	if len(slots(t, dir)) == 0 {
		t.Fatal("control: the server made no places ahead")
	}
	guests := waiting(t, dir)
	if len(guests) == 0 || gone(guests[0]) {
		t.Fatalf("control: no guest waits: %v", guests)
	}
	if isRoot() && len(ours(t, dir)) < 2 {
		t.Errorf("control: it reserved nothing: %v", ours(t, dir))
	}
	// a server that starts while the first lives leaves its places alone
	beside := openProvider(t, native.Config{Dir: dir})
	if len(slots(t, dir)) == 0 {
		t.Error("the places of a living server were removed")
	}
	if err := kept.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = kept.Wait() // killed
	for _, pid := range guests {
		eventually(t, "a guest that waited outlives the server", func() bool { return gone(pid) })
	}
	openProvider(t, native.Config{Dir: dir})
	if got := slots(t, dir); len(got) != 0 {
		t.Errorf("left behind: %v", got)
	}
	s, err := beside.Open(t.Context(), id)
	if err != nil {
		t.Fatalf("the sandbox that was in use: %v", err)
	}
	defer s.Close()
	if out := (&testSandbox{Sandbox: s}).sh(t, "echo alive"); out != "alive\n" {
		t.Errorf("it said %q", out)
	}
	if err := beside.Destroy(t.Context(), id); err != nil {
		t.Error(err)
	}
	// any of the three servers buries it
	eventually(t, "something is left behind", func() bool { return len(ours(t, dir)) == 0 })
}

// startServer starts a process that makes a sandbox and waits to be killed.
func startServer(t *testing.T, dir string, id outboard.SandboxID) *exec.Cmd {
	t.Helper()
	server := exec.CommandContext(t.Context(), "/proc/self/exe")
	server.Env = append(os.Environ(), createEnv+"="+dir+" "+string(id), binariesEnv+"="+binaries)
	server.Stderr = t.Output()
	stdout, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 8)
	if _, err := stdout.Read(line); err != nil {
		t.Fatalf("server said %q: %v", line, err)
	}
	return server
}
