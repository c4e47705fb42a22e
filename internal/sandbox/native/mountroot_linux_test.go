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

// Broken if a kernel that takes layers in an older way shows other files, or is asked for more layers than it
// can name without being told so. Every way works on a new kernel, so each is tried by itself.
func TestMountRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	ways := map[string]struct {
		mount func(descriptors, string) error
		most  int
	}{
		"descriptors": {func(fds descriptors, at string) error { return mountRootFrom(fds, at, unix.FsconfigSetFd) },
			400},
		"names": {mountRootNamed, 400},
		"page":  {mountRootPage, 120},
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

// Broken if a layer's files of the tool belong to another user in a container, on a new kernel or on one that
// takes layers in an older way.
func TestMountRootMapped(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	const tool = 139658216
	for name, way := range map[string]func(descriptors, string) error{
		"descriptors": func(fds descriptors, at string) error { return mountRootFrom(fds, at, unix.FsconfigSetFd) },
		"names":       mountRootNamed,
		"page":        mountRootPage,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			var fs unix.Statfs_t
			if err := unix.Statfs(dir, &fs); err != nil || fs.Type == unix.OVERLAYFS_SUPER_MAGIC {
				t.Skip("the file system of temporary files cannot map owners")
			}
			path := func(name string) string { return filepath.Join(dir, name) }
			owners := map[string]uint32{"root": 0, "tool": ToolUID, "other": 1001, "high": tool + 5}
			for _, name := range []string{"lower", "upper", "work", "at"} {
				if err := os.Mkdir(path(name), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			for name, id := range owners {
				if err := errors.Join(os.WriteFile(path("lower/"+name), nil, 0o600),
					os.Chown(path("lower/"+name), int(id), int(id))); err != nil {
					t.Fatal(err)
				}
			}
			owners["tool"] = tool
			err := onSpentThread(func() error {
				if err := PrivateMounts(); err != nil {
					return err
				}
				userns, err := toolNamespace(tool)
				if err != nil || userns == nil {
					return fmt.Errorf("no user namespace: %v", err)
				}
				defer userns.Close()
				if err := mountRoot([]string{path("lower")}, path("upper"), path("work"), path("at"), userns,
					way); err != nil {
					return err
				}
				for name, want := range owners {
					var st unix.Stat_t
					if err := unix.Stat(path("at/"+name), &st); err != nil || st.Uid != want || st.Gid != want {
						t.Errorf("the file of %s belongs to %d:%d, %v; want %d", name, st.Uid, st.Gid, err, want)
					}
				}
				var st unix.Stat_t
				if err := unix.Stat(path("lower/tool"), &st); err != nil || st.Uid != ToolUID {
					t.Errorf("what was mapped stays over the layer: %d, %v", st.Uid, err)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}
