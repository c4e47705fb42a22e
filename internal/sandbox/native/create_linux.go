package native

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest/boot"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

const (
	hostname = "outboard"
	toolHome = "/home/user"
)

// maskedPaths and readOnlyPaths are the parts of /proc that speak of the host: the list of the OCI runtime specification.
var (
	maskedPaths = []string{
		"/proc/acpi", "/proc/asound", "/proc/scsi", // hardware
		"/proc/interrupts", "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/latency_stats", // side channels
		"/proc/kcore", "/proc/keys", "/proc/key-users", // kernel memory and keyrings
		"/proc/kallsyms", "/proc/kpagecgroup", "/proc/kpagecount", "/proc/kpageflags", "/proc/vmallocinfo", "/proc/iomem", "/proc/ioports", // addresses
		"/proc/swaps", "/proc/partitions", "/proc/diskstats", "/proc/mdstat", "/proc/modules", // the host's devices and modules
	}
	readOnlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger", "/proc/mtrr"}
)

// toolDirs are the directories that are written to. What was uploaded is put by the guest: were the directory the tool's, it could
// replace a file it may not write.
var toolDirs = []boot.Dir{
	{Path: sandbox.Workspace, Mode: 0o755, Tool: true},
	{Path: sandbox.Uploads, Mode: 0o755},
	{Path: sandbox.Outputs, Mode: 0o755, Tool: true},
	{Path: toolHome, Mode: 0o755, Tool: true},
	{Path: "/var/tmp", Mode: 0o1777},
	{Path: "/run/outboard", Mode: 0o755}, // the guest's, for output
}

// guestKeeps are the capabilities of the guest in its own user namespace, where it has an identity of its own: to become the
// tool, to end its processes, and to read and give it any file of the sandbox.
const guestKeeps = 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | 1<<unix.CAP_KILL | 1<<unix.CAP_CHOWN | 1<<unix.CAP_FOWNER |
	1<<unix.CAP_FSETID | 1<<unix.CAP_DAC_OVERRIDE

// guestKeepsRootless is what it keeps where it shares the tools' identity: to save files that a tool has closed to itself. It
// reaches no file of the host, whose owners have no id inside.
const guestKeepsRootless = 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER

// Create makes a sandbox.
func (p *Provider) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if err := p.check(spec); err != nil {
		return nil, err
	}
	b, err := p.box(spec.ID)
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(b.dir, 0o700); errors.Is(err, fs.ErrExist) {
		return nil, outboard.Errorf(outboard.Conflict, "sandbox %s exists", spec.ID)
	} else if err != nil {
		return nil, outboard.Errorf(outboard.Unavailable, "making the sandbox's directory: %w", err)
	}
	unlock, err := b.lock(ctx)
	if err != nil {
		return nil, errors.Join(outboard.Errorf(outboard.Conflict, "sandbox %s was destroyed while it was made", spec.ID), unix.Rmdir(b.dir))
	}
	defer unlock()
	m, err := p.create(ctx, b, spec)
	if err == nil {
		return m, nil
	}
	// The caller may have gone; what was begun must be undone all the same.
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), destroyTimeout)
	defer cancel()
	if rmErr := p.remove(undo, b); rmErr != nil {
		p.log.Error("half-made sandbox not removed", "sandbox", spec.ID, "err", rmErr)
	}
	return nil, err
}

func (p *Provider) check(spec sandbox.Spec) error {
	if spec.Generation == "" {
		return outboard.Errorf(outboard.Invalid, "a sandbox needs a generation")
	}
	if spec.Isolation != "" && spec.Isolation != p.caps.Isolation && spec.Isolation != isolationRoot {
		return unavailable("isolation %q is not what this host gives (%q)", spec.Isolation, p.caps.Isolation)
	}
	if spec.Isolation == isolationRoot && p.rootless {
		return unavailable("isolation %q needs the server to run as root; here it is %q", spec.Isolation, p.caps.Isolation)
	}
	l := spec.Limits
	if l.MemoryBytes < 0 || l.Pids < 0 || l.CPUs < 0 || l.DiskBytes < 0 {
		return outboard.Errorf(outboard.Invalid, "a sandbox limit is negative")
	}
	return nil
}

