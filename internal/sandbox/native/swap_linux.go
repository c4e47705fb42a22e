package native

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
)

// swap puts the next overlay of a sandbox in the place of that of <n>, whose files become its top layer. While
// the directory is marked nobody knows what is attached, and a server that finds it so gives the sandbox up.
type swap struct {
	m    *machine
	n    int
	next *work

	// closed when the next overlay is attached, and all that was written is the layer's; or when that has failed
	settled  chan struct{}
	attached bool          // which of the two
	placed   chan struct{} // closed when processes may go on, or when it has failed
	lost     bool          // the mark stays

	brake *brake // of a sandbox that is stopped meanwhile
	fds   descriptors
	old   descriptors // what was attached

	work, up, layer, to int // directories: the sandbox's, the writable layer in use, the layer it becomes, the next one
	// what the kernel notes of files with several names, or -1; none of a root's has a name in the saved
	// directories
	index int
	root  int // the sandbox's root, where it was of the same overlay, or -1
}

// begin has the sandbox's processes stop, and meanwhile opens what has no path where all paths are the sandbox's.
func (x *swap) begin() error {
	if x.m.freezable {
		b, err := x.m.group.brake()
		if err == nil {
			x.brake = b
			err = b.set(true)
		}
		if err != nil {
			return x.notFrozen(err)
		}
	}
	layer := filepath.Join(x.m.p.layer(layerName(x.m.id, x.n)), "fs")
	dirs := []*int{&x.work, &x.up, &x.layer, &x.to}
	for i, path := range []string{x.m.dir, x.m.workPath(x.n, "up"), layer, x.m.next(x.next.n)} {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return &fs.PathError{Op: "open", Path: path, Err: err}
		}
		*dirs[i] = x.fds.add(fd)
	}
	if x.m.sharedRoot(x.n) {
		return nil
	}
	index, err := unix.Open(x.m.workPath(x.n, "wk/index"), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil { // else the file system cannot have one
		x.index = x.fds.add(index)
	}
	return nil
}

func (x *swap) notFrozen(err error) error {
	return outboard.Errorf(outboard.Unavailable, "freezing sandbox %s: %w", x.m.id, err)
}

// thaw lets the processes go on, if that was not done yet. Whoever asked for the push may have gone; a sandbox
// may not stay frozen for that, or half frozen.
func (x *swap) thaw() error {
	b := x.brake
	if b == nil {
		return nil
	}
	x.brake = nil
	defer b.close()
	ctx, cancel := context.WithTimeout(context.Background(), destroyTimeout)
	defer cancel()
	err := b.set(false)
	if err == nil {
		err = b.wait(ctx, false)
	}
	if err != nil {
		return outboard.Errorf(outboard.Unavailable, "thawing sandbox %s: %w", x.m.id, err)
	}
	return nil
}

// end lets go of what was opened and made. What the kernel knows of every file of an overlay takes long to
// forget: nobody waits for that.
func (x *swap) end() error {
	x.fds.close()
	swapped := x.attached || x.lost
	if !swapped {
		x.old.close() // attached still: the next Push would find them in use
		if x.root >= 0 {
			unix.Close(x.root)
		}
		x.next.close()
		return x.m.discard(x.next.n)
	}
	go func() {
		x.old.close()
		x.next.close()
		if x.root >= 0 {
			forgetFiles(x.root)
			unix.Close(x.root)
			return
		}
		_ = removeTree(x.m.path(strconv.Itoa(x.n) + ".was")) // what stays goes with the sandbox
	}()
	return nil
}

// run does it. It closes settled early: the caller has a name to give, and to wake it takes a while. It leaves
// it to the caller to let the processes go on, since its thread ends with it, and that takes as long.
func (x *swap) run(ctx context.Context) error {
	settled, placed := sync.OnceFunc(func() { close(x.settled) }), sync.OnceFunc(func() { close(x.placed) })
	defer placed()
	defer settled()
	return inside(x.m.state, func() error {
		if x.brake != nil {
			if err := x.brake.wait(ctx, true); err != nil {
				return x.notFrozen(err)
			}
		}
		is, pushing, was := strconv.Itoa(x.n), strconv.Itoa(x.n)+pushingSuffix, strconv.Itoa(x.n)+".was"
		if x.m.sharedRoot(x.n) {
			was = rootDir
			fd, err := openPath(unix.AT_FDCWD, "/", 0)
			if err != nil {
				return fmt.Errorf("opening the root: %w", err)
			}
			x.root = fd
		}
		if err := unix.Renameat(x.work, is, x.work, pushing); err != nil {
			return err
		}
		indexed, err := restoreHardlinks(x.up, x.index)
		if err == nil && x.brake != nil {
			err = x.swapMounts()
		} else if err == nil {
			err = x.replace()
		}
		if err != nil {
			if !x.lost {
				err = errors.Join(err, unix.Renameat(x.work, pushing, x.work, is))
			}
			return err
		}
		x.attached = true
		if indexed {
			unindex(x.index)
		}
		settled()
		will := strconv.Itoa(x.next.n)
		if err = unix.Renameat(x.work, will+nextSuffix, x.work, will); err == nil {
			err = unix.Renameat(x.work, pushing, x.work, was)
		}
		x.lost = err != nil
		placed()
		return err
	})
}

