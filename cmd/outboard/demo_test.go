package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The demo is what a stranger sees first: it must hold every claim it makes, within the time it promises, and
// leave nothing.
func TestDemo(t *testing.T) {
	tmp := t.TempDir()
	if err := os.Chmod(tmp, 0o755); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), os.Args[0], "demo", "--json")
	cmd.Env = append(os.Environ(), mainEnv+"=1", "OUTBOARD_GUEST="+guestPath, "TMPDIR="+tmp, "OUTBOARD_URL=",
		"OUTBOARD_DATA=")
	cmd.Stdout, cmd.Stderr = &out, &errs
	begun := time.Now()
	if err := cmd.Run(); err != nil {
		logs, _ := filepath.Glob(filepath.Join(tmp, "*", "server.log"))
		for _, l := range logs {
			b, _ := os.ReadFile(l)
			t.Logf("%s:\n%s", l, b)
		}
		t.Fatalf("demo: %v\n%s\n%s", err, errs.String(), out.String())
	}
	took := time.Since(begun)
	var last demoLine
	for s := bufio.NewScanner(&out); s.Scan(); {
		if err := json.Unmarshal(s.Bytes(), &last); err != nil {
			t.Fatalf("not JSON: %s", s.Text())
		}
	}
	if last.Type != "demo_result" || !last.OK || len(last.Claims) < 6 {
		t.Fatalf("the last line is %+v", last)
	}
	for _, c := range last.Claims {
		if !c.OK {
			t.Errorf("claim does not hold: %s (%s)", c.Claim, c.Found)
		}
	}
	if last.Isolation == "" || len(last.Gaps) == 0 || !strings.Contains(last.Patch, "tr -cs") {
		t.Errorf("isolation %q, gaps %q, patch %q", last.Isolation, last.Gaps, last.Patch)
	}
	if took > demoTime {
		t.Errorf("the demo took %v", took)
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("the demo left %v behind (%v)", left, err)
	}
}

// Who leaves early, by closing the demo's output (outboard demo | head) or with Ctrl-C, must not leave a server
// and a sandbox behind.
func TestDemoLeftEarly(t *testing.T) {
	for name, tt := range map[string]struct {
		leave func(demo *os.Process, out io.Closer) error
		exit  int
	}{
		"reader":    {func(_ *os.Process, out io.Closer) error { return out.Close() }, exitOK},
		"interrupt": {func(demo *os.Process, _ io.Closer) error { return demo.Signal(os.Interrupt) }, exitFailed},
	} {
		t.Run(name, func(t *testing.T) {
			tmp := t.TempDir()
			if err := os.Chmod(tmp, 0o755); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), os.Args[0], "demo")
			cmd.Env = append(os.Environ(), mainEnv+"=1", "OUTBOARD_GUEST="+guestPath, "TMPDIR="+tmp, "OUTBOARD_URL=",
				"OUTBOARD_DATA=")
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			line, rerr := bufio.NewReader(out).ReadString('\n')
			if lerr := tt.leave(cmd.Process, out); rerr != nil || lerr != nil ||
				!strings.Contains(line, "script/demo") {
				t.Errorf("the first line is %q (%v, %v)", line, rerr, lerr)
			}
			if err := cmd.Wait(); cmd.ProcessState.ExitCode() != tt.exit {
				t.Errorf("demo: %v, want exit %d", err, tt.exit)
			}
			if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
				t.Errorf("the demo left %v behind (%v)", left, err)
			}
		})
	}
}

// A proof that cannot fail proves nothing: with each thing it must notice, it has to say no.
func TestDemoProofCanFail(t *testing.T) {
	exit := 0
	at := time.Unix(1000, 0)
	good := func() (*demo, *record) {
		d := &demo{slow: "c2", lost: "sbx_1", killed: at.Add(2 * time.Second)}
		r := &record{ordered: true, events: 9, started: map[string][]recorded{}, finished: map[string][]recorded{},
			lost: []recorded{{Sandbox: "sbx_1"}}, ready: []recorded{{Sandbox: "sbx_1"},
				{Sandbox: "sbx_2", From: "ckpt_1"}}}
		for i, c := range []string{"c1", "c2", "c3"} {
			r.started[c] = []recorded{{Call: c, Epoch: int64(1 + i/2), at: at.Add(time.Duration(i) * time.Second)}}
			r.finished[c] = []recorded{{Call: c, Outcome: "ok", Exit: &exit,
				at: at.Add(time.Duration(3+i) * time.Second)}}
		}
		return d, r
	}
	failed := func(d *demo, r *record, runs string) int {
		n := 0
		for _, c := range d.prove(r, []byte(runs)) {
			if !c.OK {
				n++
			}
		}
		return n
	}
	if d, r := good(); failed(d, r, "x\n") != 0 {
		t.Fatalf("a good record fails: %+v", d.prove(r, []byte("x\n")))
	}
	for name, spoil := range map[string]func(*demo, *record) string{
		"ran twice": func(*demo, *record) string { return "x\nx\n" },
		"never ran": func(*demo, *record) string { return "" },
		"started twice": func(_ *demo, r *record) string {
			r.started["c2"] = append(r.started["c2"], r.started["c2"][0])
			return "x\n"
		},
		"two outcomes": func(_ *demo, r *record) string {
			r.finished["c1"] = append(r.finished["c1"], r.finished["c1"][0])
			return "x\n"
		},
		"no outcome":            func(_ *demo, r *record) string { delete(r.finished, "c3"); return "x\n" },
		"outcome without start": func(_ *demo, r *record) string { r.finished["c9"] = r.finished["c1"]; return "x\n" },
		"out of order":          func(_ *demo, r *record) string { r.ordered = false; return "x\n" },
		"finished before kill":  func(d *demo, _ *record) string { d.killed = at.Add(time.Hour); return "x\n" },
		"started after kill":    func(d *demo, _ *record) string { d.killed = at; return "x\n" },
		"same lease":            func(_ *demo, r *record) string { r.started["c3"][0].Epoch = 1; return "x\n" },
		"outcome unknown": func(_ *demo,
			r *record) string {
			r.finished["c2"][0].Outcome = "unknown"
			return "x\n"
		},
		"same sandbox":           func(_ *demo, r *record) string { r.ready[1].Sandbox = "sbx_1"; return "x\n" },
		"no checkpoint":          func(_ *demo, r *record) string { r.ready[1].From = ""; return "x\n" },
		"sandbox was never lost": func(_ *demo, r *record) string { r.lost = nil; return "x\n" },
	} {
		d, r := good()
		if runs := spoil(d, r); failed(d, r, runs) == 0 {
			t.Errorf("%s: the proof still holds", name)
		}
	}
}
