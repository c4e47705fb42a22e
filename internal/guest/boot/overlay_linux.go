package boot

import (
	"fmt"
	"os"
	"strings"
	"syscall"
)

// openSources returns Config.Sources as detached, restricted mounts: those that were given, or what it opens.
func openSources(h *trees, cfg *Config, given []tree) ([]tree, error) {
	if cfg.Trees == 0 {
		for _, path := range cfg.Sources() {
			t, err := h.add(openTree(path))
			if err != nil {
				return nil, err
			}
			given = append(given, t)
		}
	}
	for i, t := range given {
		attrs := uint64(attrReadOnly | attrNoSuid | attrNoDev)
		if i == 0 && cfg.Upper != "" {
			attrs &^= attrReadOnly
		}
		if err := t.restrict(attrs, true); err != nil {
			return nil, fmt.Errorf("source %d: %w", i, err)
		}
	}
	return given, nil
}

// newRoot makes the writable root over the layers (the upper one first, if there is one), attached to nothing. A
// kernel that does not take detached mounts as layers has to see them: they are then attached below stage, over
// what is there, for as long as it takes.
func newRoot(cfg *Config, layers []tree, stage string) (root tree, err error) {
	if cfg.Upper != "" {
		root, err = rootOver(layers[1:], layers[0])
	}
	if cfg.Upper == "" || err == syscall.EINVAL {
		root, err = stagedRoot(cfg, layers, stage)
	}
	if err != nil {
		return -1, fmt.Errorf("mounting the root: %w", err)
	}
	return root, nil
}

// rootFlags are options of the root's overlay. volatile: nothing of a disposable sandbox is worth a sync when it
// goes. userxattr: the only kind of overlay xattr a user namespace may write.
var rootFlags = []string{"volatile", "userxattr"}

// rootOver takes the layers as they are, by descriptor. EINVAL: the kernel does not (before Linux 6.15).
func rootOver(lower []tree, writable tree) (tree, error) {
	fd, err := openFS("overlay")
	if err != nil {
		return -1, err
	}
	defer syscall.Close(fd)
	for _, t := range lower {
		if err := setLayer(fd, "lowerdir+", int(t)); err != nil {
			return -1, err
		}
	}
	for _, d := range [][2]string{{"upperdir", "upper"}, {"workdir", "work"}} {
		dir, err := syscall.Openat(int(writable), d[1],
			pathOnly|syscall.O_DIRECTORY|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
		if err != nil {
			return -1, fmt.Errorf("opening the writable layer: %w", err)
		}
		err = setLayer(fd, d[0], dir)
		syscall.Close(dir)
		if err != nil {
			return -1, err
		}
	}
	for _, flag := range rootFlags {
		if err := setOption(fd, flag); err != nil {
			return -1, err
		}
	}
	if err := createFS(fd); err != nil {
		return -1, err
	}
	return mountOf(fd, attrNoSuid|attrNoDev)
}

// stagedRoot names the layers where they are attached, on a file system that is detached again.
func stagedRoot(cfg *Config, layers []tree, stage string) (root tree, err error) {
	fs, err := newFS("tmpfs", attrNoSuid|attrNoDev, "mode=0700", "size=64k")
	if err != nil {
		return -1, err
	}
	defer fs.close()
	if err := fs.attach(stage); err != nil {
		return -1, err
	}
	if err := syscall.Fchdir(int(fs)); err != nil {
		return -1, fmt.Errorf("entering the stage: %w", err)
	}
	names := make([]string, len(layers))
	for i, t := range layers {
		names[i] = fmt.Sprintf("l%d", i)
		if err := os.Mkdir(names[i], 0o700); err != nil {
			return -1, fmt.Errorf("making a mount point: %w", err)
		}
		if err := t.attach(names[i]); err != nil {
			return -1, fmt.Errorf("layer %d: %w", i, err)
		}
	}
	writable, lower := "mem", names
	if cfg.Upper != "" {
		writable, lower = names[0], names[1:]
	} else if err := tmpUpper(writable, cfg.UpperSize); err != nil {
		return -1, err
	}
	options := append(lowerOptions(lower), "upperdir="+writable+"/upper", "workdir="+writable+"/work")
	if root, err = newFS("overlay", attrNoSuid|attrNoDev, append(options, rootFlags...)...); err != nil {
		return -1, err
	}
	if err := syscall.Unmount(".", syscall.MNT_DETACH); err != nil {
		root.close()
		return -1, fmt.Errorf("leaving the stage: %w", err)
	}
	return root, nil
}

// lowerOptions name the lower layers, top first. One option takes 255 bytes; one per layer takes Linux 6.5.
func lowerOptions(lower []string) []string {
	const most = 255
	if all := strings.Join(lower, ":"); len(all) <= most {
		return []string{"lowerdir=" + all}
	}
	var out []string
	for _, l := range lower {
		out = append(out, "lowerdir+="+l)
	}
	return out
}

// tmpUpper makes upper and work directory in memory.
func tmpUpper(dir string, size int64) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("making a mount point: %w", err)
	}
	if err := mountNew(dir, "tmpfs", attrNoSuid|attrNoDev, "mode=0755", fmt.Sprintf("size=%d", size)); err != nil {
		return err
	}
	for _, d := range []string{dir + "/upper", dir + "/work"} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return fmt.Errorf("making the upper layer: %w", err)
		}
	}
	return nil
}
