package blob

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
)

// age makes a blob look as if it had been stored two days ago.
func age(t *testing.T, d *Dir, ref outboard.BlobRef) {
	t.Helper()
	old := time.Now().Add(-48 * time.Hour)
	err := os.Chtimes(d.file(ref.Digest), old, old)
	if errors.Is(err, fs.ErrNotExist) {
		err = os.Chtimes(d.file(ref.Digest)+compressedSuffix, old, old)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func stored(t *testing.T, d *Dir, ref outboard.BlobRef) bool {
	t.Helper()
	_, err := Bytes(t.Context(), d, ref, ref.Size)
	if err != nil && outboard.KindOf(err) != outboard.NotFound {
		t.Fatal(err)
	}
	return err == nil
}

// Broken if content that is needed, or was stored a while ago by somebody who is about to say so, is removed, or
// what nobody needs stays.
func TestPrune(t *testing.T) {
	d := newDir(t)
	day := time.Now().Add(-24 * time.Hour)
	needed, young, again := put(t, d, []byte("needed")), put(t, d, []byte("young")), put(t, d, []byte("again"))
	plain, packed := put(t, d, []byte("nobody's")), put(t, d,
		[]byte(strings.Repeat("nobody's, and long enough to be compressed. ", 1000)))
	for _, ref := range []outboard.BlobRef{needed, again, plain, packed} {
		age(t, d, ref)
	}
	put(t, d, []byte("again"))
	in := func(digest string) bool { return digest == needed.Digest }
	dry, err := d.Prune(t.Context(), day, in, true)
	if err != nil || dry.Removed != 2 || dry.Kept != 3 || dry.Bytes == 0 || !stored(t, d, plain) ||
		!stored(t, d, packed) {
		t.Errorf("dry: %+v, %v", dry, err)
	}
	if p, err := d.Prune(t.Context(), day, in, false); err != nil || p != dry {
		t.Errorf("%+v, %v; want %+v", p, err, dry)
	}
	for ref, want := range map[outboard.BlobRef]bool{needed: true, young: true, again: true, plain: false,
		packed: false} {
		if stored(t, d, ref) != want {
			t.Errorf("%v is stored: %v", ref, !want)
		}
	}
	if ref := put(t, d, []byte("nobody's")); !stored(t, d, ref) {
		t.Error("what was removed cannot be stored again")
	}
}

// Broken if Put says that old content is stored which is removed at the same moment.
func TestPruneDuringPut(t *testing.T) {
	d := newDir(t)
	content := []byte("stored again and again")
	ref := put(t, d, content)
	removed := 0
	for range 300 {
		age(t, d, ref)
		var p Pruned
		var perr, err error
		var wg sync.WaitGroup
		wg.Go(func() {
			p, perr = d.Prune(t.Context(), time.Now().Add(-24*time.Hour), func(string) bool { return false }, false)
		})
		wg.Go(func() { _, err = d.Put(t.Context(), bytes.NewReader(content), 0) })
		wg.Wait()
		if perr != nil || err != nil {
			t.Fatal(perr, err)
		}
		removed += p.Removed
		if !stored(t, d, ref) {
			t.Fatal("what was put is gone")
		}
	}
	age(t, d, ref)
	if p, err := d.Prune(t.Context(), time.Now().Add(-24*time.Hour), func(string) bool { return false },
		false); err != nil || p.Removed != 1 || stored(t, d, ref) {
		t.Errorf("the control, without a Put: %+v, %v", p, err)
	}
	t.Logf("%d of 300 were removed before they were put", removed)
}
