package boot

import (
	"fmt"
	"os"
	"strings"
	"syscall"
)

// openSources returns Config.Sources as detached, restricted mounts.
func openSources(cfg *Config, trees []tree) ([]tree, error) {
	if cfg.Trees == 0 {
		for _, path := range cfg.Sources() {
			t, err := openTree(path)
			if err != nil {
				return nil, err
			}
			trees = append(trees, t)
		}
	}
	for i, t := range trees {
		attrs := uint64(attrReadOnly | attrNoSuid | attrNoDev)
		if i == 0 && cfg.Upper != "" {
			attrs &^= attrReadOnly
		}
		if err := t.restrict(attrs, true); err != nil {
			return nil, fmt.Errorf("source %d: %w", i, err)
		}
	}
	return trees, nil
}

// enterOverlay mounts the writable root over the lower layers and makes it the working directory. The layers (the upper one
// first, if there is one) are attached to a tmpfs of this mount namespace, over a host directory that is no longer needed; it goes
// with the old root.
func enterOverlay(cfg *Config, layers []tree) error {
	stage, err := newFS("tmpfs", attrNoSuid|attrNoDev, "mode=0700", "size=64k")
	if err != nil {
		return err
	}
	defer stage.close()
	if err := stage.attach("/usr"); err != nil {
		return err
	}
	if err := syscall.Fchdir(int(stage)); err != nil {
		return fmt.Errorf("entering the stage: %w", err)
	}
	names := make([]string, len(layers))
	for i, t := range layers {
		names[i] = fmt.Sprintf("l%d", i)
		if err := os.Mkdir(names[i], 0o700); err != nil {
			return fmt.Errorf("making a mount point: %w", err)
		}
		if err := t.attach(names[i]); err != nil {
			return fmt.Errorf("layer %d: %w", i, err)
		}
		t.close()
	}
	writable, lower := "mem", names
	if cfg.Upper != "" {
		writable, lower = names[0], names[1:]
	} else if err := tmpUpper(writable, cfg.UpperSize); err != nil {
		return err
	}
	if err := os.Mkdir("root", 0o700); err != nil {
		return fmt.Errorf("making a mount point: %w", err)
	}
	// volatile: nothing of a disposable sandbox is worth a sync when it goes. userxattr: the only kind of overlay xattr a user
	// namespace may write.
	options := append(lowerOptions(lower), "upperdir="+writable+"/upper", "workdir="+writable+"/work", "volatile", "userxattr")
	if err := mountNew("root", "overlay", attrNoSuid|attrNoDev, options...); err != nil {
		return err
	}
	if err := syscall.Chdir("root"); err != nil {
		return fmt.Errorf("entering the new root: %w", err)
	}
	return nil
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
