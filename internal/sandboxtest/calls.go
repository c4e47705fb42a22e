//go:build linux

package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard/internal/guest"
)

// If this fails, a call's outcome is not what the command did.
func testStart(t *testing.T, r *rig) {
	b := r.create(t)
	for _, c := range []struct {
		command, output string
		exit            int
	}{
		{"true", "", 0}, {"false", "", 1}, {"echo out; echo err >&2; echo out2", "out\nerr\nout2\n", 0}, {"(exit 42)",
			"", 42},
		// and not a word about a terminal that is not there
		{"yes | head -1", "y\n", 0}, {"sh -c 'printf z; kill -9 $$'", "z", 137},
		{"kill -9 $BASHPID & wait $!", "", 137}, {"printf 'a\\xffb'", "a\xffb", 0}, {"cat; read x; echo \"[$x]\"",
			"[]\n", 1},
	} {
		s := b.bash(c.command)
		first, err := b.Start(ctx(t), s)
		if err != nil || first.State != guest.StateRunning && first.State != guest.StateDone {
			t.Fatalf("Start(%s): %s, %v", c.command, show(first), err)
		}
		res := b.wait(s)
		if res.State != guest.StateDone || res.Cause != "exited" || res.ExitCode == nil {
			t.Errorf("%s: %s", c.command, show(res))
			continue
		}
		if strings.Contains(c.command, "read x") {
			want(t, c.command, string(res.Output), c.output)
			continue
		}
		want(t, c.command+": exit", *res.ExitCode, c.exit)
		if !strings.Contains(c.command, "&") { // bash reports killed jobs in words of its own
			want(t, c.command+": output", string(res.Output), c.output)
		}
		if res.DurationUs <= 0 || res.Truncated || res.FullPath != "" {
			t.Errorf("%s: %+v", c.command, res)
		}
	}
}

// If this fails, what a command says is hidden until its end.
func testFollow(t *testing.T, r *rig) {
	b := r.create(t)
	s := b.bash("mkfifo gate; echo one; printf '\\rtwo'; read x < gate; echo $x")
	if _, err := b.Start(ctx(t), s); err != nil {
		t.Fatal(err)
	}
	open := b.bash("echo three > gate")
	open.Shell = "other"
	var lines []string
	res, err := b.Follow(ctx(t), s.Key, s.Epoch, func(line string) {
		if lines = append(lines, line); line == "two" { // the command waits
			b.run(open)
		}
	})
	if err != nil || string(res.Output) != "one\n\rtwothree\n" || len(lines) == 0 {
		t.Errorf("%s, %v; lines %q", show(res), err, lines)
	}
}

// If this fails, a stale or confused runner can make something happen.
func testRefusals(t *testing.T, r *rig) {
	b := r.create(t)
	s := b.bash("echo one")
	s.Epoch = 5
	b.run(s)
	for name, c := range map[string]struct {
		change func(*guest.Start)
		code   string
	}{
		"another generation": {func(s *guest.Start) { s.Generation = "other" }, guest.WrongGeneration},
		"no generation":      {func(s *guest.Start) { s.Generation = "" }, guest.WrongGeneration},
		"a stale epoch":      {func(s *guest.Start) { s.Epoch = 4 }, guest.Fenced},
		"another digest":     {func(s *guest.Start) { s.Digest = "other" }, guest.Conflict},
		"no key":             {func(s *guest.Start) { s.Key = "" }, guest.Invalid},
		"a huge key":         {func(s *guest.Start) { s.Key = strings.Repeat("k", 4000) }, guest.Invalid},
		"stale and foreign":  {func(s *guest.Start) { s.Epoch, s.Generation = 1, "x" }, guest.WrongGeneration},
	} {
		bad := s
		c.change(&bad)
		_, err := b.Start(ctx(t), bad)
		want(t, name, refusal(err), c.code)
	}
	for name, f := range map[string]func() error{
		"Wait": func() error { _, err := b.Wait(ctx(t), s.Key, 4); return err },
		"Kill": func() error { _, err := b.Kill(ctx(t), s.Key, 4); return err },
		"Ack":  func() error { return b.Ack(ctx(t), s.Key, 4) },
		"Save": func() error { _, err := b.Save(ctx(t), guest.Save{Epoch: 4, Next: "n"}, discard{}); return err },
	} {
		want(t, name+" with a stale epoch", refusal(f()), guest.Fenced)
	}
	_, err := b.Wait(ctx(t), "never started", 5)
	want(t, "waiting for what never was", refusal(err), guest.NotFound)
	want(t, "acknowledging what never was", refusal(b.Ack(ctx(t), "never started", 5)), guest.NotFound)
	if _, err := b.Wait(ctx(t), s.Key, 6); err != nil {
		t.Errorf("a higher epoch: %v", err)
	}
	_, err = b.Start(ctx(t), b.bash("echo stale")) // epoch 1
	want(t, "the epoch that was current", refusal(err), guest.Fenced)
	if res, err := b.Start(ctx(t), s); refusal(err) != guest.Fenced {
		t.Errorf("a delayed duplicate of an older owner: %s, %v", show(res), err)
	}
	unknown := b.call("no-such-op", nil)
	unknown.Epoch = 6
	res := b.run(unknown)
	want(t, "an unknown operation", res.Cause, "error")
}

type discard struct{}

// Write drops p.
func (discard) Write(p []byte) (int, error) { return len(p), nil }

