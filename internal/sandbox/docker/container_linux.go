package docker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest/boot"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/container"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

// runtime is what the engine runs containers with, whatever its default: under a kernel in user space sockets
// could not leave them.
const runtime = "runc"

// Labels of what the engine keeps for us.
const (
	dirLabel   = "dev.outboard.dir"   // Config.Dir
	rootsLabel = "dev.outboard.roots" // of an image: the layers that it was made of
)

// Engine is a container.Technology.
type Engine struct {
	*engine
	about about
	dir   string

	mu     sync.Mutex
	images map[string]*sync.Mutex // held while an image is made, so that it is made once
}

var (
	_ container.Technology = (*Engine)(nil)
	_ container.Elsewhere  = (*Engine)(nil)
	_ container.Speaking   = (*Engine)(nil)
)

// New returns a provider that uses an engine of this host.
func New(cfg Config) (*container.Provider, error) {
	e, err := Find(cfg)
	if err != nil {
		return nil, err
	}
	return container.New(container.Config{Dir: e.dir, Guest: cfg.Guest, ReadOnly: cfg.ReadOnly, Logger: cfg.Logger}, e)
}

// Find asks the engine for its version. Unavailable: there is none that can be used, with the fix.
func Find(cfg Config) (*Engine, error) {
	en, err := newEngine(cfg.Socket)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	e := &Engine{engine: en, images: map[string]*sync.Mutex{}}
	if e.about, err = en.meet(ctx); err != nil {
		return nil, err
	}
	if e.dir, err = filepath.Abs(cfg.Dir); err != nil {
		return nil, fmt.Errorf("locating the sandbox directory: %w", err)
	}
	return e, nil
}

// Name returns Name.
func (e *Engine) Name() string { return Name }

// Version is what the engine says of itself.
func (e *Engine) Version() string { return e.about.Version }

// OwnKernel is false: containers share the host's.
func (e *Engine) OwnKernel() bool { return false }

// Capabilities says what sandboxes of the engine can do.
func (e *Engine) Capabilities() sandbox.Capabilities {
	c := sandbox.Capabilities{
		Isolation: "docker (" + runtime + ")", Freeze: true, Limits: []string{"memory", "pids",
			"cpu"}, SeparateID: true, PTY: true,
		DeepTrees: e.about.Driver == overlay, Network: "none",
		Gaps: []string{
			"the kernel is shared with the host: a kernel vulnerability is an escape",
			"root inside, which tools are not, is the host's root without most of its rights",
			"the engine's own settings, such as a debug socket or a plugin, are not looked at",
			"the host's programs and libraries under /usr are readable inside",
			sandbox.GapOwnUser, "disk use is not limited beyond the file system's own size", "checkpoints copy what changed and take longer in larger workspaces",
		},
	}
	if !c.DeepTrees {
		c.Gaps = append(c.Gaps, "the engine cannot remove a container in which directories are nested deeper than a "+
			"path can name: its disk space stays taken")
	}
	return c
}

// overlay is the storage driver that says where a container's files are.
const overlay = "overlay2"

// createBody is the part of the engine's container description that is needed.
type createBody struct {
	Image, Hostname, User, WorkingDir string
	Env, Entrypoint                   []string
	Labels                            map[string]string
	HostConfig                        hostConfig
}

type hostConfig struct {
	NetworkMode, IpcMode, CgroupnsMode, UsernsMode, Runtime string
	Memory, MemorySwap, NanoCpus, PidsLimit, ShmSize        int64 //nolint:revive // the engine's names
	OomScoreAdj                                             int
	Init                                                    bool
	CapDrop, CapAdd, SecurityOpt, ExtraHosts                []string
	MaskedPaths, ReadonlyPaths                              []string
	Mounts                                                  []bind
	Tmpfs, Sysctls                                          map[string]string
	LogConfig                                               logConfig
}

type bind struct {
	Type, Source, Target string
	ReadOnly             bool
	BindOptions          bindOptions
}

type bindOptions struct {
	NonRecursive bool
	Propagation  string
}

type logConfig struct {
	Type   string
	Config map[string]string
}

