package native

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// onThread runs f on a thread of its own, whose root, working directory, namespace and identity it may change:
// the thread ends with it.
func onThread(f func() error) error {
	return onSpentThread(func() error {
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		return f()
	})
}

// descriptors are closed together.
type descriptors []int

func (d *descriptors) add(fd int) int {
	*d = append(*d, fd)
	return fd
}

func (d *descriptors) close() {
	for _, fd := range *d {
		unix.Close(fd)
	}
	*d = nil
}

// letGo closes some of them before the others.
func (d *descriptors) letGo(fds []int) {
	*d = slices.DeleteFunc(*d, func(fd int) bool { return slices.Contains(fds, fd) })
	closeFDs(fds)
}

// mountWork makes the overlay of a sandbox's saved directories, attached to nothing: the layers of a stack over
// the root file system's, with dir to write to. userns is one with the sandbox's ids.
//
// It is the host's mount: a user namespace may not make one that renames directories of lower layers
// (redirect_dir), and programs do rename directories that an earlier call made. The identity it writes with is
// the root of the sandbox's range, since the layers' mounts know no other; it keeps the capabilities that
// copying files up takes. Of a whole root no layer has a file of several names.
func (p *Provider) mountWork(s *state, st *stack, dir string, whole bool, userns int) (mnt int, err error) {
	err = asRange(s.UIDBase, func() error {
		var fds descriptors
		defer fds.close()
		lower, err := p.openLayers(&fds, st.Below, st.Root, userns)
		if err != nil {
			return err
		}
		own, err := mappedTree(&fds, filepath.Dir(dir), userns)
		if err != nil {
			return err
		}
		dirs := [2]int{}
		for i, name := range []string{"up", "wk"} {
			if dirs[i], err = unix.Openat(own, filepath.Base(dir)+"/"+name,
				unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err != nil {
				return fmt.Errorf("opening the writable layer: %w", err)
			}
			fds.add(dirs[i])
		}
		mnt, err = mountLayers(lower, dirs[:], !whole)
		return err
	})
	return mnt, err
}

// userNamespaceOf opens the user namespace of a living sandbox. The caller closes it.
func userNamespaceOf(pid int) (int, error) {
	ns, err := unix.Open(fmt.Sprintf("/proc/%d/ns/user", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("opening the sandbox's user namespace: %w", err)
	}
	return ns, nil
}

// asRange runs f on a thread that acts on files as the first id of a range, with root's capabilities. It is any
// thread: to start one that ends with what it did is dearer than to be root again. One that does not become root
// again ends.
func asRange(uid uint32, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := become(int(uid), int(uid))
		if err == nil {
			err = f()
		}
		if become(unix.Geteuid(), unix.Getegid()) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// become makes the thread act on files as somebody, with the capabilities that it has.
func become(uid, gid int) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	for _, f := range []struct {
		set func(int) (int, error)
		id  int
	}{{unix.SetfsgidRetGid, gid}, {unix.SetfsuidRetUid, uid}} {
		_, err := f.set(f.id)
		if now, _ := f.set(-1); err == nil && now != f.id { // the kernel does not say that it refuses
			err = unix.EPERM
		}
		if err != nil {
			return fmt.Errorf("taking an identity for the file system: %w", err)
		}
	}
	return os.NewSyscallError("capset", unix.Capset(&header, &data[0])) // the change of uid took them away
}

// openLayers opens what an overlay lies on, top first. userns is -1 for the ids on the disk.
func (p *Provider) openLayers(fds *descriptors, names, root []string, userns int) (lower []int, err error) {
	all := -1
	if len(names) > 0 {
		if all, err = mappedTree(fds, filepath.Join(p.dir, layersDir), userns); err != nil {
			return nil, err
		}
	}
	for _, name := range names {
		fd, err := unix.Openat(all, name+"/fs", unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("opening layer %s: %w", name, err)
		}
		lower = append(lower, fds.add(fd))
	}
	for _, path := range root {
		fd, err := mappedTree(fds, path, userns)
		if err != nil {
			return nil, err
		}
		lower = append(lower, fd)
	}
	return lower, nil
}

// mappedTree returns a detached copy of the mount at path, with the ids on the disk taken for those inside a
// user namespace.
func mappedTree(fds *descriptors, path string, userns int) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("copying the mount at %s: %w", path, err)
	}
	fds.add(fd)
	if userns < 0 {
		return fd, nil
	}
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(userns)}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, attr); err != nil {
		return -1, fmt.Errorf("mapping the owners of %s: %w", path, err)
	}
	return fd, nil
}

