package native

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// If this fails, what a sandbox wrote stays on the disk: a tree deeper than is opened at a time, directories of more names than are read at
// once, those that nobody may read, or a file in the place of a directory.
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
		if err := errors.Join(os.WriteFile(filepath.Join(dir, "f"), nil, 0o600), os.Symlink(wide, filepath.Join(dir, "l")), os.Chmod(dir, 0)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2000 {
		if err := os.WriteFile(filepath.Join(wide, fmt.Sprint("a file with a name of some length, number ", i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	beside := filepath.Join(filepath.Dir(top), "beside")
	if err := errors.Join(os.WriteFile(beside, nil, 0o600), os.Symlink(beside, filepath.Join(top, "link"))); err != nil {
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
