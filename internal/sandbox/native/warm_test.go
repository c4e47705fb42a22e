//go:build linux

package native_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/guest/uplink"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

// waiting returns the host pids of the guests that were started ahead.
func waiting(t *testing.T, dir string) (pids []int) {
	t.Helper()
	for _, slot := range slots(t, dir) {
		var s struct{ Pid int }
		data, err := os.ReadFile(filepath.Join(slot, "state.json"))
		if err != nil || json.Unmarshal(data, &s) != nil || s.Pid == 0 {
			continue
		}
		pids = append(pids, s.Pid)
	}
	return pids
}

// warmUp makes a sandbox of a kind and waits until a guest waits for the next one of it.
func warmUp(t *testing.T, p *native.Provider, dir string, spec sandbox.Spec) *testSandbox {
	t.Helper()
	b := create(t, p, spec)
	p.PoolFilled()
	if len(waiting(t, dir)) == 0 {
		t.Fatal("control: no guest was started ahead")
	}
	return b
}

// shell runs a command in the persistent shell, under a key that the command can see.
func (b *testSandbox) shell(t *testing.T, key, command string) string {
	t.Helper()
	input, err := json.Marshal(map[string]string{"command": command})
	if err != nil {
		t.Fatal(err)
	}
	return b.op(t, key, "bash", string(input))
}

// op runs one call.
func (b *testSandbox) op(t *testing.T, key, op, input string) string {
	t.Helper()
	s := guest.Start{Key: key, Epoch: 1, Generation: b.Generation(), Digest: key, Op: op, Input: []byte(input),
		TimeoutMs: 60_000, OutputLimit: 100_000}
	r, err := b.Start(t.Context(), s)
	if err == nil && r.State != guest.StateDone {
		r, err = b.Wait(t.Context(), key, 1)
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(r.Output)
}

// sight is what a command sees of its sandbox that must not depend on how that was made.
const sight = `env | sort; pwd; cd - >/dev/null 2>&1; echo $?; pwd; id; hostname; umask; ulimit -a; set -o; shopt; echo $- $SHLVL; ls -la / /workspace /tmp /home/user /run/outboard ` +
	`| awk '{print $1, $3, $4, $9}' | grep -v ' [oc][0-9]*-[0-9]*$'; awk '{print $5, $6}' /proc/self/mountinfo | sort; ls /proc/self/fd | tr '\n' ' '; cat /proc/self/oom_score_adj; ` +
	`grep -E '^(Cap|Seccomp|NoNewPrivs|Groups)' /proc/self/status; cat /etc/resolv.conf; tail -n 3 "${SSL_CERT_FILE:-/dev/null}"`

// TestWarm: a sandbox whose guest was started ahead would differ from one that was made from the ground, would
// not be told what it is told, or would not be used.
func TestWarm(t *testing.T) {
	vars := map[string]string{"PLAIN": "1", "QUOTED": "it's \"a\"\n$(b) \\", "BASH_ENV": "/nowhere"}
	for name, spec := range map[string]sandbox.Spec{
		"plain": {Env: map[string]string{"PLAIN": "1", "QUOTED": vars["QUOTED"], "EMPTY": ""}},
		"odd":   {Env: vars},
		"layers": {Env: map[string]string{"PLAIN": "1"},
			Layers: []string{layerDir(t, map[string]string{"opt/first/f": "x"})}, Path: "/opt/first"},
		"network": {Env: vars, Network: &sandbox.Network{CA: []byte(testCA)}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "s")
			p := openProvider(t, native.Config{Dir: dir, Warm: 1})
			cold := warmUp(t, p, dir, spec)
			ready := waiting(t, dir)
			warm := create(t, p, spec)
			if pid := initOf(t, dir, warm.ID()); !slices.Contains(ready, pid) {
				t.Fatalf("its guest is %d, none of those that waited: %v", pid, ready)
			}
			if slices.Contains(ready, initOf(t, dir, cold.ID())) {
				t.Error("control: the first one was not made from the ground")
			}
			for i, command := range []string{sight, "cd /tmp; x=1; " + sight, sight + "; echo $x"} {
				key := "k/" + string(rune('a'+i))
				if a, b := cold.shell(t, key, command), warm.shell(t, key, command); a != b {
					t.Errorf("command %d sees other things:\ncold %s\nwarm %s", i, a, b)
				} else if !strings.Contains(a, "PLAIN=1\n") || !strings.Contains(a, "uid=") {
					t.Errorf("control: it saw %s", a)
				}
			}
			if a, b := cold.sh(t, sight), warm.sh(t, sight); strings.ReplaceAll(a, string(cold.ID()),
				"") != strings.ReplaceAll(b, string(warm.ID()), "") {
				t.Errorf("without a shell it sees other things:\ncold %s\nwarm %s", a, b)
			}
			if spec.Network != nil {
				echo(t, p, warm.ID(), testCA)
				if got := warm.bash(t,
					say+"say api.example.test 443; grep -c BEGIN "+uplink.Truststore+" || true"); !strings.HasPrefix(got, "198.18.0.1:443 says hello\n") {
					t.Errorf("its network says %q", got)
				}
			}
			_, err := warm.Start(t.Context(), guest.Start{Key: "other", Epoch: 1, Generation: cold.Generation(),
				Digest: "d", Op: "bash", Input: []byte(`{"command":"true"}`)})
			if e, ok := err.(*guest.Error); !ok || e.Code != guest.WrongGeneration {
				t.Errorf("a call for another generation: %v", err)
			}
			again, err := p.Open(t.Context(), warm.ID())
			if err != nil {
				t.Fatalf("opening it again: %v", err)
			}
			again.Close()
		})
	}
}

