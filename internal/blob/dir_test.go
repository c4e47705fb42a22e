package blob

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/outboard-dev/outboard"
)

func newDir(t *testing.T) *Dir {
	t.Helper()
	d, err := NewDir(filepath.Join(t.TempDir(), "blobs"))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func put(t *testing.T, d *Dir, content []byte) outboard.BlobRef {
	t.Helper()
	ref, err := d.Put(t.Context(), bytes.NewReader(content), 0)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

func temps(t *testing.T, d *Dir) int {
	t.Helper()
	entries, err := os.ReadDir(d.temp())
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// Broken if content of any size does not come back byte for byte under its own digest.
func TestPutOpen(t *testing.T) {
	d := newDir(t)
	for _, size := range []int{0, 1, smallBlob - 1, smallBlob, smallBlob + 1, 3*smallBlob + 7} {
		content := bytes.Repeat([]byte("outboard"), size/8+1)[:size]
		sum := sha256.Sum256(content)
		want := outboard.BlobRef{Digest: hex.EncodeToString(sum[:]), Size: int64(size)}
		if ref := put(t, d, content); ref != want {
			t.Fatalf("size %d: ref %v, want %v", size, ref, want)
		}
		got, err := Bytes(t.Context(), d, want, int64(size))
		if err != nil || !bytes.Equal(got, content) {
			t.Fatalf("size %d: read %d bytes, %v", size, len(got), err)
		}
	}
	if n := temps(t, d); n != 0 {
		t.Errorf("%d temporary files left", n)
	}
}

// Broken if a reader's buffer size matters to the check at the end.
func TestOpenByteByByte(t *testing.T) {
	d := newDir(t)
	r, err := d.Open(t.Context(), put(t, d, []byte("content")))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got, err := io.ReadAll(iotest.OneByteReader(r)); err != nil || string(got) != "content" {
		t.Errorf("%q, %v", got, err)
	}
}

// Broken if storing the same bytes again writes them again.
func TestPutSameBytesWritesNothing(t *testing.T) {
	d := newDir(t)
	for _, size := range []int{100, 10_000, smallBlob + 100} {
		content := bytes.Repeat([]byte{'x'}, size)
		ref := put(t, d, content)
		path := d.file(ref.Digest)
		if size >= compressMin {
			path += compressedSuffix
		}
		before, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		put(t, d, content)
		after, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if !os.SameFile(before, after) {
			t.Errorf("size %d: the file was replaced", size)
		}
	}
}

// Broken if content over the limit is stored, or content exactly at the limit is refused.
func TestPutLimit(t *testing.T) {
	d := newDir(t)
	for _, limit := range []int64{10, smallBlob, smallBlob + 10} {
		if _, err := d.Put(t.Context(), io.LimitReader(zeros{}, limit), limit); err != nil {
			t.Fatalf("at the limit of %d: %v", limit, err)
		}
		src := &io.LimitedReader{R: zeros{}, N: 1 << 40}
		if _, err := d.Put(t.Context(), src, limit); outboard.KindOf(err) != outboard.TooLarge {
			t.Fatalf("over the limit of %d: %v", limit, err)
		}
		if read := 1<<40 - src.N; read > limit+1 {
			t.Errorf("read %d bytes for a limit of %d", read, limit)
		}
	}
	if n := temps(t, d); n != 0 {
		t.Errorf("%d temporary files left", n)
	}
}

// onDisk returns how many bytes the files of a store have.
func onDisk(t *testing.T, d *Dir) (n int64) {
	t.Helper()
	err := filepath.WalkDir(d.path, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			n += info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// Broken if a failing or cancelled source leaves a blob or a temporary file, or loses its cause.
func TestPutSourceFails(t *testing.T) {
	d := newDir(t)
	cause := errors.New("cable cut")
	for _, size := range []int64{10, 2 * smallBlob} {
		src := io.MultiReader(io.LimitReader(zeros{}, size), iotest.ErrReader(cause))
		if _, err := d.Put(t.Context(), src, 0); !errors.Is(err, cause) {
			t.Errorf("size %d: got %v", size, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.Put(ctx, zeros{}, 0); outboard.KindOf(err) != outboard.Canceled {
		t.Errorf("cancelled: got %v", err)
	}
	if n := temps(t, d); n != 0 {
		t.Errorf("%d temporary files left", n)
	}
	if _, err := d.Put(t.Context(), strings.NewReader("fine"), 0); err != nil {
		t.Errorf("control: %v", err)
	}
}

// Broken if a reader of a damaged blob can take it for whole.
func TestOpenDamaged(t *testing.T) {
	d := newDir(t)
	content := []byte("the bytes that were stored")
	ref := put(t, d, content)
	path := d.file(ref.Digest)
	for _, bad := range [][]byte{
		append([]byte("The"), content[3:]...),
		append(bytes.Clone(content), 'x'),
		nil,
		content[:len(content)-1],
	} {
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Bytes(t.Context(), d, ref, 1<<20); err == nil || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("%q: got %v", bad, err)
		}
	}
	put(t, d, content) // the last damage changed the length, so this replaces the file
	if got, err := Bytes(t.Context(), d, ref, 1<<20); err != nil || !bytes.Equal(got, content) {
		t.Errorf("after storing again: %q, %v", got, err)
	}
}

// Broken if a digest from outside can name a file that is not a blob, or an absent blob is anything but NotFound.
func TestOpenAbsent(t *testing.T) {
	d := newDir(t)
	ref := put(t, d, []byte("x"))
	upper := strings.ToUpper(ref.Digest)
	for _, digest := range []string{"", "../../etc/passwd", strings.Repeat("0", 64), upper, strings.Repeat("../", 21) +
		"x"} {
		if _, err := d.Open(t.Context(), outboard.BlobRef{Digest: digest}); outboard.KindOf(err) != outboard.NotFound {
			t.Errorf("%q: got %v", digest, err)
		}
	}
	if _, err := d.Open(t.Context(), ref); err != nil {
		t.Errorf("control: %v", err)
	}
	if _, err := Bytes(t.Context(), d, ref, 0); outboard.KindOf(err) != outboard.TooLarge {
		t.Errorf("over max: got %v", err)
	}
}

// Broken if what a crash left in tmp stays for ever, or a file another process is writing is taken away.
func TestNewDirSweepsLeftovers(t *testing.T) {
	d := newDir(t)
	old, young := filepath.Join(d.temp(), "put-old"), filepath.Join(d.temp(), "put-young")
	for _, p := range []string{old, young} {
		if err := os.WriteFile(p, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	then := time.Now().Add(-staleTemp - time.Minute)
	if err := os.Chtimes(old, then, then); err != nil {
		t.Fatal(err)
	}
	if _, err := NewDir(d.path); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(old); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("old leftover: %v", err)
	}
	if _, err := os.Stat(young); err != nil {
		t.Errorf("young file: %v", err)
	}
}

// Broken if an unusable directory is reported without its path, or as something that can never work.
func TestUnusableDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := NewDir(filepath.Join(file, "blobs"))
	if outboard.KindOf(err) != outboard.Unavailable || !strings.Contains(err.Error(), file) {
		t.Errorf("got %v", err)
	}
}

// Broken if storing the same and different bytes from many goroutines of several stores on one directory loses any.
func TestPutConcurrently(t *testing.T) {
	d := newDir(t)
	other, err := NewDir(d.path)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 32 {
		s := []*Dir{d, other}[i%2]
		wg.Go(func() {
			content := []byte(strings.Repeat("n", i/4+1))
			ref, err := s.Put(t.Context(), bytes.NewReader(content), 0)
			if err != nil {
				t.Error(err)
				return
			}
			if got, err := Bytes(t.Context(), d, ref, 100); err != nil || !bytes.Equal(got, content) {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
	wg.Wait()
	if n := temps(t, d); n != 0 {
		t.Errorf("%d temporary files left", n)
	}
}

// Broken if a process killed while it stores leaves something that opens as a blob.
func TestKilledWriter(t *testing.T) {
	if dir := os.Getenv("BLOB_TEST_DIR"); dir != "" {
		d, err := NewDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		_, err = d.Put(t.Context(), io.MultiReader(io.LimitReader(zeros{}, 8<<20), &tell{}), 0)
		t.Fatal("stored", err)
	}
	d := newDir(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilledWriter$")
	cmd.Env = append(os.Environ(), "BLOB_TEST_DIR="+d.path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len(written))); err != nil {
		t.Fatal(err)
	}
	again := func() {
		t.Helper()
		if _, err := NewDir(d.path); err != nil {
			t.Fatal(err)
		}
	}
	if again(); temps(t, d) != 1 {
		t.Error("the file that a living process writes was removed")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if n := temps(t, d); n != 1 {
		t.Fatalf("%d temporary files, want the one being written", n)
	}
	entries, err := os.ReadDir(d.path)
	if err != nil || len(entries) != 1 {
		t.Errorf("something besides tmp: %v, %v", entries, err)
	}
	if again(); temps(t, d) != 0 {
		t.Error("the file of a killed process is left")
	}
}

const written = "written"

// tell says on standard output that everything before it was read, and then waits to be killed.
type tell struct{}

func (tell) Read([]byte) (int, error) {
	os.Stdout.WriteString(written)
	select {}
}

// Broken if what compresses is stored as it is, what does not is stored twice as large, or damage to compressed
// bytes goes unseen.
func TestCompression(t *testing.T) {
	d := newDir(t)
	random := make([]byte, 3*smallBlob)
	rand.Read(random)
	text := bytes.Repeat([]byte("the same line again and again\n"), 200_000)
	for name, content := range map[string][]byte{"random": random, "random small": random[:compressMin], "text": text,
		"text small": text[:compressMin],
		"mixed":      append(bytes.Clone(text), random...)} {
		d := newDir(t)
		before := onDisk(t, d)
		ref := put(t, d, content)
		got, err := Bytes(t.Context(), d, ref, int64(len(content)))
		if err != nil || !bytes.Equal(got, content) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
		size := onDisk(t, d) - before
		if small := size < ref.Size*9/10; small == strings.HasPrefix(name, "random") {
			t.Errorf("%s: %d bytes are %d on the disk", name, ref.Size, size)
		}
	}
	ref := put(t, d, text[:smallBlob-1])
	path := d.file(ref.Digest) + compressedSuffix
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, damage := range map[string][]byte{"cut": whole[:len(whole)/2],
		"appended": append(bytes.Clone(whole), whole...), "other": random,
		"flipped": append(append(bytes.Clone(whole[:40]), whole[40]^1), whole[41:]...)} {
		if err := os.WriteFile(path, damage, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Bytes(t.Context(), d, ref, ref.Size); outboard.KindOf(err) != outboard.Internal {
			t.Errorf("%s: %v", name, err)
		}
	}
}
