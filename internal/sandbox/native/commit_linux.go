package native

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
)

// Commit implements sandbox.Builder. What a sandbox wrote belongs to its range and may be anything, so nothing
// in it is followed: the sandbox is ended first, and every name is opened below the directory that holds it.
func (p *Provider) Commit(ctx context.Context, id outboard.SandboxID, dir string) error {
	b, err := p.placeOf(id)
	if err != nil {
		return err
	}
	unlock, err := b.lock(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return outboard.Errorf(outboard.NotFound, "sandbox %s does not exist on this host", id)
	}
	if err != nil {
		return err
	}
	defer unlock()
	s, err := b.load()
	if err != nil {
		return outboard.Errorf(outboard.NotFound, "sandbox %s is damaged: %w", id, err)
	}
	if s.UIDBase == 0 || !s.Build {
		return outboard.Errorf(outboard.Invalid, "sandbox %s was not made to build a layer", id)
	}
	if err := p.end(ctx, s); err != nil {
		return outboard.Errorf(outboard.Unavailable, "ending sandbox %s: %w", id, err)
	}
	if err := p.reap(ctx, id); err != nil {
		return outboard.Errorf(outboard.Unavailable, "ending sandbox %s: %w", id, err)
	}
	return makeLayer(ctx, id, b.path("upper"), dir, s.UIDBase)
}

// makeLayer makes dir of the upper directory of a sandbox that has ended. base is where the range begins that
// its ids are in.
func makeLayer(ctx context.Context, id outboard.SandboxID, upper, dir string, base uint32) error {
	if err := unix.Renameat2(unix.AT_FDCWD, upper, unix.AT_FDCWD, dir, unix.RENAME_NOREPLACE); err != nil {
		return fmt.Errorf("taking what sandbox %s wrote: %w", id, err)
	}
	if err := dropTemporary(dir); err != nil {
		return fmt.Errorf("taking the temporary files of sandbox %s out of its layer: %w", id,
			errors.Join(err, removeTree(dir)))
	}
	top, err := os.OpenFile(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("opening what sandbox %s wrote: %w", id, err)
	}
	defer top.Close()
	n := &normalizer{base: base}
	if err := n.dir(ctx, int(top.Fd()), 0); err != nil {
		return errors.Join(fmt.Errorf("making a layer of what sandbox %s wrote: %w", id, err), removeTree(dir))
	}
	return nil
}

// dropTemporary takes /tmp out of what an ended sandbox wrote: temporary files are nobody else's, and a layer
// may not say that there is no such directory, or that it is a link.
func dropTemporary(dir string) error {
	tmp := filepath.Join(dir, "tmp")
	fi, err := os.Lstat(tmp)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case fi.IsDir():
		return removeTree(tmp)
	}
	return os.Remove(tmp)
}

// normalizer makes a layer that any sandbox can use of what one wrote.
type normalizer struct {
	base    uint32 // the owners' range
	entries int
}

// dir works on an open directory and everything in it.
func (n *normalizer) dir(ctx context.Context, fd, depth int) error {
	if depth > maxCopyDepth {
		return outboard.Errorf(outboard.Invalid, "directories lie more than %d deep", maxCopyDepth)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := n.own(fd, "", unix.AT_EMPTY_PATH); err != nil {
		return err
	}
	if err := cleanAttrs(fd, true); err != nil {
		return err
	}
	again, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("openat", err)
	}
	d := os.NewFile(uintptr(again), "layer")
	defer d.Close()
	for {
		names, err := d.Readdirnames(1024)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			if n.entries++; n.entries > maxTarEntries {
				return outboard.Errorf(outboard.Invalid, "it has more than %d files", maxTarEntries)
			}
			if err := n.entry(ctx, fd, name, depth); err != nil {
				return err
			}
		}
	}
}

func (n *normalizer) entry(ctx context.Context, dir int, name string, depth int) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return os.NewSyscallError("fstatat", err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("openat", err)
		}
		defer unix.Close(fd)
		return n.dir(ctx, fd, depth+1)
	case unix.S_IFREG:
		return n.file(dir, name)
	case unix.S_IFLNK:
		return n.own(dir, name, unix.AT_SYMLINK_NOFOLLOW)
	case unix.S_IFCHR:
		if st.Rdev == 0 {
			return nil // a deletion
		}
	}
	return os.NewSyscallError("unlinkat", unix.Unlinkat(dir, name, 0))
}

func (n *normalizer) file(dir int, name string) error {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("openat", err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	if err := n.own(fd, "", unix.AT_EMPTY_PATH); err != nil { // of another name of the same file it changes nothing
		return err
	}
	if st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
		if err := unix.Fchmod(fd, st.Mode&0o1777); err != nil {
			return os.NewSyscallError("fchmod", err)
		}
	}
	return cleanAttrs(fd, false)
}

// own gives a file to the id inside that it belonged to.
func (n *normalizer) own(dir int, name string, flags int) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, flags); err != nil {
		return os.NewSyscallError("fstatat", err)
	}
	uid, gid := n.inside(st.Uid), n.inside(st.Gid)
	if uid == int(st.Uid) && gid == int(st.Gid) {
		return nil
	}
	return os.NewSyscallError("fchownat", unix.Fchownat(dir, name, uid, gid, flags))
}

func (n *normalizer) inside(id uint32) int {
	if id < uidRange {
		return int(id) // done already, by another name
	}
	if id < n.base || id >= n.base+uidRange {
		return uidRange - 2
	}
	return int(id - n.base)
}

// cleanAttrs leaves the attributes that programs may set, and of the overlay's own the one that says that a
// directory hides what is below; it is written as every kind of overlay reads it.
func cleanAttrs(fd int, dir bool) error {
	const opaque = "user.overlay.opaque"
	list := make([]byte, 64<<10)
	size, err := unix.Flistxattr(fd, list)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	if err != nil {
		return os.NewSyscallError("flistxattr", err)
	}
	names := strings.Split(strings.TrimSuffix(string(list[:size]), "\x00"), "\x00")
	for _, name := range names {
		if name == "" || name == opaque && dir || strings.HasPrefix(name, "user.") &&
			!strings.HasPrefix(name, "user.overlay.") {
			continue
		}
		if err := unix.Fremovexattr(fd, name); err != nil {
			return fmt.Errorf("removing attribute %q: %w", name, err)
		}
	}
	if dir && slices.Contains(names, opaque) {
		return os.NewSyscallError("fsetxattr", unix.Fsetxattr(fd, "trusted.overlay.opaque", []byte("y"), 0))
	}
	return nil
}
