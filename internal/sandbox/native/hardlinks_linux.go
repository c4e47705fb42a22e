package native

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// restoreHardlinks copies up the other names of files with several of which one was copied up or removed. Within
// one overlay the kernel knows, by its index, that they are one file and how many names are left; the next
// overlay would see two files, or the count of the earlier layer. It looks at every file of the workspace, but
// only when a file with several names that an earlier layer holds was written to or lost a name. up is the
// writable layer and index the kernel's directory beside it, or -1. The sandbox is frozen, and the caller inside
// it. It reports whether the index has anything.
func restoreHardlinks(up, index int) (indexed bool, err error) {
	if index < 0 {
		return false, nil
	}
	names, err := readNames(index)
	if err != nil || len(names) == 0 {
		return false, err
	}
	r := hardlinks{copied: make(map[uint64]bool), nameless: make(map[stamp]bool)}
	for _, name := range names {
		var st unix.Stat_t
		if err := unix.Fstatat(index, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return true, err
		}
		if st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink == 1 { // the index's own name of it
			r.nameless[stampOf(&st)] = true
		}
	}
	for _, d := range workDirs {
		if err := r.root(d, up); err != nil {
			return true, fmt.Errorf("joining the names of files in %s: %w", d, err)
		}
	}
	if r.linking = true; len(r.copied) == 0 && len(r.nameless) == 0 {
		return true, nil
	}
	for _, d := range workDirs {
		if err := r.root(d, up); err != nil {
			return true, fmt.Errorf("joining the names of files in %s: %w", d, err)
		}
	}
	return true, nil
}

// unindex removes the kernel's own names of files, in the index of an overlay that nobody uses any more: the
// next overlay would count them. What cannot be removed is counted and does no other harm; the directory goes
// with the overlay's.
func unindex(index int) {
	names, _ := readNames(index)
	for _, name := range names {
		_ = unix.Unlinkat(index, name, 0)
	}
}

// hardlinks first finds the copied files with several names, then links what other names they have.
type hardlinks struct {
	copied map[uint64]bool // by the number that the overlay gives them
	// nameless are files that were copied up, for the kernel to note that they lost a name, without any name of
	// theirs. The overlay shows their names with the number of the earlier layer's file and everything else of
	// the copy.
	nameless map[stamp]bool
	linking  bool
}

// stamp tells copied files apart. Two of one moment and size are both given their names, which does no harm.
type stamp struct {
	changed unix.Timespec
	size    int64
}

func stampOf(st *unix.Stat_t) stamp { return stamp{st.Ctim, st.Size} }

func (r *hardlinks) root(path string, up int) error {
	merged, err := openPath(unix.AT_FDCWD, path, noLinks)
	if err != nil {
		return err
	}
	defer unix.Close(merged)
	own, err := openPath(up, path[1:], noLinks|unix.RESOLVE_BENEATH)
	if err != nil {
		own = -1 // nothing in it changed
	} else {
		defer unix.Close(own)
	}
	return r.dir(merged, own, 0)
}

// dir looks at a directory as the sandbox sees it, and at the same one of the writable layer, or -1.
func (r *hardlinks) dir(merged, own, depth int) error {
	if own < 0 && !r.linking || depth > maxCopyDepth {
		return nil
	}
	at := own
	if r.linking {
		at = merged
	}
	names, err := readNames(at)
	if err != nil {
		return err
	}
	for _, name := range names {
		var st, raw unix.Stat_t
		if unix.Fstatat(merged, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
			continue // removed
		}
		isOwn := own >= 0 && unix.Fstatat(own, name, &raw, unix.AT_SYMLINK_NOFOLLOW) == nil
		switch {
		case st.Mode&unix.S_IFMT == unix.S_IFDIR:
			if err := r.subdir(merged, own, name, isOwn, depth); err != nil {
				return err
			}
		case st.Mode&unix.S_IFMT != unix.S_IFREG:
		case !r.linking:
			if st.Nlink > 1 {
				r.copied[st.Ino] = true
			}
		case !isOwn && (st.Nlink > 1 && r.copied[st.Ino] || r.nameless[stampOf(&st)]):
			// a name is a change: the next one shows another moment
			r.copied[st.Ino] = true
			// copies it up
			fd, err := unix.Openat(merged, name, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
			if err != nil {
				return err
			}
			unix.Close(fd)
		}
	}
	return nil
}

func (r *hardlinks) subdir(merged, own int, name string, isOwn bool, depth int) error {
	sub, err := openPath(merged, name, noLinks|unix.RESOLVE_BENEATH)
	if err != nil {
		return err
	}
	defer unix.Close(sub)
	ownSub := -1
	if isOwn {
		if ownSub, err = openPath(own, name, noLinks|unix.RESOLVE_BENEATH); err != nil {
			return err
		}
		defer unix.Close(ownSub)
	}
	return r.dir(sub, ownSub, depth+1)
}
