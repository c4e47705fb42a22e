package boot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

// devices are the host's device nodes that every program may expect. A user namespace cannot make nodes, so they
// are binds.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty"}

// devLinks are the links below /dev that programs use.
var devLinks = []struct{ name, to string }{
	{"fd", "/proc/self/fd"},
	{"stdin", "/proc/self/fd/0"},
	{"stdout", "/proc/self/fd/1"},
	{"stderr", "/proc/self/fd/2"},
	{"ptmx", "pts/ptmx"},
}

func openDevices(h *trees) ([]tree, error) {
	nodes := make([]tree, len(devices))
	for i, name := range devices {
		fi, err := os.Lstat("/dev/" + name)
		if err != nil {
			return nil, fmt.Errorf("looking at a device: %w", err)
		}
		if fi.Mode()&fs.ModeCharDevice == 0 {
			return nil, fmt.Errorf("/dev/%s of the host is not a character device", name)
		}
		if nodes[i], err = h.add(openTree("/dev/" + name)); err != nil {
			return nil, err
		}
		if err := nodes[i].restrict(attrNoSuid|attrNoExec, false); err != nil {
			return nil, fmt.Errorf("device %s: %w", name, err)
		}
	}
	return nodes, nil
}

// buildDev makes a /dev that is this sandbox's alone, of the host's devices and one more part of the scratch.
func buildDev(cfg *Config, nodes []tree) error {
	if err := scratchDir(cfg, "dev", 0o755); err != nil {
		return err
	}
	if err := bindAt(cfg, "/proc/dev", "/dev"); err != nil {
		return err
	}
	if err := fillDev(cfg, nodes); err != nil {
		return err
	}
	if err := dressDev(cfg); err != nil {
		return err
	}
	return makeReadOnly("/dev")
}

// sharedDev makes the /dev that all sandboxes see which are built on copies of void: it is read-only, and only
// what dressDev attaches differs.
func sharedDev(nodes []tree) error {
	cfg := new(Config)
	if err := mountPoint(cfg, "/dev", false); err != nil {
		return err
	}
	dev, err := newFS("tmpfs", attrNoSuid|attrNoDev|attrNoExec, "mode=0755", "size=64k")
	if err != nil {
		return err
	}
	defer dev.close()
	if err := dev.attach("/dev"); err != nil {
		return err
	}
	if err := fillDev(cfg, nodes); err != nil {
		return err
	}
	return dev.restrict(attrReadOnly, false)
}

// takeDev moves a copy of void's /dev, which the caller has opened, into the sandbox's root.
func takeDev(cfg *Config, dev tree) error {
	if err := attachAt(cfg, dev, "/dev", false); err != nil {
		return err
	}
	return dressDev(cfg)
}

// fillDev makes what is the same in every /dev: devices, links, and where terminals and shared memory go.
func fillDev(cfg *Config, nodes []tree) error {
	for i, name := range devices {
		if err := attachAt(cfg, nodes[i], "/dev/"+name, true); err != nil {
			return err
		}
	}
	for _, l := range devLinks {
		if err := os.Symlink(l.to, "/dev/"+l.name); err != nil {
			return fmt.Errorf("linking a device: %w", err)
		}
		if err := cfg.own("/dev/" + l.name); err != nil {
			return err
		}
	}
	return errors.Join(mountPoint(cfg, "/dev/shm", false), mountPoint(cfg, "/dev/pts", false))
}

// MaxTerminals is how many pseudo-terminals a sandbox has at most. All that do not belong to the host's first
// mount namespace share one number (kernel.pty.max less kernel.pty.reserve, 3072).
const MaxTerminals = 64

