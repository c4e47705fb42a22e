package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard/internal/server"
	"github.com/rogpeppe/go-internal/testscript"
)

// mainEnv makes this test binary behave as the program itself. Children inherit it, so the demo's servers are
// this binary too.
const mainEnv = "OUTBOARD_TEST_MAIN"

// guestPath is the guest program, built for these tests.
var guestPath string

func TestMain(m *testing.M) {
	if os.Getenv(mainEnv) == "1" {
		main()
	}
	program = func() (string, error) { return "", errors.New("tests in this process start no background server") }
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "outboard-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { // the guest is executed under other uids
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	guestPath = filepath.Join(dir, "outboard-guest")
	cmd := exec.Command("go", "build", "-o", guestPath, "github.com/outboard-dev/outboard/cmd/outboard-guest")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building the guest: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// Every command's happy path and its errors, as a user types them: real servers, real sandboxes, the scripted model.
func TestScripts(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "script"),
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			bin := filepath.Join(e.WorkDir, ".bin")
			if err := os.Mkdir(bin, 0o755); err != nil {
				return err
			}
			if err := os.Symlink(exe, filepath.Join(bin, "outboard")); err != nil {
				return err
			}
			e.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
			e.Setenv("HOME", e.WorkDir)
			e.Setenv(mainEnv, "1")
			e.Setenv("OUTBOARD_GUEST", guestPath)
			e.Setenv(foregroundEnv, "1") // background.txtar is about the other way
			e.Setenv("OUTBOARD_DATA", filepath.Join(e.WorkDir, ".data"))
			e.Setenv("GIT_CONFIG_GLOBAL", os.DevNull)
			e.Setenv("GIT_CONFIG_NOSYSTEM", "1")
			e.Defer(func() { removeSandboxes(t, filepath.Join(e.WorkDir, ".data", "sandboxes")) })
			e.Defer(func() { endServers(t, filepath.Join(e.WorkDir, ".data")) }) // the last one deferred runs first
			return nil
		},
		Condition: func(name string) (bool, error) {
			if name != "root" {
				return false, fmt.Errorf("unknown condition %q", name)
			}
			return os.Geteuid() == 0, nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"session": scriptSession, "await": scriptAwait,
			"await-servers": scriptAwaitServers,
			"await-session": scriptAwaitSession, "perm": scriptPerm, "capture": scriptCapture},
	})
}

// removeSandboxes ends what a script's sessions left alive: sandboxes outlive the servers that made them.
func removeSandboxes(t *testing.T, dir string) {
	if _, err := os.Stat(dir); err != nil {
		return
	}
	// the test's own context is over
	if err := server.RemoveSandboxes(context.Background(), filepath.Dir(dir), guestPath); err != nil {
		t.Error(err)
	}
}

var nameRE = regexp.MustCompile(`\b[a-z]+-[a-z]+-[0-9a-f]{3}\b`)

// scriptSession sets the named variable to the first session name in the last command's output.
func scriptSession(ts *testscript.TestScript, neg bool, args []string) {
	name := nameRE.FindString(ts.ReadFile("stdout"))
	if name == "" {
		name = nameRE.FindString(ts.ReadFile("stderr"))
	}
	if len(args) != 1 || name == "" || neg {
		ts.Fatalf("session NAME: no session name in the output")
	}
	ts.Setenv(args[0], name)
}

// scriptCapture sets the named variable to what a pattern finds in the last command's output.
func scriptCapture(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 || neg {
		ts.Fatalf("capture NAME PATTERN")
	}
	found := regexp.MustCompile(args[1]).FindString(ts.ReadFile("stdout"))
	if found == "" {
		ts.Fatalf("capture %s: nothing in the output is %s", args[0], args[1])
	}
	ts.Setenv(args[0], found)
}

// scriptAwait waits until a file is there: a process in the background has come so far.
func scriptAwait(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 || neg {
		ts.Fatalf("await FILE")
	}
	deadline := time.Now().Add(30 * time.Second)
	for tick := time.NewTicker(10 * time.Millisecond); ; <-tick.C {
		if _, err := os.Stat(ts.MkAbs(args[0])); err == nil {
			tick.Stop()
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%s did not come", args[0])
		}
	}
}

// scriptAwaitServers waits until so many servers of the data directory live.
func scriptAwaitServers(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 || neg {
		ts.Fatalf("await-servers NUMBER")
	}
	deadline := time.Now().Add(30 * time.Second)
	for tick := time.NewTicker(10 * time.Millisecond); ; <-tick.C {
		all := servers(ts.Getenv("OUTBOARD_DATA"))
		if fmt.Sprint(len(all)) == args[0] {
			tick.Stop()
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("there are %d servers", len(all))
		}
	}
}

// endServers ends the servers that a script left in the background.
func endServers(t *testing.T, data string) {
	for _, s := range servers(data) {
		if err := terminate(s.PID); err != nil {
			t.Error(err)
		}
		if err := awaitExit(context.Background(), &s); err != nil { // the test's own context is over
			t.Error(err)
		}
	}
}

// scriptAwaitSession sets the named variable to the first session that is running a command, the others named left out.
func scriptAwaitSession(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 1 || neg {
		ts.Fatalf("await-session NAME [SESSION...]")
	}
	deadline := time.Now().Add(30 * time.Second)
	for tick := time.NewTicker(50 * time.Millisecond); ; <-tick.C {
		ts.Check(ts.Exec("outboard", "ls"))
		for line := range strings.Lines(ts.ReadFile("stdout")) {
			name, rest, _ := strings.Cut(line, " ")
			if strings.Contains(rest, "running") && strings.Contains(rest, "bash") && !slices.Contains(args[1:], name) {
				tick.Stop()
				ts.Setenv(args[0], name)
				return
			}
		}
		if time.Now().After(deadline) {
			ts.Fatalf("no session runs a command")
		}
	}
}

// scriptPerm checks a file's permission bits.
func scriptPerm(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 || neg {
		ts.Fatalf("perm MODE FILE")
	}
	st, err := os.Stat(ts.MkAbs(args[1]))
	ts.Check(err)
	if got := fmt.Sprintf("%04o", st.Mode().Perm()); got != args[0] {
		ts.Fatalf("%s has mode %s, want %s", args[1], got, args[0])
	}
}
