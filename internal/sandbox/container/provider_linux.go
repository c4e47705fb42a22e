package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest/boot"
	"github.com/outboard-dev/outboard/internal/guest/uplink"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

// Provider makes the sandboxes of one technology in one directory.
type Provider struct {
	dir, guest string
	tech       Technology
	roots      *native.Roots
	log        *slog.Logger

	mu     sync.Mutex
	strays []outboard.SandboxID // what the last List found without a directory
}

var (
	_ sandbox.Provider = (*Provider)(nil)
	_ sandbox.Stacked  = (*Provider)(nil)
	_ sandbox.Straying = (*Provider)(nil)
)

// New returns a provider. The technology has looked at the host.
func New(cfg Config, tech Technology) (*Provider, error) {
	if cfg.Dir == "" || cfg.Guest == "" {
		return nil, outboard.Errorf(outboard.Invalid, "%s sandboxes need a directory and the outboard-guest program",
			tech.Name())
	}
	if os.Geteuid() != 0 {
		return nil, outboard.Errorf(outboard.Unavailable, "%s sandboxes need the server to run as root", tech.Name()).
			WithHint("run outboard as root, or use the isolation namespace, which needs no rights")
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("locating the sandbox directory: %w", err)
	}
	program, err := filepath.Abs(cfg.Guest)
	if err != nil {
		return nil, fmt.Errorf("locating the outboard-guest program: %w", err)
	}
	if fi, err := os.Stat(program); err != nil || !fi.Mode().IsRegular() {
		return nil, outboard.Errorf(outboard.Unavailable, "the outboard-guest program is not at %s", program)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, outboard.Errorf(outboard.Unavailable, "making the sandbox directory: %w", err)
	}
	roots, err := native.NewRoots(dir, cfg.ReadOnly, cfg.Logger)
	if err != nil {
		return nil, err
	}
	return &Provider{dir: dir, guest: program, tech: tech, roots: roots, log: cfg.Logger}, nil
}

// Name is the technology's.
func (p *Provider) Name() string { return p.tech.Name() }

// Capabilities are the technology's.
func (p *Provider) Capabilities() sandbox.Capabilities { return p.tech.Capabilities() }

// state is what a sandbox's directory says about it.
type state struct {
	ID         outboard.SandboxID `json:"id"`
	Generation string             `json:"generation"`
	Lower      []string           `json:"lower,omitempty"`  // layers in use
	Build      bool               `json:"build,omitempty"`  // see Commit
	ToolUID    uint32             `json:"tool_uid"`         // of this host, 0 before there is one
	Memory     string             `json:"memory,omitempty"` // directory of the control group that counts it
	CreatedAt  time.Time          `json:"created_at"`
	native.Process
}

const (
	stateFile = "state.json"
	hostDir   = "host" // shared with the guest, at boot.HostDir
	sysDir    = "sys"  // shown at /sys
	logFile   = "guest.log"
)

func (p *Provider) path(id outboard.SandboxID) (string, error) {
	if !outboard.ValidID(outboard.PrefixSandbox, string(id)) {
		return "", outboard.Errorf(outboard.Invalid, "%q is not a sandbox id", id)
	}
	return filepath.Join(p.dir, string(id)), nil
}

func load(dir string) (*state, error) {
	data, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil {
		return nil, fmt.Errorf("reading sandbox state: %w", err)
	}
	s := new(state)
	if err := json.Unmarshal(data, s); err != nil {
		return nil, fmt.Errorf("reading sandbox state: %w", err)
	}
	return s, nil
}

// save replaces the state file in one step.
func (s *state) save(dir string) error {
	data, err := json.Marshal(s)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, stateFile+".new"), data, 0o600)
	}
	if err == nil {
		err = os.Rename(filepath.Join(dir, stateFile+".new"), filepath.Join(dir, stateFile))
	}
	if err != nil {
		return fmt.Errorf("writing sandbox state: %w", err)
	}
	return nil
}

