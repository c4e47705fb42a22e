package native

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
)

// Broken if a kernel that takes layers in an older way shows other files, or is asked for more layers than it can name without being
// told so. Every way works on a new kernel, so each is tried by itself.
func TestMountRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	ways := map[string]struct {
		mount func(descriptors, string) error
		most  int
	}{
		"descriptors": {func(fds descriptors, at string) error { return mountRootFrom(fds, at, unix.FsconfigSetFd) }, 400},
		"names":       {mountRootNamed, 400},
		"page":        {mountRootPage, 120},
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := mountSome(dir, way.most, way.mount); err != nil {
				t.Errorf("%d layers: %v", way.most, err)
			}
		})
	}
	if err := mountSome(t.TempDir(), 400, mountRootPage); outboard.KindOf(err) != outboard.Unavailable {
		t.Errorf("400 layers in a page: %v", err)
	}
	refuse := func(int, string, int) error { return unix.EINVAL }
	err := mountSome(t.TempDir(), 1, func(fds descriptors, at string) error { return mountRootFrom(fds, at, refuse) })
	if !errors.Is(err, errNotTaken) {
		t.Errorf("a kernel that refuses: %v", err)
	}
}

// mountSome mounts n layers, of which each has a file of its own, and writes to them.
func mountSome(dir string, n int, mount func(descriptors, string) error) error {
	var fds descriptors
	defer fds.close()
	names := []string{"upper", "work"}
	for i := range n {
		names = append(names, fmt.Sprint(i))
	}
	for i, name := range append(names, "root") {
		path := filepath.Join(dir, name)
		if err := os.Mkdir(path, 0o755); err != nil {
			return err
		}
		if i < 2 || name == "root" {
			continue
		}
		if err := os.WriteFile(filepath.Join(path, "f"+name), nil, 0o644); err != nil {
			return err
		}
	}
	return onSpentThread(func() error {
		if err := PrivateMounts(); err != nil {
			return err
		}
		for _, name := range names { // here: a namespace mounts only what was opened in it
			fd, err := unix.Open(filepath.Join(dir, name), unix.O_PATH|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			fds.add(fd)
		}
		root := filepath.Join(dir, "root")
		if err := mount(fds, root); err != nil {
			return err
		}
		found, err := os.ReadDir(root)
		if err == nil && len(found) != n {
			err = fmt.Errorf("%d files are seen, not %d", len(found), n)
		}
		return errors.Join(err, os.WriteFile(filepath.Join(root, "new"), nil, 0o644))
	})
}
