package native

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// If this fails, a Push that came to nothing leaves files of a root where the sandbox does not see them, or the
// layer of the next one is not empty.
func TestGiveBackSaved(t *testing.T) {
	top := t.TempDir()
	up, layer := filepath.Join(top, "up"), filepath.Join(top, "layer")
	for _, d := range []string{layer, up + "/etc", up + "/home/other", up + "/home/user/in", up +
		"/mnt/session/uploads", up + "/mnt/session/outputs/in"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var fds descriptors
	defer fds.close()
	open := func(path string) int {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		return fds.add(fd)
	}
	from, to := open(up), open(layer)
	names := func(dir string) (all []string) {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			all = append(all, path[len(dir):])
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	before := names(up)
	if err := takeSaved(from, to); err != nil {
		t.Fatal(err)
	}
	taken := []string{"", "/home", "/home/user", "/home/user/in", "/mnt", "/mnt/session", "/mnt/session/outputs",
		"/mnt/session/outputs/in"}
	if got := names(layer); !slices.Equal(got, taken) {
		t.Errorf("the layer has %q", got)
	}
	if got, want := names(up), []string{"", "/etc", "/home", "/home/other", "/mnt", "/mnt/session",
		"/mnt/session/uploads"}; !slices.Equal(got, want) {
		t.Errorf("the root has %q", got)
	}
	if err := giveBackSaved(to, from); err != nil {
		t.Fatal(err)
	}
	if got := names(up); !slices.Equal(got, before) {
		t.Errorf("the root has %q, and had %q", got, before)
	}
	if got := names(layer); len(got) != 1 {
		t.Errorf("the layer still has %q", got)
	}
	if err := os.Mkdir(filepath.Join(layer, "home"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/", filepath.Join(layer, "home/user")); err != nil {
		t.Fatal(err)
	}
	if err := takeSaved(from, to); !errors.Is(err, fs.ErrExist) {
		t.Errorf("over what is there already: %v", err)
	}
}
