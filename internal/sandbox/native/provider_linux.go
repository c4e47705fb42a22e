package native

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest/spawner"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// Provider makes native sandboxes in one directory.
type Provider struct {
	dir      string
	guest    string
	readOnly []string
	log      *slog.Logger
	rootless bool
	upperTmp bool     // the directory's file system cannot hold an overlay's upper layer
	uids     *uidPool // nil when rootless
	cgroups  cgroups
	caps     sandbox.Capabilities
	boot     string
	layering layering // whether layers can be made
	reserve  reserve  // what sandboxes leave of the disk

	program  program        // the guest, ready to execute
	spawner  spawnerProcess // makes processes
	void     void           // what file systems are built in
	skeleton skeleton       // the host's root file system, as far as it is shown
	archives archives       // unpacked root file systems
	pool     *pool          // slots made ahead; nil for none
	trash    trash          // of what was destroyed

	known     known         // of layers
	flattenAt int           // height of a stack that is shortened
	flattens  chan struct{} // holds one while layers are flattened

	mu       sync.Mutex
	children map[outboard.SandboxID]int // pids made by this process and not yet reaped
}

var (
	_ sandbox.Provider = (*Provider)(nil)
	_ sandbox.Layers   = (*Provider)(nil)
	_ sandbox.Builder  = (*Provider)(nil)
	_ sandbox.Pooler   = (*Provider)(nil)
)

// New looks at the host and returns a provider. It is Unavailable where this process cannot make namespaces,
// with the reason; it makes no whole sandbox to find out, so a refusal of a later step can also come from
// Create.
func New(cfg Config) (*Provider, error) {
	if cfg.Dir == "" || cfg.Guest == "" {
		return nil, outboard.Errorf(outboard.Invalid,
			"native sandboxes need a directory and the outboard-guest program")
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("locating the sandbox directory: %w", err)
	}
	for _, d := range []string{cacheDir, trashDir} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); outboard.DiskFull(err) {
			return nil, outboard.FullDisk("making the sandbox directory", err)
		} else if err != nil {
			return nil, outboard.Errorf(outboard.Unavailable, "making the sandbox directory: %w", err)
		}
	}
	spread(dir)
	p := &Provider{dir: dir, guest: cfg.Guest, readOnly: slices.Clone(cfg.ReadOnly), log: cfg.Logger, boot: bootID(),
		children: make(map[outboard.SandboxID]int), flattenAt: flattenAt, flattens: make(chan struct{}, 1)}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	if fi, err := os.Stat(cfg.Guest); err != nil || !fi.Mode().IsRegular() {
		return nil, unavailable("the outboard-guest program is not at %s", cfg.Guest)
	}
	if reason := namespacesRefused(); reason != "" {
		return nil, unavailable("%s", reason)
	}
	p.reserve.bytes = cfg.Reserve
	p.rootless = !mapsRange()
	p.upperTmp = !holdsUpper(dir)
	if !p.rootless {
		if p.uids, err = newUIDPool(uidDir); errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
			p.uids, err = newUIDPool(filepath.Join(dir, "uids"))
		}
		if err != nil {
			return nil, outboard.Errorf(outboard.Unavailable, "%w", err)
		}
	}
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("reading the mounts: %w", err)
	}
	self, err := os.ReadFile("/proc/self/cgroup")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("reading the control groups: %w", err)
	}
	p.cgroups = detectCgroups(string(mountinfo), string(self))
	p.caps = p.capabilities()
	p.caps.Builds = !p.rootless && !p.upperTmp
	if err := p.tryLayers(); outboard.HasCode(err, outboard.CodeDiskFull) {
		p.log.Warn("sandboxes have no layers while the disk is full: checkpoints copy what changed; it is tried "+
			"again when there is room",
			"dir", dir, "fix", outboard.HintOf(err), "err", err)
	}
	if p.uids != nil {
		ctx, cancel := context.WithTimeout(context.Background(), destroyTimeout)
		defer cancel()
		if err := p.sweep(ctx); err != nil {
			p.log.Warn("orphaned sandboxes not swept", "err", err)
		}
	}
	if err := p.readyPool(cfg.Ahead, cfg.Warm); err != nil {
		return nil, outboard.Errorf(outboard.Unavailable, "%w", err)
	}
	p.trash.begin(p)
	p.keepReserve()
	return p, nil
}

