// Package boot turns the first process of new namespaces into the init of a sandbox. It builds the
// root file system, leaves the host's behind, gives up privileges and installs the system call
// filter. It runs inside, before the guest serves its first frame. It uses the standard library
// only.
//
// The order is the security argument:
//   - Everything that needs privileges happens while no foreign code exists in the namespaces.
//   - The filter is installed before the guest accepts its first connection, so every process that
//     ever runs inside inherits it.
//   - A step that fails ends the process: a half-built sandbox never serves.
//
// It never decides: the host sends a Config that says what to build.
//
// The host starts `outboard-guest init` in the sandbox's cgroups and in a new cgroup namespace. It
// runs as root of its user namespace. Where an ordinary user's one id is all there is to map, it
// runs as the tool, with every capability of that namespace (package spawner). The capability
// bounding set is empty; it belongs to a thread, and before the exec there is only one. The files
// are fixed:
//
//	0, 1, 2   /dev/null, the guest's log twice
//	ListenFD  a listening unix socket, whose path stays on the host
//	ControlFD one end of a stream socket pair: Config in (with the mount trees of Config.Trees),
//	          a report out, as one line; then the host's first connection
//	StateFD   the directory for receipts, outside everything the sandbox can name
//
// Start reading at Init for native sandboxes, and at Contained for containers.
package boot

import (
	"os"
	"strconv"
)

// The files a guest inherits. All are marked close-on-exec before anything else happens.
const (
	ListenFD  = 3
	ControlFD = 4
	StateFD   = 5
)

// MaxConfig bounds the encoded Config, and MaxTrees the mount trees sent with it (the kernel takes 253 files per
// message).
const (
	MaxConfig = 256 << 10
	MaxTrees  = 200
)

// Config is what the host wants built. A native sandbox is sent it as a form.Message, length first, with one
// file per Tree; in a container it is a file of JSON.
type Config struct {
	Generation string `json:"generation"`
	Hostname   string `json:"hostname"`
	// Later says that the sandbox is nobody's yet: Generation, Env and the certificate of Network are empty here
	// and come with an Identity, once, after the report (Env.Await). Until then nothing is served.
	Later bool              `json:"later,omitempty"`
	Env   map[string]string `json:"env,omitempty"` // added to the base environment of every process inside

	// ToolUID and ToolGID are the identity of tools inside. Where they are the guest's own, tools differ from it
	// only in having no capability, and the guest is protected by being init and not dumpable.
	ToolUID int `json:"tool_uid"`
	ToolGID int `json:"tool_gid"`
	// ToolName is what the sandbox's account file calls them; "" = user.
	ToolName string `json:"tool_name,omitempty"`

	// Rooted says that the host has built the file systems (Ahead) and the guest is born in them: the trees that
	// are sent are Ahead's, and the fields of this group are empty. Base is the host's uid and gid for root
	// inside, where the host builds; else 0.
	Rooted bool `json:"rooted"`
	Base   int  `json:"-"`

	// host path of a directory with empty "upper" and "work"; "" = keep them on a tmpfs
	Upper     string   `json:"upper"`
	UpperSize int64    `json:"upper_size"` // bytes of that tmpfs
	Lower     []string `json:"lower"`      // host paths of the overlay's lower directories, top first
	Binds     []Bind   `json:"binds"`      // read-only parts of the host, in order
	Trees     int      `json:"trees"`      // detached mounts sent along, one per Sources; 0 = open the paths here
	Owned     []Dir    `json:"owned"`      // directories to make for the tool

	// Networked says that the host has made and furnished the network namespace. Else it is the clone's, and the
	// guest does it.
	Networked bool `json:"networked"`

	// Memory in bytes and MilliCPUs, thousandths of processors, are what programs are told that there is.
	Memory    int64 `json:"memory"`
	MilliCPUs int   `json:"milli_cpus"`

	ShmSize int64 `json:"shm_size"` // bytes for /dev/shm

	Masked   []string `json:"masked"`    // paths below /proc that are hidden behind an empty file or directory
	ReadOnly []string `json:"read_only"` // paths below /proc that are made read-only
	BootID   string   `json:"boot_id"`   // what the sandbox sees as the kernel's; of who builds the file systems

	Network *Uplink `json:"network,omitempty"` // nil = loopback and nothing else

	Files     uint64 `json:"files"`     // RLIMIT_NOFILE
	Processes uint64 `json:"processes"` // RLIMIT_NPROC, 0 = unchanged: where no cgroup bounds them
	DataBytes uint64 `json:"data"`      // RLIMIT_DATA, 0 = unchanged: where no cgroup bounds memory

	Keep uint64 `json:"keep"` // capabilities the guest itself keeps, as a bit set
	// Inherit is which of them programs of the sandbox's root have. None, but where a layer is built: package
	// managers give files away.
	Inherit uint64 `json:"inherit,omitempty"`
	Filter  []byte `json:"filter"` // a seccomp program in the machine's byte order
}

