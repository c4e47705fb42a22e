package control_test

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/blob"
	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/store"
)

// importer is a control with a spool, and what counts the files below its directory.
func importer(t *testing.T) (c *control.Control, st *store.Store, files func(dir string) int) {
	t.Helper()
	dir := t.TempDir()
	spool, err := blob.NewSpool(filepath.Join(dir, "spool"))
	if err != nil {
		t.Fatal(err)
	}
	c, st, _ = partsWith(t, dir, control.Config{Spool: spool})
	return c, st, func(sub string) (n int) {
		t.Helper()
		err := filepath.WalkDir(filepath.Join(dir, sub), func(_ string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				n++
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
}

// If this fails, a file that is refused at its end has filled the disk with what came before it: its content
// stays without anybody who asks for it.
func TestRefusedImportLeavesNothing(t *testing.T) {
	from, fromStore, _ := parts(t)
	s := session(t, from)
	long(t, from, fromStore, s, 2)
	real := partsOf(t, from, s.ID)
	content := []byte("content")
	real = append(real, part{name: "blobs/" + digest(content), data: content})
	whole, err := io.ReadAll(fileOf(t, real))
	if err != nil {
		t.Fatal(err)
	}
	log := func(change func([]byte) []byte) []byte {
		for _, p := range real {
			if p.name == "events/00000001.jsonl" {
				return change(bytes.Clone(p.data))
			}
		}
		t.Fatal("there is no log")
		return nil
	}
	read := func(p []part) []byte {
		b, err := io.ReadAll(fileOf(t, p))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	c, st, files := importer(t)
	rows := func() int {
		list, err := st.Sessions(t.Context(), store.SessionFilter{})
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	take := func(b []byte, unsigned bool) error {
		_, err := c.Import(t.Context(), admin, bytes.NewReader(b), control.ImportRequest{Unsigned: unsigned})
		return err
	}
	for what, b := range map[string][]byte{
		"cut off": whole[:len(whole)-20],
		"content that was changed": read(append(real[:len(real)-1:len(real)-1],
			part{name: "blobs/" + digest(content), data: []byte("another")})),
		"half a log": read(replaced(real, "events/00000001.jsonl",
			log(func(b []byte) []byte { return b[:bytes.IndexByte(b, '\n')+1] }))),
		"a log with a gap": read(replaced(real, "events/00000001.jsonl", log(func(b []byte) []byte {
			return bytes.Replace(b, []byte(`"seq":2,`), []byte(`"seq":3,`), 1)
		}))),
		"more behind the end": append(bytes.Clone(whole), "more"...),
	} {
		if err := take(b, true); outboard.KindOf(err) != outboard.Invalid || err == nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := take(whole, false); outboard.KindOf(err) != outboard.Invalid || err == nil {
		t.Errorf("not signed: %v", err)
	}
	if n, m := files("blob"), rows(); n != 0 || m != 0 {
		t.Errorf("refused imports left %d blobs and %d sessions", n, m)
	}
	if n := files("spool"); n != 0 {
		t.Errorf("refused imports left %d spooled files", n)
	}
	if err := take(whole, true); err != nil {
		t.Fatalf("control: %v", err)
	}
	if n, m, left := files("blob"), rows(), files("spool"); n == 0 || m != 1 || left != 0 {
		t.Errorf("control: %d blobs, %d sessions, %d spooled files", n, m, left)
	}
}

// If this fails, any number of imports at once fill this server's memory and disk, or one that waits for others
// is never taken.
func TestImportsAtOnce(t *testing.T) {
	from, fromStore, _ := parts(t)
	s := session(t, from)
	long(t, from, fromStore, s, 2)
	whole, err := io.ReadAll(fileOf(t, partsOf(t, from, s.ID)))
	if err != nil {
		t.Fatal(err)
	}
	c, _, _ := importer(t)
	begin := func() (send *io.PipeWriter, done chan error) {
		r, w := io.Pipe()
		done = make(chan error, 1)
		go func() {
			_, err := c.Import(t.Context(), admin, r, control.ImportRequest{Unsigned: true})
			r.CloseWithError(err)
			done <- err
		}()
		return w, done
	}
	var sends []*io.PipeWriter
	var ends []chan error
	for range 2 {
		w, done := begin()
		if _, err := w.Write(whole[:10]); err != nil { // returns when it is read: the import is under way
			t.Fatal(err)
		}
		sends, ends = append(sends, w), append(ends, done)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 { // where there is room, each is taken with even odds
		if _, err := c.Import(gone, admin, bytes.NewReader(whole), control.ImportRequest{Unsigned: true}); err == nil ||
			!strings.Contains(err.Error(), "waiting for other imports") {
			t.Fatalf("a third at once: %v", err)
		}
	}
	third, thirdDone := begin()
	for i, w := range append(sends, third) {
		rest := whole
		if i < len(sends) {
			rest = whole[10:]
		}
		if _, err := w.Write(rest); err != nil {
			t.Fatal(err)
		}
		w.Close()
	}
	for i, done := range append(ends, thirdDone) {
		if err := <-done; err != nil {
			t.Errorf("import %d: %v", i+1, err)
		}
	}
}

// If this fails, a disk that cannot take the file is told as a mistake in the file.
func TestImportWithoutASpool(t *testing.T) {
	from, fromStore, _ := parts(t)
	s := session(t, from)
	long(t, from, fromStore, s, 2)
	dir := filepath.Join(t.TempDir(), "spool")
	spool, err := blob.NewSpool(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	c := control.New(control.Config{Store: fromStore, Spool: spool})
	if _, err := c.Import(t.Context(), admin, fileOf(t, partsOf(t, from, s.ID)),
		control.ImportRequest{Unsigned: true}); outboard.KindOf(err) != outboard.Unavailable {
		t.Errorf("imported without a place for the file: %v", err)
	}
}
