//go:build linux

package fleet

import (
	"fmt"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// Broken if work that was sent along is not in the first machine, comes back over a checkpoint, or can be the
// file of another session or organization, of which it even says that there is one.
func TestSeed(t *testing.T) {
	r := newRig(t)
	f := r.fleet()
	from := r.session(t)
	b := r.acquire(t, f, from)
	r.bash(t, b, "echo sent > a")
	saved := r.checkpoint(t, f, b, from) // a tar in the form that is sent
	file := outboard.File{ID: outboard.NewID[outboard.FileID](outboard.PrefixFile), Filename: "work.tar",
		Blob: saved.Delta}
	foreign := file
	foreign.ID, foreign.Session = outboard.NewID[outboard.FileID](outboard.PrefixFile), from
	others := file
	others.ID, others.Org = outboard.NewID[outboard.FileID](outboard.PrefixFile), "org_01other"
	for _, file := range []outboard.File{file, foreign, others} {
		if err := r.store.PutFile(t.Context(), file); err != nil {
			t.Fatal(err)
		}
	}
	with := func(ref string) outboard.SessionID {
		id := r.session(t)
		r.append(t, store.Commit{Session: id}, &outboard.SessionUpdated{Metadata: map[string]string{WorkspaceKey: ref}})
		return id
	}
	id := with(string(file.ID) + ":tar")
	b = r.acquire(t, f, id)
	if out := r.bash(t, b, "cat a; echo changed > a"); out != "sent\n" {
		t.Errorf("first machine: %q", out)
	}
	if c := r.checkpoint(t, f, b, id); c == nil || c.Parent != "" {
		t.Errorf("the first checkpoint does not hold the work: %+v", c)
	}
	release(t, f, b)
	if err := r.provider.Destroy(t.Context(), b.ID()); err != nil {
		t.Fatal(err)
	}
	if out := r.bash(t, r.acquire(t, f, id), "cat a"); out != "changed\n" {
		t.Errorf("restored: %q", out)
	}
	for ref, kind := range map[string]outboard.Kind{
		string(file.ID):             outboard.Invalid,
		string(file.ID) + ":zip":    outboard.Invalid,
		"file_01nothing:tar":        outboard.NotFound,
		string(foreign.ID) + ":tar": outboard.NotFound,
		string(others.ID) + ":tar":  outboard.NotFound,
	} {
		id := with(ref)
		_, err := f.Acquire(t.Context(), r.request(t, id))
		if outboard.KindOf(err) != kind {
			t.Errorf("%s: %v", ref, err)
		}
		file, _, _ := strings.Cut(ref, ":")
		if kind == outboard.NotFound && !strings.HasSuffix(fmt.Sprint(err),
			"finding the work that was sent: there is no file \""+file+"\"") {
			t.Errorf("%s: it says %v", ref, err)
		}
		if rows := r.rows(t, id); len(rows) != 0 {
			t.Errorf("%s: left %+v", ref, rows)
		}
	}
}