func (p *Provider) check(spec sandbox.Spec) error {
	switch caps := p.Capabilities(); {
	case spec.Generation == "":
		return outboard.Errorf(outboard.Invalid, "a sandbox needs a generation")
	case spec.Isolation != "" && spec.Isolation != caps.Isolation:
		return outboard.Errorf(outboard.Unavailable, "isolation %q is not what %s gives (%q)", spec.Isolation, p.Name(),
			caps.Isolation)
	case spec.From != "":
		return outboard.Errorf(outboard.Invalid, "%s sandboxes cannot begin with layers of this host", p.Name())
	}
	if err := spec.Limits.Check(); err != nil {
		return outboard.Errorf(outboard.Invalid, "the limits of a sandbox: %w", err)
	}
	return sandbox.Refuse(p, spec)
}

// Create makes a sandbox.
func (p *Provider) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	dir, err := p.path(spec.ID)
	if err != nil {
		return nil, err
	}
	if err := p.check(spec); err != nil {
		return nil, err
	}
	root, err := p.roots.Get(spec.Rootfs, spec.Layers)
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o700); errors.Is(err, fs.ErrExist) {
		return nil, outboard.Errorf(outboard.Conflict, "sandbox %s exists", spec.ID)
	} else if err != nil {
		return nil, outboard.Errorf(outboard.Unavailable, "making the sandbox's directory: %w", err)
	}
	unlock, err := native.Lock(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	m, err := p.create(ctx, dir, spec, root)
	if err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), destroyTimeout)
		defer cancel()
		if err := p.remove(undo, spec.ID, dir); err != nil {
			p.log.Error("half-made sandbox left to the reaper", "sandbox", spec.ID, "err", err)
		}
		return nil, err
	}
	return m, nil
}

// create starts the container. What it made is found by remove, also when it did not get far.
func (p *Provider) create(ctx context.Context, dir string, spec sandbox.Spec, root *native.Root) (*machine, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, createTimeout,
		outboard.Errorf(outboard.Unavailable, "the guest was not ready within %s", createTimeout))
	defer cancel()
	s := &state{ID: spec.ID, Generation: spec.Generation, Lower: root.Lower, Build: spec.Build, CreatedAt: time.Now().
		UTC()}
	if err := s.save(dir); err != nil {
		return nil, err
	}
	var err error
	if s.ToolUID, err = native.ReserveUID(dir, spec.ID); err != nil {
		return nil, err
	}
	if err := s.save(dir); err != nil {
		return nil, err
	}
	plan, err := p.plan(dir, spec, root, int(s.ToolUID))
	if err != nil {
		return nil, err
	}
	defer plan.Log.Close()
	pid, err := p.tech.Start(ctx, plan)
	if err != nil {
		return nil, p.withLastWords(ctx, spec.ID, dir, err)
	}
	if s.Process, err = native.NameProcess(pid); err != nil {
		return nil, p.withLastWords(ctx, spec.ID, dir, outboard.Errorf(outboard.Unavailable,
			"the container ended at once: %w", err))
	}
	s.Memory = native.MemoryGroup(s.Process)
	if err := s.save(dir); err != nil {
		return nil, err
	}
	if !p.tech.OwnKernel() { // nothing has run yet that opens sockets
		if err := native.LimitSockets(pid, plan.Limits.MemoryBytes); err != nil {
			// it may have ended
			return nil, p.withLastWords(ctx, spec.ID, dir, outboard.Errorf(outboard.Unavailable, "%w", err))
		}
	}
	m := &machine{p: p, dir: dir, state: s}
	if err := m.ready(ctx); err != nil {
		return nil, p.withLastWords(ctx, spec.ID, dir, err)
	}
	return m, m.connect(ctx)
}