// readyPool clears what dead processes made ahead and readies the provider to do so itself.
func (p *Provider) readyPool(ahead, warm int) error {
	ctx, cancel := context.WithTimeout(context.Background(), destroyTimeout)
	defer cancel()
	if err := p.sweepPools(ctx); err != nil {
		p.log.Warn("slots of a dead server not removed", "err", err)
	}
	if ahead <= 0 && warm <= 0 {
		return nil
	}
	var err error
	p.pool, err = p.newPool(max(0, min(ahead, maxAhead)), max(0, min(warm, maxWarm)))
	return err
}

// PoolFilled waits until what is made ahead is there.
func (p *Provider) PoolFilled() { p.pool.filled() }

// Close removes what was made ahead, and waits until what was destroyed is removed. Sandboxes live on.
func (p *Provider) Close() error {
	p.reserve.close()
	err := p.pool.close()
	p.spawner.close()
	p.void.close()
	p.program.close()
	p.TrashEmpty()
	return err
}

const doctorHint = "outboard doctor says what this host can do and how to fix the rest"

func unavailable(format string, args ...any) error {
	return outboard.Errorf(outboard.Unavailable, format, args...).WithHint(doctorHint)
}

// Name returns "native".
func (p *Provider) Name() string { return "native" }

// Capabilities says what the mode and the host's cgroups allow.
func (p *Provider) Capabilities() sandbox.Capabilities {
	c := p.caps
	c.Limits, c.Gaps = slices.Clone(c.Limits), slices.Clone(c.Gaps)
	if c.Layers = p.hasLayers(); !c.Layers {
		c.Gaps = append(c.Gaps, "checkpoints copy what changed and take longer in larger workspaces: "+p.layering.why())
	}
	return c
}

// Names of what isolates.
const (
	isolationRoot     = "namespaces"
	isolationRootless = "namespaces (rootless)"
)

func (p *Provider) capabilities() sandbox.Capabilities {
	c := sandbox.Capabilities{
		Isolation:  isolationRoot,
		Freeze:     p.cgroups.freeze,
		Limits:     slices.Clone(p.cgroups.limits),
		SeparateID: true,
		PTY:        true,
		DeepTrees:  true,
		Network:    "none",
		Gaps: []string{
			"the kernel is shared with the host: a kernel vulnerability is an escape",
			"the host's programs and libraries under /usr are readable inside",
		},
	}
	if err := p.disks(); err != nil {
		c.Gaps = append(c.Gaps, "disk use is not limited beyond the file system's own size: "+err.Error())
	} else {
		c.Limits = append(c.Limits, "disk")
		c.Gaps = append(c.Gaps, "disk use is limited only where a disk limit is set; without one the file system's "+
			"own size is the limit")
	}
	if p.rootless {
		c.Isolation, c.SeparateID = isolationRootless, false
		c.Gaps = append(c.Gaps, "files inside belong to the user who runs the server, as do the sandbox's "+
			"processes; tools can end "+
			"their own sandbox by exhausting it", sandbox.GapOwnUser)
	}
	if p.rootless || !spawner.OwnClocks() {
		c.Gaps = append(c.Gaps, "programs inside see for how long the host has been up: a clock of a sandbox's own "+
			"needs root and Linux 6.1 or later")
	}
	if p.upperTmp {
		c.Gaps = append(c.Gaps, "files are kept in memory: the file system of the data directory cannot hold a "+
			"writable layer")
	}
	for _, l := range []string{"memory", "pids", "cpu"} {
		if slices.Contains(c.Limits, l) {
			continue
		}
		switch l {
		case "memory":
			c.Gaps = append(c.Gaps,
				"memory is limited per process only, not for the sandbox: no writable memory cgroup")
		case "pids":
			c.Gaps = append(c.Gaps, "the number of processes is bounded by a resource limit, not by a cgroup")
		case "cpu":
			c.Gaps = append(c.Gaps, "cpu time is not limited: no writable cpu cgroup")
		}
	}
	if !c.Freeze {
		c.Gaps = append(c.Gaps, "idle sandboxes are not frozen: no writable freezer")
	}
	return c
}

