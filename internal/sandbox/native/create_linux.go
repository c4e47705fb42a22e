package native

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
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

// maskedPaths and readOnlyPaths are the parts of /proc that speak of the host: the list of the OCI runtime
// specification, and more. Anybody may write to pressure, by which the kernel watches for them, and whoever ends
// then waits for that to be undone.
var (
	maskedPaths = []string{
		"/proc/acpi", "/proc/asound", "/proc/scsi", // hardware
		// side channels
		"/proc/interrupts", "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/latency_stats",
		"/proc/kcore", "/proc/keys", "/proc/key-users", // kernel memory and keyrings
		// addresses
		"/proc/kallsyms", "/proc/kpagecgroup", "/proc/kpagecount", "/proc/kpageflags", "/proc/vmallocinfo", "/proc/iomem", "/proc/ioports",
		// the host's devices, modules, how it was started
		"/proc/swaps", "/proc/partitions", "/proc/diskstats", "/proc/mdstat", "/proc/modules", "/proc/cmdline", "/proc/devices", "/proc/fs",
		"/proc/pressure",
	}
	readOnlyPaths = []string{"/proc/bus", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger", "/proc/mtrr",
		// the guest's, which what is root inside owns: it would be the first to end when memory does
		"/proc/1/oom_score_adj", "/proc/1/oom_adj"}
)

// toolDirs are the directories that are written to. What was uploaded is put by the guest: were the directory
// the tool's, it could replace a file it may not write.
var toolDirs = []boot.Dir{
	{Path: sandbox.Workspace, Mode: 0o755, Tool: true},
	{Path: sandbox.Uploads, Mode: 0o755},
	{Path: sandbox.Outputs, Mode: 0o755, Tool: true},
	{Path: toolHome, Mode: 0o755, Tool: true},
	{Path: "/tmp", Mode: 0o1777}, // on the disk: memory is the dearer resource, and the smaller
	{Path: "/var/tmp", Mode: 0o1777},
	{Path: "/run/outboard", Mode: 0o755}, // the guest's, for output
}

// guestKeeps are the capabilities of the guest in its own user namespace, where it has an identity of its own:
// to become the tool, to end its processes, and to read and give it any file of the sandbox.
const guestKeeps = 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | 1<<unix.CAP_KILL | 1<<unix.CAP_CHOWN | 1<<unix.CAP_FOWNER |
	1<<unix.CAP_FSETID | 1<<unix.CAP_DAC_OVERRIDE

// guestKeepsRootless is what it keeps where it shares the tools' identity: to save files that a tool has closed
// to itself. It reaches no file of the host, whose owners have no id inside.
const guestKeepsRootless = 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER

// Create makes a sandbox.
func (p *Provider) Create(ctx context.Context, spec sandbox.Spec) (_ sandbox.Sandbox, err error) {
	defer func() { err = p.full(err) }()
	if err := p.check(spec); err != nil {
		return nil, err
	}
	if err := p.leavesReserve(); err != nil {
		return nil, err
	}
	b, err := p.placeOf(spec.ID)
	if err != nil {
		return nil, err
	}
	root, err := p.rootfs(spec.Rootfs, spec.Layers, spec.User)
	if err != nil {
		return nil, err
	}
	shape := shape{root: root, limits: withDefaults(spec.Limits), connected: spec.Network != nil, from: spec.From,
		build: spec.Build}
	sl, unlock, err := p.slotFor(ctx, b, shape)
	if err != nil {
		return nil, err
	}
	defer p.pool.want(shape)
	m, err := p.create(ctx, sl, spec)
	if err != nil {
		err = p.full(died(ctx, sl, err)) // asked now: to undo it makes room
		p.undoAside(ctx, sl, b, unlock)
		return nil, err
	}
	defer unlock()
	if len(sl.fds) == 0 { // of a guest that waited
		sl.close()
	} else { // to let go of a mount is to wait for a grace period
		p.trash.wg.Go(sl.close)
	}
	return m, nil
}

// undoPatience is how long who is told that a sandbox could not be made waits for the rest of it to be removed.
const undoPatience = time.Second

// undoAside removes a sandbox that came to nothing, and gives up its lock: beside the caller where that takes
// long, as it does where processes get so little of the processor that they do not even end.
func (p *Provider) undoAside(ctx context.Context, sl *slot, b place, unlock func()) {
	done := make(chan struct{})
	p.trash.wg.Go(func() {
		defer close(done)
		defer unlock()
		sl.close()
		p.undo(ctx, b)
	})
	patience := time.NewTimer(undoPatience)
	defer patience.Stop()
	select {
	case <-done:
	case <-patience.C:
	}
}

// diedWait is how long the init of a sandbox may take to end after what it held open was closed.
const diedWait = 250 * time.Millisecond