// If this fails, a command runs twice.
func testDuplicates(t *testing.T, r *rig) {
	b := r.create(t)
	s := b.bash("echo $OUTBOARD_CALL_KEY >> effects; sleep 0.2")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			d := s
			d.Epoch = int64(1 + i/4)
			res, err := b.Start(ctx(t), d)
			if err != nil && refusal(err) != guest.Fenced {
				t.Errorf("Start: %v", err)
			} else if err == nil && res.State != guest.StateRunning && res.State != guest.StateDone &&
				res.State != guest.StateAccepted {
				t.Errorf("Start: %s", show(res))
			}
		})
	}
	wg.Wait()
	s.Epoch = 3
	first := b.wait(s)
	again, err := b.Start(ctx(t), s)
	if err != nil || again.State != guest.StateDone || *again.ExitCode != *first.ExitCode ||
		again.DurationUs != first.DurationUs {
		t.Errorf("Start after the end: %s, %v", show(again), err)
	}
	check := b.bash("cat effects")
	check.Epoch = 3
	want(t, "effects", string(b.run(check).Output), s.Key+"\n")
}

// If this fails, a call that was cancelled before it arrived runs all the same.
func testTombstone(t *testing.T, r *rig) {
	b := r.create(t)
	s := b.bash("echo ran >> effects")
	res, err := b.Kill(ctx(t), s.Key, 1)
	if err != nil || res.State != guest.StateKilled {
		t.Fatalf("Kill of an unknown call: %s, %v", show(res), err)
	}
	for range 2 {
		if res, err = b.Start(ctx(t), s); err != nil || res.State != guest.StateKilled {
			t.Errorf("Start after Kill: %s, %v", show(res), err)
		}
	}
	want(t, "Wait after Kill", b.wait(s).State, guest.StateKilled)
	want(t, "effects", b.sh("cat effects 2>/dev/null || echo none"), "none\n")
}

// If this fails, output is lost before it was taken over, or its receipt with it.
func testAck(t *testing.T, r *rig) {
	b := r.create(t)
	s := b.bash("echo out; seq 10000; echo ran >> effects")
	s.OutputLimit = 200_000
	res := b.run(s)
	again := b.wait(s)
	if string(res.Output) != string(again.Output) || len(again.Output) < 40_000 {
		t.Errorf("output before Ack: %d and %d bytes", len(res.Output), len(again.Output))
	}
	for range 2 {
		if err := b.Ack(ctx(t), s.Key, 1); err != nil {
			t.Errorf("Ack: %v", err)
		}
	}
	res, err := b.Start(ctx(t), s)
	if err != nil || res.State != guest.StateDone || len(res.Output) != 0 || *res.ExitCode != 0 {
		t.Errorf("Start after Ack: %s, %d bytes, %v", show(res), len(res.Output), err)
	}
	want(t, "effects", b.sh("cat effects"), "ran\n")
	running := b.bash("sleep 1000")
	if _, err := b.Start(ctx(t), running); err != nil {
		t.Fatal(err)
	}
	want(t, "Ack of a running call", refusal(b.Ack(ctx(t), running.Key, 1)), guest.Conflict)
	if _, err := b.Kill(ctx(t), running.Key, 1); err != nil {
		t.Error(err)
	}
}

// If this fails, the death of a runner loses what its command does.
func testReattach(t *testing.T, r *rig) {
	b := r.create(t)
	s := b.bash("echo begin; until [ -e go ]; do sleep 0.02; done; echo end")
	if _, err := b.Start(ctx(t), s); err != nil {
		t.Fatal(err)
	}
	second, err := r.p.Open(ctx(t), b.spec.ID)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	defer second.Close()
	b.Sandbox.Close()
	c := &box{Sandbox: second, t: t, spec: b.spec, keys: 100}
	s.Epoch = 2
	res, err := c.Start(ctx(t), s)
	if err != nil || res.State != guest.StateRunning {
		t.Fatalf("Start by the next owner: %s, %v", show(res), err)
	}
	other := c.bash("touch go")
	other.Shell, other.Epoch = "other", 2
	c.run(other)
	res = c.wait(s)
	want(t, "output", string(res.Output), "begin\nend\n")
	want(t, "state", res.State, guest.StateDone)
}

// If this fails, calls wait for calls they have nothing to do with, or overtake those they depend on.
func testParallel(t *testing.T, r *rig) {
	b := r.create(t)
	waits := b.bash("until [ -e flag ]; do sleep 0.02; done; echo flagged")
	if _, err := b.Start(ctx(t), waits); err != nil {
		t.Fatal(err)
	}
	var line []guest.Start
	for i := range 10 {
		s := b.bash(fmt.Sprintf("echo %d >> order", i))
		line = append(line, s)
		if _, err := b.Start(ctx(t), s); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 {
		want(t, "a file tool beside a busy shell", b.tool("write", map[string]any{"file_path": "x", "content": "y"}),
			"wrote 1 bytes to x")
	}
	other := b.bash("touch flag")
	other.Shell = "other"
	b.run(other)
	want(t, "the call that waited", string(b.wait(waits).Output), "flagged\n")
	for _, s := range line {
		want(t, "a call in line", b.wait(s).Cause, "exited")
	}
	want(t, "order", b.sh("tr -d '\\n' < order"), "0123456789")
}

// If this fails, a caller that gives up is held, or takes its call down with it.
func testCanceled(t *testing.T, r *rig) {
	b := r.create(t)
	s := b.bash("until [ -e go ]; do sleep 0.02; done; echo done")
	if _, err := b.Start(ctx(t), s); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := b.Wait(short, s.Key, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Wait beyond the context: %v", err)
	}
	b.put("/workspace/go", "")
	want(t, "the call itself", string(b.wait(s).Output), "done\n")
}
