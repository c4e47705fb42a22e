package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/config"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/container"
	"github.com/outboard-dev/outboard/internal/sandbox/docker"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
	"github.com/outboard-dev/outboard/internal/sandbox/oci"
	"golang.org/x/sys/unix"
)

// tryTimeout bounds doctor's look at one isolation: a user-space kernel on a busy machine takes seconds.
const tryTimeout = 30 * time.Second

// isolation is one that an environment may ask for besides namespaces.
type isolation struct {
	name, provider string
	// find looks at the host and says what was found, where and in which version; its error has the fix.
	find func() (found, error)
	open func(dir, guest string, log *slog.Logger) (*container.Provider, error)
}

// found is the program behind an isolation.
type found struct{ program, where, version string }

// String is how doctor shows it.
func (f found) String() string { return f.where + " " + f.version }

func isolationsOf(cfg config.Sandbox) []isolation {
	return []isolation{ociIsolation("container", containerRuntime(cfg.Container)), ociIsolation("gvisor", gvisorRuntime(cfg.GVisor)), dockerIsolation(cfg.Docker)}
}

func ociIsolation(name string, r config.Runtime) isolation {
	c := oci.Config{Program: r.Program, Flags: r.Flags, Kernel: name == "gvisor"}
	return isolation{name, oci.Name, func() (found, error) {
		r, err := oci.Find(c)
		if err != nil {
			return found{}, err
		}
		program := filepath.Base(r.Program())
		if r.OwnKernel() {
			program = "runsc"
		}
		return found{program, r.Program(), r.Version()}, nil
	}, func(dir, guest string, log *slog.Logger) (*container.Provider, error) {
		c := c
		c.Dir, c.Guest, c.Logger = dir, guest, log
		return oci.New(c)
	}}
}

func dockerIsolation(cfg config.Engine) isolation {
	return isolation{docker.Name, docker.Name, func() (found, error) {
		e, err := docker.Find(docker.Config{Socket: cfg.Socket})
		if err != nil {
			return found{}, err
		}
		return found{"docker", "Docker", e.Version()}, nil
	}, func(dir, guest string, log *slog.Logger) (*container.Provider, error) {
		return docker.New(docker.Config{Socket: cfg.Socket, Dir: dir, Guest: guest, Logger: log})
	}}
}

// isolations are the technologies behind them. Nothing of the host is looked at before it is asked for.
func isolations(cfg serverConfig, guest string, log *slog.Logger) []sandbox.Option {
	var out []sandbox.Option
	for _, i := range isolationsOf(cfg.Config.Sandbox) {
		dir := filepath.Join(cfg.Data, "containers", i.name)
		o := sandbox.Option{Isolation: i.name, Name: i.provider, Holds: func(id outboard.SandboxID) bool { return container.Holds(dir, id) },
			Present: func() ([]outboard.SandboxID, error) { return container.Present(dir) },
			Open: func() (sandbox.Provider, error) {
				p, err := i.open(dir, guest, log)
				if err != nil {
					return nil, err
				}
				return p, nil
			}}
		if i.provider == docker.Name { // an engine keeps containers somewhere else
			o.Used = func() bool { return isDir(dir) }
		}
		out = append(out, o)
	}
	return out
}

func isDir(path string) bool {
	fi, err := os.Lstat(path)
	return err == nil && fi.IsDir()
}

// tryIsolations makes a sandbox of each and says what came of it.
func tryIsolations(ctx context.Context, cfg config.Sandbox, guest string) []native.Check {
	var out []native.Check
	for _, i := range isolationsOf(cfg) {
		at, detail, err := i.try(ctx, guest)
		out = append(out, check(i.name, detail, err))
		out = append(out, versionCheck(i.name, at.program, at.version)...)
	}
	return out
}

// kernelCheck says what is known of the kernel that sandboxes share.
func kernelCheck() []native.Check {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return nil
	}
	return versionCheck("kernel", "kernel", unix.ByteSliceToString(u.Release[:]))
}

// try makes one in a directory of its own and says what it lacks.
func (i isolation) try(ctx context.Context, guest string) (at found, detail string, err error) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	if at, err = i.find(); err != nil {
		return at, "", err
	}
	dir, err := os.MkdirTemp("", "outboard-doctor-")
	if err != nil {
		return at, "", fmt.Errorf("making a temporary directory: %w", err)
	}
	defer os.RemoveAll(dir)
	p, err := i.open(dir, guest, nil)
	if err != nil {
		return at, "", err
	}
	spec := sandbox.Spec{ID: outboard.NewID[outboard.SandboxID](outboard.PrefixSandbox), Generation: "doctor", Network: &sandbox.Network{}}
	sb, err := p.Create(ctx, spec)
	if err != nil {
		return at, "", fmt.Errorf("%s: %w", at, err)
	}
	if err := errors.Join(sb.Close(), p.Destroy(context.WithoutCancel(ctx), spec.ID)); err != nil {
		return at, "", fmt.Errorf("%s: %w", at, err)
	}
	c := p.Capabilities()
	return at, fmt.Sprintf("%s; %s; without %s", at, strings.Join(holds(c), ", "), strings.Join(lacks(c), ", ")), nil
}

// holds is what protects a sandbox of a technology on this host.
func holds(c sandbox.Capabilities) []string {
	var out []string
	for _, l := range c.Limits {
		out = append(out, l+" limit")
	}
	for _, l := range c.Whole {
		if !slices.Contains(c.Limits, l) {
			out = append(out, l+" limit of the whole")
		}
	}
	if c.Freeze {
		out = append(out, "freezes")
	}
	if c.SeparateID {
		out = append(out, "tools have a uid of their own")
	}
	return out
}

// lacks is what a technology cannot do that others can.
func lacks(c sandbox.Capabilities) []string {
	var out []string
	for _, l := range []string{"memory", "pids", "cpu", "disk"} {
		if !slices.Contains(c.Limits, l) && !slices.Contains(c.Whole, l) {
			out = append(out, "a "+l+" limit")
		}
	}
	if !c.Freeze {
		out = append(out, "freezing")
	}
	if !c.Layers {
		out = append(out, "checkpoints by layers")
	}
	if !c.DeepTrees {
		out = append(out, "very deep directories")
	}
	if !c.Builds {
		out = append(out, "packages")
	}
	return out
}

// containerRuntime is the configured one, else the first that is installed.
func containerRuntime(r config.Runtime) config.Runtime {
	for _, name := range []string{"crun", "runc"} {
		if r.Program != "" {
			break
		}
		if path, err := exec.LookPath(name); err == nil {
			r.Program = path
		}
	}
	if r.Program == "" {
		r.Program = "crun" // what to install
	}
	return r
}

// gvisorRuntime is the configured one, else the one beside this program, else the one on the path.
func gvisorRuntime(r config.Runtime) config.Runtime {
	if r.Program != "" {
		return r
	}
	r.Program = "runsc"
	if exe, err := os.Executable(); err == nil {
		if p := filepath.Join(filepath.Dir(exe), "runsc"); isProgram(p) {
			r.Program = p
		}
	}
	return r
}
