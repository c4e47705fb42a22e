package oci

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/container"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

const (
	// commandTimeout bounds one command of a runtime beyond its context.
	commandTimeout = 60 * time.Second
	// cgroupPatience is how long the kernel may take to end the processes of a container that was killed.
	cgroupPatience = 10 * time.Second
	// cgroupParent holds the control groups of all containers.
	cgroupParent = "outboard-containers"
	// maxOutput bounds what is read of one.
	maxOutput = 64 << 10
)

// Runtime is a container.Technology.
type Runtime struct {
	name, program, version string
	flags                  []string
	state                  string // directory of the runtime's own state
	gvisor                 bool
	hybrid                 bool // hide the unified hierarchy beside version 1, which this runtime refuses
}

// New returns a provider that uses a runtime of this host.
func New(cfg Config) (*container.Provider, error) {
	r, err := Find(cfg)
	if err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("locating the sandbox directory: %w", err)
	}
	r.state = filepath.Join(dir, "runtime")
	if err := os.MkdirAll(r.state, 0o700); err != nil {
		return nil, outboard.Errorf(outboard.Unavailable, "making the runtime's directory: %w", err)
	}
	return container.New(container.Config{Dir: dir, Guest: cfg.Guest, ReadOnly: cfg.ReadOnly, Logger: cfg.Logger}, r)
}

var versionText = regexp.MustCompile(`(?i)version:? +([^\s]+)`)

// Find looks for the runtime and asks for its version. Unavailable: it is not here.
func Find(cfg Config) (*Runtime, error) {
	path, err := exec.LookPath(cfg.Program)
	if err != nil {
		return nil, outboard.Errorf(outboard.Unavailable, "the runtime %s is not installed", cfg.Program).
			WithHint("%s", InstallHint(cfg.Program))
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, fmt.Errorf("locating the runtime: %w", err)
	}
	r := &Runtime{name: filepath.Base(path), program: path, flags: cfg.Flags, gvisor: cfg.Kernel}
	out, err := r.command(context.Background(), "--version")
	if err != nil {
		return nil, outboard.Errorf(outboard.Unavailable, "the runtime %s does not say its version: %w", path, err)
	}
	r.gvisor = r.gvisor || strings.Contains(string(out), "runsc")
	if m := versionText.FindSubmatch(out); m != nil {
		r.version = string(m[1])
	}
	if b, err := buildinfo.ReadFile(path); err == nil && r.gvisor {
		r.version = b.Main.Version // what is built from its module does not know its own
	}
	r.hybrid = strings.HasPrefix(string(out), "crun") && hybridCgroups()
	return r, nil
}

// InstallHint says how to get a runtime.
func InstallHint(program string) string {
	switch filepath.Base(program) {
	case "runsc":
		return "make runsc (in a checkout of outboard) or install runsc from https://gvisor.dev/docs/user_guide/install"
	case "crun", "runc":
		return "sudo apt-get install " + filepath.Base(program)
	}
	return "install it, or name another under sandbox in the configuration"
}

// hybridCgroups reports whether version 1 of control groups is in use beside version 2.
func hybridCgroups() bool {
	var st unix.Statfs_t
	return unix.Statfs("/sys/fs/cgroup", &st) == nil && st.Type != unix.CGROUP2_SUPER_MAGIC &&
		unix.Statfs(unifiedDir, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
}

const unifiedDir = "/sys/fs/cgroup/unified"

// Name is the provider's, whatever the runtime.
const Name = "oci"

// Name returns Name.
func (r *Runtime) Name() string { return Name }

// Version is what the runtime says of itself.
func (r *Runtime) Version() string { return r.version }

// Program is where it is.
func (r *Runtime) Program() string { return r.program }

// OwnKernel reports whether the runtime is gVisor's.
func (r *Runtime) OwnKernel() bool { return r.gvisor }

// Capabilities says what sandboxes of the runtime can do.
func (r *Runtime) Capabilities() sandbox.Capabilities {
	c := sandbox.Capabilities{
		Isolation: "container (" + r.name + ")", Freeze: true, Limits: []string{"memory", "pids",
			"cpu"}, SeparateID: true, PTY: true,
		DeepTrees: true, Builds: true, Network: "none",
		Gaps: []string{
			"the kernel is shared with the host: a kernel vulnerability is an escape",
			"root inside, which tools are not, is the host's root without most of its rights",
		},
	}
	if r.gvisor {
		c.Isolation, c.Limits, c.Whole, c.DeepTrees = "gvisor ("+r.name+")", nil, []string{"memory", "cpu"}, false
		c.Gaps = []string{
			"memory is bounded for the sandbox as a whole, its kernel included: one that needs more is ended, not " +
				"the process that asked",
			"the number of processes is not bounded inside: they are not processes of the host, and cost the " +
				"sandbox's memory",
			"no filter of system calls stands between tools and gVisor's kernel, which is the sandbox's own",
			"directories cannot be nested deeper than a path can name",
			"file systems and system calls are several times slower than natively",
			"only TCP ports 80 and 443, and the proxy, lead to the gateway",
		}
	}
	c.Gaps = append(c.Gaps, "the host's programs and libraries under /usr are readable inside",
		sandbox.GapOwnUser, "disk use is not limited beyond the file system's own size", "checkpoints copy what changed and take longer in larger workspaces")
	return c
}

// globals are what is given before every command that knows of containers.
func (r *Runtime) globals() []string {
	args := append([]string{"--root", r.state}, r.flags...)
	if r.gvisor {
		// No network but loopback; sockets in the host's directories may be made, and none of the host's
		// reached; what is written goes to the container's own layer.
		args = append(args, "--network=none", "--host-uds=create", "--overlay2=none")
		if !strings.Contains(strings.Join(r.flags, " "), "-platform") {
			args = append(args, "--platform=systrap")
		}
	}
	return args
}

// command runs the program to its end and returns what it said.
func (r *Runtime) command(ctx context.Context, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, r.program, args...)
	cmd.Stdout, cmd.Stderr = &limited{&out}, &limited{&errs}
	cmd.WaitDelay = time.Second
	err := r.place(cmd, nil, cmd.Run)
	if err != nil {
		return out.Bytes(), fmt.Errorf("%s %s: %w: %s", r.name, args[len(args)-1], err,
			lastLine(errs.String()+out.String()))
	}
	return out.Bytes(), nil
}

