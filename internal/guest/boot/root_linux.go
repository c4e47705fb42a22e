package boot

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// buildRoot makes the sandbox's file system tree and moves into it; where the host has made it ahead the process was born in it. The
// new proc is taken while the host's is still in sight: the kernel allows a user namespace a new one only beside a visible old one.
func buildRoot(cfg *Config, trees []tree) error {
	if cfg.Rooted {
		proc, err := newProc(cfg)
		if err != nil {
			return err
		}
		return maskProc(cfg, proc, covers{trees[0], trees[1], trees[2]})
	}
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	proc, err := newProc(cfg)
	if err != nil {
		return err
	}
	c, err := buildTree(cfg, trees)
	if err != nil {
		return err
	}
	return maskProc(cfg, proc, c)
}

// buildTree makes everything but /proc, and what to hide parts of that with. What is needed of the host (mounts to show, device nodes)
// is taken as a detached mount first; then the root is changed and the host's tree is gone; only then are the mounts attached, so
// that no symbolic link in a root file system can lead one of them, or us, back to the host.
func buildTree(cfg *Config, trees []tree) (covers, error) {
	trees, err := openSources(cfg, trees)
	if err != nil {
		return covers{}, err
	}
	devices, err := openDevices()
	if err != nil {
		return covers{}, err
	}
	binds := trees[len(trees)-len(cfg.Binds):]
	if err := enterOverlay(cfg, trees[:len(trees)-len(cfg.Binds)]); err != nil {
		return covers{}, err
	}
	if err := pivot(); err != nil {
		return covers{}, err
	}
	c, err := buildCovers(cfg)
	if err != nil {
		return covers{}, err
	}
	if err := buildDev(cfg, devices); err != nil {
		return covers{}, err
	}
	if err := buildDirs(cfg); err != nil {
		return covers{}, err
	}
	for i, b := range binds { // after /tmp, which one of them may be in
		if err := attachAt(cfg, b, cfg.Binds[i].Target, cfg.Binds[i].File); err != nil {
			return covers{}, err
		}
	}
	return c, nil
}

// Ahead builds the file systems of a sandbox on the host, before there is one: in a mount namespace of the calling thread, which is
// spent by it, since it can have no other root again. Config.Base says whose they will be. A guest that is born in that namespace
// finds its root as it should be; the namespace shows the host's proc at /proc, which the guest's own will lie over. The trees are for
// the guest's configuration, Config.Rooted.
func Ahead(cfg *Config, sources []int) (ns *os.File, trees []int, err error) {
	if err := syscall.Unshare(syscall.CLONE_NEWNS | syscall.CLONE_FS); err != nil {
		return nil, nil, os.NewSyscallError("unshare", err)
	}
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return nil, nil, fmt.Errorf("making mounts private: %w", err)
	}
	given := make([]tree, len(sources))
	for i, fd := range sources {
		given[i] = tree(fd)
	}
	proc, err := newFS("proc", attrNoSuid|attrNoDev|attrNoExec)
	if err != nil {
		return nil, nil, err
	}
	defer proc.close()
	c, err := buildTree(cfg, given)
	if err != nil {
		return nil, nil, err
	}
	if err = proc.attach("/proc"); err == nil {
		ns, err = os.Open("/proc/thread-self/ns/mnt")
	}
	if err != nil {
		c.close()
		return nil, nil, fmt.Errorf("finishing the file systems: %w", err)
	}
	return ns, []int{int(c.file), int(c.dir), int(c.bootID)}, nil
}

// pivot makes the working directory the root and lets go of the old one.
func pivot() error {
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
	defer t.close()
	return t.attach(target)
}

// mountPoint makes sure that path is a plain directory (or file) without a symbolic link on the way: a root file system that has
// a link where a mount belongs could redirect the mount.
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

// buildDirs mounts the remaining file systems and makes the tool's directories.
func buildDirs(cfg *Config) error {
	mounts := []struct {
		path    string
		attrs   uintptr
		options []string
	}{
		// Room for temporary files, bounded: it counts as the sandbox's memory.
		{"/tmp", attrNoSuid | attrNoDev, cfg.owned("mode=1777", fmt.Sprintf("size=%d", cfg.TmpSize))},
		// No sysfs: it describes the host's hardware and kernel. Programs that probe it find it empty.
		{"/sys", attrNoSuid | attrNoDev | attrNoExec | attrReadOnly, cfg.owned("mode=0555", "size=4k")},
	}
	for _, m := range mounts {
		if err := mountPoint(cfg, m.path, false); err != nil {
			return err
		}
		if err := mountNew(m.path, "tmpfs", m.attrs, m.options...); err != nil {
			return err
		}
	}
	for _, d := range cfg.Owned {
		if err := ownDir(cfg, d); err != nil {
			return err
		}
	}
	return nil
}

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

// ownDir makes one of the tool's directories, or what a lower layer has into it. Where nothing needs to change nothing is written:
// a change copies the directory up.
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
