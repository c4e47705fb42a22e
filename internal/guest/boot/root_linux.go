package boot

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"unsafe"
)

// buildRoot makes the sandbox's file system tree and moves into it; where the host has made it ahead the process
// was born in it. The new proc is taken while the host's is still in sight: the kernel allows a user namespace a
// new one only beside a visible old one.
func buildRoot(cfg *Config, given []tree) error {
	if cfg.Rooted {
		proc, err := newProc(cfg)
		if err != nil {
			return err
		}
		return maskProc(cfg, proc, covers{given[0], given[1], given[2]})
	}
	open := slices.Clone(trees(given))
	defer open.close()
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	proc, err := newProc(cfg)
	if err != nil {
		return err
	}
	sources, err := openSources(&open, cfg, given)
	if err != nil {
		return err
	}
	devices, err := openDevices(&open)
	if err != nil {
		return err
	}
	root, err := newRoot(cfg, sources[:len(sources)-len(cfg.Binds)], hidden)
	if err != nil {
		return err
	}
	defer root.close()
	if err := root.attach(hidden); err != nil {
		return err
	}
	if err := pivot(root); err != nil {
		return err
	}
	own := func() error { return buildDev(cfg, devices) }
	c, err := furnishRoot(cfg, own, sources[len(sources)-len(cfg.Binds):])
	if err != nil {
		return err
	}
	return maskProc(cfg, proc, c)
}

// hidden is a directory of every host, for what goes with the old root.
const hidden = "/usr"

// furnishRoot makes everything in a new root but what lies over /proc and /sys, and what to hide things with
// there. The host's tree is gone by now, so that no symbolic link in a root file system can lead a mount, or us,
// back to the host. For dev see buildScratch. The caller closes the covers.
func furnishRoot(cfg *Config, dev func() error, binds []tree) (_ covers, err error) {
	if err := mountPoint(cfg, "/sys", false); err != nil {
		return covers{}, err
	}
	c, err := buildScratch(cfg, dev)
	if err != nil {
		return covers{}, err
	}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	for _, d := range cfg.Owned {
		if err := ownDir(cfg, d); err != nil {
			return covers{}, err
		}
	}
	for i, b := range binds { // after /tmp, which one of them may be in
		if err := attachAt(cfg, b, cfg.Binds[i].Target, cfg.Binds[i].File); err != nil {
			return covers{}, err
		}
	}
	return c, nil
}

// Void makes a mount namespace for Ahead, of nothing but a directory that nobody can write to, with a /dev in
// it. It spends the calling thread.
func Void() (*os.File, error) {
	mine, err := syscall.Open("/proc/thread-self/ns", syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/proc/thread-self/ns", Err: err}
	}
	defer syscall.Close(mine)
	if err := syscall.Unshare(syscall.CLONE_NEWNS | syscall.CLONE_FS); err != nil {
		return nil, os.NewSyscallError("unshare", err)
	}
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return nil, fmt.Errorf("making mounts private: %w", err)
	}
	var nodes trees
	defer nodes.close()
	if _, err := openDevices(&nodes); err != nil {
		return nil, err
	}
	root, err := newFS("tmpfs", attrNoSuid|attrNoDev|attrNoExec, "mode=0555", "size=4k")
	if err != nil {
		return nil, err
	}
	defer root.close()
	if err := root.attach(hidden); err != nil {
		return nil, err
	}
	if err := pivot(root); err != nil {
		return nil, err
	}
	if err := sharedDev(nodes); err != nil {
		return nil, err
	}
	if err := root.restrict(attrReadOnly, false); err != nil {
		return nil, err
	}
	return openNamespace(mine, "mnt")
}

// Place is what Ahead makes.
type Place struct {
	Mount, Net *os.File // the namespaces that the guest is born in
	Redirected bool     // what Network returned
	Trees      []int    // for the guest's configuration
}