// Open connects to a living sandbox, thawing it if a server died while it was frozen, and taking back what it
// gave for loading.
func (p *Provider) Open(ctx context.Context, id outboard.SandboxID) (sandbox.Sandbox, error) {
	b, err := p.placeOf(id)
	if err != nil {
		return nil, err
	}
	s, err := b.load()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, outboard.Errorf(outboard.NotFound, "sandbox %s does not exist on this host", id)
	}
	if err != nil {
		return nil, outboard.Errorf(outboard.NotFound, "sandbox %s is damaged: %w", id, err)
	}
	if len(s.Root) > 0 {
		if _, err := p.current(b); err != nil {
			return nil, outboard.Errorf(outboard.NotFound, "sandbox %s is damaged: %w", id, err)
		}
	}
	m := &machine{place: b, state: s, group: p.cgroups.groupOf(s), freezable: p.caps.Freeze, p: p}
	if err := m.alive(); err != nil {
		return nil, err
	}
	if err := m.group.setFrozen(ctx, false); err != nil {
		return nil, outboard.Errorf(outboard.Unavailable, "thawing sandbox %s: %w", id, err)
	}
	if err := b.giveSpare(spareToNone); err != nil {
		return nil, outboard.Errorf(outboard.Unavailable, "opening sandbox %s: %w", id, err)
	}
	if err := m.connect(ctx); err != nil {
		return nil, err
	}
	return m, nil
}

// Halt implements sandbox.Halter.
func (p *Provider) Halt(ctx context.Context, id outboard.SandboxID) error {
	b, err := p.placeOf(id)
	if err != nil {
		return err
	}
	s, err := b.load()
	if err != nil {
		return outboard.Errorf(outboard.NotFound, "sandbox %s does not exist on this host: %w", id, err)
	}
	m := &machine{place: b, state: s, group: p.cgroups.groupOf(s), freezable: p.caps.Freeze, p: p}
	return m.Freeze(ctx)
}

// List returns the ids of all directories of sandboxes, whatever their state. It has what was destroyed looked
// at again, too, in case that another process was killed before it was removed.
func (p *Provider) List(context.Context) ([]outboard.SandboxID, error) {
	p.trash.begin(p)
	return p.ids()
}

// adopt remembers a child that this process must reap.
func (p *Provider) adopt(id outboard.SandboxID, pid int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.children[id] = pid
}

// rename is adopt for a child that was somebody else's before.
func (p *Provider) rename(from, to outboard.SandboxID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pid, ours := p.children[from]; ours {
		delete(p.children, from)
		p.children[to] = pid
	}
}

// reap collects the exit status of a child that is ending, if it is ours; the machine's init does so for
// orphans. How it ended says nothing: it was killed, or it died and was found dead.
func (p *Provider) reap(ctx context.Context, id outboard.SandboxID) error {
	p.mu.Lock()
	pid, ours := p.children[id]
	delete(p.children, id)
	p.mu.Unlock()
	if !ours {
		return nil
	}
	err := waitFor(ctx, func() (bool, error) {
		got, err := unix.Wait4(pid, nil, unix.WNOHANG, nil)
		return got == pid || errors.Is(err, unix.ECHILD), nil
	})
	if err != nil {
		p.adopt(id, pid) // for who tries again
	}
	return err
}
