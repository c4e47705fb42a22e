package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/config"
	"github.com/outboard-dev/outboard/internal/kill"
	"github.com/outboard-dev/outboard/internal/server"
	"golang.org/x/sys/unix"
)

// crowd is a server with a session whose sandbox runs many processes that are told by their argument, and one
// that writes a file inside all the time.
type crowd struct {
	t       *testing.T
	s       *process
	c       *client.Client
	data    string
	mark    string
	session string
}

// noSandbox skips a test that needs one; in CI there must be one.
func noSandbox(t *testing.T, why error) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("no sandbox can be made here: %v", why)
	}
	t.Skipf("no sandbox can be made here: %v", why)
}

// startCrowd starts a server on a data directory, and the session.
func startCrowd(t *testing.T, n int) *crowd {
	t.Helper()
	w := &crowd{t: t, data: t.TempDir(), mark: fmt.Sprintf("9%d.5", os.Getpid())}
	w.s = w.server()
	t.Cleanup(func() {
		w.s.Stop()
		removeSandboxes(t, filepath.Join(w.data, "sandboxes"))
	})
	if w.s.Problem != nil {
		noSandbox(t, w.s.Problem)
	}
	var err error
	if w.c, err = client.New(client.Config{URL: w.s.URL, Key: w.key()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.c.Close)
	agent, err := w.c.CreateAgent(t.Context(), map[string]any{"name": "a", "model": "script/steps",
		"tools": []any{map[string]any{"type": "agent_toolset_20260401"}}})
	if err != nil {
		t.Fatal(err)
	}
	env, err := w.c.CreateEnvironment(t.Context(), map[string]any{"name": "e",
		"config": map[string]any{"type": "cloud"}})
	if err != nil {
		t.Fatal(err)
	}
	run := fmt.Sprintf("- bash: 'for i in $(seq %d); do sleep %s & done; wait'\n- bash: echo never\n", n, w.mark)
	s, err := w.c.CreateSession(t.Context(), client.NewSession{Agent: agent.ID, EnvironmentID: env.ID,
		InitialEvents: []any{client.UserMessage(run)}})
	if err != nil {
		t.Fatal(err)
	}
	w.session = s.ID
	w.until("its processes run", func() bool { return len(w.processes()) >= n })
	return w
}

func (w *crowd) server() *process {
	w.t.Helper()
	s, err := startServer(context.Background(), server.Config{Data: w.data, Config: &config.Config{},
		Env: func(name string) string {
			return map[string]string{"OUTBOARD_GUEST": guestPath}[name]
		}, Serve: true, Work: true, Listen: "127.0.0.1:0", Grace: time.Second})
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *crowd) key() string {
	w.t.Helper()
	key, err := readKey(w.data)
	if err != nil {
		w.t.Fatal(err)
	}
	return key
}

// until waits for a condition.
func (w *crowd) until(what string, cond func() bool) {
	w.t.Helper()
	for end := time.Now().Add(time.Minute); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("%s: did not happen", what)
		}
	}
}

// processes are the states, as /proc shows them, of the processes that carry the mark.
func (w *crowd) processes() map[int]string {
	w.t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		w.t.Fatal(err)
	}
	out := map[int]string{}
	for _, d := range dirs {
		b, err := os.ReadFile(d)
		if err != nil || string(b) != "sleep\x00"+w.mark+"\x00" {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(d)))
		out[pid] = d
	}
	return out
}

