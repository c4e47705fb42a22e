//go:build linux

package guest

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// holed is a file of a size with some bytes at each offset.
func holed(t *testing.T, size int64, at ...int64) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	for _, off := range at {
		if _, err := f.WriteAt([]byte("data"), off); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return f
}

// sum hashes what r has.
func sumOf(t *testing.T, r io.Reader) string {
	t.Helper()
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		t.Fatal(err)
	}
	return string(h.Sum(nil))
}

// TestSparse: a workspace with a file that is mostly holes could not be stored, or would come back as another file.
func TestSparse(t *testing.T) {
	for name, c := range map[string]struct {
		size   int64
		at     []int64
		sparse bool
	}{
		"all hole":           {30 << 20, nil, true},
		"end":                {30<<20 + 4, []int64{30 << 20}, true},
		"beginning":          {30<<20 + 1, []int64{0}, true},
		"several":            {100 << 20, []int64{5, 10 << 20, 10<<20 + 8192, 50<<20 + 3}, true},
		"small holes":        {700 << 10, []int64{0, 300 << 10}, false},
		"control: no holes":  {4, []int64{0}, false},
		"control: no length": {0, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := holed(t, c.size, c.at...)
			h := &tar.Header{Typeflag: tar.TypeReg, Name: "work/new\nline\xff", Size: c.size, Mode: 0o1640,
				Format:  tar.FormatPAX,
				ModTime: time.Unix(-5, 250), PAXRecords: map[string]string{attrRecord + "user.a": "b\x00\n"}}
			var out bytes.Buffer
			tw := tar.NewWriter(&out)
			before := &tar.Header{Typeflag: tar.TypeReg, Name: "before", Size: 3, Format: tar.FormatPAX}
			if err := tw.WriteHeader(before); err != nil {
				t.Fatal(err)
			}
			tw.Write([]byte("abc"))
			sum := sha256.New()
			done, err := NewSparse(&out, tw).Pack(h, f, sum)
			if err != nil || done != c.sparse {
				t.Fatalf("Pack: %t, %v", done, err)
			}
			if !done {
				if at, _ := f.Seek(0, io.SeekCurrent); at != 0 || out.Len() > 1024 {
					t.Fatalf("the file is at %d, and %d bytes were written", at, out.Len())
				}
				return
			}
			if err := errors.Join(tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "after/"}),
				tw.Close()); err != nil {
				t.Fatal(err)
			}
			want := sumOf(t, io.NewSectionReader(f, 0, c.size))
			if string(sum.Sum(nil)) != want {
				t.Error("the sum is of something else")
			}
			if out.Len() > 64<<10 {
				t.Errorf("%d bytes for a file with %d in it", out.Len(), 4*len(c.at))
			}
			tr := tar.NewReader(bytes.NewReader(out.Bytes()))
			tr.Next()
			got, err := tr.Next()
			if err != nil || got.Name != h.Name || got.Size != h.Size || got.Mode != h.Mode ||
				!got.ModTime.Equal(h.ModTime) ||
				got.Typeflag != tar.TypeReg || got.PAXRecords[attrRecord+"user.a"] != "b\x00\n" {
				t.Fatalf("read: %+v, %v", got, err)
			}
			if sumOf(t, tr) != want {
				t.Error("the content is another one")
			}
			if last, err := tr.Next(); err != nil || last.Name != "after/" {
				t.Errorf("what follows: %+v, %v", last, err)
			}
		})
	}
}

// TestSparseShrinks: what a file has lost since it was looked at must be zeros, and the tar whole. Other files
// must find their bound.
func TestSparseShrinks(t *testing.T) {
	f := holed(t, 50<<20, 20<<20)
	var out bytes.Buffer
	tw := tar.NewWriter(&out)
	x := NewSparse(&out, tw)
	if done, err := x.Pack(&tar.Header{Name: "f", Size: 60 << 20}, f, nil); err != nil || !done {
		t.Fatalf("Pack: %t, %v", done, err)
	}
	if done, err := x.Pack(&tar.Header{Name: "g", Size: maxHoles}, f, nil); err != nil || done {
		t.Fatalf("more than a tar leaves out: %t, %v", done, err)
	}
	tw.Close()
	tr := tar.NewReader(&out)
	h, err := tr.Next()
	if err != nil || h.Size != 60<<20 {
		t.Fatalf("read: %+v, %v", h, err)
	}
	if got, want := sumOf(t, tr), sumOf(t, io.MultiReader(io.NewSectionReader(f, 0, 50<<20),
		io.LimitReader(zeros{}, 10<<20))); got != want {
		t.Error("the content is another one")
	}
}

// TestSparseParts: a file of very many parts would be stored with a list that no reader takes, and be lost.
func TestSparseParts(t *testing.T) {
	var at []int64
	for i := range int64(maxParts + 100) {
		at = append(at, 1<<30+i*(minHole+8192))
	}
	size := at[len(at)-1] + 4
	f := holed(t, size, at...)
	var out bytes.Buffer
	tw := tar.NewWriter(&out)
	if done, err := NewSparse(&out, tw).Pack(&tar.Header{Name: "f", Size: size}, f, nil); err != nil || !done {
		t.Fatalf("Pack: %t, %v", done, err)
	}
	tw.Close()
	tr := tar.NewReader(&out)
	if h, err := tr.Next(); err != nil || h.Size != size {
		t.Fatalf("read: %+v, %v", h, err)
	}
	if _, err := io.CopyN(io.Discard, tr, 1<<30); err != nil {
		t.Fatal(err)
	}
	if sumOf(t, tr) != sumOf(t, io.NewSectionReader(f, 1<<30, size)) {
		t.Error("the content is another one")
	}
}

// TestSparseIsGNU: what is stored could be read by nothing but ourselves.
func TestSparseIsGNU(t *testing.T) {
	f := holed(t, 40<<20, 10<<20)
	var out bytes.Buffer
	tw := tar.NewWriter(&out)
	if done, err := NewSparse(&out, tw).
		Pack(&tar.Header{Name: "d/f", Size: 40 << 20, Mode: 0o644, ModTime: time.Unix(7, 5)}, f, nil); err != nil ||
		!done {
		t.Fatalf("Pack: %t, %v", done, err)
	}
	tw.Close()
	dir := t.TempDir()
	cmd := exec.Command("tar", "-xf", "-", "-C", dir)
	cmd.Stdin = &out
	if text, err := cmd.CombinedOutput(); err != nil || len(text) > 0 {
		t.Fatalf("tar: %v: %s", err, text)
	}
	got, err := os.Open(filepath.Join(dir, "d/f"))
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	if info, _ := got.Stat(); info.Size() != 40<<20 || !info.ModTime().Equal(time.Unix(7, 5)) ||
		sumOf(t, got) != sumOf(t, io.NewSectionReader(f, 0, 40<<20)) {
		t.Errorf("tar made %+v of it", info)
	}
}

// TestPaxTime: files would come back with other times.
func TestPaxTime(t *testing.T) {
	times := map[string]time.Time{"0": time.Unix(0, 0), "1.5": time.Unix(1, 5e8), "-1": time.Unix(-1, 0),
		"-0.5":         time.Unix(-1, 5e8),
		"-4.000000001": time.Unix(-5, 999999999), "8589934595.000000001": time.Unix(1<<33+3, 1), "100": time.Unix(100,
			0)}
	for want, at := range times {
		if got := paxTime(&tar.Header{ModTime: at}); got != want {
			t.Errorf("%v: %s, want %s", at, got, want)
		}
	}
}
