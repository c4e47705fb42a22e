// Package sandbox owns the interface between Outboard and whatever isolates. A Provider makes
// sandboxes with one technology. A Sandbox is one disposable machine with the guest inside.
//
// Invariants: every provider passes the suite in package sandboxtest, and Capabilities say what it
// cannot do.
//
// It holds no technology itself. Start reading at Provider and Sandbox.
package sandbox

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
)

// Provider makes, finds and destroys sandboxes. It is safe for concurrent use, and by several processes of one
// host on the same directory.
type Provider interface {
	// Name is the technology: "native", "oci", "docker", ...
	Name() string
	// Capabilities says what sandboxes of this provider can do on this host.
	Capabilities() Capabilities
	// Create makes a sandbox named spec.ID and returns when its guest answers. The caller has made a row for it
	// first. Errors: Unavailable (the host lacks what the spec needs, with a hint), Invalid, Conflict (the id
	// exists), NotFound (the sandbox was killed while it was made, or the layers of spec.From are no longer
	// here). A failed Create leaves nothing behind.
	Create(ctx context.Context, spec Spec) (Sandbox, error)
	// Open connects to a living sandbox. NotFound if it is gone.
	Open(ctx context.Context, id outboard.SandboxID) (Sandbox, error)
	// Destroy kills and removes everything of id: processes, mounts, cgroups, directories. It is idempotent and
	// also clears what a crash left of a half-made one.
	Destroy(ctx context.Context, id outboard.SandboxID) error
	// List returns the ids of everything present on this host, half-made or dead ones included, for the reaper.
	List(ctx context.Context) ([]outboard.SandboxID, error)
}

// Spec describes a sandbox to make.
type Spec struct {
	ID         outboard.SandboxID
	Generation string            // random, new for every Create
	Rootfs     string            // "" or "host", a directory, a .tar, or Bare
	Env        map[string]string // added to the base environment of every process inside
	Limits     outboard.SandboxLimits
	Isolation  string // required isolation name, "" = the provider's
	Network    *Network

	// Layers are read-only directories of this host that lie over Rootfs, top first, for a provider that is
	// Stacked. What they delete of what is below them is marked as overlays mark it, and owners are those
	// inside.
	Layers []string
	// User is who tools run as, by name or number in the root file system's accounts, where the provider's
	// sandboxes are Housed; "" is the sandbox's own user, uid 1000. Never root, who is the guest. Invalid:
	// nobody is called so.
	User string
	// Path is directories that are searched for programs before others, with colons between them.
	Path string
	// Build makes a sandbox for a Builder: its root may do with the sandbox's own files what package managers
	// do, and all that is written is in one place.
	Build bool

	// From is a checkpoint whose layers the provider keeps on this host (Layers.Keeps): the workspace begins as
	// it was then. "" begins with what the root file system has there.
	From outboard.CheckpointID
}

// Network is a sandbox's connection to an egress gateway. Without one (nil) a sandbox has a loopback interface
// and no names.
//
// With one, every name resolves inside to one address that is the sandbox's own, and every TCP connection there,
// and every one to the proxy that the environment variables name, arrives at the listener that Networked.Listen
// returns. No packet ever leaves.
type Network struct {
	CA []byte // certificate in PEM that is trusted inside, besides the system's own
}

// Networked is implemented by providers whose sandboxes can have a Network.
type Networked interface {
	// Listen returns the listener on which connections made inside a living sandbox arrive. Their LocalAddr is
	// what the process inside meant to reach: the synthetic address (uplink.Synthetic) with its port, or the
	// proxy's address. Several processes of a host may listen at the same time; each connection goes to one. ca
	// is made what the sandbox trusts, if it is not yet. The listener fails when the sandbox ends; closing it
	// leaves the sandbox without network until somebody listens again. NotFound when the sandbox is gone,
	// Invalid when it was made without a network.
	Listen(ctx context.Context, id outboard.SandboxID, ca []byte) (net.Listener, error)
}