// body describes the container of a plan.
func (e *Engine) body(plan *container.Plan, image string) *createBody {
	shm := native.ShmSize(plan.Limits.MemoryBytes)
	h := hostConfig{
		NetworkMode: "none", IpcMode: "private", CgroupnsMode: "private", UsernsMode: "host", Runtime: runtime,
		Memory: plan.Limits.MemoryBytes, MemorySwap: plan.Limits.MemoryBytes, // both: no swap
		NanoCpus: int64(plan.Limits.CPUs * 1e9), PidsLimit: int64(plan.Pids), ShmSize: shm, OomScoreAdj: 200,
		CapDrop: []string{"ALL"}, CapAdd: plan.Caps, SecurityOpt: []string{"no-new-privileges:true"},
		ExtraHosts:    []string{plan.Hostname + ":127.0.0.1"},
		MaskedPaths:   plan.Masked,
		ReadonlyPaths: plan.ReadOnly, Sysctls: plan.Sysctls, Tmpfs: map[string]string{},
		LogConfig: logConfig{"json-file", map[string]string{"max-size": "64k", "max-file": "1"}},
	}
	for _, m := range plan.Mounts {
		if m.Type == "tmpfs" {
			h.Tmpfs[m.Target] = fmt.Sprintf("rw,exec,nosuid,nodev,mode=%s,size=%d", m.Mode, m.Size)
			continue
		}
		h.Mounts = append(h.Mounts, bindOf(m.Source, m.Target, m.Write))
		if m.Target == "/sys" { // where the engine would mount its own
			const groups = "/fs/cgroup"
			h.Mounts = append(h.Mounts, bindOf(m.Source+groups, m.Target+groups, false))
		}
	}
	// The engine's own would tell the host's name servers.
	h.Mounts = append(h.Mounts, bind{"bind", filepath.Join(plan.Dir, resolvFile), "/etc/resolv.conf", false,
		bindOptions{Propagation: "rprivate"}})
	return &createBody{Image: image, Hostname: plan.Hostname, User: "0:0", WorkingDir: "/",
		Env: []string{"PATH=/usr/bin:/bin"}, Entrypoint: plan.Args,
		Labels: map[string]string{dirLabel: e.dir}, HostConfig: h}
}

// bindOf shows something of the host, without what the host has mounted below it.
func bindOf(source, target string, write bool) bind {
	return bind{"bind", source, target, !write, bindOptions{NonRecursive: true, Propagation: "rprivate"}}
}

// resolvFile is the sandbox's /etc/resolv.conf, which its guest writes.
const resolvFile = "docker.resolv.conf"

// Start makes the image if it is not there, and the container.
func (e *Engine) Start(ctx context.Context, plan *container.Plan) (int, error) {
	if err := os.WriteFile(filepath.Join(plan.Dir, resolvFile), nil, 0o644); err != nil {
		return 0, fmt.Errorf("laying out the sandbox: %w", err)
	}
	image, err := e.image(ctx, plan)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	name := string(plan.ID)
	if err := e.call(ctx, http.MethodPost, "/containers/create", url.Values{"name": {name}}, e.body(plan, image),
		nil); err != nil {
		return 0, said("making the container", err)
	}
	if err := e.call(ctx, http.MethodPost, "/containers/"+name+"/start", nil, nil, nil); err != nil {
		return 0, said("starting the container", err)
	}
	s, err := e.inspect(ctx, plan.ID)
	if err != nil {
		return 0, said("looking at the container", err)
	}
	if s.Pid <= 1 {
		return 0, outboard.Errorf(outboard.Unavailable, "the container ended at once: it is %s", s.Status)
	}
	return s.Pid, e.here(s.Pid)
}

// here refuses an engine whose containers are not processes of this host, such as one in a virtual machine.
func (e *Engine) here(pid int) error {
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err == nil && !strings.Contains(string(mounts), " "+boot.HostDir+" ") {
		return notHere("the containers of the Docker engine at %s are not processes of this host", e.socket).
			WithHint("run outboard where the engine runs: not beside a virtual machine that has it, and not in " +
				"another container")
	}
	return nil // one that cannot be read has ended, which is found out next
}