// Ahead builds the file systems and the network of a sandbox on the host, before there is one: in namespaces of
// the calling thread, which is spent by it. Config.Base says whose they will be; connected is Network's. A guest
// that is born in them finds its root as it should be (Config.Rooted). The namespace shows the host's proc at
// /sys, which an empty directory will lie over: the guest may mount its own while it sees that, and finds none
// at /proc, where the Go runtime would read of control groups and of every mount each time it starts.
//
// The mount namespace is a copy of void (Void), over whose root the sandbox's is laid. A copy of the host's
// would have all its mounts copied, and let go of again, which is to wait for a grace period of the kernel; and
// to exchange a root for another the kernel looks at each thread of the host. The sources are closed, also after
// an error; root, which is the sandbox's root where that has been made, or -1, is not.
func Ahead(void *os.File, cfg *Config, root int, sources []int, connected bool) (_ *Place, err error) {
	given := make([]tree, len(sources))
	for i, fd := range sources {
		given[i] = tree(fd)
	}
	open := slices.Clone(trees(given))
	defer open.close()
	all, err := openSources(&open, cfg, given)
	if err != nil {
		return nil, err
	}
	proc, err := newFS("proc", attrNoSuid|attrNoDev|attrNoExec)
	if err != nil {
		return nil, err
	}
	defer proc.close()
	if err := syscall.Unshare(syscall.CLONE_FS); err != nil {
		return nil, os.NewSyscallError("unshare", err)
	}
	if _, _, errno := syscall.Syscall(sysSetns, void.Fd(), syscall.CLONE_NEWNS, 0); errno != 0 {
		return nil, os.NewSyscallError("setns", errno)
	}
	if err := syscall.Unshare(syscall.CLONE_NEWNS | syscall.CLONE_NEWNET); err != nil {
		return nil, os.NewSyscallError("unshare", err)
	}
	devFD, err := syscall.Open("/dev", pathOnly|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0) // void's
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/dev", Err: err}
	}
	dev, _ := open.add(tree(devFD), nil)
	p := new(Place)
	if p.Redirected, err = furnishNetwork(proc, connected); err != nil {
		return nil, err
	}
	if err := enterRoot(cfg, tree(root), all[:len(all)-len(cfg.Binds)]); err != nil {
		return nil, err
	}
	shared := func() error { return takeDev(cfg, dev) }
	c, err := furnishRoot(cfg, shared, all[len(all)-len(cfg.Binds):])
	if err != nil {
		return nil, err
	}
	if err = proc.attach("/sys"); err == nil {
		err = p.open(proc)
	}
	if err != nil {
		c.close()
		return nil, fmt.Errorf("finishing the file systems: %w", err)
	}
	p.Trees = []int{int(c.file), int(c.sys), int(c.bootID)}
	return p, nil
}

// enterRoot enters a root, or with -1 makes one of layers. In one that was made the ids of the sandbox are all
// that there are.
func enterRoot(cfg *Config, root tree, layers []tree) (err error) {
	if root >= 0 {
		if err := actAs(cfg.Base); err != nil {
			return err
		}
		return root.enter()
	}
	if root, err = newRoot(cfg, layers, "/"); err != nil {
		return err
	}
	defer root.close()
	return root.enter()
}

// actAs makes files that the thread creates somebody's, and keeps its capabilities.
func actAs(id int) error {
	header := &struct {
		version uint32
		pid     int32
	}{version: capVersion3}
	data := new([2]struct{ effective, permitted, inheritable uint32 })
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CAPGET, uintptr(unsafe.Pointer(header)),
		uintptr(unsafe.Pointer(data)), 0); errno != 0 {
		return os.NewSyscallError("capget", errno)
	}
	for _, set := range []uintptr{syscall.SYS_SETFSGID, syscall.SYS_SETFSUID} {
		_, _, _ = syscall.RawSyscall(set, uintptr(id), 0, 0) // which does not say that it refuses
		if now, _, _ := syscall.RawSyscall(set, ^uintptr(0), 0, 0); int(now) != id {
			return fmt.Errorf("acting on files as %d: %w", id, syscall.EPERM)
		}
	}
	// The change of the user took those for files away.
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CAPSET, uintptr(unsafe.Pointer(header)),
		uintptr(unsafe.Pointer(data)), 0); errno != 0 {
		return os.NewSyscallError("capset", errno)
	}
	return nil
}

// enter lays a mount over the root and makes it the thread's.
func (t tree) enter() error {
	if err := t.attach("/"); err != nil {
		return err
	}
	if err := syscall.Fchdir(int(t)); err != nil {
		return fmt.Errorf("entering the new root: %w", err)
	}
	if err := syscall.Chroot("."); err != nil {
		return fmt.Errorf("changing the root: %w", err)
	}
	return nil
}

// open opens the namespaces of the thread.
func (p *Place) open(proc tree) (err error) {
	if p.Mount, err = openNamespace(int(proc), "thread-self/ns/mnt"); err != nil {
		return err
	}
	if p.Net, err = openNamespace(int(proc), "thread-self/ns/net"); err != nil {
		p.Mount.Close()
	}
	return err
}