// Housed is a Sandbox whose tools can run as a user of its root file system. Those of other sandboxes run as the
// sandbox's own user, whatever Spec.User says.
type Housed interface {
	// ToolUser is what the user is called, "" for the sandbox's own.
	ToolUser() string
}

// GapOwnUser is what a provider whose sandboxes are not Housed says among its gaps.
const GapOwnUser = "agents' tools run as the sandbox's own user, also where an image or a template names another"

// Bare as a Spec.Rootfs is nothing but Spec.Layers.
const Bare = "bare"

// Stacked is a Provider whose sandboxes can begin with Spec.Layers.
type Stacked interface {
	// InUse are the directories that its sandboxes lie on, and what it has made ahead for them: they must stay
	// as they are.
	InUse() (map[string]bool, error)
}

// Builder is a Stacked provider that can make layers.
type Builder interface {
	Stacked
	// Commit ends all that runs in a sandbox that was made with Spec.Build, and makes a layer of everything that
	// was written: dir, which must not exist and be on the file system of the sandboxes. Devices, set-id bits
	// and foreign attributes are left out of it. The sandbox is good for nothing but Destroy then. Unavailable:
	// this provider makes no layers on this host.
	Commit(ctx context.Context, id outboard.SandboxID, dir string) error
}

// PoolSpec is a kind of sandbox, as the Spec of one says it, of which Count are started before anybody asks for
// one. Of the Spec, what is whose is not looked at: id, generation, variables, certificates.
type PoolSpec struct {
	Spec  Spec
	Count int
}

// Pooler is a Provider that can start sandboxes before anybody asks.
type Pooler interface {
	// Keep says what is kept from now on, in place of what an earlier Keep said. It returns at once; what is
	// kept comes in time, and again after it was taken. Where sandboxes are never started ahead, nothing is
	// kept.
	Keep(pool []PoolSpec) error
}

// Several is implemented by a Provider that is more than one. The row of a sandbox names the one that made it.
type Several interface {
	// Maker names the provider that makes sandboxes of an isolation, and Has reports whether one of that name is
	// among them.
	Maker(isolation string) string
	Has(name string) bool
}

// Capabilities are what a provider can do here. What one lacks degrades loudly: the caller is told, never surprised.
type Capabilities struct {
	Isolation string // e.g. "namespaces", "namespaces (rootless)"
	Freeze    bool   // Freeze and Thaw stop and continue all processes
	// which of memory, pids, cpu, disk hold, kept by the host's kernel: what asks for more is refused
	Limits     []string
	Whole      []string // limits that hold for the sandbox as a whole only: what needs more memory ends all of it
	PTY        bool     // processes can have a terminal
	Builds     bool     // packages can be installed: the provider is a Builder
	DeepTrees  bool     // directories may be nested deeper than a path can name
	SeparateID bool     // tools run under another uid than the guest
	Layers     bool     // workspaces are layers: the provider is a Layers and its new sandboxes are Layered
	Network    string   // "none": loopback only, but for a Spec.Network where the provider is Networked
	Gaps       []string // what it does not protect, in words for the user
}

// Checkpoints names how checkpoints are made, and with that what a fork costs: "layers", the same for every
// workspace, or "archive", which copies what changed.
func (c Capabilities) Checkpoints() string {
	if c.Layers {
		return "layers"
	}
	return "archive"
}

// DefaultPids is how many processes and threads a sandbox may have where its Spec does not say.
const DefaultPids = 512

// Paths every sandbox has, owned by the tool's user.
const (
	Workspace = "/workspace"
	Outputs   = "/mnt/session/outputs"
	Uploads   = "/mnt/session/uploads"
	Home      = "/home/user"
)

