package blob

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"testing/iotest"
	"time"

	"github.com/outboard-dev/outboard"
)

func randomBytes(n int) []byte {
	b := make([]byte, n)
	rand.Read(b)
	return b
}

// Broken if a large file that changed by a few bytes, or grew by one, is stored whole again.
func TestPiecesShareWhatIsTheSame(t *testing.T) {
	const size = 40 << 20
	content := randomBytes(size)
	for name, change := range map[string]func([]byte) []byte{
		"two bytes": func(b []byte) []byte { b[size/2] ^= 1; b[size/2+1] ^= 1; return b },
		"appended":  func(b []byte) []byte { return append(b, 'x') },
		"inserted":  func(b []byte) []byte { return append([]byte("a header"), b...) },
		"cut off":   func(b []byte) []byte { return b[1<<20:] },
	} {
		d := newDir(t)
		put(t, d, content)
		first := onDisk(t, d)
		changed := change(bytes.Clone(content))
		ref := put(t, d, changed)
		if grown := onDisk(t, d) - first; grown == 0 || grown > 2*maxPiece+64<<10 {
			t.Errorf("%s: %d bytes of %d are stored again", name, grown, size)
		}
		if got, err := Bytes(t.Context(), d, ref, ref.Size); err != nil || !bytes.Equal(got, changed) {
			t.Errorf("%s: read %d bytes, %v", name, len(got), err)
		}
	}
}

// Broken if content that has the same piece many times, or none that ends by itself, does not come back.
func TestPiecesOfOneByte(t *testing.T) {
	for c := range 256 {
		if n := cut(bytes.Repeat([]byte{byte(c)}, maxPiece+1)); n != maxPiece && n != minPiece {
			t.Errorf("%d bytes of %d are a piece", n, c)
		}
	}
	d := newDir(t)
	for _, size := range []int{maxPiece, maxPiece + 1, 10*maxPiece + minPiece} {
		content := bytes.Repeat([]byte("x"), size)
		ref := put(t, d, content)
		if got, err := Bytes(t.Context(), d, ref, ref.Size); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%d bytes: read %d, %v", size, len(got), err)
		}
	}
	if n := temps(t, d); n != 0 {
		t.Errorf("%d temporary files left", n)
	}
}

// pieceFiles returns the files of a store by whether they are lists.
func pieceFiles(t *testing.T, d *Dir) (lists, others []string) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(d.path, "[0-9a-f][0-9a-f]", "[0-9a-f][0-9a-f]", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		if filepath.Ext(path) == piecesSuffix {
			lists = append(lists, path)
		} else {
			others = append(others, path)
		}
	}
	return lists, others
}

// Broken if a piece or a list that is damaged or missing goes unseen, or is said to be a blob that was never there.
func TestPiecesDamaged(t *testing.T) {
	content := randomBytes(8 << 20)
	for name, damage := range map[string]func(lists, others []string) error{
		"piece missing":   func(_, others []string) error { return os.Remove(others[1]) },
		"piece cut":       func(_, others []string) error { return os.Truncate(others[1], 100) },
		"piece exchanged": func(_, others []string) error { return os.Rename(others[0], others[1]) },
		"list cut":        func(lists, _ []string) error { return os.Truncate(lists[0], 100) },
		"list empty": func(lists, _ []string) error {
			return os.WriteFile(lists[0], []byte(piecesMagic+"\n"),
				0o600)
		},
		"list of lists": func(lists, _ []string) error { return os.WriteFile(lists[0], []byte("{}"), 0o600) },
	} {
		d := newDir(t)
		ref := put(t, d, content)
		lists, others := pieceFiles(t, d)
		if len(lists) != 1 || len(others) < 4 {
			t.Fatalf("%d lists and %d pieces", len(lists), len(others))
		}
		if err := damage(lists, others); err != nil {
			t.Fatal(err)
		}
		if _, err := Bytes(t.Context(), d, ref, ref.Size); !errors.Is(err, ErrDamaged) ||
			outboard.KindOf(err) != outboard.Internal {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Broken if a source or a disk that fails in the middle of a long blob leaves pieces that nobody asks for, or who
// closes early waits.
func TestPiecesCutShort(t *testing.T) {
	d := newDir(t)
	cause := errors.New("cable cut")
	src := io.MultiReader(bytes.NewReader(randomBytes(10<<20)), iotest.ErrReader(cause))
	if _, err := d.Put(t.Context(), src, 0); !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
	if n := onDisk(t, d); n != 0 {
		t.Errorf("%d bytes are left", n)
	}
	ref := put(t, d, randomBytes(20<<20))
	r, err := d.Open(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, r, 100); err != nil {
		t.Error(err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	left, err := createHeldDir(d.temp())
	if err == nil {
		err = os.WriteFile(filepath.Join(left.Name(), "piece"), []byte("x"), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewDir(d.path); err != nil || temps(t, d) != 1 {
		t.Errorf("what another process writes is swept: %v", err)
	}
	left.Close() // as when it is killed
	if _, err := NewDir(d.path); err != nil || temps(t, d) != 0 {
		t.Errorf("what a killed process staged is left: %v", err)
	}
}

// Broken if pieces of a blob that is needed are removed with one that shares them, or those that nobody needs stay.
func TestPruneOfPieces(t *testing.T) {
	d := newDir(t)
	content := randomBytes(20 << 20)
	needed := put(t, d, content)
	changed := bytes.Clone(content)
	changed[10<<20] ^= 1
	gone := put(t, d, changed)
	lists, others := pieceFiles(t, d)
	old := time.Now().Add(-48 * time.Hour)
	for _, path := range append(lists, others...) {
		if err := os.Chtimes(path, old, old); err != nil {
			t.Fatal(err)
		}
	}
	day := time.Now().Add(-24 * time.Hour)
	p, err := d.Prune(t.Context(), day, func(digest string) bool { return digest == needed.Digest }, false)
	if err != nil || p.Removed < 2 || p.Removed > 4 {
		t.Errorf("%+v, %v", p, err)
	}
	if !stored(t, d, needed) || stored(t, d, gone) {
		t.Error("the wrong one is left")
	}
	if put(t, d, changed); !stored(t, d, gone) { // its pieces are young now, though the other's list is not
		t.Error("what was removed cannot be stored again")
	}
	if _, err := d.Prune(t.Context(), day, func(string) bool { return false }, false); err != nil ||
		!stored(t, d, gone) {
		t.Errorf("a young blob lost a piece: %v", err)
	}
}
