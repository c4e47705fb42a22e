package native

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest/boot"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// What sandboxes of other technologies on a Linux host have in common with native ones is defined once, here:
// the same files are shown from the host, the same system calls are refused, and what is left behind is removed
// the same way.

// GuestCapabilities are what a guest keeps that runs as root of its sandbox, as a bit set.
const GuestCapabilities = guestKeeps

// MaxFiles is RLIMIT_NOFILE inside. GuestPids is room for the guest above the limit on processes. MaxTerminals
// is how many pseudo-terminals there may be.
const (
	MaxFiles     = maxFiles
	GuestPids    = guestPids
	MaxTerminals = boot.MaxTerminals
)

// Hostname is every sandbox's.
const Hostname = hostname

// Filter returns the system call filter, as a seccomp program.
func Filter() []byte { return filterBytes() }

// MaskedPaths and ReadOnlyPaths are the parts of /proc that speak of the host.
func MaskedPaths() []string   { return append([]string(nil), maskedPaths...) }
func ReadOnlyPaths() []string { return append([]string(nil), readOnlyPaths...) }

// WithDefaults fills in the limits that a sandbox has when its spec does not say.
func WithDefaults(l outboard.SandboxLimits) outboard.SandboxLimits { return withDefaults(l) }

// MilliCPUs is a limit on processors in thousandths, rounded up.
func MilliCPUs(l outboard.SandboxLimits) int { return milliCPUs(l) }

// ShmSize returns the size of a file system in memory, such as /dev/shm, of a sandbox with a limit on memory.
func ShmSize(memory int64) int64 { return memory / shmShare }

// Roots makes root file systems in a directory of its own, as a provider does.
type Roots struct{ p *Provider }

// Root is what a sandbox's root is made from.
type Root struct {
	Lower []string // read-only directories, top first
	// Changing are those of Lower that are neither kept here nor Spec.Layers: their owner may change them.
	Changing []string
	Binds    []boot.Bind // parts of the host shown over them
	Path     string      // PATH inside, or "" for the guest's default
}

// NewRoots keeps layers in dir, in which sandboxes have their directories (see State).
func NewRoots(dir string, readOnly []string, log *slog.Logger) (*Roots, error) {
	if err := os.MkdirAll(filepath.Join(dir, cacheDir), 0o700); err != nil {
		return nil, outboard.Errorf(outboard.Unavailable, "making the sandbox directory: %w", err)
	}
	return &Roots{&Provider{dir: dir, readOnly: readOnly, log: log}}, nil
}

// Get resolves Spec.Rootfs and Spec.Layers.
func (r *Roots) Get(name string, layers []string) (*Root, error) {
	root, err := r.p.rootfs(name, layers, "")
	if err != nil {
		return nil, err
	}
	changing := slices.DeleteFunc(slices.Clone(root.lower),
		func(l string) bool { return slices.Contains(root.cached(), l) })
	return &Root{Lower: root.lower, Changing: changing, Binds: root.binds, Path: root.path}, nil
}

// Env is the environment of what runs over a root.
func Env(spec sandbox.Spec, root *Root) map[string]string {
	return environment(spec, root.Path)
}

// ToolDirs are the directories that are written to.
func ToolDirs() []boot.Dir { return slices.Clone(toolDirs) }

// ReserveUID returns a uid of this host that no other sandbox and no user has, for the tools of the sandbox in
// dir. It is released with ReleaseUID when the sandbox is gone.
func ReserveUID(dir string, id outboard.SandboxID) (uint32, error) {
	pool, err := newUIDPool(uidDir)
	if err != nil {
		return 0, outboard.Errorf(outboard.Unavailable, "%w", err)
	}
	base, err := pool.reserve(owner{dir: dir, group: id})
	return base + toolUID, err
}

// Reserved returns for each sandbox of this host in a directory below dir that has a range of uids the name of
// its control groups, by its directory. Those of an ordinary user have none.
func Reserved(dir string) (map[string]string, error) {
	if !mapsRange() {
		return nil, nil
	}
	owners, err := (&uidPool{dir: uidDir}).all()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	groups := map[string]string{}
	for _, o := range owners {
		if strings.HasPrefix(o.dir, dir+string(filepath.Separator)) {
			groups[o.dir] = string(o.group)
		}
	}
	return groups, nil
}