// dressDev attaches what a sandbox has of its own in /dev.
func dressDev(cfg *Config) error {
	terminals := []string{"newinstance", "ptmxmode=0666", "mode=0620", fmt.Sprintf("max=%d", MaxTerminals)}
	if !cfg.alone() {
		// group tty; without a range of ids there is none
		terminals = append(terminals, fmt.Sprintf("gid=%d", cfg.Base+5))
	}
	if err := bind("/proc/shm", "/dev/shm"); err != nil {
		return err
	}
	return mountNew("/dev/pts", "devpts", attrNoSuid|attrNoExec, terminals...)
}

// newProc makes a proc of the new pid namespace, in which other identities' processes are invisible.
func newProc(cfg *Config) (tree, error) {
	attrs := uintptr(attrNoSuid | attrNoDev | attrNoExec)
	options := []string{"hidepid=2"}
	if !cfg.alone() {
		options = append(options, "gid=0") // the guest's group still sees every process
	}
	return newFS("proc", attrs, options...)
}

// bootIDPath is where programs read which start of a machine they live in. The kernel has one for the host,
// which would say of two sandboxes that they are on the same, and stays the same when a sandbox is started
// afresh.
const bootIDPath = "/proc/sys/kernel/random/boot_id"

// covers hide parts of proc: an empty file, the sandbox's /sys, which has an empty directory, and a file that is
// its own boot id, detached.
type covers struct{ file, sys, bootID tree }

func (c covers) close() {
	c.file.close()
	c.sys.close()
	c.bootID.close()
}

// scratchParts are the directories of what a sandbox has in memory: /dev/shm and its /sys; buildDev adds its
// /dev where it has one of its own. All is one file system: whenever a control group ends, the kernel looks at
// each file system that there is on the host, so that with one for each of them a thousand sandboxes took a good
// part of their end. They share its size, of which /dev and the covers, which are read-only, take next to
// nothing.
var scratchParts = []struct {
	name string
	mode fs.FileMode
}{{"shm", 0o777 | fs.ModeSticky}, {"sys", 0o755}}

// buildScratch makes it where proc will lie over it, to stay there: to unmount it would be to wait for a grace
// period of the kernel, a good part of a sandbox's start. Its parts are bound where they belong: a detached
// mount of each would cost several times as much, for the namespace that the kernel makes for one. dev makes
// /dev, while something can still be added.
func buildScratch(cfg *Config, dev func() error) (covers, error) {
	if err := mountPoint(cfg, "/proc", false); err != nil {
		return covers{}, err
	}
	const ours = 256 << 10 // bytes, of /dev, the covers and the sandbox's size
	all, err := newFS("tmpfs", attrNoSuid|attrNoDev|attrNoExec,
		cfg.owned("mode=0555", fmt.Sprintf("size=%d", cfg.ShmSize+ours))...)
	if err != nil {
		return covers{}, err
	}
	defer all.close()
	if err := all.attach("/proc"); err != nil {
		return covers{}, err
	}
	if err := fillScratch(cfg); err != nil {
		return covers{}, err
	}
	if err := dev(); err != nil {
		return covers{}, err
	}
	if err := all.restrict(attrReadOnly, false); err != nil {
		return covers{}, err
	}
	return openCovers()
}

func fillScratch(cfg *Config) error {
	for _, d := range scratchParts {
		if err := scratchDir(cfg, d.name, d.mode); err != nil {
			return err
		}
	}
	if err := errors.Join(os.WriteFile("/proc/file", nil, 0o444), os.WriteFile("/proc/boot_id", []byte(cfg.BootID+"\n"),
		0o444),
		cfg.own("/proc/file"), cfg.own("/proc/boot_id")); err != nil {
		return fmt.Errorf("making a cover: %w", err)
	}
	return WriteSize("/proc/sys", SizeFiles(cfg.Memory, cfg.MilliCPUs), cfg.own)
}

func scratchDir(cfg *Config, name string, mode fs.FileMode) error {
	path := "/proc/" + name
	if err := os.Mkdir(path, 0o700); err != nil {
		return fmt.Errorf("making a directory in memory: %w", err)
	}
	if err := errors.Join(os.Chmod(path, mode), cfg.own(path)); err != nil {
		return fmt.Errorf("making a directory in memory: %w", err)
	}
	return nil
}

