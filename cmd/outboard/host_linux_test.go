package main

import (
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/server"
)

// Broken if a guest that cannot start in a sandbox is found out only by every sandbox.
func TestGuestIsStatic(t *testing.T) {
	find := func(path string) (string, error) {
		return server.FindGuest(func(name string) string { return map[string]string{"OUTBOARD_GUEST": path}[name] })
	}
	if path, err := find(guestPath); err != nil || path != guestPath {
		t.Fatalf("the control: %q, %v", path, err)
	}
	_, err := find("/bin/sh")
	if outboard.KindOf(err) != outboard.Unavailable || !strings.Contains(err.Error(), "dynamic loader /lib") {
		t.Errorf("a program that needs a loader: %v", err)
	}
}

// guestsOf are the processes of guests that have something open below a directory of sandboxes, by what holds them
// there: the id of a
// sandbox, or "shelf".
func guestsOf(t *testing.T, dir string) map[int]string {
	t.Helper()
	found := map[int]string{}
	all, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range all {
		proc := filepath.Dir(filepath.Dir(fd))
		at, err := os.Readlink(fd)
		exe, eerr := os.Readlink(filepath.Join(proc, "exe"))
		below, is := strings.CutPrefix(at, dir+"/")
		if pid, perr := strconv.Atoi(filepath.Base(proc)); errors.Join(err, eerr, perr) == nil && is &&
			strings.Contains(exe, "outboard-guest") {
			found[pid], _, _ = strings.Cut(below, "/")
		}
	}
	return found
}

var sandboxRE = regexp.MustCompile(`\bsbx_[0-9A-Za-z]+`)

// eventually looks until something holds: nothing tells of it.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

// kept are the sandboxes that have a row.
func (h *seat) kept() []string {
	h.t.Helper()
	text, _ := h.run("sandbox", "ls", "--json")
	ids := sandboxRE.FindAllString(text, -1)
	slices.Sort(ids)
	return slices.Compact(ids)
}

// strays are the sandboxes that have a guest and no row.
func (h *seat) strays(boxes string) (ids []string) {
	h.t.Helper()
	keep := h.kept()
	for _, id := range guestsOf(h.t, boxes) {
		if id != "shelf" && !slices.Contains(keep, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// If this fails, a server that is killed while it makes sandboxes, or while commands run, leaves guests that no
// session keeps; or one
// whose session is removed lives on.
func TestNoGuestOutlivesItsSession(t *testing.T) {
	t.Parallel()
	h := newSeat(t)
	h.env = slices.DeleteFunc(h.env, func(kv string) bool { return strings.HasPrefix(kv, foregroundEnv) })
	boxes := filepath.Join(h.dir, "data", "sandboxes")
	if err := os.WriteFile(filepath.Join(h.dir, "c.yaml"), []byte("sandbox: {rest_every: 1s}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	serve := func() *exec.Cmd {
		t.Helper()
		cmd := h.command(context.WithoutCancel(t.Context()), "serve", "--listen", "127.0.0.1:0", "--config",
			filepath.Join(h.dir, "c.yaml"))
		cmd.Stderr = t.Output()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		eventually(t, "the server answers", func() bool {
			text, _ := h.run("status") // which, unlike others, starts none itself
			return strings.Contains(text, strconv.Itoa(cmd.Process.Pid))
		})
		return cmd
	}
	run := func(task string) {
		t.Helper()
		if text, exit := h.run("run", "-d", "--from", "none", "-m", "script/steps", "--", task); exit != 0 {
			t.Fatalf("exit %d:\n%s", exit, text)
		}
	}
	made := func() int {
		all, _ := filepath.Glob(filepath.Join(boxes, "sbx_*"))
		return len(all)
	}
	s := serve()
	run("- bash: sleep 1000")
	eventually(t, "the command runs", func() bool { return len(guestsOf(t, boxes)) > 0 })
	for range 4 { // killed as soon as the directory of a sandbox is there, which is long before its guest is
		before := made()
		for range 3 {
			run("- bash: echo made")
		}
		eventually(t, "a sandbox is being made", func() bool { return made() > before })
		if err := s.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = s.Wait()
		eventually(t, "guests that waited for a sandbox have ended", func() bool {
			return !slices.Contains(slices.Collect(maps.Values(guestsOf(t, boxes))), "shelf")
		})
		s = serve()
	}
	eventually(t, "all sessions have a sandbox, and no guest is without one", func() bool {
		return len(h.kept()) == 13 && len(h.strays(boxes)) == 0
	})
	if text, exit := h.run("rm", "--all", "--yes"); exit != 0 {
		t.Fatalf("exit %d:\n%s", exit, text)
	}
	eventually(t, "no guest outlives its session", func() bool {
		return !slices.ContainsFunc(slices.Collect(maps.Values(guestsOf(t, boxes))),
			func(at string) bool { return at != "shelf" })
	})
	run("- bash: sleep 1000")
	eventually(t, "the control: the command has a guest", func() bool { return len(h.kept()) == 1 && made() == 1 })
	if err := s.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = s.Wait()
	if text, exit := h.run("rm", "--all", "--yes"); exit != 0 { // by a server that this command starts
		t.Fatalf("exit %d:\n%s", exit, text)
	}
	eventually(t, "no guest outlives a session that is removed without a server",
		func() bool { return len(guestsOf(t, boxes)) == 0 })
}
