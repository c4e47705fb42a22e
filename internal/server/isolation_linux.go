package server

import (
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/config"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/container"
	"github.com/outboard-dev/outboard/internal/sandbox/docker"
	"github.com/outboard-dev/outboard/internal/sandbox/oci"
)

// Isolation is one that an environment may ask for besides namespaces.
type Isolation struct {
	Name     string
	Provider string // the name of the technology
	// Find looks at the host and says what was found, where and in which version; its error has the fix.
	Find func() (Found, error)
	// Open makes the provider, which keeps its files in dir.
	Open func(dir, guest string, log *slog.Logger) (*container.Provider, error)
}

// Found is the program behind an isolation.
type Found struct{ Program, Where, Version string }

// String is how doctor shows it.
func (f Found) String() string { return f.Where + " " + f.Version }

// Isolations returns the isolations of a configuration, installed or not.
func Isolations(cfg config.Sandbox) []Isolation {
	return []Isolation{ociIsolation("container", containerRuntime(cfg.Container)),
		ociIsolation("gvisor", gvisorRuntime(cfg.GVisor)), dockerIsolation(cfg.Docker)}
}

func ociIsolation(name string, r config.Runtime) Isolation {
	c := oci.Config{Program: r.Program, Flags: r.Flags, Kernel: name == "gvisor"}
	return Isolation{name, oci.Name, func() (Found, error) {
		r, err := oci.Find(c)
		if err != nil {
			return Found{}, err
		}
		program := filepath.Base(r.Program())
		if r.OwnKernel() {
			program = "runsc"
		}
		return Found{program, r.Program(), r.Version()}, nil
	}, func(dir, guest string, log *slog.Logger) (*container.Provider, error) {
		c := c
		c.Dir, c.Guest, c.Logger = dir, guest, log
		return oci.New(c)
	}}
}

func dockerIsolation(cfg config.Engine) Isolation {
	return Isolation{docker.Name, docker.Name, func() (Found, error) {
		e, err := docker.Find(docker.Config{Socket: cfg.Socket})
		if err != nil {
			return Found{}, err
		}
		return Found{"docker", "Docker", e.Version()}, nil
	}, func(dir, guest string, log *slog.Logger) (*container.Provider, error) {
		return docker.New(docker.Config{Socket: cfg.Socket, Dir: dir, Guest: guest, Logger: log})
	}}
}

// isolations are the technologies behind them. Nothing of the host is looked at before it is asked for.
func isolations(cfg Config, guest string, log *slog.Logger) []sandbox.Option {
	var out []sandbox.Option
	for _, i := range Isolations(cfg.Config.Sandbox) {
		dir := filepath.Join(cfg.Data, "containers", i.Name)
		o := sandbox.Option{Isolation: i.Name, Name: i.Provider,
			Holds:   func(id outboard.SandboxID) bool { return container.Holds(dir, id) },
			Present: func() ([]outboard.SandboxID, error) { return container.Present(dir) },
			Open: func() (sandbox.Provider, error) {
				p, err := i.Open(dir, guest, log)
				if err != nil {
					return nil, err
				}
				return p, nil
			}}
		if i.Provider == docker.Name { // an engine keeps containers somewhere else
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