// lastLine is where runtimes say what was wrong.
func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(strings.ToValidUTF8(text, "?")), "\n")
	return lines[len(lines)-1]
}

// limited drops what exceeds maxOutput.
type limited struct{ *bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	if room := maxOutput - l.Len(); room > 0 {
		l.Buffer.Write(p[:min(len(p), room)])
	}
	return len(p), nil
}

// place runs f, which starts cmd, where the runtime finds the mounts it needs and no others are seen by anybody else.
func (r *Runtime) place(cmd *exec.Cmd, mounts func() error, f func() error) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if !r.hybrid && mounts == nil {
		return f()
	}
	return native.OnSpentThread(func() error {
		if err := native.PrivateMounts(); err != nil {
			return err
		}
		if r.hybrid {
			if err := unix.Unmount(unifiedDir, unix.MNT_DETACH); err != nil {
				return fmt.Errorf("hiding %s: %w", unifiedDir, err)
			}
		}
		if mounts != nil {
			if err := mounts(); err != nil {
				return err
			}
		}
		return f()
	})
}

// Start makes a bundle and runs it.
func (r *Runtime) Start(ctx context.Context, plan *container.Plan) (int, error) {
	dir := func(name string) string { return filepath.Join(plan.Dir, name) }
	for _, d := range []string{"bundle", "root", "fs/upper", "fs/work"} {
		if err := os.MkdirAll(dir(d), 0o755); err != nil {
			return 0, fmt.Errorf("laying out the bundle: %w", err)
		}
	}
	config, err := json.Marshal(r.bundle(plan, dir("root")))
	if err != nil {
		return 0, fmt.Errorf("encoding the bundle: %w", err)
	}
	if err := os.WriteFile(dir("bundle/config.json"), config, 0o600); err != nil {
		return 0, fmt.Errorf("writing the bundle: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	runLog, err := os.OpenFile(dir("runtime.log"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return 0, fmt.Errorf("writing the bundle: %w", err)
	}
	defer runLog.Close()
	args := append(r.globals(), "--log", dir("runtime.log"), "run", "--detach", "--bundle", dir("bundle"), "--pid-file",
		dir("pid"), string(plan.ID))
	cmd := exec.CommandContext(ctx, r.program, args...)
	cmd.Stdout, cmd.Stderr = plan.Log, plan.Log // the container's first process inherits them
	if err := r.place(cmd, func() error {
		return native.MountRoot(plan.Lower, dir("fs/upper"), dir("fs/work"), dir("root"), plan.Tool)
	}, cmd.Run); err != nil {
		words, _ := os.ReadFile(dir("runtime.log"))
		return 0, outboard.Errorf(outboard.Unavailable, "%s cannot run the container: %w: %s", r.name, err,
			lastLine(string(words)))
	}
	text, err := os.ReadFile(dir("pid"))
	if err != nil {
		return 0, fmt.Errorf("reading the container's process: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 1 {
		return 0, fmt.Errorf("reading the container's process: %q is none", text)
	}
	if r.gvisor {
		return pid, giveSentry(plan.ID, plan.Limits.MemoryBytes)
	}
	return pid, nil
}

// giveSentry gives a gVisor sandbox the room for its kernel that its programs do not see.
func giveSentry(id outboard.SandboxID, memory int64) error {
	limit := []byte(strconv.FormatInt(memory+sentryMemory, 10))
	for _, dir := range cgroupsOf(id) {
		// Of version 1, memory and swap together are never less than memory.
		for _, name := range []string{"memory.memsw.limit_in_bytes", "memory.limit_in_bytes", "memory.max"} {
			f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err == nil {
				_, err = f.Write(limit)
				err = errors.Join(err, f.Close())
			}
			if err != nil {
				return outboard.Errorf(outboard.Unavailable, "giving gVisor's kernel memory of its own: %w", err)
			}
		}
	}
	return nil
}

// Written implements container.Layering: what a container writes lies over the layers.
func (r *Runtime) Written(dir string) string { return filepath.Join(dir, "fs/upper") }

// status asks for a container's state: created, running, paused or stopped; "" when the runtime does not know it.
func (r *Runtime) status(ctx context.Context, id outboard.SandboxID) (string, error) {
	if _, err := os.Lstat(filepath.Join(r.state, string(id))); errors.Is(err, fs.ErrNotExist) && !r.gvisor {
		return "", nil
	}
	out, err := r.command(ctx, append(r.globals(), "state", string(id))...)
	if err != nil {
		if text := err.Error(); strings.Contains(text, "not exist") || strings.Contains(text, "not found") ||
			strings.Contains(text, "no such file") {
			return "", nil
		}
		return "", err
	}
	var s struct{ Status string }
	if err := json.Unmarshal(out, &s); err != nil {
		return "", fmt.Errorf("reading the state of container %s: %w", id, err)
	}
	return s.Status, nil
}

// SetFrozen asks the runtime until the container is in the state. To ask once is not enough: a container in
// which a process is just being started refuses, or says that it is frozen before it is.
func (r *Runtime) SetFrozen(ctx context.Context, id outboard.SandboxID, frozen bool, alive func() error) error {
	verb, want := "resume", "running"
	if frozen {
		verb, want = "pause", "paused"
	}
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	var last error
	err := native.WaitFor(ctx, func() (bool, error) {
		if err := alive(); err != nil { // a runtime may go on calling what was killed paused
			return false, err
		}
		now, err := r.status(ctx, id)
		switch {
		case err != nil:
			return false, err
		case now == want:
			return true, nil
		case now == "" || now == "stopped":
			return false, outboard.Errorf(outboard.NotFound, "sandbox %s has ended", id)
		}
		_, last = r.command(ctx, append(r.globals(), verb, string(id))...)
		return false, nil
	})
	if err != nil && last != nil {
		return fmt.Errorf("%w: %w", err, last)
	}
	return err
}

// Remove deletes a container. What is frozen is thawed first: a frozen process takes no signal.
func (r *Runtime) Remove(ctx context.Context, id outboard.SandboxID) error {
	now, err := r.status(ctx, id)
	if err == nil && now == "" {
		return removeCgroups(ctx, id) // a delete that was cut short, or that found them busy, has forgotten the rest
	}
	if now == "paused" {
		// What was killed while it was frozen cannot be asked to continue, and a runtime calls it paused still.
		_, _ = r.command(ctx, append(r.globals(), "resume", string(id))...)
	}
	if _, err = r.command(ctx, append(r.globals(), "delete", "--force", string(id))...); err != nil {
		if now, serr := r.status(ctx, id); serr != nil || now != "" {
			return err
		} // else it went away meanwhile
	}
	return removeCgroups(ctx, id)
}

// removeCgroups removes the control groups of a container that its runtime does not know any more. They are busy
// until the kernel has taken the last process apart.
func removeCgroups(ctx context.Context, id outboard.SandboxID) error {
	ctx, cancel := context.WithTimeout(ctx, cgroupPatience)
	defer cancel()
	tick := time.NewTicker(cgroupPatience / 500)
	defer tick.Stop()
	for {
		var left error
		for _, dir := range cgroupsOf(id) {
			if err := unix.Rmdir(dir); err != nil && err != unix.ENOENT {
				left = fmt.Errorf("removing the control group %s: %w", dir, err)
			}
		}
		if left == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return left
		}
	}
}

// cgroupsOf returns those of a container that are there, on either version.
func cgroupsOf(id outboard.SandboxID) (dirs []string) {
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		found, _ := filepath.Glob(filepath.Join(pattern, cgroupParent, string(id))) // the pattern is a good one
		dirs = append(dirs, found...)
	}
	return dirs
}