// plan lays out the directory of a sandbox and says what container to make.
func (p *Provider) plan(dir string, spec sandbox.Spec, root *native.Root, tool int) (*Plan, error) {
	host := filepath.Join(dir, hostDir)
	if err := os.MkdirAll(filepath.Join(host, boot.StateDir), 0o700); err != nil {
		return nil, fmt.Errorf("laying out the sandbox: %w", err)
	}
	limits := native.WithDefaults(spec.Limits)
	config, err := json.Marshal(p.config(spec, root, limits, tool))
	if err != nil {
		return nil, fmt.Errorf("encoding the guest's configuration: %w", err)
	}
	if len(config) > boot.MaxConfig || len(root.Binds) > maxTrees {
		return nil, outboard.Errorf(outboard.Invalid, "the guest's configuration is too long: %d bytes, %d parts of "+
			"the host", len(config), len(root.Binds))
	}
	if err := os.WriteFile(filepath.Join(host, boot.ConfigFile), config, 0o600); err != nil {
		return nil, fmt.Errorf("laying out the sandbox: %w", err)
	}
	log, err := os.OpenFile(filepath.Join(dir, logFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("laying out the sandbox: %w", err)
	}
	plan := &Plan{ID: spec.ID, Dir: dir, Lower: root.Lower, Changing: root.Changing,
		Args: []string{boot.Program, "contained"}, Caps: guestCaps(spec.Network != nil, p.tech.OwnKernel()),
		Inherit: spec.Build, Hostname: native.Hostname, Limits: limits, Pids: int(limits.Pids) +
			native.GuestPids, Log: log,
		// Tools have no capability, so let them bind any port of their own loopback.
		Sysctls: map[string]string{"net.ipv4.ip_unprivileged_port_start": "0"},
		Masked:  native.MaskedPaths(), ReadOnly: native.ReadOnlyPaths()}
	if len(spec.Layers) > 0 { // the others were made here, and have nothing of the tool's
		plan.Tool = uint32(tool)
	}
	plan.Mounts = p.mounts(host, root, limits.MemoryBytes, spec.Network != nil)
	if err := plan.showSize(filepath.Join(dir, sysDir)); err != nil {
		log.Close()
		return nil, err
	}
	return plan, nil
}

// showSize makes the /sys of a sandbox in a directory of the host and adds it to the mounts: it says how large
// the sandbox is, and nothing else.
func (plan *Plan) showSize(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("laying out the sandbox: %w", err)
	}
	files := boot.SizeFiles(plan.Limits.MemoryBytes, native.MilliCPUs(plan.Limits))
	if err := boot.WriteSize(dir, files, func(string) error { return nil }); err != nil {
		return err
	}
	plan.Mounts = append(plan.Mounts, Mount{Source: dir, Target: "/sys"},
		Mount{Source: filepath.Join(dir, boot.MemInfo), Target: "/proc/meminfo"})
	return nil
}

// config is what the guest is told.
func (p *Provider) config(spec sandbox.Spec, root *native.Root, limits outboard.SandboxLimits,
	tool int) *boot.ContainedConfig {
	c := &boot.ContainedConfig{OwnKernel: p.tech.OwnKernel(), Config: boot.Config{
		Generation: spec.Generation, Hostname: native.Hostname, Env: native.Env(spec,
			root), ToolUID: tool, ToolGID: tool, Owned: native.ToolDirs(),
		Memory: limits.MemoryBytes, MilliCPUs: native.MilliCPUs(limits),
		Files: native.MaxFiles, Processes: uint64(limits.Pids), Keep: native.GuestCapabilities, Filter: native.Filter(),
	}}
	if spec.Build {
		c.Inherit = native.GuestCapabilities
	}
	if p.tech.OwnKernel() {
		c.Watches = watches()
		// To see what processes hold, as whoever it may become anyway.
		c.Keep |= 1 << unix.CAP_SYS_PTRACE
	}
	if spec.Network != nil {
		c.Network = &boot.Uplink{CA: string(spec.Network.CA)}
	}
	return c
}

