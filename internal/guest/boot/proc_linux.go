package boot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// devices are the host's device nodes that every program may expect. A user namespace cannot make nodes, so they are binds.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty"}

// devLinks are the links below /dev that programs use.
var devLinks = map[string]string{
	"fd":     "/proc/self/fd",
	"stdin":  "/proc/self/fd/0",
	"stdout": "/proc/self/fd/1",
	"stderr": "/proc/self/fd/2",
	"ptmx":   "pts/ptmx",
}

func openDevices() ([]tree, error) {
	trees := make([]tree, len(devices))
	for i, name := range devices {
		fi, err := os.Lstat("/dev/" + name)
		if err != nil {
			return nil, fmt.Errorf("looking at a device: %w", err)
		}
		if fi.Mode()&fs.ModeCharDevice == 0 {
			return nil, fmt.Errorf("/dev/%s of the host is not a character device", name)
		}
		if trees[i], err = openTree("/dev/" + name); err != nil {
			return nil, err
		}
		if err := trees[i].restrict(attrNoSuid|attrNoExec, false); err != nil {
			return nil, fmt.Errorf("device %s: %w", name, err)
		}
	}
	return trees, nil
}

// buildDev mounts a fresh /dev with the devices, terminals and shared memory, read-only but for what is mounted in it.
func buildDev(cfg *Config, nodes []tree) error {
	dev, err := newFS("tmpfs", attrNoSuid|attrNoDev|attrNoExec, "mode=0755", "size=64k")
	if err != nil {
		return err
	}
	defer dev.close()
	if err := mountPoint("/dev", false); err != nil {
		return err
	}
	if err := dev.attach("/dev"); err != nil {
		return err
	}
	for i, name := range devices {
		if err := attachAt(nodes[i], "/dev/"+name, true); err != nil {
			return err
		}
	}
	for name, to := range devLinks {
		if err := os.Symlink(to, "/dev/"+name); err != nil {
			return fmt.Errorf("linking a device: %w", err)
		}
	}
	terminals := []string{"newinstance", "ptmxmode=0666", "mode=0620"}
	if cfg.ToolUID != 0 {
		terminals = append(terminals, "gid=5") // group tty; without a range of ids there is none
	}
	for _, m := range []struct {
		path, kind string
		options    []string
	}{
		{"/dev/pts", "devpts", terminals},
		{"/dev/shm", "tmpfs", []string{"mode=1777", fmt.Sprintf("size=%d", cfg.ShmSize)}},
	} {
		if err := os.Mkdir(m.path, 0o755); err != nil {
			return fmt.Errorf("making a mount point: %w", err)
		}
		attrs := uintptr(attrNoSuid | attrNoExec)
		if m.kind != "devpts" {
			attrs |= attrNoDev
		}
		if err := mountNew(m.path, m.kind, attrs, m.options...); err != nil {
			return err
		}
	}
	return dev.restrict(attrReadOnly, false)
}

// newProc makes a proc of the new pid namespace, in which other identities' processes are invisible. It must happen while the
// host's proc is still in sight: the kernel allows a user namespace a new one only beside a visible old one.
func newProc(cfg *Config) (tree, error) {
	attrs := uintptr(attrNoSuid | attrNoDev | attrNoExec)
	options := []string{"hidepid=2"}
	if cfg.ToolUID != 0 {
		options = append(options, "gid=0") // the guest's group still sees every process
	}
	return newFS("proc", attrs, options...)
}

// maskProc hides and freezes the parts of /proc that show or steer the host's kernel.
func maskProc(cfg *Config) error {
	if !cfg.Networked {
		redirected, err := Network(cfg.Network != nil)
		if err != nil {
			return err
		}
		if cfg.Network != nil {
			cfg.Network.Redirected = redirected
		}
	}
	if err := mountPoint("/tmp", false); err != nil {
		return err
	}
	// One empty read-only file and directory, bound over each masked path. Their file system stays under the real /tmp, which will
	// cover it: to unmount it would be to wait for a grace period of the kernel, a good part of a sandbox's start.
	cover, err := newFS("tmpfs", attrNoSuid|attrNoDev|attrNoExec, "mode=0555", "size=4k")
	if err != nil {
		return err
	}
	defer cover.close()
	if err := cover.attach("/tmp"); err != nil {
		return err
	}
	if err := errors.Join(os.Mkdir("/tmp/dir", 0o555), os.WriteFile("/tmp/file", nil, 0o444)); err != nil {
		return fmt.Errorf("making an empty cover: %w", err)
	}
	if err := cover.restrict(attrReadOnly, false); err != nil {
		return err
	}
	for _, path := range cfg.Masked {
		if err := coverPath(path, "/tmp/dir", "/tmp/file", 0); err != nil {
			return err
		}
	}
	for _, path := range cfg.ReadOnly {
		if err := coverPath(path, path, path, attrReadOnly|attrNoSuid|attrNoDev|attrNoExec); err != nil {
			return err
		}
	}
	return nil
}

// coverPath mounts dir or file, whichever fits, over a path below /proc. What this kernel does not have needs no cover.
func coverPath(path, dir, file string, attrs uint64) error {
	if !strings.HasPrefix(path, "/proc/") {
		return fmt.Errorf("covering %q: only paths below /proc are covered", path)
	}
	fi, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking at a path to cover: %w", err)
	}
	source := file
	if fi.IsDir() {
		source = dir
	}
	t, err := openTree(source)
	if err != nil {
		return err
	}
	defer t.close()
	if attrs != 0 {
		if err := t.restrict(attrs, false); err != nil {
			return fmt.Errorf("covering %s: %w", path, err)
		}
	}
	return t.attach(path)
}
