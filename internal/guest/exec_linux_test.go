package guest

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// If this fails, a program that is not a shell sees another value of a variable than the one it was given last,
// or loses one.
func TestLastOfEach(t *testing.T) {
	for _, c := range []struct{ in, want []string }{
		{nil, []string{}},
		{[]string{"A=1", "B=2"}, []string{"A=1", "B=2"}}, // control: nothing twice
		{[]string{"A=1", "B=2", "A=3"}, []string{"B=2", "A=3"}},
		{[]string{"A=1", "A=2", "A="}, []string{"A="}},
		{[]string{"A=1", "AB=2", "a=3"}, []string{"A=1", "AB=2", "a=3"}},
		{[]string{"A=x=y", "A=z=w"}, []string{"A=z=w"}},
		{[]string{"A", "A=1"}, []string{"A=1"}},
	} {
		if got := lastOfEach(c.in); !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, want %q", c.in, got, c.want)
		}
	}
}

// If this fails, a program that the guest of a gVisor sandbox starts is told of wrongly: its output, its end, or
// that it never ran.
func TestGvisorExec(t *testing.T) {
	dir, err := os.MkdirTemp("", "og")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	cfg := configAt(t, dir)
	cfg.Watches = 100
	c := serveAt(t, dir, cfg)
	for i, x := range []struct {
		argv    []string
		timeout int64 // ms
		cause   string
		exit    int
		output  string // its end
		total   int
	}{
		{[]string{"true"}, 0, causeExited, 0, "", 0},
		{[]string{"sh", "-c", "echo said; exit 3"}, 0, causeExited, 3, "said\n", 5},
		{[]string{"sh", "-c", "exec >&- 2>&-; sleep 0.1; exit 4"}, 0, causeExited, 4, "", 0},
		{[]string{"sh", "-c", "echo one; sleep 0.1; echo two"}, 0, causeExited, 0, "one\ntwo\n", 8},
		{[]string{"sh", "-c", "head -c 600000 /dev/zero | tr '\\0' x; echo end"}, 0, causeExited, 0, "xend\n", 600004},
		{[]string{"sh", "-c", "sleep 1000 & echo $$; kill -9 $$"}, 0, causeExited, 137, "\n", 0},
		{[]string{"sleep", "1000"}, 150, causeTimeout, 0, "[timed out after 150ms]\n", 0},
		{[]string{"/nowhere"}, 0, causeError, 0, "exec: fork/exec /nowhere: no such file or directory", 0},
		{[]string{"nowhere"}, 0, causeError, 0, "exec: nowhere: not found in PATH", 0},
	} {
		in, err := json.Marshal(map[string]any{"argv": x.argv})
		if err != nil {
			t.Fatal(err)
		}
		r := runCall(t, c, Start{Key: fmt.Sprint(i), Epoch: 1, Generation: testGen, Digest: "d", Op: "exec", Input: in,
			TimeoutMs: x.timeout, OutputLimit: 1 << 19})
		if r.Cause != x.cause || !strings.HasSuffix(string(r.Output), x.output) || x.cause == causeExited &&
			(r.ExitCode == nil || *r.ExitCode != x.exit) {
			t.Errorf("%q: %s %v %.100q", x.argv, r.Cause, r.ExitCode, r.Output)
		}
		if x.total > 0 && !r.Truncated && len(r.Output) != x.total {
			t.Errorf("%q: %d bytes of output", x.argv, len(r.Output))
		}
		if r.Truncated {
			if info, err := os.Stat(r.FullPath); err != nil || info.Size() != int64(x.total) {
				t.Errorf("%q: the whole output: %v, %v", x.argv, info, err)
			}
		}
	}
}