// mounts are the host's parts and the guest's. A kernel of the sandbox's own keeps temporary files in memory,
// which counts as the sandbox's: to it, each file of the host is dear.
func (p *Provider) mounts(host string, root *native.Root, memory int64, connected bool) []Mount {
	var mounts []Mount
	if p.tech.OwnKernel() {
		mounts = append(mounts, Mount{Target: "/tmp", Type: "tmpfs", Write: true, Size: native.ShmSize(memory),
			Mode: "1777"})
	}
	for _, b := range root.Binds {
		mounts = append(mounts, Mount{Source: b.Source, Target: b.Target})
	}
	mounts = append(mounts, Mount{Source: p.guest, Target: boot.Program},
		Mount{Source: host, Target: boot.HostDir, Write: true})
	if connected {
		mounts = append(mounts, Mount{Target: uplink.TrustDir, Type: "tmpfs", Write: true, Size: 16 << 20,
			Mode: "0755"})
	}
	return mounts
}

// watches is how many directories a guest watches: those take at most a quarter of the files that its kernel can
// open, or half while a tree is renamed.
func watches() int {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return minWatches
	}
	return int(min(max(l.Max/8, minWatches), maxWatches))
}

// guestCaps are what the guest starts with: what it keeps, and what it needs to be rid of the rest, to make its network
// and to furnish its kernel.
func guestCaps(connected, ownKernel bool) []string {
	caps := []string{"CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_CHOWN", "CAP_FOWNER", "CAP_FSETID",
		"CAP_DAC_OVERRIDE", "CAP_SETPCAP"}
	if connected {
		caps = append(caps, "CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE")
	}
	if ownKernel { // to see what processes hold, and to change the root
		caps = append(caps, "CAP_SYS_PTRACE", "CAP_SYS_ADMIN", "CAP_SYS_CHROOT")
	}
	return caps
}

// withLastWords adds what the first process wrote before it ended.
func (p *Provider) withLastWords(ctx context.Context, id outboard.SandboxID, dir string, err error) error {
	if tech, ok := p.tech.(Speaking); ok {
		return quote(err, tech.LastWords(context.WithoutCancel(ctx), id))
	}
	f, ferr := os.Open(filepath.Join(dir, logFile))
	if ferr != nil {
		return err
	}
	defer f.Close()
	if fi, ferr := f.Stat(); ferr == nil && fi.Size() > maxLastWords {
		_, _ = f.Seek(-maxLastWords, 2)
	}
	words := make([]byte, maxLastWords)
	n, _ := f.Read(words)
	return quote(err, string(words[:n]))
}

func quote(err error, words string) error {
	text := strings.Join(strings.Fields(strings.ToValidUTF8(words, "?")), " ")
	if text == "" {
		return err
	}
	return outboard.Errorf(outboard.Unavailable, "%w: %s", err, strconv.QuoteToGraphic(text))
}

// Open connects to a living sandbox, thawing it if a server died while it was frozen.
func (p *Provider) Open(ctx context.Context, id outboard.SandboxID) (sandbox.Sandbox, error) {
	m, err := p.find(id)
	if err != nil {
		return nil, err
	}
	if p.Capabilities().Freeze {
		if err := m.setFrozen(ctx, false); err != nil {
			return nil, err
		}
	}
	if err := m.connect(ctx); err != nil {
		return nil, err
	}
	return m, nil
}

// find returns a living sandbox, not connected.
func (p *Provider) find(id outboard.SandboxID) (*machine, error) {
	dir, err := p.path(id)
	if err != nil {
		return nil, err
	}
	s, err := load(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, outboard.Errorf(outboard.NotFound, "sandbox %s does not exist on this host", id)
	}
	if err != nil {
		return nil, outboard.Errorf(outboard.NotFound, "sandbox %s is damaged: %w", id, err)
	}
	m := &machine{p: p, dir: dir, state: s}
	return m, m.alive()
}

// Destroy ends and removes everything of a sandbox, whatever state it is in.
func (p *Provider) Destroy(ctx context.Context, id outboard.SandboxID) error {
	dir, err := p.path(id)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, destroyTimeout)
	defer cancel()
	unlock, err := native.Lock(ctx, dir)
	if errors.Is(err, fs.ErrNotExist) { // the directory goes last, unless somebody else removed it
		if p.Stray(id) {
			return p.tech.Remove(ctx, id)
		}
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	if err := p.remove(ctx, id, dir); err != nil {
		return outboard.Errorf(outboard.Unavailable, "destroying sandbox %s: %w", id, err)
	}
	return nil
}

