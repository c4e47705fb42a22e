package sshd_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard/internal/outboardtest"
	"golang.org/x/crypto/ssh"
)

// nativeRig is a rig whose box is a real sandbox: its own user, its own file systems, no capability.
func nativeRig(t *testing.T) *rig {
	t.Helper()
	return startWith(t, outboardtest.Options{Provider: outboardtest.Native(t)})
}

// Fails if what works in a plain process does not in a real sandbox: commands, terminals, and copies by scp and
// rsync, as the sandbox's user and without a right of the host's.
func TestNativeSandbox(t *testing.T) {
	need(t, "scp", "rsync")
	r := nativeRig(t)
	got := r.ssh("id", "some input", r.box, "id -un; echo $HOME; cat; echo; grep -E 'CapEff|NoNewPrivs' "+
		"/proc/self/status | tr -s '\\t\\n' ' '; exit 7")
	if got.code != 7 || !strings.HasPrefix(got.out, "user\n/home/user\nsome input\nCapEff: 0000000000000000 "+
		"NoNewPrivs: 1 ") {
		t.Errorf("a command: %+v", got)
	}
	if out := r.ssh("id", "", r.box, "cat /etc/shadow"); out.code == 0 {
		t.Errorf("it reads what root alone may: %+v", out)
	}
	s := r.session()
	if err := s.RequestPty("xterm", 33, 101, ssh.TerminalModes{}); err != nil {
		t.Fatal(err)
	}
	if out, err := s.Output("tty; stty size"); err != nil || !strings.HasPrefix(string(out), "/dev/pts/") ||
		!strings.Contains(string(out), "33 101") {
		t.Errorf("a terminal: %q, %v", out, err)
	}
	testNativeCopies(t, r)
}

func testNativeCopies(t *testing.T, r *rig) {
	t.Helper()
	tree := filepath.Join(r.dir, "tree")
	if err := os.MkdirAll(filepath.Join(tree, "deep"), 0o755); err != nil {
		t.Fatal(err)
	}
	r.write("tree/deep/big", strings.Repeat("all work and no play\n", 50_000))
	if err := os.WriteFile(filepath.Join(tree, "program"), []byte("#!/bin/sh\nid -un\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	at, shell := r.box+"@127.0.0.1:", "ssh "+strings.Join(r.options("id"), " ")
	scp := append(r.options("id"), "-s", "-r", "-p")
	r.mustRun("", "scp", append(scp, tree, at+"by-scp")...)
	r.mustRun("", "rsync", "-a", "-e", shell, tree+"/", at+"by-rsync/")
	if got := r.ssh("id", "", r.box, "by-scp/program; by-rsync/program; stat -c %U by-scp/program by-rsync/program; "+
		"diff -r by-scp by-rsync && echo same"); got.out != "user\nuser\nuser\nuser\nsame\n" {
		t.Errorf("what came: %+v", got)
	}
	r.mustRun("", "scp", append(scp, at+"by-rsync", filepath.Join(r.dir, "scp-back"))...)
	r.mustRun("", "rsync", "-a", "-e", shell, at+"by-scp/", filepath.Join(r.dir, "rsync-back")+"/")
	for _, back := range []string{"scp-back", "rsync-back"} {
		r.mustRun("", "diff", "-r", tree, filepath.Join(r.dir, back))
	}
}
