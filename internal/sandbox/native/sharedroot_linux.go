package native

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// The first overlay of a sandbox's saved directories is its root's as well, where the root is the host's
// programs: most sandboxes are never saved, and an overlay with its directories is a tenth of what a sandbox
// costs. The first Push then moves out of it what was written to the saved directories, which from then on lie
// on overlays of their own; the root stays on the first one, as <sandbox>/root. In the layer of the host's
// programs the saved directories are empty, so that the first overlay has nothing to say of them but what was
// written; and no file has several names, of which it would have to know that they are one.

// rootDir is what <n> becomes when the saved directories have left it and the root stays.
const rootDir = "root"

// sharedRoot reports whether a sandbox's root may be the first overlay of its saved directories. Layers of
// images may not: their marks are not those of an overlay of the host's.
func (a shape) sharedRoot() bool {
	return a.from == "" && len(a.root.given) == 0 && len(a.root.lower) == 1 &&
		filepath.Dir(a.root.lower[0]) == a.root.cache
}

// sharedRoot reports whether <n> is of the root's overlay.
func (m *machine) sharedRoot(n int) bool { return m.state.SharedRoot && n == 1 }

// written reports whether something was written to the saved directories since <n> was made, or <n> cannot be
// looked at.
func (m *machine) written(n int) bool {
	up := m.workPath(n, "up")
	if !m.sharedRoot(n) {
		return !isEmpty(up)
	}
	fd, err := unix.Open(up, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return true
	}
	defer unix.Close(fd)
	for _, d := range workDirs {
		var st unix.Stat_t
		if err := unix.Fstatat(fd, d[1:], &st, unix.AT_SYMLINK_NOFOLLOW); err != unix.ENOENT {
			return true
		}
	}
	return false
}

// openParent opens the directory that a saved one is in, below another, and returns its name there.
func openParent(dir int, saved string) (parent int, name string, err error) {
	parent, err = openPath(dir, "./"+path.Dir(saved[1:]), noLinks|unix.RESOLVE_BENEATH)
	return parent, path.Base(saved), err
}

// makeParents makes the directories above a saved one.
func makeParents(dir int, saved string) error {
	for i, c := range saved {
		if c != '/' || i == 0 {
			continue
		}
		if err := unix.Mkdirat(dir, saved[1:i], 0o755); err != nil && err != unix.EEXIST {
			return os.NewSyscallError("mkdirat", err)
		}
	}
	return nil
}

// takeSaved moves the saved directories that were written to from a root's writable layer to another, which is empty.
func takeSaved(up, layer int) error {
	return eachSaved(func(d string) error {
		from, name, err := openParent(up, d)
		if err == unix.ENOENT {
			return nil // nothing was written there
		}
		if err != nil {
			return &fs.PathError{Op: "open", Path: path.Dir(d), Err: err}
		}
		defer unix.Close(from)
		return moveSaved(from, name, layer, d)
	})
}

// eachSaved calls f for the saved directories until one fails.
func eachSaved(f func(saved string) error) error {
	for _, d := range workDirs {
		if err := f(d); err != nil {
			return err
		}
	}
	return nil
}

// moveSaved moves one, if it is there.
func moveSaved(from int, name string, layer int, saved string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(from, name, &st, unix.AT_SYMLINK_NOFOLLOW); err == unix.ENOENT {
		return nil
	}
	if err := makeParents(layer, saved); err != nil {
		return err
	}
	if err := unix.Renameat2(from, name, layer, saved[1:], unix.RENAME_NOREPLACE); err != nil {
		return &fs.PathError{Op: "rename", Path: saved, Err: err}
	}
	return nil
}

// giveBackSaved undoes takeSaved, so that the layer is empty again.
func giveBackSaved(layer, up int) error {
	var errs []error
	for _, d := range workDirs {
		err := unix.Renameat2(layer, d[1:], up, d[1:], unix.RENAME_NOREPLACE)
		for dir := path.Dir(d); err == nil || err == unix.ENOENT; dir = path.Dir(dir) {
			if dir == "/" {
				err = nil
				break
			}
			if err = unix.Unlinkat(layer, dir[1:], unix.AT_REMOVEDIR); err == unix.ENOTEMPTY { // another's as well
				err = nil
				break
			}
		}
		if err != nil {
			errs = append(errs, &fs.PathError{Op: "moving back", Path: d, Err: err})
		}
	}
	return errors.Join(errs...)
}

// forgetFiles has the kernel forget what it knows of the files of a mount and nobody uses: of those that were
// moved out of it, it would keep each on the disk for as long, even when it is removed there.
func forgetFiles(mnt int) {
	ctx, err := unix.Fspick(mnt, "", unix.FSPICK_EMPTY_PATH|unix.FSPICK_CLOEXEC)
	if err != nil {
		return
	}
	defer unix.Close(ctx)
	_ = unix.FsconfigReconfigure(ctx) // with nothing to change; it begins by that
}

// savedDir copies a saved directory of a root's writable layer.
func (c *copier) savedDir(src, old int, saved string) error {
	var fds descriptors
	defer fds.close()
	from, name, err := openParent(src, saved)
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "open", Path: path.Dir(saved), Err: err}
	}
	fds.add(from)
	var st unix.Stat_t
	if err := unix.Fstatat(from, name, &st, unix.AT_SYMLINK_NOFOLLOW); err == unix.ENOENT {
		return nil
	}
	if err := makeParents(c.to, saved); err != nil {
		return err
	}
	to, _, err := openParent(c.to, saved)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path.Dir(saved), Err: err}
	}
	fds.add(to)
	was := -1
	if old >= 0 {
		if fd, _, err := openParent(old, saved); err == nil {
			was = fds.add(fd)
		}
	}
	return c.entry(from, to, was, name, saved[1:])
}

// savedDir compares a saved directory of a root's writable layer with a copy of it.
func (c *comparer) savedDir(up, then int, saved string) error {
	var st, was unix.Stat_t
	err := unix.Fstatat(up, saved[1:], &st, unix.AT_SYMLINK_NOFOLLOW)
	if werr := unix.Fstatat(then, saved[1:], &was, unix.AT_SYMLINK_NOFOLLOW); err == unix.ENOENT &&
		werr == unix.ENOENT {
		return nil
	} else if err = errors.Join(err, werr); err != nil {
		return errDiffers
	}
	var fds descriptors
	defer fds.close()
	var dirs [2]int
	for i, dir := range []int{up, then} {
		fd, _, err := openParent(dir, saved)
		if err != nil {
			return err
		}
		dirs[i] = fds.add(fd)
	}
	return c.entry(dirs[0], dirs[1], path.Base(saved), &st, 0)
}
