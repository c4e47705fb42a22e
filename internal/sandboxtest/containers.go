//go:build linux

package sandboxtest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// Main is the TestMain of a package of containers, in a directory three below the module's: it builds the
// guest's program and runs the tests, which find it at *program.
func Main(m *testing.M, program *string) int {
	dir, err := os.MkdirTemp("", "outboard-guest-")
	if err == nil {
		defer os.RemoveAll(dir)
		*program = filepath.Join(dir, "guest")
		cmd := exec.Command("go", "build", "-o", *program, "../../../cmd/outboard-guest")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		var out []byte
		if out, err = cmd.CombinedOutput(); err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "building the guest:", err)
		return 1
	}
	return m.Run()
}

// Few is a small part of the suite for the race detector, which slows what is tested in containers little and
// the machine much.
func Few() func(string) bool {
	if !testing.Short() {
		return nil
	}
	some := []string{"Create", "Lost", "Duplicates", "SaveLoad", "Freeze", "Isolation"}
	return func(name string) bool { return slices.Contains(some, name) }
}

// KillContainer ends the process that the container of a sandbox lives by. dir is the provider's.
func KillContainer(dir string, id outboard.SandboxID) error {
	var s struct{ Pid int }
	data, err := os.ReadFile(filepath.Join(dir, string(id), "state.json"))
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err == nil && s.Pid <= 1 {
		err = fmt.Errorf("no process in %s", data)
	}
	if err != nil {
		return err
	}
	return syscall.Kill(s.Pid, syscall.SIGKILL)
}

// Bash runs a command in a sandbox of generation g to its end, and returns what it said.
func Bash(t testing.TB, sb sandbox.Sandbox, key, command string) string {
	t.Helper()
	input, err := json.Marshal(map[string]string{"command": command})
	if err != nil {
		t.Fatal(err)
	}
	start := guest.Start{Key: key, Epoch: 1, Generation: "g", Op: "bash", Input: input}
	if _, err := sb.Start(t.Context(), start); err != nil {
		t.Fatalf("Start: %v", err)
	}
	res, err := sb.Wait(t.Context(), key, 1)
	if err != nil {
		t.Fatalf("Wait: %v", err)
	}
	return string(res.Output)
}
