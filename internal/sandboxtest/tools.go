//go:build linux

package sandboxtest

import (
	"fmt"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// If this fails, a model's shell forgets what it was told.
func testShell(t *testing.T, r *rig) {
	b := r.create(t)
	if !r.NoPaths {
		want(t, "first directory", b.sh("pwd"), sandbox.Workspace+"\n")
	}
	b.sh("mkdir d; cd d; X=1; export Y=2; f() { echo \"f$1\"; }; alias hi='echo hello'; sleep 1000 & echo $! > pid")
	want(t, "state", b.sh("basename $PWD; echo $X; printenv Y; f 3; hi; kill -0 $(cat pid) && echo lives"),
		"d\n1\n2\nf3\nhello\nlives\n")
	other := b.bash("echo \"[$X]\"; basename $PWD")
	other.Shell = "other"
	if got := string(b.run(other).Output); !strings.HasPrefix(got, "[]\n") || got == "[]\nd\n" {
		t.Errorf("another shell: %q", got)
	}
	want(t, "a syntax error", strings.Contains(b.fails("if then"), "syntax error"), true)
	want(t, "after it", b.sh("echo $X"), "1\n")
	want(t, "multi-line", b.sh("cat <<'E'\na'b\"c\\d\nE\nfor i in 1 2; do\n  echo $i\ndone"), "a'b\"c\\d\n1\n2\n")
	b.sh("kill $(cat pid)")
}

// If this fails, a command that ends its shell hangs the session or hides its status.
func testShellExit(t *testing.T, r *rig) {
	b := r.create(t)
	b.sh("X=1")
	res := b.run(b.bash("echo bye; exit 3"))
	if res.Cause != "exited" || res.ExitCode == nil || *res.ExitCode != 3 || string(res.Output) != "bye\n" {
		t.Errorf("exit 3: %s %q", show(res), res.Output)
	}
	out := b.sh("echo \"[$X]\"")
	if !strings.Contains(out, "[]\n") || !strings.Contains(out, "new shell") {
		t.Errorf("the next call: %q", out)
	}
	want(t, "the one after", b.sh("echo quiet"), "quiet\n")
	res = b.run(b.bash("kill -9 $$"))
	if res.ExitCode == nil || *res.ExitCode != 137 {
		t.Errorf("a shell that kills itself: %s", show(res))
	}
	res = b.run(b.bash("exec sh -c 'echo replaced; exit 4'"))
	if res.ExitCode == nil || *res.ExitCode != 4 || !strings.HasSuffix(string(res.Output), "replaced\n") {
		t.Errorf("exec: %s %q", show(res), res.Output)
	}
}

// If this fails, a stuck shell cannot be replaced.
func testShellRestart(t *testing.T, r *rig) {
	b := r.create(t)
	b.sh("X=1; sleep 1000 & echo $! > pid")
	res := b.run(b.call("bash", map[string]any{"restart": true}))
	want(t, "restart", res.Cause, "exited")
	want(t, "after it", b.sh("echo \"[$X]\"; kill -0 $(cat pid) 2>/dev/null || echo gone"), "[]\ngone\n")
	b.sh("X=2")
	res = b.run(b.call("bash", map[string]any{"restart": true, "command": "echo \"[$X]\""}))
	want(t, "restart with a command", string(res.Output), "[]\n")
	b.refuses("bash", map[string]any{}, "command is required")
	b.refuses("bash", map[string]any{"command": 7}, "unreadable input")
	b.refuses("bash", map[string]any{"command": "echo \x00"}, "NUL")
}

// If this fails, programs inside miss what they are promised.
func testEnvironment(t *testing.T, r *rig) {
	b := r.create(t)
	s := b.bash("printenv OUTBOARD_CALL_KEY; sh -c 'echo $OUTBOARD_CALL_KEY'")
	want(t, "call key", string(b.run(s).Output), s.Key+"\n"+s.Key+"\n")
	want(t, "the spec's variable", b.sh("printenv OUTBOARD_SUITE"), "value from the spec\n")
	want(t, "home is the tool's", b.sh("cd && touch x && test -d \"$HOME\" && echo ok"), "ok\n")
	want(t, "stdin", b.sh("readlink -f /dev/stdin"), "/dev/null\n")
	want(t, "variables", b.sh("for v in PATH HOME USER LANG TERM; do [ -n \"${!v}\" ] || echo $v; done"), "")
	if r.NoPaths {
		return
	}
	for _, dir := range []string{sandbox.Workspace, sandbox.Outputs, "/tmp"} {
		want(t, dir, b.sh("test -w "+dir+" && touch "+dir+"/probe && echo ok"), "ok\n")
	}
}

// If this fails, a server started in the background blocks the call that started it, or dies with it.
func testBackground(t *testing.T, r *rig) {
	b := r.create(t)
	res := b.run(b.bash("(while :; do echo tick; echo x >> ticks; sleep 0.02; done) & echo $! > pid; echo started"))
	want(t, "cause", res.Cause, "exited")
	if !strings.Contains(string(res.Output), "started\n") {
		t.Errorf("output %q", res.Output)
	}
	b.until("[ -s ticks ]")
	before := strings.TrimSpace(b.sh("wc -l < ticks"))
	b.until("[ $(wc -l < ticks) -gt " + before + "0 ]") // ten times as many: still running, and able to write
	want(t, "a later call's output", b.sh("echo clean"), "clean\n")
	b.sh("kill $(cat pid); wait $(cat pid) 2>/dev/null; true")
}

// If this fails, a command that hangs holds its session for ever, or goes on after it was given up.
func testTimeout(t *testing.T, r *rig) {
	b := r.create(t)
	b.sh("X=1; sleep 1000 & echo $! > pid")
	s := b.bash("echo before; sleep 1000; echo after >> effects")
	s.TimeoutMs = 300
	began := time.Now()
	res := b.run(s)
	if res.Cause != "timeout" || res.ExitCode != nil || !strings.HasPrefix(string(res.Output), "before\n") ||
		!strings.Contains(string(res.Output), "timed out after 300ms") {
		t.Errorf("%s %q", show(res), res.Output)
	}
	if d := time.Since(began); d > 20*time.Second {
		t.Errorf("the timeout took %s", d)
	}
	want(t, "the shell and its jobs", b.sh("echo $X; kill -0 $(cat pid) && echo lives; cat effects 2>/dev/null; true"),
		"1\nlives\n")
	for range 5 { // the job and the command often start within one tick of the clock
		b.sh("sleep 1000 & echo $! > late")
		s = b.bash("sleep 1000")
		s.TimeoutMs = 30
		want(t, "a short one", b.run(s).Cause, "timeout")
		want(t, "a job of just before", b.sh("kill $(cat late) && echo lived"), "lived\n")
	}
	s = b.bash("trap '' INT TERM; while :; do sleep 0.1; done; echo after >> effects")
	s.TimeoutMs = 300
	res = b.run(s)
	want(t, "a stubborn command", res.Cause, "timeout")
	if !strings.Contains(string(res.Output), "restarted") {
		t.Errorf("a replaced shell is not mentioned: %q", res.Output)
	}
	want(t, "after it", b.sh("echo \"[$X]\"; cat effects 2>/dev/null; true"), "[]\n")
	s = b.call("bash", map[string]any{"command": "sleep 1000", "timeout_ms": 200})
	s.TimeoutMs = 0
	want(t, "the input's own timeout", b.run(s).Cause, "timeout")
}

// If this fails, an interrupt leaves the command running.
func testKill(t *testing.T, r *rig) {
	b := r.create(t)
	b.sh("X=1")
	s := b.bash("sleep 1000 & echo $! > began; sleep 1000; echo after >> effects")
	queued := b.bash("echo queued >> effects")
	for _, c := range []guest.Start{s, queued} {
		if _, err := b.Start(ctx(t), c); err != nil {
			t.Fatal(err)
		}
	}
	other := b.bash("until [ -s began ]; do sleep 0.02; done")
	other.Shell = "other"
	b.run(other)
	for _, c := range []guest.Start{queued, s, s} {
		res, err := b.Kill(ctx(t), c.Key, 1)
		if err != nil || res.State != guest.StateDone || res.Cause != "killed" || res.ExitCode != nil {
			t.Errorf("Kill: %s, %v", show(res), err)
		}
	}
	want(t, "Wait", b.wait(s).Cause, "killed")
	want(t, "after", b.sh("echo $X; cat effects 2>/dev/null; kill -0 $(cat began) 2>/dev/null || echo gone"),
		"1\ngone\n")
	finished := b.bash("echo fine")
	b.run(finished)
	res, err := b.Kill(ctx(t), finished.Key, 1)
	if err != nil || res.Cause != "exited" || string(res.Output) != "fine\n" {
		t.Errorf("Kill of a finished call: %s, %v", show(res), err)
	}
}

// If this fails, a model drowns in output, or cannot find the rest of it.
func testOutput(t *testing.T, r *rig) {
	b := r.create(t)
	s := b.bash("echo FIRST; seq 100000; echo LAST")
	s.OutputLimit = 5000
	res := b.run(s)
	out := string(res.Output)
	if !res.Truncated || len(out) > 5000 || len(out) < 4000 || !strings.HasPrefix(out, "FIRST\n1\n") ||
		!strings.HasSuffix(out, "100000\nLAST\n") {
		t.Errorf("%s, %d bytes: %.100q ... %.100q", show(res), len(out), out, out[max(0, len(out)-100):])
	}
	if res.FullPath == "" || !strings.Contains(out, res.FullPath) {
		t.Fatalf("the output does not name its file %q", res.FullPath)
	}
	if err := b.Ack(ctx(t), s.Key, 1); err != nil {
		t.Error(err)
	}
	want(t, "the file, after Ack", b.sh("sed -n '1p;50000p;$p' "+res.FullPath), "FIRST\n49999\nLAST\n")
	s = b.bash("head -c 70000000 /dev/zero | tr '\\0' x; echo END")
	res = b.run(s)
	if !res.Truncated || !strings.Contains(string(res.Output), "xEND\n\n[output limit: ") || *res.ExitCode != 0 {
		t.Errorf("70 MB: %s", show(res))
	}
	var size int64
	fmt.Sscan(b.sh("stat -c %s "+res.FullPath), &size)
	if size > 66<<20 {
		t.Errorf("70 MB of output left a file of %d bytes", size)
	}
	if dir := path.Dir(res.FullPath); r.p.Capabilities().SeparateID {
		b.fails("echo forged > " + res.FullPath)
		b.fails("rm -f " + res.FullPath + " && ! test -e " + res.FullPath)
		b.fails("touch " + dir + "/mine")
	}
}

// If this fails, processes without a shell are not what their caller asked for.
func testExec(t *testing.T, r *rig) {
	b := r.create(t)
	b.sh("mkdir -p sub")
	s := b.call("exec", map[string]any{"argv": []string{"sh", "-c",
		"echo $A $OUTBOARD_CALL_KEY; basename $PWD; echo err >&2; exit 7"},
		"env": map[string]string{"A": "b c"}, "cwd": "sub"})
	res := b.run(s)
	want(t, "output", string(res.Output), "b c "+s.Key+"\nsub\nerr\n")
	if res.ExitCode == nil || *res.ExitCode != 7 {
		t.Errorf("exit: %s", show(res))
	}
	b.refuses("exec", map[string]any{"argv": []string{"no-such-program"}}, "not found")
	b.refuses("exec", map[string]any{"argv": []string{}}, "argv is required")
	b.refuses("exec", map[string]any{"argv": []string{"true"}, "cwd": "nowhere"}, "no such file")
	b.refuses("exec", map[string]any{"argv": []string{"/usr"}}, "permission denied")
	const signals = "for s in 1 2 3 4 5 6 7 8 10 11 12 13 14 15 16 24 25 26 27 29 30 31 35 50 64; do " +
		`sh -c "kill -$s \$\$; echo $s is survived" 2>/dev/null; done; sh -c 'trap "echo caught" TERM; kill $$'`
	want(t, "what a program has of the guest's signals",
		string(b.run(b.call("exec", map[string]any{"argv": []string{"sh", "-c", signals}})).Output), "caught\n")
	const flood = "head -c 300000 /dev/zero | tr '\\0' x; (sleep 0.3; echo late) & sleep 0.1; echo end"
	res = b.run(b.call("exec", map[string]any{"argv": []string{"sh", "-c", flood}}))
	if !strings.HasSuffix(string(res.Output), "xend\n") || !res.Truncated {
		t.Errorf("much output, a pause and a child that goes on: %s", show(res))
	}
	s = b.call("exec", map[string]any{"argv": []string{"sh", "-c", "sleep 1000 & sleep 1000"}})
	s.TimeoutMs = 200
	want(t, "timeout", b.run(s).Cause, "timeout")
	res = b.run(b.call("exec", map[string]any{"argv": []string{"sh", "-c", "sleep 1000 & echo $!"}}))
	want(t, "a background child", res.Cause, "exited")
	b.sh("kill " + strings.TrimSpace(string(res.Output)))
}
