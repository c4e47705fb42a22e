package guest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// If this fails, a sandbox that waited for its first command shows that one was rehearsed in it: by a receipt,
// output, a process or an open file. Or the rehearsal is not of a call that gets as far as a process.
func TestRehearsedCallLeavesNothing(t *testing.T) {
	state, run := t.TempDir(), t.TempDir()
	s := &server{cfg: ServerConfig{State: state, Run: run, Workspace: "/", ToolUID: os.Getuid(), ToolGID: os.Getgid()},
		children: newChildren(), sameID: true}
	var err error
	if s.table, err = openTable(t.Context(), state, true, run, "g", s.prepare); err != nil {
		t.Fatal(err)
	}
	defer s.table.journal.close()
	open := func() int {
		names, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	if _, err := s.rehearseCall(); err != nil { // the poller comes to be, and stays
		t.Fatal(err)
	}
	before := open()
	if out, err := s.rehearseCall(); err != nil || !strings.Contains(string(out), "fork/exec /: permission denied") {
		t.Fatalf("the call got as far as %q, %v", out, err)
	}
	if after := open(); after != before {
		t.Errorf("%d files are open, before it were %d", after, before)
	}
	if len(s.table.calls) != 0 || s.table.max != 0 || !s.table.journal.untouched() {
		t.Errorf("%d receipts, epoch %d", len(s.table.calls), s.table.max)
	}
	if left, _ := filepath.Glob(run + "/*"); len(left) != 0 {
		t.Errorf("output is left: %q", left)
	}
	if len(s.children.own) != 0 {
		t.Errorf("children are left: %v", s.children.own)
	}
	if _, err := s.table.start(t.Context(), Start{Key: "k", Epoch: 1, Generation: "g", Digest: "d", Op: "exec",
		Input: []byte(`{"argv":["/"]}`)}); err != nil {
		t.Fatal(err)
	}
	if s.table.wg.Wait(); s.table.journal.untouched() || len(s.table.calls) != 1 {
		t.Error("a call that is none of a rehearsal left nothing either: this test shows nothing")
	}
}
