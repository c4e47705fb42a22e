package native

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
)

// layering is whether a provider can make layers.
type layering struct {
	works atomic.Bool

	mu  sync.Mutex
	err error // why not
}

func (l *layering) why() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil { // since a moment
		return "the disk was full"
	}
	return l.err.Error()
}

// hasLayers reports whether the provider can make layers. Where a full disk kept it from finding out, it looks
// again: a server outlives that.
func (p *Provider) hasLayers() bool {
	l := &p.layering
	if l.works.Load() {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.works.Load() || !outboard.HasCode(l.err, outboard.CodeDiskFull) {
		return l.works.Load()
	}
	if p.lookLocked() == nil {
		p.log.Info("there is room on the disk again: new sandboxes have layers", "dir", p.dir)
	}
	return l.works.Load()
}

// tryLayers finds out whether the provider can make layers.
func (p *Provider) tryLayers() error {
	p.layering.mu.Lock()
	defer p.layering.mu.Unlock()
	return p.lookLocked()
}

func (p *Provider) lookLocked() error {
	p.layering.err = p.full(p.layersWork())
	p.layering.works.Store(p.layering.err == nil)
	return p.layering.err
}

// layersWork reports why this host cannot do it, by doing it as far as no sandbox is needed: nil if it can.
func (p *Provider) layersWork() error {
	if p.rootless {
		return outboard.Errorf(outboard.Unavailable, "the server does not run as root")
	}
	for _, d := range []string{layersDir, checkpointsDir} {
		if err := os.MkdirAll(filepath.Join(p.dir, d), 0o700); err != nil {
			return err
		}
	}
	spread(filepath.Join(p.dir, layersDir))
	probe, err := os.MkdirTemp(p.dir, "probe-")
	if err != nil {
		return err
	}
	defer removeTree(probe)
	var dirs descriptors
	defer dirs.close()
	for _, name := range []string{"low", "up", "wk"} {
		if err := os.Mkdir(filepath.Join(probe, name), 0o700); err != nil {
			return err
		}
		fd, err := unix.Open(filepath.Join(probe, name), unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		dirs.add(fd)
	}
	mnt, err := mountLayers(dirs[:1], dirs[1:3], true)
	if err != nil {
		return err
	}
	dirs.add(mnt)
	copied, err := unix.OpenTree(mnt, "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC) // Linux 6.15
	if err != nil {
		return fmt.Errorf("copying a detached mount: %w", err)
	}
	dirs.add(copied)
	return nil
}
