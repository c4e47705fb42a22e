package boot

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// buildRoot makes the sandbox's file system tree and moves into it. Everything of the host that is needed later (mounts to show,
// device nodes, the new proc) is taken as a detached mount first; then the root is changed and the host's tree is gone; only then
// are the mounts attached, so that no symbolic link in a root file system can lead one of them, or us, back to the host.
func buildRoot(cfg *Config, trees []tree) error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	trees, err := openSources(cfg, trees)
	if err != nil {
		return err
	}
	devices, err := openDevices()
	if err != nil {
		return err
	}
	proc, err := newProc(cfg)
	if err != nil {
		return err
	}
	binds := trees[len(trees)-len(cfg.Binds):]
	if err := enterOverlay(cfg, trees[:len(trees)-len(cfg.Binds)]); err != nil {
		return err
	}
	if err := pivot(); err != nil {
		return err
	}
	if err := attachAt(proc, "/proc", false); err != nil {
		return err
	}
	if err := maskProc(cfg); err != nil {
		return err
	}
	if err := buildDev(cfg, devices); err != nil {
		return err
	}
	if err := buildDirs(cfg); err != nil {
		return err
	}
	for i, b := range binds { // after /tmp, which one of them may be in
		if err := attachAt(b, cfg.Binds[i].Target, cfg.Binds[i].File); err != nil {
			return err
		}
	}
	return nil
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
func attachAt(t tree, target string, file bool) error {
	if err := mountPoint(target, file); err != nil {
		return err
	}
	defer t.close()
	return t.attach(target)
}

// mountPoint makes sure that path is a plain directory (or file) without a symbolic link on the way: a root file system that has
// a link where a mount belongs could redirect the mount.
func mountPoint(path string, file bool) error {
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
		case os.IsNotExist(err):
			if err := os.Mkdir(part, 0o755); err != nil {
				return fmt.Errorf("making a mount point: %w", err)
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
		{"/tmp", attrNoSuid | attrNoDev, []string{"mode=1777", fmt.Sprintf("size=%d", cfg.TmpSize)}},
		// No sysfs: it describes the host's hardware and kernel. Programs that probe it find it empty.
		{"/sys", attrNoSuid | attrNoDev | attrNoExec | attrReadOnly, []string{"mode=0555", "size=4k"}},
	}
	for _, m := range mounts {
		if err := mountPoint(m.path, false); err != nil {
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

// ownDir makes one of the tool's directories, or what a lower layer has into it. Where nothing needs to change nothing is written:
// a change copies the directory up.
func ownDir(cfg *Config, d Dir) error {
	if err := mountPoint(d.Path, false); err != nil {
		return err
	}
	var st syscall.Stat_t
	if err := syscall.Lstat(d.Path, &st); err != nil {
		return fmt.Errorf("looking at a directory of the tool: %w", err)
	}
	uid, gid := cfg.ToolUID, cfg.ToolGID
	give := int(st.Uid) != uid || int(st.Gid) != gid
	if !d.Tool { // a lower layer may have given it to the tool
		uid, gid = os.Geteuid(), os.Getegid()
		give = int(st.Uid) == cfg.ToolUID && cfg.ToolUID != uid
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