// mountLayers mounts an overlay. Without writable, which is the upper and the work directory, it is read-only.
// Without index, the names of a lower file with several come to mean two files when it is written to.
func mountLayers(lower, writable []int, index bool) (int, error) {
	ctx, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, os.NewSyscallError("fsopen", err)
	}
	defer unix.Close(ctx)
	for _, fd := range lower {
		if err := unix.FsconfigSetFd(ctx, "lowerdir+", fd); err != nil {
			return -1, fmt.Errorf("adding a layer: %w", err)
		}
	}
	attrs := unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	// redirect_dir: directories of lower layers can be renamed. metacopy off: a layer holds whole files.
	options := [][2]string{{"redirect_dir", "on"}, {"metacopy", "off"}}
	if writable == nil {
		attrs |= unix.MOUNT_ATTR_RDONLY
		options[0][1] = "follow"
	} else {
		for i, key := range []string{"upperdir", "workdir"} {
			if err := unix.FsconfigSetFd(ctx, key, writable[i]); err != nil {
				return -1, fmt.Errorf("adding the writable layer: %w", err)
			}
		}
		if err := unix.FsconfigSetFlag(ctx, "volatile"); err != nil { // durability is the business of what is packed
			return -1, fmt.Errorf("setting volatile: %w", err)
		}
		indexed := map[bool]string{true: "on", false: "off"}
		options = append(options, [2]string{"index", indexed[index]})
	}
	for _, o := range options {
		if err := unix.FsconfigSetString(ctx, o[0], o[1]); err != nil {
			return -1, fmt.Errorf("setting %s: %w", o[0], err)
		}
	}
	if err := unix.FsconfigCreate(ctx); err != nil {
		return -1, fmt.Errorf("mounting an overlay of %d layers: %w", len(lower), err)
	}
	mnt, err := unix.Fsmount(ctx, unix.FSMOUNT_CLOEXEC, attrs)
	return mnt, os.NewSyscallError("fsmount", err)
}

const noLinks = unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

func openPath(dir int, name string, resolve uint64) (int, error) {
	return unix.Openat2(dir, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: resolve})
}

// openBelow opens a directory below another, however long its path is. No link is followed.
func openBelow(dir int, p string) (int, error) {
	const most = 4000 // the kernel takes a little more at a time
	for at := dir; ; {
		rest := ""
		if len(p) > most {
			i := strings.LastIndexByte(p[:most], '/')
			if i < 0 {
				i = most
			}
			p, rest = p[:i], strings.TrimLeft(p[i:], "/")
		}
		fd, err := openPath(at, p, noLinks|unix.RESOLVE_BENEATH)
		if at != dir {
			unix.Close(at)
		}
		if err != nil || rest == "" {
			return fd, err
		}
		at, p = fd, rest
	}
}

// subtrees returns one detached mount per saved directory of an overlay, owned and closed to others as the tool
// expects, and where each is in mnt.
func subtrees(fds *descriptors, mnt int, s *state) (trees, dirs []int, err error) {
	uid, gid := s.UIDBase+uint32(s.Tool.uid()), s.UIDBase+uint32(s.Tool.gid())
	for _, d := range workDirs {
		dir, err := openPath(mnt, strings.TrimPrefix(d, "/"), noLinks|unix.RESOLVE_BENEATH)
		if err != nil {
			return nil, nil, fmt.Errorf("opening %s in the layers: %w", d, err)
		}
		dirs = append(dirs, fds.add(dir))
		var st unix.Stat_t
		if err := unix.Fstat(dir, &st); err != nil {
			return nil, nil, fmt.Errorf("looking at %s in the layers: %w", d, err)
		}
		if st.Uid != uid { // a root file system has one of its own
			if err := unix.Fchownat(dir, "", int(uid), int(gid), unix.AT_EMPTY_PATH); err != nil {
				return nil, nil, fmt.Errorf("giving %s to the tool: %w", d, err)
			}
		}
		tree, err := unix.OpenTree(dir, "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			return nil, nil, fmt.Errorf("copying the mount of %s: %w", d, err)
		}
		trees = append(trees, fds.add(tree))
	}
	return trees, dirs, nil
}

// inside runs f in the mount namespace of a sandbox, where paths are the sandbox's: nothing may be followed that
// a tool can make.
func inside(s *state, f func() error) error {
	ns, err := unix.Open(fmt.Sprintf("/proc/%d/ns/mnt", s.Pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening the sandbox's mount namespace: %w", err)
	}
	defer unix.Close(ns)
	return onThread(func() error {
		if err := unix.Setns(ns, unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("entering the sandbox's mount namespace: %w", err)
		}
		return f()
	})
}

// attachTrees mounts one tree per saved directory. It runs inside.
func attachTrees(trees []int) error {
	for i, d := range workDirs[:len(trees)] {
		if err := attachTree(trees[i], d); err != nil {
			return err
		}
	}
	return nil
}

func attachTree(tree int, dir string) error {
	target, err := openPath(unix.AT_FDCWD, dir, noLinks)
	if err == nil {
		err = moveTree(tree, target)
		unix.Close(target)
	}
	if err != nil {
		return fmt.Errorf("attaching %s: %w", dir, err)
	}
	return nil
}

// moveTree mounts a tree somewhere, and nowhere else any more.
func moveTree(tree, target int) error {
	return unix.MoveMount(tree, "", target, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// errInUse: a process holds something of a saved directory open, or is in it.
var errInUse = errors.New("a process uses the workspace")

// detachTrees takes the saved directories' mounts away and returns them, which keeps their file system: to
// forget what it knows of every file takes long, and need not be waited for. The kernel refuses (errInUse) while
// anything refers to a mount, and then all of them stay. It runs inside.
func detachTrees(fds *descriptors) (trees []int, err error) {
	for _, d := range workDirs {
		at, err := openPath(unix.AT_FDCWD, d, noLinks)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("detaching %s: %w", d, err), attachTrees(trees))
		}
		tree, err := unix.OpenTree(at, "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		unix.Close(at)
		if err == nil {
			fds.add(tree)
			err = unix.Unmount(d, unix.UMOUNT_NOFOLLOW)
		}
		if err == unix.EBUSY {
			err = errInUse
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("detaching %s: %w", d, err), attachTrees(trees))
		}
		trees = append(trees, tree)
	}
	return trees, nil
}
