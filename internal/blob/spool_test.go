package blob_test

import (
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/outboard-dev/outboard/internal/blob"
)

// If this fails, what was spooled stays on the disk for ever: after it was used, or after the process was killed.
func TestSpool(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "spool")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, age := range map[string]time.Duration{"spool-left": 2 * time.Hour, "spool-young": 0} {
		at := time.Now().Add(-age)
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(filepath.Join(dir, name), at, at); err != nil {
			t.Fatal(err)
		}
	}
	s, err := blob.NewSpool(dir)
	if err != nil {
		t.Fatal(err)
	}
	f, err := s.New()
	if err != nil {
		t.Fatal(err)
	}
	there := func(when string) {
		t.Helper()
		left, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil || len(left) != 1 || filepath.Base(left[0]) != "spool-young" {
			t.Errorf("%s: %v, %v", when, left, err)
		}
	}
	there("in use, which a kill would end") // the file has no name
	if _, err := f.Write([]byte("text")); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(f); err != nil || string(b) != "text" {
		t.Errorf("read %q, %v", b, err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	there("closed")
}
