package control_test

import (
	"archive/tar"
	"bytes"
	"io"
	"maps"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/blob"
	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/store"
)

// parts is control over a real store and blob directory.
func parts(t testing.TB) (*control.Control, *store.Store, *blob.Dir) {
	t.Helper()
	return partsWith(t, t.TempDir(), control.Config{})
}

// partsWith is parts below dir, with what else cfg says.
func partsWith(t testing.TB, dir string, cfg control.Config) (*control.Control, *store.Store, *blob.Dir) {
	t.Helper()
	st, err := store.Open(t.Context(), store.Config{Path: filepath.Join(dir, "outboard.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	bl, err := blob.NewDir(filepath.Join(dir, "blob"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Store, cfg.Blob = st, bl
	return control.New(cfg), st, bl
}

var admin = outboard.Caller{Key: "apikey_01test", Name: "test", Role: "admin"}

// layer makes one checkpoint's tar: deleted paths, then entries "dir/", "name=content", "name>linkname" or
// "name@symlink".
func layer(t testing.TB, deleted []string, entries ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	put := func(h *tar.Header, body string) {
		h.Size, h.Mode, h.ModTime = int64(len(body)), 0o644, time.Unix(1, 0)
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, body)
	}
	if deleted != nil {
		put(&tar.Header{Typeflag: tar.TypeReg, Name: ".outboard/deleted"}, strings.Join(deleted, "\x00")+"\x00")
	}
	for _, e := range entries {
		if strings.HasSuffix(e, "/") {
			put(&tar.Header{Typeflag: tar.TypeDir, Name: e}, "")
		} else if name, body, ok := strings.Cut(e, "="); ok {
			put(&tar.Header{Typeflag: tar.TypeReg, Name: name}, body)
		} else if name, to, ok := strings.Cut(e, ">"); ok {
			put(&tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to}, "")
		} else if name, to, ok := strings.Cut(e, "@"); ok {
			put(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}, "")
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// unpack reads a tar as tar would unpack it: name -> content, hard links followed.
func unpack(t *testing.T, b []byte) map[string]string {
	t.Helper()
	out := map[string]string{}
	for tr := tar.NewReader(bytes.NewReader(b)); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		switch h.Typeflag {
		case tar.TypeLink:
			to, ok := out[h.Linkname]
			if !ok {
				t.Errorf("link %s to %s, which is not there yet", h.Name, h.Linkname)
			}
			out[h.Name] = to
		case tar.TypeSymlink:
			out[h.Name] = "@" + h.Linkname
		default:
			out[h.Name] = string(body)
		}
	}
}

// save stores the checkpoints of a session.
func save(t testing.TB, st *store.Store, bl *blob.Dir, h outboard.Header, layers ...[]byte) {
	t.Helper()
	parent := outboard.CheckpointID("")
	for i, l := range layers {
		ref, err := bl.Put(t.Context(), bytes.NewReader(l), 0)
		if err != nil {
			t.Fatal(err)
		}
		k := outboard.Checkpoint{ID: outboard.NewID[outboard.CheckpointID](outboard.PrefixCheckpoint), Session: h.ID,
			Parent: parent, Depth: i, Delta: ref}
		ev := outboard.NewEvent(h.Thread, &outboard.CheckpointCreated{Checkpoint: k.ID})
		if _, err := st.Commit(t.Context(), store.Commit{Session: h.ID, Expect: store.Any, Events: []outboard.Event{ev},
			Checkpoint: &k}); err != nil {
			t.Fatal(err)
		}
		parent = k.ID
	}
}

// Fails if a workspace made of several checkpoints is not what the last of them left: a deleted file comes back,
// a replaced one keeps old bytes, or a hard link changes with a file it no longer belongs to.
func TestWorkspaceMerges(t *testing.T) {
	ctl, st, bl := parts(t)
	layers := [][]byte{
		layer(t, nil, "workspace/", "workspace/a=1", "workspace/b>workspace/a", "workspace/b2>workspace/a",
			"workspace/c=c", "workspace/d/", "workspace/d/x=x", "workspace/e/", "workspace/e/y=y", "workspace/s=file", "workspace/l@a", "workspace/l2>workspace/l"),
		layer(t, []string{"workspace/c", "workspace/d"}, "workspace/a=2", "workspace/e=now a file", "workspace/s@a"),
		layer(t, []string{}, "workspace/d/", "workspace/d/z=z"),
	}
	want := map[string]string{"workspace/": "", "workspace/a": "2", "workspace/b": "1", "workspace/b2": "1",
		"workspace/e": "now a file",
		"workspace/s": "@a", "workspace/l": "@a", "workspace/l2": "@a", "workspace/d/": "", "workspace/d/z": "z"}
	h, err := st.CreateSession(t.Context(), outboard.Header{ID: "sesn_01w", Thread: "sthr_01w",
		Phase: outboard.PhaseIdle},
		outboard.SessionConfig{}, outboard.NewEvent("sthr_01w", &outboard.SessionCreated{}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ctl.Workspace(t.Context(), admin, h.ID); outboard.KindOf(err) != outboard.NotFound {
		t.Fatalf("without a checkpoint: %v", err)
	}
	save(t, st, bl, h, layers...)
	w, err := ctl.Workspace(t.Context(), admin, h.ID)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := w.Write(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	if got := unpack(t, out.Bytes()); !maps.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// If this failed, a few slow readers of a workspace of many long names would take the server's memory.
func TestWorkspacesHoldLittle(t *testing.T) {
	c, st, bl := parts(t)
	const files, readers, most = 25_000, 3, 64 << 20
	deep := strings.Repeat(strings.Repeat("d", 250)+"/", 15)
	entries := make([]string, files)
	for i := range entries {
		entries[i] = deep + strconv.Itoa(i) + "="
	}
	h, err := st.CreateSession(t.Context(), outboard.Header{ID: "sesn_01held", Thread: "sthr_01held",
		Phase: outboard.PhaseIdle},
		outboard.SessionConfig{}, outboard.NewEvent("sthr_01held", &outboard.SessionCreated{}))
	if err != nil {
		t.Fatal(err)
	}
	save(t, st, bl, h, layer(t, nil, entries...))
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	entries = nil
	before := heap()
	var open []*control.Workspace
	for range readers {
		w, err := c.Workspace(t.Context(), admin, h.ID)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, w)
	}
	if n := heap() - before; n > most {
		t.Errorf("%d readers hold %d bytes, more than %d", readers, n, most)
	}
	n := 0
	r, w := io.Pipe()
	go func() { w.CloseWithError(open[0].Write(t.Context(), w)) }()
	for tr := tar.NewReader(r); ; n++ {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil || !strings.HasPrefix(h.Name, deep) {
			t.Fatalf("entry %d: %v, %v", n, h, err)
		}
	}
	if n != files {
		t.Errorf("%d of %d files came", n, files)
	}
	for _, w := range open {
		w.Close()
	}
}