func openNamespace(dir int, name string) (*os.File, error) {
	fd, err := syscall.Openat(dir, name, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// pivot makes an attached mount the root and lets go of the old one.
func pivot(root tree) error {
	if err := syscall.Fchdir(int(root)); err != nil {
		return fmt.Errorf("entering the new root: %w", err)
	}
	if err := syscall.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("changing the root: %w", err)
	}
	// The old root now lies over the new one at the same place; detaching it leaves no path to any host mount.
	if err := syscall.Unmount(".", syscall.MNT_DETACH); err != nil {
		return fmt.Errorf("detaching the old root: %w", err)
	}
	if err := syscall.Chdir("/"); err != nil {
		return fmt.Errorf("entering the new root: %w", err)
	}
	return nil
}

// attachAt makes the mount point and attaches t there.
func attachAt(cfg *Config, t tree, target string, file bool) error {
	if err := mountPoint(cfg, target, file); err != nil {
		return err
	}
	return t.attach(target)
}

// mountPoint makes sure that path is a plain directory (or file) without a symbolic link on the way: a root file
// system that has a link where a mount belongs could redirect the mount.
func mountPoint(cfg *Config, path string, file bool) error {
	if path != filepath.Clean(path) || !filepath.IsAbs(path) {
		return fmt.Errorf("mount point %q is not a clean absolute path", path)
	}
	for i := 1; i <= len(path); i++ {
		if i < len(path) && path[i] != '/' {
			continue
		}
		part, last := path[:i], i == len(path)
		fi, err := os.Lstat(part)
		switch {
		case os.IsNotExist(err) && last && file:
			f, err := os.OpenFile(part, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
			if err != nil {
				return fmt.Errorf("making a mount point: %w", err)
			}
			f.Close()
			if err := cfg.own(part); err != nil {
				return err
			}
		case os.IsNotExist(err):
			if err := os.Mkdir(part, 0o755); err != nil {
				return fmt.Errorf("making a mount point: %w", err)
			}
			if err := cfg.own(part); err != nil {
				return err
			}
		case err != nil:
			return fmt.Errorf("looking at a mount point: %w", err)
		case last && file && !fi.Mode().IsRegular(), !(last && file) && !fi.IsDir():
			return fmt.Errorf("mount point %s has a %s at %s", path, fi.Mode().Type(), part)
		}
	}
	return nil
}

// alone reports whether the tools share the guest's identity, which is then the only one that the sandbox has.
func (c *Config) alone() bool { return c.Base == 0 && c.ToolUID == os.Getuid() }

// own gives what was just made to root inside, where that is not who makes it.
func (c *Config) own(path string) error {
	if c.Base == 0 {
		return nil
	}
	if err := os.Lchown(path, c.Base, c.Base); err != nil {
		return fmt.Errorf("setting the owner of a mount point: %w", err)
	}
	return nil
}

// owned adds the same to the options of a tmpfs.
func (c *Config) owned(options ...string) []string {
	if c.Base == 0 {
		return options
	}
	return append(options, fmt.Sprintf("uid=%d", c.Base), fmt.Sprintf("gid=%d", c.Base))
}

// ownDir makes one of the tool's directories, or what a lower layer has into it. Where nothing needs to change
// nothing is written: a change copies the directory up.
func ownDir(cfg *Config, d Dir) error {
	if err := mountPoint(cfg, d.Path, false); err != nil {
		return err
	}
	var st syscall.Stat_t
	if err := syscall.Lstat(d.Path, &st); err != nil {
		return fmt.Errorf("looking at a directory of the tool: %w", err)
	}
	tool := cfg.Base + cfg.ToolUID
	uid, gid := tool, cfg.Base+cfg.ToolGID
	give := int(st.Uid) != uid || int(st.Gid) != gid
	if !d.Tool { // a lower layer may have given it to the tool
		uid, gid = os.Geteuid()+cfg.Base, os.Getegid()+cfg.Base
		give = int(st.Uid) == tool && tool != uid
	}
	if give {
		if err := os.Lchown(d.Path, uid, gid); err != nil {
			return fmt.Errorf("setting the owner of a directory: %w", err)
		}
	}
	const bits = 0o7777
	if uint32(st.Mode)&bits != d.Mode {
		if err := syscall.Chmod(d.Path, d.Mode); err != nil {
			return fmt.Errorf("setting the mode of a directory: %w", err)
		}
	}
	return nil
}