// died is diedOr for errors of the creation that are not said to be something else.
func died(ctx context.Context, sl *slot, err error) error {
	if outboard.KindOf(err) != outboard.Internal {
		return err
	}
	return diedOr(ctx, sl, err)
}

// diedOr makes an error of the creation NotFound where the reason is that the sandbox was killed meanwhile:
// another one may do.
func diedOr(ctx context.Context, sl *slot, err error) error {
	if sl.state.Pid == 0 || ctx.Err() != nil {
		return err
	}
	pr, perr := findProcess(sl.state)
	if perr == nil && pr != nil {
		defer pr.close()
		ctx, cancel := context.WithTimeout(ctx, diedWait)
		defer cancel()
		perr = pr.wait(ctx)
	}
	if perr != nil {
		return err
	}
	return outboard.Errorf(outboard.NotFound, "sandbox %s ended while it was made: %v", sl.place.id, err)
}

func (p *Provider) check(spec sandbox.Spec) error {
	if spec.Generation == "" {
		return outboard.Errorf(outboard.Invalid, "a sandbox needs a generation")
	}
	if spec.Isolation != "" && spec.Isolation != p.caps.Isolation && spec.Isolation != isolationRoot {
		return unavailable("isolation %q is not what this host gives (%q)", spec.Isolation, p.caps.Isolation)
	}
	if spec.Isolation == isolationRoot && p.rootless {
		return unavailable("isolation %q needs the server to run as root; here it is %q", spec.Isolation,
			p.caps.Isolation)
	}
	if spec.Build && (p.rootless || p.upperTmp) {
		return unavailable("layers are built only where the server runs as root, in a directory that can hold an " +
			"overlay's upper layer")
	}
	if spec.Build && (spec.Limits.DiskBytes > 0 || spec.From != "") {
		return outboard.Errorf(outboard.Invalid, "a sandbox that builds a layer has no disk limit and begins with "+
			"no checkpoint")
	}
	l := spec.Limits
	if err := l.Check(); err != nil {
		return outboard.Errorf(outboard.Invalid, "the limits of a sandbox: %w", err)
	}
	if l.DiskBytes > 0 && !slices.Contains(p.caps.Limits, "disk") {
		return unavailable("a disk limit does not hold here: %w", p.disks())
	}
	if l.DiskBytes > 0 && spec.From != "" {
		return outboard.Errorf(outboard.Invalid, "a sandbox with a disk limit cannot begin with layers of this host")
	}
	return nil
}

// create makes a slot a sandbox: it starts the guest, or tells the one that waits whose it is. What it made is
// found by remove, also when it did not get far.
func (p *Provider) create(ctx context.Context, sl *slot, spec sandbox.Spec) (*machine, error) {
	s := sl.state
	s.ID, s.Generation, s.CreatedAt = spec.ID, spec.Generation, time.Now().UTC()
	birth := sl.birth
	sl.birth = nil
	if birth != nil {
		defer birth.close()
		if err := sl.place.save(s); err != nil {
			return nil, err
		}
		if err := birth.identify(spec, sl.shape.root.path); err != nil {
			return nil, err
		}
	} else {
		var err error
		birth, err = p.start(ctx, sl, spec, false)
		if err != nil {
			return nil, err
		}
		defer birth.close()
	}
	m := &machine{place: sl.place, state: s, group: sl.group, freezable: p.caps.Freeze, p: p}
	m.client = birth.client()
	m.client.Memory = m.group.memory
	return m, nil
}

// start starts the guest of a slot and returns when it is ready to serve, or, with later, to be told whom.
func (p *Provider) start(ctx context.Context, sl *slot, spec sandbox.Spec, later bool) (_ *birth, err error) {
	s := sl.state
	birth, err := p.spawn(sl)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			birth.close()
		}
	}()
	p.adopt(sl.place.id, birth.pid)
	s.Pid, s.Start = birth.pid, birth.start
	if err := sl.place.save(s); err != nil {
		return nil, err
	}
	if err := sl.group.attach(s.Pid); err != nil {
		return nil, diedOr(ctx, sl, outboard.Errorf(outboard.Unavailable, "%w", err))
	}
	if err := writeMaps(s.Pid, s.UIDBase, p.rootless); err != nil {
		return nil, diedOr(ctx, sl, unavailable("%w", err))
	}
	if err := boot.RunOn(s.Pid, boot.Processors(milliCPUs(sl.shape.limits))); err != nil {
		return nil, diedOr(ctx, sl, unavailable("choosing processors: %w", err))
	}
	attached := attachAside(s, sl.work)
	defer attached() // whatever fails: it uses what the caller is about to close
	cfg := p.config(sl, spec)
	cfg.Later = later
	uplink, err := sl.place.connectNet(cfg, spec.Network, sl.net)
	if err != nil {
		return nil, err
	}
	if err := p.furnish(ctx, birth, sl, cfg, uplink); err != nil {
		return nil, err
	}
	if err := attached(); err != nil {
		return nil, err
	}
	if p.rootless && !p.upperTmp {
		if err := openWork(sl.place.upper(sl.shape.limits)); err != nil {
			return nil, err
		}
	}
	sl.fds.letGo(sl.work) // what is held open is in use, to the Push that may come before the rest is closed
	sl.work = nil
	return birth, nil
}

