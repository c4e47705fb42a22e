package fleet

import "testing"

// If this fails, a program that is to run in its user's home, or below, begins elsewhere where the image or
// template has a working directory.
func TestWhereProgramsBegin(t *testing.T) {
	for _, c := range []struct{ dir, cwd, want string }{
		{"", "", ""}, {"", "sub", "sub"}, {"", "~", "~"}, {"", "/abs", "/abs"},
		{"/app", "", "/app"}, {"/app", "sub", "/app/sub"}, {"/app", "~", "~"}, {"/app", "~/sub", "~/sub"}, {"/app",
			"~sub", "/app/~sub"}, {"/app", "/abs", "/abs"},
	} {
		if got := (defaults{dir: c.dir}).process(ProcessStart{Cwd: c.cwd}).Cwd; got != c.want {
			t.Errorf("working in %q, %q begins in %q; want %q", c.dir, c.cwd, got, c.want)
		}
	}
}