// replace is for a sandbox whose processes run: the kernel takes a mount away only while nothing refers to it.
func (x *swap) replace() error {
	old, err := detachTrees(&x.old)
	if err != nil {
		x.lost = !errors.Is(err, errInUse)
		return err
	}
	if err := x.take(); err != nil {
		return errors.Join(err, x.giveBack(), attachTrees(old))
	}
	x.lost = true // until all is attached
	trees, _, err := subtrees(&x.fds, x.next.mnt, x.m.state)
	if err == nil {
		err = attachTrees(trees)
	}
	if err != nil {
		return err
	}
	x.lost = false
	return nil
}

// swapMounts is for a sandbox whose processes are stopped, so that nothing comes to be used that is not. To take
// a mount away is to wait for a grace period, each time: the old ones are therefore moved into the next
// overlay's own mount, which lies over the workspace for a moment and takes them with it.
func (x *swap) swapMounts() error {
	old, err := unused(&x.old)
	if err != nil {
		x.lost = !errors.Is(err, errInUse)
		return err
	}
	if err := x.take(); err != nil {
		return errors.Join(err, x.giveBack())
	}
	trees, dirs, err := subtrees(&x.fds, x.next.mnt, x.m.state)
	if err != nil {
		return errors.Join(err, x.giveBack())
	}
	x.lost = true                  // until it is done
	err = moveTree(old[0], old[1]) // out of the way of what takes it along
	if err == nil {
		err = attachTree(trees[0], workDirs[0])
	}
	if err == nil {
		err = attachTree(x.next.mnt, workDirs[0])
	}
	for i := range old {
		if err == nil {
			err = moveTree(old[i], dirs[i])
		}
		if err == nil && i > 0 {
			err = attachTree(trees[i], workDirs[i])
		}
	}
	if err != nil {
		return err
	}
	if err = unix.Unmount(workDirs[0], unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return err
	}
	x.lost = false
	return nil
}

// unused opens the mounts of the saved directories, if nothing refers to any of them (else errInUse). The kernel
// says so to who wants to let mounts expire: at the first look it marks one that nothing refers to, and no more,
// and whatever comes to it takes the mark away. It runs inside, where all processes are stopped.
func unused(fds *descriptors) (mounts []int, err error) {
	for _, d := range workDirs {
		at, err := openPath(unix.AT_FDCWD, d, noLinks)
		if err == nil {
			unix.Close(at) // the mark of an earlier look goes with it
			err = unix.Unmount(d, unix.MNT_EXPIRE|unix.UMOUNT_NOFOLLOW)
		}
		switch err {
		case unix.EAGAIN:
			continue
		case unix.EBUSY:
			return nil, errInUse
		case nil:
			err = errors.New("it has been taken away")
		}
		return nil, fmt.Errorf("looking whether %s is in use: %w", d, err)
	}
	for _, d := range workDirs {
		fd, err := openPath(unix.AT_FDCWD, d, noLinks)
		if err != nil {
			return nil, fmt.Errorf("opening %s: %w", d, err)
		}
		mounts = append(mounts, fds.add(fd))
	}
	return mounts, nil
}

// take moves what was written to the layer that it becomes.
func (x *swap) take() error {
	if x.m.sharedRoot(x.n) {
		return takeSaved(x.up, x.layer)
	}
	return moveNames(x.up, x.layer)
}

// giveBack undoes take.
func (x *swap) giveBack() error {
	if x.m.sharedRoot(x.n) {
		return giveBackSaved(x.layer, x.up)
	}
	return moveNames(x.layer, x.up)
}

// moveNames moves what may be at the top of a layer from one directory to another, and makes sure that nothing
// is left: that a name is missing is no error, but would be no reason either to take files for saved that are
// elsewhere.
func moveNames(from, to int) error {
	for _, d := range workDirs {
		name, _, _ := strings.Cut(d[1:], "/")
		if err := unix.Renameat(from, name, to, name); err != nil && err != unix.ENOENT {
			return fmt.Errorf("moving a layer: %w", err)
		}
	}
	left, err := readNames(from)
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("moving a layer: %q cannot be moved", left)
	}
	return err
}
