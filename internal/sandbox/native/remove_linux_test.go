package native

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// If this fails, what a sandbox wrote stays on the disk: a tree deeper than is opened at a time, directories of
// more names than are read at once, those that nobody may read, or a file in the place of a directory.
func TestRemoveTree(t *testing.T) {
	top := filepath.Join(t.TempDir(), "top")
	deep := top
	for i := range 3 * removeDepth {
		deep = filepath.Join(deep, fmt.Sprint("d", i%2))
	}
	wide := filepath.Join(top, "wide")
	if err := errors.Join(os.MkdirAll(deep, 0o755), os.Mkdir(wide, 0o755)); err != nil {
		t.Fatal(err)
	}
	for dir := deep; dir != top; dir = filepath.Dir(dir) {
		if err := errors.Join(os.WriteFile(filepath.Join(dir, "f"), nil, 0o600),
			os.Symlink(wide, filepath.Join(dir, "l")), os.Chmod(dir, 0)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2000 {
		if err := os.WriteFile(filepath.Join(wide, fmt.Sprint("a file with a name of some length, number ", i)), nil,
			0o600); err != nil {
			t.Fatal(err)
		}
	}
	beside := filepath.Join(filepath.Dir(top), "beside")
	if err := errors.Join(os.WriteFile(beside, nil, 0o600),
		os.Symlink(beside, filepath.Join(top, "link"))); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time there is none
		if err := removeTree(top); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(top); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("the tree is there still: %v", err)
		}
	}
	if _, err := os.Lstat(beside); err != nil {
		t.Errorf("what a link led to is gone: %v", err)
	}
	if err := removeTree(beside); err != nil {
		t.Error(err)
	}
}

// If this fails, a directory is taken for one that is no more, and the rest of the tree stays.
func TestRemoveWhatChanged(t *testing.T) {
	dir := t.TempDir()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	r := remover{top: fd, names: make([]byte, 1<<10)}
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "file"), nil, 0o600),
		os.MkdirAll(filepath.Join(dir, "dir/in"), 0o700)); err != nil {
		t.Fatal(err)
	}
	for name, kind := range map[string]byte{"file": unix.DT_DIR, "dir": unix.DT_REG, "none": unix.DT_DIR} {
		if err := r.remove(fd, name, kind, 0); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}

// If this fails, what the kernel leaves of an overlay is looked for in each sandbox of a crowd.
func TestRemoveMarks(t *testing.T) {
	b := place{dir: t.TempDir()}
	for _, work := range []string{"work", "1/wk"} {
		if err := errors.Join(os.MkdirAll(b.path(work+"/work/incompat/volatile"), 0o700),
			os.Mkdir(b.path(work+"/index"), 0o700),
			os.WriteFile(b.path(work+"/work/incompat/volatile/dirty"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	// which a file with two names leaves there
	if err := os.WriteFile(b.path("1/wk/index/one"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.removeMarks()
	if !isEmpty(b.path("work")) {
		t.Error("the marks are there still")
	}
	if left, err := os.ReadDir(b.path("1/wk")); err != nil || len(left) != 1 || left[0].Name() != "index" {
		t.Errorf("%v is left, %v", left, err)
	}
	if err := removeContents(b.dir, ""); err != nil || !isEmpty(b.dir) {
		t.Errorf("something is left: %v", err)
	}
}

// If this fails, a directory stays of which the kernel says first that it is there, and what is in it when it is
// asked again.
func TestRemoveReadsOn(t *testing.T) {
	top := filepath.Join(t.TempDir(), "top")
	for _, name := range []string{"a", "b", "c"} {
		if err := os.MkdirAll(filepath.Join(top, name, "in"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	const two = 2 * 24 // "." and ".."
	r := remover{names: make([]byte, two)}
	if err := r.remove(unix.AT_FDCWD, top, unix.DT_DIR, 0); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(top); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory is there still: %v", err)
	}
}