// openWork opens to its owner what the kernel has made in an overlay's work directory and closed to everybody:
// `rm -rf` of the data directory, which is this user's to do, would stop there.
func openWork(dir string) error {
	for _, name := range []string{"work/work", "work/work/incompat", "work/work/incompat/volatile"} {
		if err := os.Chmod(filepath.Join(dir, name), 0o700); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("opening the overlay's work directory to its owner: %w", err)
		}
	}
	return nil
}

// attachAside attaches the saved directories to a sandbox while its guest starts, and returns what waits for it
// and says how it went. They are not attached before: what a mount namespace is born with, nobody can swap in
// it.
func attachAside(s *state, trees []int) (wait func() error) {
	if len(trees) == 0 {
		return func() error { return nil }
	}
	done := make(chan error, 1)
	go func() {
		err := inside(s, func() error { return attachTrees(trees) })
		if err != nil {
			err = fmt.Errorf("making the workspace: %w", err)
		}
		done <- err
	}()
	return sync.OnceValue(func() error { return <-done })
}

// warm starts a guest on a slot made ahead, which waits to be told whose it is. It ends when this process does
// before that.
func (p *Provider) warm(ctx context.Context, sl *slot) error {
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	var spec sandbox.Spec
	if sl.shape.connected {
		spec.Network = new(sandbox.Network)
	}
	birth, err := p.start(ctx, sl, spec, true)
	if err != nil {
		return err
	}
	sl.close() // the guest has it all
	sl.net, sl.birth = network{}, birth
	return nil
}

// furnish lets the guest begin and hands it its file systems and configuration, and the socket of its network if
// it has one. It closes the socket.
func (p *Provider) furnish(ctx context.Context, birth *birth, sl *slot, cfg *boot.Config, uplink *os.File) error {
	if uplink != nil {
		defer uplink.Close()
	}
	if err := birth.gate.open(); err != nil {
		return err
	}
	if cfg.Rooted {
		return birth.configure(ctx, cfg, sl.covers, uplink)
	}
	if p.rootless {
		return birth.configure(ctx, cfg, nil, uplink)
	}
	userns, err := openUnpolled(fmt.Sprintf("/proc/%d/ns/user", birth.pid))
	if err != nil {
		return fmt.Errorf("opening the sandbox's user namespace: %w", err)
	}
	defer userns.Close()
	fds, err := openTrees(cfg, userns)
	defer closeFDs(fds)
	if err != nil {
		return err
	}
	return birth.configure(ctx, cfg, fds, uplink)
}

// newBootID is a random UUID, as the kernel's boot id is.
func newBootID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
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

func milliCPUs(l outboard.SandboxLimits) int { return int(math.Ceil(l.CPUs * 1000)) }

// config is what is to be built for a slot: all of it, or, where the host has built the file systems, the rest.
func (p *Provider) config(sl *slot, spec sandbox.Spec) *boot.Config {
	l, root := sl.shape.limits, sl.shape.root
	cfg := &boot.Config{
		Generation: spec.Generation, Hostname: hostname, Env: environment(spec, root.path), Networked: sl.net.made(),
		Masked: maskedPaths, ReadOnly: readOnlyPaths,
		Memory: l.MemoryBytes, MilliCPUs: milliCPUs(l), Files: p.filesFor(l.Pids), Processes: uint64(l.Pids), Filter: filterBytes(),
	}
	if cfg.Rooted = sl.mnt != nil; !cfg.Rooted {
		cfg.BootID = newBootID()
		cfg.Upper, cfg.UpperSize, cfg.Lower, cfg.Binds, cfg.Owned = sl.place.upper(l), l.MemoryBytes, root.lower, root.binds, toolDirs
		cfg.ShmSize = ShmSize(l.MemoryBytes)
	}
	if p.upperTmp {
		cfg.Upper = ""
	}
	t := sl.shape.root.tool // where there is one identity, the zero tool
	cfg.ToolUID, cfg.ToolGID, cfg.ToolName, cfg.Keep = t.uid(), t.gid(), t.Name, guestKeeps
	if p.rootless {
		cfg.Keep = guestKeepsRootless
	}
	if sl.shape.build {
		cfg.Inherit = guestKeeps
	}
	if !slices.Contains(p.caps.Limits, "memory") {
		cfg.DataBytes = uint64(l.MemoryBytes)
	}
	return cfg
}
