// Package container makes sandboxes with a container runtime. It owns what an OCI runtime and a
// Docker engine have in common. The guest is the container's first process, and the same one as in
// a native sandbox. The host reaches it through sockets in a directory that only the guest's user
// can enter.
//
// # What a sandbox is on the host
//
// Everything is below Config.Dir/<id>: state.json (who it is and which process), the directory that
// the guest shares with the host, its log, and what the technology keeps there. What the technology
// keeps elsewhere (a runtime's state, cgroups, an engine's container) has the sandbox's id as its
// name, so that Destroy finds it when the directory says nothing. The container has no parent that
// matters: it survives the server that made it.
//
// # What differs
//
// A Technology starts, freezes and removes containers. Its capabilities say what it cannot do.
// Checkpoints are archives (Save and Load); there are no layers.
//
// # What it never does
//
// It never shows a socket of the host inside, except the two that the guest itself makes. It never
// follows a link that the guest could have made. It never runs anything on the host instead of in a
// container.
//
// Start reading at Technology and Provider.
package container

import (
	"context"
	"log/slog"
	"os"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// Technology starts, freezes and removes containers. It is safe for concurrent use.
type Technology interface {
	// Name is the provider's.
	Name() string
	// Capabilities says what its sandboxes can do. OwnKernel, beside it, says that each has a kernel of its own:
	// sockets cannot leave it, and times of files do not tell of every write.
	Capabilities() sandbox.Capabilities
	OwnKernel() bool
	// Start makes and starts the container of a plan and returns the host's process that lives as long as it
	// does. What it made when it fails is removed by Remove.
	Start(ctx context.Context, plan *Plan) (pid int, err error)
	// SetFrozen returns when the container is in the state, also when it already was. alive fails when its
	// process has ended, which ends the waiting.
	SetFrozen(ctx context.Context, id outboard.SandboxID, frozen bool, alive func() error) error
	// Remove ends a container and removes what there is of it outside its directory. It is idempotent.
	Remove(ctx context.Context, id outboard.SandboxID) error
}

// Elsewhere is a Technology whose containers may be there when their directory is not.
type Elsewhere interface {
	// List returns the sandboxes that it has a container of, of those of its provider's directory.
	List(ctx context.Context) ([]outboard.SandboxID, error)
}

// Speaking is a Technology that keeps what a container's first process writes, instead of writing it to Plan.Log.
type Speaking interface {
	LastWords(ctx context.Context, id outboard.SandboxID) string
}

// Layering is a Technology that has all that a container wrote in one directory of this host, which stays there
// after Remove.
type Layering interface {
	// Written returns that directory of the sandbox in dir.
	Written(dir string) string
}

// Config says where and how.
type Config struct {
	// Dir holds the sandboxes of one technology; it is made when missing, private to the user.
	Dir string
	// Guest is the path of the outboard-guest program, a static executable.
	Guest string
	// ReadOnly names further host directories to show inside, read-only, at the same path, with Rootfs "host".
	ReadOnly []string
	// Logger receives what has no caller to return to; nil discards.
	Logger *slog.Logger
}

// Mount shows something inside.
type Mount struct {
	Source string // on the host; "" for a file system of its own
	Target string // inside
	Type   string // of a file system of its own: tmpfs
	Write  bool
	Size   int64  // of a tmpfs
	Mode   string // of a tmpfs
}

// Plan is a container to make.
type Plan struct {
	ID outboard.SandboxID
	// the sandbox's directory; the technology may keep files in it under names that begin with its own
	Dir      string
	Lower    []string // the root's read-only layers, top first; what is written over them goes with the container
	Changing []string // of Lower what its owner may change; the rest never does under its name
	Tool     uint32   // whom native.ToolUID's files in Lower belong to; 0: there are none
	Mounts   []Mount  // in order
	Args     []string // of the first process, which runs as root with the capabilities Caps
	Caps     []string
	Inherit  bool // programs of root inside may be given Caps as well, by the guest
	Hostname string
	Limits   outboard.SandboxLimits // all set but for the disk's
	Pids     int                    // limit on processes, the guest's threads included
	Sysctls  map[string]string
	Log      *os.File // takes what the first process writes
	Masked   []string
	ReadOnly []string
}
