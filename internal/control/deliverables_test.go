package control_test

import (
	"io"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/store"
)

// If this fails, what a session gave out is lost when the session moves to a second server and from there to a third.
func TestDeliverablesMoveTwice(t *testing.T) {
	a, st, _ := parts(t)
	s := session(t, a)
	ref, err := a.StoreBytes(t.Context(), admin, strings.NewReader("the report"))
	if err != nil {
		t.Fatal(err)
	}
	f := outboard.File{ID: outboard.NewID[outboard.FileID](outboard.PrefixFile), Filename: "report",
		MediaType: "text/plain", Blob: ref,
		Downloadable: true, Session: s.ID, Path: "out/report"}
	gone := outboard.NewID[outboard.FileID](outboard.PrefixFile) // was deleted since
	if _, err := st.Commit(t.Context(), store.Commit{Session: s.ID, Expect: store.Any, Files: []outboard.File{f},
		Events: []outboard.Event{
			outboard.NewEvent(s.Thread, &outboard.FileHarvested{File: f.ID, Path: f.Path}),
			outboard.NewEvent(s.Thread, &outboard.FileHarvested{File: gone, Path: "out/gone"}),
		}}); err != nil {
		t.Fatal(err)
	}
	from := a
	for _, server := range []string{"the second", "the third", "the fourth"} {
		to, _, _ := parts(t)
		s = imports(t, to, admin, partsOf(t, from, s.ID))
		files, _, err := to.Files(t.Context(), admin, s.ID, nil, control.Page{Limit: 10}, s.CreatedAt)
		if err != nil || len(files) != 1 || files[0].Path != f.Path {
			t.Fatalf("%s server has %+v, %v", server, files, err)
		}
		if got := content(t, to, files[0].ID); got != "the report" {
			t.Errorf("on %s server the report is %q", server, got)
		}
		if named := harvested(t, to, s.ID); len(named) != 2 || named[0] != files[0].ID || named[1] != gone {
			t.Errorf("on %s server the log names %v, and the file is %s", server, named, files[0].ID)
		}
		from = to
	}
}

// content is what a file that was given out has in it.
func content(t *testing.T, c *control.Control, id outboard.FileID) string {
	t.Helper()
	_, r, err := c.OpenFile(t.Context(), admin, id)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// harvested are the files that a session's log says it gave out.
func harvested(t *testing.T, c *control.Control, id outboard.SessionID) (out []outboard.FileID) {
	t.Helper()
	evs, err := c.Events(t.Context(), admin, id,
		control.EventQuery{Types: []outboard.EventType{outboard.TypeFileHarvested}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range evs {
		p, err := evs[i].Decode()
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, p.(*outboard.FileHarvested).File)
	}
	return out
}