// bindAt makes the mount point, a directory, and shows there what is at from.
func bindAt(cfg *Config, from, target string) error {
	if err := mountPoint(cfg, target, false); err != nil {
		return err
	}
	return bind(from, target)
}

func openCovers() (c covers, err error) {
	var opened trees
	defer func() {
		if err != nil {
			opened.close()
		}
	}()
	if c.file, err = opened.add(openTree("/proc/file")); err != nil {
		return c, err
	}
	if c.sys, err = opened.add(openTree("/proc/sys")); err != nil {
		return c, err
	}
	c.bootID, err = opened.add(openTree("/proc/boot_id"))
	return c, err
}

// maskProc attaches proc, hides /sys, and hides and freezes the parts of proc that show or steer the host's kernel.
func maskProc(cfg *Config, proc tree, c covers) error {
	defer proc.close()
	if err := proc.attach("/proc"); err != nil {
		return err
	}
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("200"), 0); err != nil { // before it is made read-only
		return fmt.Errorf("volunteering for the memory killer: %w", err)
	}
	if !cfg.Networked {
		redirected, err := Network(cfg.Network != nil)
		if err != nil {
			return err
		}
		if cfg.Network != nil {
			cfg.Network.Redirected = redirected
		}
	}
	// No sysfs: it describes the host's hardware and kernel. Programs that probe it find nothing but how large
	// the sandbox is.
	if err := c.sys.attach("/sys"); err != nil {
		return err
	}
	c.sys.close()
	if err := bind("/sys/"+MemInfo, "/proc/meminfo"); err != nil {
		return err
	}
	placed := "" // where the file has been attached
	for _, path := range cfg.Masked {
		if err := c.hide(path, &placed); err != nil {
			return err
		}
	}
	for _, path := range cfg.ReadOnly {
		if err := readOnly(path); err != nil {
			return err
		}
	}
	defer c.bootID.close()
	if err := c.bootID.attach(bootIDPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// hide puts the cover that fits over a path below /proc. What this kernel does not have needs none. The first
// file is covered by the cover itself, the others by copies of that, and directories by copies of an empty one
// in /sys, since not every kernel copies a detached mount. These and those of readOnly are most of a sandbox's
// mounts: each is made by as few calls as there can be, nobody else being here who could exchange a path between
// two of them.
func (c covers) hide(path string, placed *string) error {
	if !strings.HasPrefix(path, "/proc/") {
		return fmt.Errorf("covering %q: only paths below /proc are covered", path)
	}
	if *placed != "" {
		err := bind(*placed, path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case errors.Is(err, syscall.ENOTDIR): // it is one, and the cover is not
			return bind("/sys/"+emptyDir, path)
		}
		return err
	}
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err == syscall.ENOENT {
		return nil
	} else if err != nil {
		return fmt.Errorf("looking at %s to cover it: %w", path, err)
	}
	if st.Mode&syscall.S_IFMT == syscall.S_IFDIR {
		return bind("/sys/"+emptyDir, path)
	}
	*placed = path
	defer c.file.close()
	return c.file.attach(path)
}

// readOnly binds a path over itself, read-only.
func readOnly(path string) error {
	err := bind(path, path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return makeReadOnly(path)
}

// makeReadOnly makes a mount read-only, and takes from it whatever else it could give.
func makeReadOnly(path string) error {
	const flags = syscall.MS_REMOUNT | syscall.MS_BIND | syscall.MS_RDONLY | syscall.MS_NOSUID | syscall.MS_NODEV | syscall.MS_NOEXEC
	if err := syscall.Mount("", path, "", flags, ""); err != nil {
		return fmt.Errorf("making %s read-only: %w", path, err)
	}
	return nil
}