// create does the work between lock and answer. What it made is found by remove, also when it did not get far.
func (p *Provider) create(ctx context.Context, b box, spec sandbox.Spec) (*machine, error) {
	limits := withDefaults(spec.Limits)
	root, err := p.rootfs(spec.Rootfs)
	if err != nil {
		return nil, err
	}
	s := &state{ID: spec.ID, Generation: spec.Generation, Isolation: p.caps.Isolation, BootID: p.boot, Lower: root.cached(),
		Cgroups: p.cgroups.plan(spec.ID).dirs, CreatedAt: time.Now().UTC()}
	if p.caps.Layers {
		s.Root = root.lower
	}
	if p.uids != nil {
		if s.UIDBase, err = p.uids.reserve(b.dir); err != nil {
			return nil, outboard.Errorf(outboard.Unavailable, "%w", err)
		}
	}
	if err := b.save(s); err != nil {
		if p.uids != nil {
			err = errors.Join(err, p.uids.release(s.UIDBase, b.dir))
		}
		return nil, err
	}
	if err := b.layout(s.UIDBase); err != nil {
		return nil, fmt.Errorf("laying out the sandbox: %w", err)
	}
	group := p.cgroups.groupOf(s)
	if err := p.cgroups.makeGroup(group, limits); err != nil {
		return nil, outboard.Errorf(outboard.Unavailable, "%w", err)
	}
	var net network
	if !p.rootless {
		if net, err = newNetwork(spec.Network != nil); err != nil {
			return nil, unavailable("%w", err)
		}
		defer net.close()
	}
	birth, err := p.spawn(b, group, net)
	if err != nil {
		return nil, err
	}
	defer birth.close()
	p.adopt(spec.ID, birth.pid)
	s.Pid, s.Start = birth.pid, birth.start
	if err := b.save(s); err != nil {
		return nil, err
	}
	if err := group.attach(s.Pid); err != nil {
		return nil, outboard.Errorf(outboard.Unavailable, "%w", err)
	}
	if err := writeMaps(s.Pid, s.UIDBase, p.rootless); err != nil {
		return nil, unavailable("%w", err)
	}
	cfg := p.config(b, spec, limits, root, net)
	uplink, err := b.connectNet(cfg, spec.Network, net)
	if err != nil {
		return nil, err
	}
	if err := p.furnish(ctx, birth, cfg, uplink); err != nil {
		return nil, err
	}
	if p.caps.Layers {
		if err := p.startWork(s, spec.From); err != nil {
			return nil, fmt.Errorf("making the workspace: %w", err)
		}
	}
	m := &machine{box: b, state: s, group: group, freezable: p.caps.Freeze, p: p}
	if err := m.connect(ctx); err != nil {
		return nil, err
	}
	return m, nil
}

// furnish lets the guest begin and hands it its file systems and configuration, and the socket of its network if it has one. It
// closes the socket.
func (p *Provider) furnish(ctx context.Context, birth *birth, cfg *boot.Config, uplink *os.File) error {
	if uplink != nil {
		defer uplink.Close()
	}
	var fds []int
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	if err := birth.gate.open(); err != nil {
		return err
	}
	if !p.rootless {
		var err error
		if fds, err = openTrees(cfg, birth.pid); err != nil {
			return err
		}
	}
	return birth.configure(ctx, cfg, fds, uplink)
}

func withDefaults(l outboard.SandboxLimits) outboard.SandboxLimits {
	if l.MemoryBytes == 0 {
		l.MemoryBytes = DefaultMemory
	}
	if l.Pids == 0 {
		l.Pids = DefaultPids
	}
	if l.CPUs == 0 {
		l.CPUs = DefaultCPUs
	}
	return l
}

// config is what the guest is to build.
func (p *Provider) config(b box, spec sandbox.Spec, l outboard.SandboxLimits, root *rootfs, net network) *boot.Config {
	cfg := &boot.Config{
		Generation: spec.Generation, Hostname: hostname, Env: withPath(spec.Env, root.path),
		Upper: b.path("fs"), UpperSize: l.MemoryBytes, Lower: root.lower, Binds: root.binds, Owned: toolDirs,
		Networked: net.made(),
		TmpSize:   l.MemoryBytes / tmpShare, ShmSize: min(shmSize, l.MemoryBytes/tmpShare),
		Masked: maskedPaths, ReadOnly: readOnlyPaths,
		Files: maxFiles, Processes: uint64(l.Pids), Filter: filterBytes(),
	}
	if p.upperTmp {
		cfg.Upper = ""
	}
	if cfg.Keep = guestKeepsRootless; !p.rootless {
		cfg.ToolUID, cfg.ToolGID, cfg.Keep = toolUID, toolUID, guestKeeps
	}
	if !slices.Contains(p.caps.Limits, "memory") {
		cfg.DataBytes = uint64(l.MemoryBytes)
	}
	return cfg
}
