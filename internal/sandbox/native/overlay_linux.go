package native

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/guest/boot"
)

// layout makes the directories that the guest gets, owned by its root, and those of its root's overlay where
// that is one of its own.
func (b place) layout(s *state, l outboard.SandboxLimits) error {
	type made struct {
		path string
		mode os.FileMode
	}
	dirs, uid := []made{{b.path("state"), 0o700}}, s.UIDBase
	if !s.SharedRoot {
		upper := b.upper(l)
		dirs = append(dirs, made{filepath.Join(upper, "upper"), 0o755}, made{filepath.Join(upper, "work"), 0o755})
	}
	for _, d := range dirs {
		if err := os.Mkdir(d.path, d.mode); err != nil {
			return err
		}
		if uid != 0 {
			if err := os.Chown(d.path, int(uid), int(uid)); err != nil {
				return err
			}
		}
	}
	if uid == 0 {
		return nil
	}
	return guest.MakeJournal(b.path("state"), int(uid))
}

// upper returns where a place has the directories of its root's overlay: its own directory, or a disk of its own.
func (b place) upper(l outboard.SandboxLimits) string {
	if l.DiskBytes > 0 {
		return b.path("fs")
	}
	return b.dir
}

// openTrees returns detached copies of what cfg's file systems are made from, for a guest that has no right to
// their paths, and because a sandbox is shown the paths that its overlay was made of. Where the file system
// allows it the read-only ones are mapped into a user namespace, so that files of the host's root belong to the
// sandbox's root; elsewhere they show as nobody's. The caller closes the descriptors, also after an error.
func openTrees(cfg *boot.Config, userns *os.File) (fds []int, err error) {
	mapped := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(userns.Fd())}
	for i, path := range cfg.Sources() {
		fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if err != nil {
			return fds, outboard.Errorf(outboard.Unavailable, "copying the mount at %s: %w", path, err)
		}
		fds = append(fds, fd)
		if i == 0 && cfg.Upper != "" {
			continue // its files are the range's own
		}
		err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, mapped)
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EPERM) {
			return fds, outboard.Errorf(outboard.Unavailable, "mapping the owners of %s: %w", path, err)
		}
	}
	return fds, nil
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