// Sandbox is one live machine. Methods may be called from any goroutine. An error for which Gone reports true
// means the machine itself is gone; any other error says nothing about it.
type Sandbox interface {
	ID() outboard.SandboxID
	Generation() string
	Isolation() string

	// Start, Wait, Kill and Ack are the call protocol of package guest. Wait returns when the call is done, or
	// with ctx. Follow is Wait that shows line, on the caller's goroutine, the newest line of the call's output a
	// few times a second: untrusted bytes, best effort.
	Start(ctx context.Context, s guest.Start) (guest.Result, error)
	Wait(ctx context.Context, key string, epoch int64) (guest.Result, error)
	Follow(ctx context.Context, key string, epoch int64, line func(string)) (guest.Result, error)
	Kill(ctx context.Context, key string, epoch int64) (guest.Result, error)
	Ack(ctx context.Context, key string, epoch int64) error

	// Save writes the workspace (Workspace, Outputs and the home directory) to w as a tar; Load applies tars
	// made by Save, oldest first, and label names the resulting state. Load is only for a fresh sandbox.
	Save(ctx context.Context, s guest.Save, w io.Writer) (guest.Saved, error)
	Load(ctx context.Context, label string, r io.Reader) error

	// Put writes one file with parents, owned by the tool's user; readOnly makes it unwritable for the tool
	// where identities are separate. Get reads a regular file. List walks a directory's regular files.
	Put(ctx context.Context, path string, mode uint32, readOnly bool, r io.Reader) error
	Get(ctx context.Context, path string, w io.Writer) error
	List(ctx context.Context, dir string) ([]guest.Stat, error)

	Processes
	Files

	// Freeze stops all processes until Thaw; Unavailable where Capabilities.Freeze is false.
	Freeze(ctx context.Context) error
	Thaw(ctx context.Context) error

	// Close drops the connection; the machine lives on.
	Close() error
}

// Processes are long-lived programs of a person or a client, beside the calls of an agent: they have no receipt
// and no epoch, only a pid that means something while the machine lives. Their output is kept for a while, and
// whoever attaches reads from a cursor.
type Processes interface {
	// StartProcess starts one. With f it stays attached until the process ends and returns how; the end of ctx,
	// or an error of f, ends the attachment only. Without f it returns the pid at once. Refusals are
	// *guest.Error.
	StartProcess(ctx context.Context, p guest.ProcessStart, f func(guest.ProcessEvent) error) (int, guest.ProcessExit,
		error)
	// AttachProcess shows what one does from a cursor on: guest.FromStart, guest.FromNow, or where another
	// attachment ended.
	AttachProcess(ctx context.Context, ref guest.ProcessRef, from int64,
		f func(guest.ProcessEvent) error) (guest.ProcessExit, error)
	// InputProcess writes r to its input; CloseInput ends that.
	InputProcess(ctx context.Context, ref guest.ProcessRef, r io.Reader) error
	CloseInput(ctx context.Context, ref guest.ProcessRef) error
	ResizeProcess(ctx context.Context, ref guest.ProcessRef, size guest.Size) error
	// SignalProcess signals its process group; after SIGKILL it returns when the process is gone.
	SignalProcess(ctx context.Context, ref guest.ProcessRef, signal int) error
	Processes(ctx context.Context) ([]guest.ProcessInfo, error)
	// DialPort connects to a TCP port of the machine's own loopback, whatever network it has. NotFound when
	// nothing listens, Denied for a port of Outboard's own (guest.Reserved). The connection has CloseWrite.
	DialPort(ctx context.Context, port uint16) (net.Conn, error)
}

// Files are operations on any path inside with the identity of a user of the machine; what that user may not,
// the guest does for it, without following links. Refusals are *guest.Error.
type Files interface {
	// Real returns the canonical form of a path as the file tools of a call see it; see guest.Client.Real.
	Real(ctx context.Context, path string) (string, error)
	Stat(ctx context.Context, f guest.FileRef) (guest.Entry, error)
	ReadDir(ctx context.Context, f guest.FileRef, depth int) ([]guest.Entry, error)
	Mkdir(ctx context.Context, f guest.FileRef) (guest.Entry, error)
	Move(ctx context.Context, f guest.FileRef, to string) (guest.Entry, error)
	Remove(ctx context.Context, f guest.FileRef) error
	ReadFile(ctx context.Context, f guest.FileRef, offset, length int64, w io.Writer) error
	WriteFile(ctx context.Context, f guest.FileRef, attrs map[string]string, r io.Reader) (guest.Entry, error)
	// Watch tells each what changes, guest.OpReady first, until ctx ends or the directory is gone.
	Watch(ctx context.Context, f guest.FileRef, recursive bool, each func(guest.Change) error) error
}