// said gives the engine's refusals their kind.
func said(doing string, err error) error {
	if _, ok := errors.AsType[*refusal](err); ok {
		return outboard.Errorf(outboard.Unavailable, "%s: the Docker engine says: %w", doing, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// condition is what the engine knows about a container: created, running, paused, exited, dead or removing.
type condition struct {
	Status string
	Pid    int
}

func (e *Engine) inspect(ctx context.Context, id outboard.SandboxID) (condition, error) {
	var c struct{ State condition }
	err := e.call(ctx, http.MethodGet, "/containers/"+string(id)+"/json", nil, nil, &c)
	return c.State, err
}

// SetFrozen pauses or continues a container. The engine refuses what is so already, and a container in which a
// process is just being started may refuse once.
func (e *Engine) SetFrozen(ctx context.Context, id outboard.SandboxID, frozen bool, alive func() error) error {
	verb, want := "/unpause", "running"
	if frozen {
		verb, want = "/pause", "paused"
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var last error
	err := native.WaitFor(ctx, func() (bool, error) {
		if err := alive(); err != nil {
			return false, err
		}
		last = e.call(ctx, http.MethodPost, "/containers/"+string(id)+verb, nil, nil, nil)
		if last == nil {
			return true, nil
		}
		now, err := e.inspect(ctx, id)
		switch {
		case refused(err, http.StatusNotFound) || err == nil && now.Status != "running" && now.Status != "paused":
			return false, outboard.Errorf(outboard.NotFound, "sandbox %s has ended", id)
		case err != nil:
			return false, said("looking at the container", err)
		}
		return now.Status == want, nil
	})
	if err != nil && last != nil {
		return fmt.Errorf("%w: %w", err, last)
	}
	return err
}

// Remove ends and removes a container. The engine may be removing it already; then it is waited for.
func (e *Engine) Remove(ctx context.Context, id outboard.SandboxID) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return native.WaitFor(ctx, func() (bool, error) {
		err := e.call(ctx, http.MethodDelete, "/containers/"+string(id), url.Values{"force": {"1"}, "v": {"1"}}, nil,
			nil)
		if refused(err, http.StatusInternalServerError) && e.empty(ctx, id) == nil {
			err = e.call(ctx, http.MethodDelete, "/containers/"+string(id), url.Values{"force": {"1"}, "v": {"1"}}, nil,
				nil)
		}
		switch {
		case refused(err, http.StatusNotFound):
			return true, nil
		case err != nil && !refused(err, http.StatusConflict):
			return false, said("removing the container", err)
		}
		return err == nil, nil
	})
}

// empty removes what a dead container wrote: an engine cannot remove directories that are nested deeper than a
// path can name.
func (e *Engine) empty(ctx context.Context, id outboard.SandboxID) error {
	var c struct {
		State       condition
		GraphDriver struct {
			Name string
			Data struct{ UpperDir string }
		}
	}
	if err := e.call(ctx, http.MethodGet, "/containers/"+string(id)+"/json", nil, nil, &c); err != nil {
		return err
	}
	upper := c.GraphDriver.Data.UpperDir
	if c.State.Status != "dead" || c.GraphDriver.Name != overlay || !filepath.IsAbs(upper) {
		return errors.New("the container's files are not known")
	}
	return native.RemoveContents(upper, "")
}

// List returns the sandboxes of this directory that the engine has a container of, whether or not they have a
// directory.
func (e *Engine) List(ctx context.Context) ([]outboard.SandboxID, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var found []struct{ Names []string }
	err := e.call(ctx, http.MethodGet, "/containers/json",
		url.Values{"all": {"1"}, "filters": {filters("label", dirLabel+"="+e.dir)}}, nil, &found)
	if err != nil {
		return nil, said("listing containers", err)
	}
	var ids []outboard.SandboxID
	for _, c := range found {
		for _, n := range c.Names {
			if n = strings.TrimPrefix(n, "/"); outboard.ValidID(outboard.PrefixSandbox, n) {
				ids = append(ids, outboard.SandboxID(n))
			}
		}
	}
	return ids, nil
}

// LastWords is what a container's first process wrote.
func (e *Engine) LastWords(ctx context.Context, id outboard.SandboxID) string {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return e.words(ctx, string(id))
}