// Identity makes a sandbox that was started ahead somebody's. It is sent like a Config.
type Identity struct {
	Generation string            `json:"generation"`
	Env        map[string]string `json:"env,omitempty"` // as Config.Env
	CA         string            `json:"ca,omitempty"`  // as Uplink.CA; only for a sandbox that has an uplink
}

// Sources returns the host paths that the file systems are made from: Upper if there is one, then Lower, then Binds.
func (c *Config) Sources() []string {
	var paths []string
	if c.Upper != "" {
		paths = append(paths, c.Upper)
	}
	paths = append(paths, c.Lower...)
	for _, b := range c.Binds {
		paths = append(paths, b.Source)
	}
	return paths
}

// Bind shows one host directory or file inside, read-only, without set-uid bits and devices.
type Bind struct {
	Source string `json:"source"` // on the host
	Target string `json:"target"` // inside, absolute; the mount point is made when it is missing
	File   bool   `json:"file"`   // Source is not a directory
}

// Uplink is what package uplink sets up. The listening unix socket on which the host takes the sandbox's sockets
// over comes with the configuration, as one more file after the trees.
type Uplink struct {
	CA         string `json:"ca"`         // a certificate to trust, PEM
	Redirected bool   `json:"redirected"` // what Network returned, where the host called it
}

// Dir is a directory that belongs to the tool.
type Dir struct {
	Path string `json:"path"`
	Mode uint32 `json:"mode"`
	Tool bool   `json:"tool"` // owned by the tool, else by the guest
}

// ReadReport returns what the guest's answer on the control socket says, a line without its end: nothing when it
// is ready, else what failed.
func ReadReport(line string) (failed string, err error) { return strconv.Unquote(line) }

// Where a guest that a container runtime started finds what the host gave it: a directory of the host, for the
// guest's own user only.
const (
	HostDir      = "/run/host"
	Program      = "/run/guest" // the guest itself
	ConfigFile   = "config.json"
	StateDir     = "state"                  // receipts
	Resolver     = "nameserver 127.0.0.1\n" // what its /etc/resolv.conf says with a network
	GuestSocket  = "guest.sock"
	UplinkSocket = "uplink.sock"
	ReadyFile    = "ready" // made when the sandbox is finished
)

// ContainedConfig is what the host tells a guest that a container runtime started. Of Config it has what is not
// the runtime's business: Generation, Env, ToolUID, ToolGID, Owned, Network.CA, Files, Processes, DataBytes,
// Keep and Filter.
type ContainedConfig struct {
	Config
	// OwnKernel is gVisor's: the network's sockets cannot leave the sandbox, so their connections are carried
	// one by one, and Filter is not installed where refuseUserNamespaces does its work.
	OwnKernel bool `json:"own_kernel"`
	Watches   int  `json:"watches"` // as the server's configuration has it
}

// Env is what a booted guest serves with.
type Env struct {
	Config
	Watches  int      // of a ContainedConfig
	Control  *os.File // the host's first connection, once it has the report; nil in a container
	StateDir string   // path of the receipts directory, usable by this process only
	stateDir *os.File // holds it, in a container
	uplink   *link    // nil without a network
	asked    *os.File // see Answer; nil where the kernel answers
	relay    bool
}