// If this fails, a kill leaves processes, does not say what it cut off, or the session goes on after a restart.
func TestKillEndsProcesses(t *testing.T) {
	w := startCrowd(t, 50)
	if _, err := w.c.Kill(t.Context(), client.NewKill{Scope: "planet",
		Target: "x"}); outboard.KindOf(err) != outboard.Invalid {
		t.Errorf("an unknown scope: %v", err)
	}
	if n := len(w.processes()); n < 50 {
		t.Fatalf("a refused kill killed: %d are left", n)
	}
	r, err := w.c.Kill(t.Context(), client.NewKill{Scope: "session", Target: w.session, Reason: "a test"})
	if err != nil {
		t.Fatal(err)
	}
	w.until("no process is left", func() bool { return len(w.processes()) == 0 })
	if r.Machines != 0 || len(r.InFlight) != 1 || r.InFlight[0].What != "bash" || r.InFlight[0].Outcome != "unknown" {
		t.Errorf("the report: %+v", r)
	}
	w.until("the session rests", func() bool {
		s, err := w.c.Session(t.Context(), w.session)
		return err == nil && s.Status == "idle"
	})
	_, err = w.c.Send(t.Context(), w.session, client.UserMessage("- say: more"))
	if e, ok := errors.AsType[*outboard.Error](err); !ok || !strings.Contains(e.Message, "kill switch") {
		t.Errorf("a message to it: %v", err)
	}
	w.s.Stop()
	w.s = w.server()
	c, err := client.New(client.Config{URL: w.s.URL, Key: w.key()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Send(t.Context(), w.session, client.UserMessage("- say: more")); err == nil {
		t.Error("a restart lifted the kill")
	}
	if err := c.LiftKill(t.Context(), r.Kill.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Send(t.Context(), w.session, client.UserMessage("- say: more")); err != nil {
		t.Errorf("after the kill was lifted: %v", err)
	}
}

// If this fails, nobody can kill while the database takes no writes.
func TestKillWithoutDatabase(t *testing.T) {
	w := startCrowd(t, 20)
	db, err := sql.Open("sqlite", filepath.Join(w.data, "outboard.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	k := outboard.Kill{ID: outboard.NewID[outboard.KillID](outboard.PrefixKill), Scope: outboard.KillAll,
		Level: outboard.KillStop, At: time.Now().UTC().Add(-server.AdoptAfter)}
	if err := kill.WriteFile(server.KillDir(w.data), k); err != nil {
		t.Fatal(err)
	}
	w.until("no process is left", func() bool { return len(w.processes()) == 0 })
	if _, err := conn.ExecContext(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	w.until("the file became a row", func() bool {
		got, err := w.s.Store.Kill(t.Context(), k.ID)
		return err == nil && got.LiftedAt.IsZero()
	})
}

// If this fails, a pause kills, or what it froze does not go on.
func TestKillFreezes(t *testing.T) {
	w := startCrowd(t, 5)
	if !w.s.Capabilities.Freeze {
		t.Skip("this host cannot freeze")
	}
	r, err := w.c.Kill(t.Context(), client.NewKill{Scope: "all", Level: "pause"})
	if err != nil {
		t.Fatal(err)
	}
	before := w.processes()
	if len(before) != 5 {
		t.Fatalf("%d processes are left of a pause", len(before))
	}
	frozen := func() bool {
		owned, err := w.s.Fleet.Owned(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(owned) == 1 && w.s.Frozen() == 1
	}
	if !frozen() {
		t.Error("the machine is not frozen")
	}
	if err := w.c.LiftKill(t.Context(), r.Kill.ID); err != nil {
		t.Fatal(err)
	}
	w.until("it is thawed", func() bool { return !frozen() })
	if after := w.processes(); len(after) != 5 {
		t.Errorf("%d processes are left when it goes on", len(after))
	}
}

// If this fails, a disk on which the file of a kill cannot be written keeps everything alive, though the server
// can be asked.
func TestKillOnAFullDisk(t *testing.T) {
	w := startCrowd(t, 20)
	dir := server.KillDir(w.data)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	if err := unix.Mount("none", dir, "tmpfs", 0, "nr_inodes=1"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, "kill", "session", w.session)
	cmd.Env = append(os.Environ(), mainEnv+"=1", "OUTBOARD_DATA="+w.data)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("the server could be asked: %v\n%s", err, out)
	}
	w.until("no process is left", func() bool { return len(w.processes()) == 0 })
	w.until("the kill became a row", func() bool {
		rows, err := w.s.Store.ActiveKills(t.Context())
		return err == nil && len(rows) == 1
	})
}
