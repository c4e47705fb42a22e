package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/config"
	"github.com/outboard-dev/outboard/internal/sandbox/oci"
	"github.com/outboard-dev/outboard/internal/server"
	"github.com/outboard-dev/outboard/internal/store"
	"golang.org/x/sys/unix"
)

// isolated is a server whose environments may ask for the isolations behind a runtime.
type isolated struct {
	t       *testing.T
	s       *process
	c       *client.Client
	data    string
	sandbox config.Sandbox
}

// runtimePath returns an installed runtime, or skips; in CI it must be there.
func runtimePath(t *testing.T, name string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("container runtimes need root")
	}
	if built, err := exec.LookPath("../../bin/" + name); err == nil {
		if built, err = filepath.Abs(built); err == nil {
			return built
		}
	}
	path, err := exec.LookPath(name)
	if err != nil && os.Getenv("CI") == "true" {
		t.Fatalf("no %s: %s", name, oci.InstallHint(name))
	}
	if err != nil {
		t.Skipf("no %s: %s", name, oci.InstallHint(name))
	}
	return path
}

func startIsolated(t *testing.T, sandbox config.Sandbox) *isolated {
	t.Helper()
	w := &isolated{t: t, data: t.TempDir(), sandbox: sandbox}
	w.start()
	t.Cleanup(func() {
		w.stop()
		ids, err := w.s.Provider.List(context.Background())
		for _, id := range ids {
			err = errors.Join(err, w.s.Provider.Destroy(context.Background(), id))
		}
		if err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *isolated) start() {
	w.t.Helper()
	var err error
	w.s, err = startServer(context.Background(), server.Config{Data: w.data, Config: &config.Config{Sandbox: w.sandbox},
		Env: func(name string) string {
			return map[string]string{"OUTBOARD_GUEST": guestPath}[name]
		}, Serve: true, Work: true, Listen: "127.0.0.1:0", Grace: time.Second})
	if err != nil {
		w.t.Fatal(err)
	}
	key, err := readKey(w.data)
	if err != nil {
		w.t.Fatal(err)
	}
	if w.c, err = client.New(client.Config{URL: w.s.URL, Key: key}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *isolated) stop() {
	w.c.Close()
	w.s.Stop()
}

// environment saves one whose own part is as given.
func (w *isolated) environment(name string, own map[string]any, packages map[string]any) (string, error) {
	cfg := map[string]any{"type": "cloud", "outboard": own}
	if packages != nil {
		cfg["packages"] = packages
	}
	e, err := w.c.CreateEnvironment(w.t.Context(), map[string]any{"name": name, "config": cfg})
	return e.ID, err
}

// rest waits until the session has finished so many calls and rests, and returns its log.
func (w *isolated) rest(id string,
	calls int) (ready []*outboard.SandboxReady, lost []*outboard.SandboxLost, done []*outboard.CallFinished) {
	w.t.Helper()
	for end := time.Now().Add(3 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		events, err := w.s.Store.Events(w.t.Context(), outboard.SessionID(id), store.EventQuery{Limit: 500})
		if err != nil {
			w.t.Fatal(err)
		}
		ready, lost, done = nil, nil, nil
		for i := range events {
			p, err := events[i].Decode()
			if err != nil {
				w.t.Fatal(err)
			}
			switch p := p.(type) {
			case *outboard.SandboxReady:
				ready = append(ready, p)
			case *outboard.SandboxLost:
				lost = append(lost, p)
			case *outboard.CallFinished:
				done = append(done, p)
			}
		}
		if s, err := w.c.Session(w.t.Context(), id); err != nil {
			w.t.Fatal(err)
		} else if len(done) >= calls && s.Status == "idle" {
			return ready, lost, done
		}
		if time.Now().After(end) {
			w.t.Fatalf("the session does not rest with %d calls: %d ready, %d lost, %d finished; last: %+v", calls,
				len(ready), len(lost), len(done), events[len(events)-1])
		}
	}
}

// kill ends the container of a sandbox as a crash would.
func (w *isolated) kill(isolation string, id outboard.SandboxID) {
	w.t.Helper()
	sb, err := w.s.Provider.Open(w.t.Context(), id) // thaws it: what is frozen dies when it goes on
	if err != nil {
		w.t.Fatal(err)
	}
	sb.Close()
	var s struct{ Pid int }
	data, err := os.ReadFile(filepath.Join(w.data, "containers", isolation, string(id), "state.json"))
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err == nil && s.Pid <= 1 {
		err = fmt.Errorf("no process in %s", data)
	}
	if err == nil {
		err = syscall.Kill(s.Pid, syscall.SIGKILL)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.Pid))
		if _, state, ok := strings.Cut(string(stat), ") "); err != nil || ok && state[0] == 'Z' {
			return
		}
		if time.Now().After(end) {
			w.t.Fatalf("process %d does not end", s.Pid)
		}
	}
}

func told(c *outboard.CallFinished) string {
	var text strings.Builder
	for _, part := range c.Content {
		text.WriteString(part.Text)
	}
	return text.String()
}

// technology configures what is behind one isolation, or skips; in CI it must be there.
func technology(t *testing.T, name string) config.Sandbox {
	t.Helper()
	if name != "docker" {
		run := config.Runtime{Program: runtimePath(t, name)}
		return config.Sandbox{Container: run, GVisor: run}
	}
	socket := os.Getenv("OUTBOARD_TEST_DOCKER")
	if socket == "" && os.Getenv("CI") == "true" && os.Geteuid() == 0 {
		t.Fatal("no Docker engine: run scripts/deps, and the tests with scripts/with-dockerd")
	}
	if socket == "" {
		t.Skip("no Docker engine: run the tests with scripts/with-dockerd, as root")
	}
	return config.Sandbox{Docker: config.Engine{Socket: socket}}
}

// If this fails, an environment's sessions run in another technology than it asks for, or do not go on from
// their checkpoint when the container dies, or when they are forked.
func TestIsolations(t *testing.T) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	kernel := unix.ByteSliceToString(u.Release[:])
	for _, r := range []struct {
		runtime, isolation, provider, says string
		own                                bool // a kernel of its own
	}{{"crun", "container", "oci", "container (crun)", false}, {"runc", "container", "oci", "container (runc)", false},
		{"runsc", "gvisor", "oci", "gvisor (runsc)", true}, {"docker", "docker", "docker", "docker (runc)", false}} {
		t.Run(r.runtime, func(t *testing.T) {
			if testing.Short() && r.runtime == "runc" {
				t.Skip("crun stands for it")
			}
			w := startIsolated(t, technology(t, r.runtime))
			env, err := w.environment("e", map[string]any{"isolation": r.isolation}, nil)
			if err != nil {
				t.Fatal(err)
			}
			agent, err := w.c.CreateAgent(t.Context(), map[string]any{"name": "a", "model": "script/steps",
				"tools": []any{map[string]any{"type": "agent_toolset_20260401"}}})
			if err != nil {
				t.Fatal(err)
			}
			s, err := w.c.CreateSession(t.Context(), client.NewSession{Agent: agent.ID, EnvironmentID: env,
				InitialEvents: []any{
					client.UserMessage("- bash: uname -r | tee f\n- write: {path: /workspace/g, content: \"two\\n\"}\n- " +
						"say: done\n")}})
			if err != nil {
				t.Fatal(err)
			}
			ready, lost, done := w.rest(s.ID, 2)
			if len(ready) != 1 || len(lost) != 0 {
				t.Fatalf("%d machines, %d lost", len(ready), len(lost))
			}
			if m := ready[0]; m.Provider != r.provider || m.Isolation != r.says {
				t.Errorf("the machine: %+v", m)
			}
			release := strings.TrimSpace(told(done[0]))
			if release == "" || (release == kernel) == r.own {
				t.Errorf("the kernel inside is %q, the host's %q", release, kernel)
			}
			w.stop() // a call that has begun when a sandbox dies would have no outcome
			w.kill(r.isolation, ready[0].Sandbox)
			w.start()
			if _, err := w.c.Send(t.Context(), s.ID,
				client.UserMessage("- bash: cat f g\n- say: again\n")); err != nil {
				t.Fatal(err)
			}
			ready, lost, done = w.rest(s.ID, 3)
			if len(ready) != 2 || len(lost) != 1 || lost[0].Restore == "" || ready[1].From != lost[0].Restore {
				t.Fatalf("after the crash: ready %+v, lost %+v", ready, lost)
			}
			if got := told(done[2]); got != release+"\ntwo\n" {
				t.Errorf("what came back: %q", got)
			}
			if row, err := w.s.Store.Sandbox(t.Context(), ready[1].Sandbox); err != nil || row.Provider != r.provider ||
				row.State != "live" {
				t.Errorf("the row: %+v, %v", row, err)
			}
			forks, _, err := w.c.Fork(t.Context(), s.ID, client.NewFork{})
			if err != nil || len(forks) != 1 {
				t.Fatalf("%d forks, %v", len(forks), err)
			}
			if _, err := w.c.Send(t.Context(), forks[0].ID, client.UserMessage("- bash: cat f g; echo three > g\n- "+
				"say: forked\n")); err != nil {
				t.Fatal(err)
			}
			ready, lost, done = w.rest(forks[0].ID, 4)
			if m := ready[len(ready)-1]; m.Isolation != r.says || m.From == "" || len(lost) != 1 {
				t.Errorf("the fork's machine: %+v, lost %+v", m, lost)
			}
			if got := told(done[3]); got != release+"\ntwo\n" {
				t.Errorf("the fork begins with %q", got)
			}
			if _, err := w.c.Send(t.Context(), s.ID, client.UserMessage("- bash: cat g\n- say: apart\n")); err != nil {
				t.Fatal(err)
			}
			if _, _, done = w.rest(s.ID, 4); told(done[3]) != "two\n" {
				t.Errorf("the fork wrote into the session's workspace: %q", told(done[3]))
			}
		})
	}
}