// remove undoes a sandbox; the state file goes last but for the directory itself.
func (p *Provider) remove(ctx context.Context, id outboard.SandboxID, dir string) error {
	s, err := load(dir)
	if err != nil {
		s = &state{}
	}
	if p.tech.OwnKernel() {
		// Its technology asks that kernel for its state, and one that has no file left to open does not answer:
		// tools can bring that about.
		if err := errors.Join(s.Kill(), s.Process.Wait(ctx)); err != nil {
			return fmt.Errorf("ending the sandbox's kernel: %w", err)
		}
		reap(s.Pid)
	}
	if err := p.end(ctx, s, id); err != nil {
		return err
	}
	if err := native.RemoveContents(dir, stateFile); err != nil {
		return fmt.Errorf("removing the sandbox's files: %w", err)
	}
	if err := native.ReleaseUID(dir, s.ToolUID); err != nil {
		return fmt.Errorf("releasing the uid: %w", err)
	}
	return native.RemoveTree(dir)
}

// end ends a container; its directory stays.
func (p *Provider) end(ctx context.Context, s *state, id outboard.SandboxID) error {
	if err := p.tech.Remove(ctx, id); err != nil {
		return err
	}
	// The technology has ended it; a process that it did not know of must not outlive its directory.
	if err := errors.Join(s.Kill(), s.Process.Wait(ctx)); err != nil {
		return fmt.Errorf("waiting for the container to end: %w", err)
	}
	reap(s.Pid)
	return nil
}

// reap collects the process if it has become a child of this one, as happens where the server is the first of
// its container.
func reap(pid int) {
	if pid > 0 {
		_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
	}
}

// InUse are the directories that sandboxes lie on.
func (p *Provider) InUse() (map[string]bool, error) {
	ids, err := Present(p.dir)
	if err != nil {
		return nil, err
	}
	used := map[string]bool{}
	for _, id := range ids {
		s, err := load(filepath.Join(p.dir, string(id)))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has no container yet, or is gone
		}
		if err != nil {
			return nil, err
		}
		for _, l := range s.Lower {
			used[l] = true
		}
	}
	return used, nil
}

// Holds reports whether the sandboxes' directory has one, whatever its state, or with "" any.
func Holds(dir string, id outboard.SandboxID) bool {
	if id != "" {
		_, err := os.Lstat(filepath.Join(dir, string(id)))
		return !errors.Is(err, fs.ErrNotExist)
	}
	ids, err := Present(dir)
	return err != nil || len(ids) > 0
}

// List returns the ids of all directories of sandboxes, whatever their state, and of containers that have lost
// theirs. Where the technology does not answer, those are found the next time.
func (p *Provider) List(ctx context.Context) ([]outboard.SandboxID, error) {
	ids, err := Present(p.dir)
	tech, ok := p.tech.(Elsewhere)
	if err != nil || !ok {
		return ids, err
	}
	found, err := tech.List(ctx)
	if err != nil {
		p.log.Warn("looking for containers without a directory", "technology", tech.(Technology).Name(), "err", err)
	}
	strays := slices.DeleteFunc(found, func(id outboard.SandboxID) bool { return slices.Contains(ids, id) })
	p.mu.Lock()
	defer p.mu.Unlock()
	p.strays = strays
	return append(ids, strays...), nil
}

// Stray implements sandbox.Straying.
func (p *Provider) Stray(id outboard.SandboxID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Contains(p.strays, id)
}

// Present returns the ids of all sandboxes in a directory, whatever their state.
func Present(dir string) ([]outboard.SandboxID, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("listing sandboxes: %w", err)
	}
	var ids []outboard.SandboxID
	for _, e := range entries {
		if e.IsDir() && outboard.ValidID(outboard.PrefixSandbox, e.Name()) {
			ids = append(ids, outboard.SandboxID(e.Name()))
		}
	}
	return ids, nil
}