// TestWarmApart: what one sandbox was told or wrote would be found in one that was handed out later, or before.
func TestWarmApart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "s")
	p := openProvider(t, native.Config{Dir: dir, Ahead: 1, Warm: 2})
	warmUp(t, p, dir, sandbox.Spec{})
	const mark = `for d in /workspace /tmp /var/tmp /home/user /mnt/session/outputs /dev/shm; do echo ` + canary +
		` > $d/f; done; ipcmk -M 64 >/dev/null 2>&1; sleep 1000 & true`
	// In two parts, so that what looks for the mark does not have it.
	look := `printf '%s%s' '` + canary[:3] + `' '` + canary[3:] +
		`' | grep -rlsf - /workspace /tmp /var/tmp /home /mnt /dev/shm /run /proc/[0-9]*/environ ` +
		`/proc/[0-9]*/cmdline | wc -l; ps -e | grep -c sleep`
	first := create(t, p, sandbox.Spec{Env: map[string]string{"SECRET": canary}})
	first.shell(t, "mark", mark)
	if out := first.shell(t, "look", look); strings.HasPrefix(out, "0\n") || strings.HasSuffix(out, "\n0\n") {
		t.Fatalf("control: the mark was not found where it was made: %q", out)
	}
	second := create(t, p, sandbox.Spec{Env: map[string]string{"OTHER": "x"}})
	if err := p.Destroy(t.Context(), first.ID()); err != nil {
		t.Fatal(err)
	}
	p.PoolFilled()
	for _, b := range []*testSandbox{second, create(t, p, sandbox.Spec{}), create(t, p, sandbox.Spec{})} {
		if out := b.bash(t, look); !strings.HasPrefix(out, "0\n") || !strings.HasSuffix(out, "\n0\n") {
			t.Errorf("%s: what was marked elsewhere is found: %q", b.ID(), out)
		}
		if out := b.shell(t, "env", "env"); strings.Contains(out, "SECRET") {
			t.Errorf("%s has another's variable: %s", b.ID(), out)
		}
	}
}

// TestWarmMismatch: a sandbox would be handed out that is not what was asked for, or one whose guest has ended.
func TestWarmMismatch(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "s")
	p := openProvider(t, native.Config{Dir: dir, Warm: 1})
	warmUp(t, p, dir, sandbox.Spec{})
	ready := waiting(t, dir)
	for _, spec := range []sandbox.Spec{{Limits: outboard.SandboxLimits{Pids: 33}},
		{Network: &sandbox.Network{CA: []byte(testCA)}}} {
		if b := create(t, p, spec); slices.Contains(ready, initOf(t, dir, b.ID())) {
			t.Errorf("%+v: it has a guest that was started for something else", spec)
		}
	}
	p.PoolFilled()
	if now := waiting(t, dir); !slices.Contains(now, ready[0]) || len(now) != 3 {
		t.Errorf("control: %v waited before, %v do now; want one of each of three kinds", ready, now)
	}
	if err := syscall.Kill(ready[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the killed guest is still there", func() bool { return gone(ready[0]) })
	b := create(t, p, sandbox.Spec{})
	if out := b.sh(t, "echo alive"); out != "alive\n" {
		t.Errorf("after the guest that waited was killed: %q", out)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if left := waiting(t, dir); len(left) != 0 {
		t.Errorf("guests left behind: %v", left)
	}
}

// gone reports whether a process has ended with all its threads, which have its files, whether or not its parent
// has looked.
func gone(pid int) bool {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	data, err := os.ReadFile(filepath.Join(dir, "stat"))
	threads, err2 := os.ReadDir(filepath.Join(dir, "task"))
	_, rest, _ := strings.Cut(string(data), ") ")
	return err != nil || err2 != nil || strings.HasPrefix(rest, "Z") && len(threads) <= 1
}

func eventually(t *testing.T, failure string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(failure)
		}
	}
}