// Halter is a Provider that freezes a sandbox without a word to its guest, which may be frozen already, or about
// to be by somebody else: to connect first would thaw it, and wait for an answer that does not come.
type Halter interface {
	Halt(ctx context.Context, id outboard.SandboxID) error
}

// Halt freezes a sandbox of a provider, by way of a connection where it is no Halter.
func Halt(ctx context.Context, p Provider, id outboard.SandboxID) error {
	if h, ok := p.(Halter); ok {
		return h.Halt(ctx, id)
	}
	sb, err := p.Open(ctx, id)
	if err != nil {
		return err
	}
	return errors.Join(sb.Freeze(ctx), sb.Close())
}

// Measured is implemented by sandboxes that can say what they use.
type Measured interface {
	Usage(ctx context.Context) (Usage, error)
}

// Usage is what a sandbox has used and may use, in bytes.
type Usage struct {
	CPU           time.Duration // since it was made
	Memory, Cache int64         // Cache is the part of Memory that the kernel would give up
	MemoryMax     int64
	Disk, DiskMax int64 // of the file system that holds it
	CPUs          float64
}

// ErrMemory is wrapped by the error of a sandbox that no longer exists because of its limit on memory, where
// that ends it as a whole.
var ErrMemory = errors.New("its programs took more memory than its limit, which ends a sandbox of this kind as a whole")

// Gone reports whether err says that the sandbox no longer exists.
func Gone(err error) bool { return outboard.KindOf(err) == outboard.NotFound }

// Layered is a Sandbox whose workspace is a stack of read-only layers on the host with a writable one on top.
// Where it is one, a checkpoint costs the same whatever the size of the workspace. It is found by a type
// assertion.
type Layered interface {
	// Push makes the state of the workspace checkpoint id, if it is another than that of parent, which is ""
	// before the first: what was written becomes a read-only layer under an empty writable one. Nothing runs
	// inside meanwhile, so it is one moment's state. Where a process holds a file or directory of the workspace
	// open the writable layer cannot change under it: then it is copied instead. Exhausted: that would be too
	// much to copy. Unimplemented: this sandbox was made without layers, or has as many as it may: Save does it.
	Push(ctx context.Context, id, parent outboard.CheckpointID) (Pushed, error)
}

// Pushed is what a Push did. The zero value: the state is parent's, and id names nothing.
type Pushed struct {
	Changed bool
	Copied  bool // a process held files open, and what changed was copied
}

// Layers is a Provider that keeps the layers of checkpoints on this host, until it is told to forget them. They
// do not survive a reboot, which may tear what was not yet written to the disk.
type Layers interface {
	// Keeps reports whether every layer of a checkpoint is here.
	Keeps(id outboard.CheckpointID) bool
	// Above reports whether id is base with layers over it, so that Pack can write the difference.
	Above(id, base outboard.CheckpointID) bool
	// Pack writes a checkpoint as a tar, as Sandbox.Save does: what changed since base, or everything with "".
	// NotFound where the layers are not here.
	Pack(ctx context.Context, id, base outboard.CheckpointID, w io.Writer) error
	// Forget drops a checkpoint. Its layers are garbage when no sandbox and no other checkpoint uses them. Idempotent.
	Forget(ctx context.Context, id outboard.CheckpointID) error
	// Sweep removes layers that are garbage, and the content of large files in others that nobody can see.
	Sweep(ctx context.Context) error
	// Weigh returns how many bytes of the disk the newest layer of a checkpoint takes: what it costs to keep it here.
	Weigh(ctx context.Context, id outboard.CheckpointID) (int64, error)
	// Kept lists the checkpoints that have not been forgotten.
	Kept(ctx context.Context) ([]outboard.CheckpointID, error)
}