// ReleaseUID gives it back.
func ReleaseUID(dir string, uid uint32) error {
	pool, err := newUIDPool(uidDir)
	if err != nil || uid < toolUID {
		return err
	}
	return pool.release(uid-toolUID, dir)
}

// MakeLayer makes dir, a layer that any sandbox can begin with, of the upper directory of an ended one whose
// tools had ReserveUID's uid.
func MakeLayer(ctx context.Context, id outboard.SandboxID, upper, dir string, uid uint32) error {
	return makeLayer(ctx, id, upper, dir, uid-toolUID)
}

// ToolUID is the identity of tools in the files of a layer.
const ToolUID = toolUID

// Process names a process of this host for as long as the machine runs.
type Process struct {
	Boot  string `json:"boot_id"`
	Pid   int    `json:"pid,omitempty"`
	Start uint64 `json:"start,omitempty"`
}

// NameProcess names one that lives.
func NameProcess(pid int) (Process, error) {
	st, err := readStat(pid)
	if err != nil {
		return Process{}, fmt.Errorf("looking at process %d: %w", pid, err)
	}
	return Process{Boot: bootID(), Pid: pid, Start: st.start}, nil
}

func (p Process) find() (*process, error) {
	return findProcess(&state{BootID: p.Boot, Pid: p.Pid, Start: p.Start})
}

// Alive reports whether it lives.
func (p Process) Alive() (bool, error) {
	pr, err := p.find()
	if err != nil || pr == nil {
		return false, err
	}
	pr.close()
	return true, nil
}

// Ended waits a little for a process that is about to end, and reports whether it has.
func (p Process) Ended() bool {
	return (&machine{state: &state{BootID: p.Boot, Pid: p.Pid, Start: p.Start}}).ended()
}

// Kill sends SIGKILL to a living process.
func (p Process) Kill() error {
	pr, err := p.find()
	if err != nil || pr == nil {
		return err
	}
	defer pr.close()
	return pr.kill()
}

// Wait returns when it has ended.
func (p Process) Wait(ctx context.Context) error {
	pr, err := p.find()
	if err != nil || pr == nil {
		return err
	}
	defer pr.close()
	return pr.wait(ctx)
}

// Lock keeps other processes and goroutines from making or removing the same sandbox. It fails with
// fs.ErrNotExist when its directory is not there, or went away while waiting.
func Lock(ctx context.Context, dir string) (unlock func(), err error) {
	return place{dir: dir}.lock(ctx)
}

// WaitFor polls until ready reports true or an error, or ctx ends.
func WaitFor(ctx context.Context, ready func() (bool, error)) error { return waitFor(ctx, ready) }

// RemoveTree removes a directory tree that a sandbox may have shaped.
func RemoveTree(dir string) error { return removeTree(dir) }

// RemoveContents removes what is in dir but for one name.
func RemoveContents(dir, keep string) error { return removeContents(dir, keep) }

// Handed is the listener of a sandbox that has handed its sockets over on conn.
func Handed(conn net.Conn, sockets []*net.TCPListener) net.Listener {
	return newUplinked(conn, sockets)
}

// OnSpentThread runs f on a thread that ends with it, for what a thread cannot undo.
func OnSpentThread(f func() error) error { return onSpentThread(f) }

// PrivateMounts gives the calling thread, which must be spent, a mount namespace of its own.
func PrivateMounts() error {
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	return nil
}

// View shows layers, top first, as an overlay of them does: read-only, and mounted nowhere. The caller closes it.
func View(layers []string) (*os.Root, error) {
	if len(layers) == 1 { // the kernel wants two
		return os.OpenRoot(layers[0])
	}
	fds := new(descriptors)
	defer fds.close()
	var lower []int
	for _, l := range layers {
		fd, err := unix.Open(l, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("opening the layer %s: %w", l, err)
		}
		lower = append(lower, fds.add(fd))
	}
	mnt, err := mountLayers(lower, nil, false)
	if err != nil {
		return nil, err
	}
	fds.add(mnt)
	return os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", mnt))
}
