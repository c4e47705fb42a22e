package native

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// If this fails, state that is longer than most is cut off, or a control file that is missing is made as a plain one.
func TestRawFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if _, err := readRaw(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("reading what is not there: %v", err)
	}
	if err := writeControl(filepath.Dir(path), "file", "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("writing what is not there: %v", err)
	}
	for _, size := range []int{rawSize + 1, 3 * rawSize, rawSize, 1, 0} {
		want := bytes.Repeat([]byte{'a'}, size)
		if err := writeRaw(path, unix.O_CREAT|unix.O_TRUNC, want); err != nil {
			t.Fatal(err)
		}
		if got, err := readRaw(path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("of %d bytes %d were read: %v", size, len(got), err)
		}
	}
}

// If this fails, directories of sandboxes lie beside each other on ext4, and to make one gets dearer with each
// that was removed lately.
func TestSpread(t *testing.T) {
	dir := t.TempDir()
	marked := func() bool {
		f, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		flags, err := unix.IoctlGetUint32(int(f.Fd()), unix.FS_IOC_GETFLAGS)
		return err == nil && flags&fsTopDir != 0
	}
	var on unix.Statfs_t
	if err := unix.Statfs(dir, &on); err != nil {
		t.Fatal(err)
	}
	if marked() {
		t.Fatal("a new directory is marked") // else the test cannot fail
	}
	spread(dir)
	spread(dir)
	if on.Type == unix.EXT4_SUPER_MAGIC && !marked() {
		t.Error("the directory is not marked")
	}
	spread(filepath.Join(dir, "absent")) // says nothing
}