// If this fails, an environment is saved whose sessions cannot have what it says, or the one who saves it is not
// told what to do.
func TestIsolationRefused(t *testing.T) {
	program := runtimePath(t, "crun")
	w := startIsolated(t, config.Sandbox{Container: config.Runtime{Program: program},
		GVisor: config.Runtime{Program: "/nowhere/runsc"}})
	for name, c := range map[string]struct {
		own, packages map[string]any
		hint          string // "" = it is saved
	}{
		"container": {own: map[string]any{"isolation": "container", "limits": map[string]any{"pids": 50}}},
		"namespace": {own: map[string]any{"isolation": "namespace"}},
		"missing":   {own: map[string]any{"isolation": "gvisor"}, hint: "make runsc"},
		"unknown":   {own: map[string]any{"isolation": "vmware"}, hint: "outboard doctor"},
		"disk": {own: map[string]any{"isolation": "container", "limits": map[string]any{"disk_bytes": 1 << 30}},
			hint: "leave the limit out"},
		"packages": {own: map[string]any{"isolation": "container"},
			packages: map[string]any{"npm": []string{"left-pad"}}},
	} {
		_, err := w.environment(name, c.own, c.packages)
		if c.hint == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if e, ok := errors.AsType[*outboard.Error](err); !ok || e.Kind != outboard.Invalid ||
			!strings.Contains(e.Hint, c.hint) {
			t.Errorf("%s: %+v", name, err)
		}
	}
}
