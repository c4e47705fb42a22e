package oci

import (
	"fmt"

	"github.com/outboard-dev/outboard/internal/sandbox/container"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

// spec is the part of the OCI runtime specification's config.json that is needed.
type spec struct {
	Version  string      `json:"ociVersion"`
	Process  process     `json:"process"`
	Root     root        `json:"root"`
	Hostname string      `json:"hostname"`
	Mounts   []mount     `json:"mounts"`
	Linux    linuxConfig `json:"linux"`
}

type process struct {
	Terminal     bool                `json:"terminal"`
	User         user                `json:"user"`
	Args         []string            `json:"args"`
	Env          []string            `json:"env"`
	Cwd          string              `json:"cwd"`
	Capabilities map[string][]string `json:"capabilities"`
	NoNew        bool                `json:"noNewPrivileges"`
	OOM          int                 `json:"oomScoreAdj"`
}

type user struct {
	UID int `json:"uid"`
	GID int `json:"gid"`
}

type root struct {
	Path     string `json:"path"`
	ReadOnly bool   `json:"readonly"`
}

type mount struct {
	Destination string   `json:"destination"`
	Type        string   `json:"type"`
	Source      string   `json:"source"`
	Options     []string `json:"options"`
}

type linuxConfig struct {
	Namespaces  []namespace       `json:"namespaces"`
	Resources   resources         `json:"resources"`
	CgroupsPath string            `json:"cgroupsPath"`
	Sysctl      map[string]string `json:"sysctl,omitempty"`
	Masked      []string          `json:"maskedPaths"`
	ReadOnly    []string          `json:"readonlyPaths"`
}

type namespace struct {
	Type string `json:"type"`
}

type resources struct {
	Devices []device `json:"devices"`
	Memory  memory   `json:"memory"`
	Pids    *pids    `json:"pids,omitempty"`
	CPU     cpu      `json:"cpu"`
}

type device struct {
	Allow  bool   `json:"allow"`
	Access string `json:"access"`
}

type memory struct {
	Limit int64 `json:"limit"`
}

type pids struct {
	Limit int64 `json:"limit"`
}

type cpu struct {
	Quota  int64  `json:"quota"`
	Period uint64 `json:"period"`
}

// cpuPeriod is the kernel's default, in microseconds.
const cpuPeriod = 100_000

// sentryMemory is what gVisor's own processes need beside the sandbox's limit: its kernel's tables and its file server.
const sentryMemory = 256 << 20

// leastFirst is the least limit on memory that gVisor's processes start under.
const leastFirst = 256 << 20

// firstLimit is the memory that a gVisor sandbox begins with. Its kernel shows programs what it finds as the
// limit at its start, which is why the room for itself comes later (giveSentry), where it needs less than all at
// first.
func firstLimit(memory int64) int64 {
	if memory < leastFirst {
		return memory + sentryMemory
	}
	return memory
}

// bundle is the configuration of a plan's container.
func (r *Runtime) bundle(plan *container.Plan, rootDir string) *spec {
	s := &spec{Version: "1.0.2", Hostname: plan.Hostname, Root: root{Path: rootDir}}
	s.Process = process{Args: plan.Args, Env: []string{"PATH=/usr/bin:/bin"}, Cwd: "/", NoNew: true, OOM: 200,
		Capabilities: map[string][]string{"bounding": plan.Caps, "effective": plan.Caps, "permitted": plan.Caps}}
	if r.gvisor { // with a second of Go's processors more threads of the guest wake, which is dear there
		s.Process.Env = append(s.Process.Env, "GOMAXPROCS=1")
	}
	if plan.Inherit { // what is not inheritable at the start can never be
		s.Process.Capabilities["inheritable"] = plan.Caps
	}
	s.Mounts = r.mounts(plan)
	for _, ns := range []string{"pid", "network", "ipc", "uts", "mount", "cgroup"} {
		s.Linux.Namespaces = append(s.Linux.Namespaces, namespace{ns})
	}
	l := &s.Linux
	l.CgroupsPath = "/" + cgroupParent + "/" + string(plan.ID)
	l.Masked, l.ReadOnly = plan.Masked, plan.ReadOnly
	// the runtime adds those that every program may expect
	l.Resources.Devices = []device{{Allow: false, Access: "rwm"}}
	l.Resources.Memory.Limit = plan.Limits.MemoryBytes
	l.Resources.CPU = cpu{Quota: int64(plan.Limits.CPUs * cpuPeriod), Period: cpuPeriod}
	if r.gvisor {
		l.Resources.Memory.Limit = firstLimit(plan.Limits.MemoryBytes)
	} else {
		l.Resources.Pids = &pids{int64(plan.Pids)}
		l.Sysctl = plan.Sysctls
	}
	return s
}

// mounts are the kernel's file systems, then the plan's. There is no sysfs: it describes the host's hardware and
// kernel.
func (r *Runtime) mounts(plan *container.Plan) []mount {
	shm := native.ShmSize(plan.Limits.MemoryBytes)
	out := []mount{
		{"/proc", "proc", "proc", []string{"nosuid", "noexec", "nodev", "hidepid=2"}},
		{"/dev", "tmpfs", "tmpfs", []string{"nosuid", "noexec", "strictatime", "mode=755", "size=64k"}},
		{"/dev/pts", "devpts", "devpts", []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620",
			"gid=5"}},
		{"/dev/shm", "tmpfs", "shm", []string{"nosuid", "noexec", "nodev", "mode=1777", fmt.Sprintf("size=%d", shm)}},
	}
	if r.gvisor {
		out[0].Options = out[0].Options[:3] // its kernel has no such option, and no processes of others
	} else {
		// of the host's, which are few
		out[2].Options = append(out[2].Options, fmt.Sprintf("max=%d", native.MaxTerminals))
	}
	for _, m := range plan.Mounts {
		if r.gvisor && m.Target == "/proc/meminfo" {
			continue // its kernel's own is the sandbox's
		}
		if m.Type == "tmpfs" {
			out = append(out, mount{m.Target, "tmpfs", "tmpfs", []string{"nosuid", "nodev", "mode=" + m.Mode,
				fmt.Sprintf("size=%d", m.Size)}})
			continue
		}
		options := []string{"bind", "nosuid", "nodev", "ro"} // not rbind: what the host has mounted below is not shown
		if m.Write {
			options[3] = "rw"
		}
		out = append(out, mount{m.Target, "bind", m.Source, options})
	}
	return out
}
