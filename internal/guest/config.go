package guest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path"
	"strings"
)

// ServerConfig makes a server. It is plain data but for Listener, so that a launcher can hand it over as JSON.
type ServerConfig struct {
	// Listener accepts the host's connections. Whoever can connect commands the guest.
	Listener net.Listener `json:"-"`
	// First is a connection of the host that is there already, or nil.
	First net.Conn `json:"-"`
	// Generation is the sandbox's; calls for another one are refused.
	Generation string `json:"generation"`
	// Await, where it is set, is called once everything is ready and before any connection is served. It returns
	// the generation and more of Env, for a guest that was started before anybody asked for its sandbox. A guest
	// that waits has a shell ready.
	Await func(ctx context.Context) (generation string, env []string, err error) `json:"-"`
	// State is an existing directory for the receipts that the tool's user must not be able to reach.
	// "/proc/self/fd/N" works.
	State string `json:"state"`
	// Volatile says that the sandbox does not survive the machine it runs on, so that receipts need no sync to disk.
	Volatile bool `json:"volatile,omitempty"`
	// Run is a directory inside the sandbox for call output and shell plumbing, made when absent: readable by
	// the tool's user. Default /tmp/outboard.
	Run string `json:"run,omitempty"`
	// Workspace is where tools start and relative paths begin. Default /workspace.
	Workspace string `json:"workspace,omitempty"`
	// Home is the tool's home directory. Default /home/user.
	Home string `json:"home,omitempty"`
	// Roots are the directories that Save and Load cover. Default Workspace, /mnt/session/outputs and Home.
	Roots []string `json:"roots,omitempty"`
	// ToolUID and ToolGID are who tools run as. The guest's own ids mean no change of identity.
	ToolUID int `json:"tool_uid"`
	ToolGID int `json:"tool_gid"`
	// ToolName is what the sandbox's account file calls them. Default "user", by which they are known in any case.
	ToolName string `json:"tool_name,omitempty"`
	// Env is added to the base environment of every process, as KEY=value.
	Env []string `json:"env,omitempty"`
	// Init makes the server reap orphans, as process 1 (or a subreaper) must.
	Init bool `json:"init,omitempty"`
	// Watches is for a kernel that gives a file no new time when it is written through a shared mapping, as
	// gVisor's. Save then looks at what processes hold, for which the guest needs CAP_SYS_PTRACE, and watches
	// this many directories; files elsewhere are read each time. 0 is for all other kernels.
	Watches int `json:"watches,omitempty"`
	// Map shows directories under other names: a path below From means the same path below To. It exists for
	// guests that run without a root file system of their own, in tests; Workspace, Home and Roots are names on
	// the From side.
	Map []Mapping `json:"map,omitempty"`
}

// Mapping is one entry of ServerConfig.Map.
type Mapping struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// Defaults of a ServerConfig.
const (
	defaultRun       = "/tmp/outboard"
	defaultWorkspace = "/workspace"
	defaultHome      = "/home/user"
	defaultOutputs   = "/mnt/session/outputs"

	// toolName is what the tool's user is called where nothing else is said, and is known by in any case.
	toolName = "user"
)

// fill checks c and sets its defaults.
func (c *ServerConfig) fill() error {
	if c.Listener == nil || c.Generation == "" && c.Await == nil || c.State == "" {
		return errors.New("guest config: listener, generation and state are required")
	}
	if c.ToolUID < 0 || c.ToolGID < 0 {
		return fmt.Errorf("guest config: tool_uid %d, tool_gid %d: negative", c.ToolUID, c.ToolGID)
	}
	for p, def := range map[*string]string{&c.Run: defaultRun, &c.Workspace: defaultWorkspace, &c.Home: defaultHome,
		&c.ToolName: toolName} {
		if *p == "" {
			*p = def
		}
	}
	if c.Roots == nil {
		c.Roots = []string{c.Workspace, defaultOutputs, c.Home}
	}
	for _, p := range append([]string{c.Run, c.Workspace, c.Home}, c.Roots...) {
		if !path.IsAbs(p) || path.Clean(p) != p || p == "/" {
			return fmt.Errorf("guest config: %q is not a clean absolute path", p)
		}
	}
	return nil
}

// real translates a path's name to the one the kernel knows.
func (c *ServerConfig) real(p string) string {
	for _, m := range c.Map {
		if rest, ok := below(p, m.From); ok {
			return m.To + rest
		}
	}
	return p
}

// shown translates a path the kernel knows to its name.
func (c *ServerConfig) shown(p string) string {
	for _, m := range c.Map {
		if rest, ok := below(p, m.To); ok {
			return m.From + rest
		}
	}
	return p
}

// below reports whether p is dir or below it, and returns what follows dir.
func below(p, dir string) (string, bool) {
	rest, ok := strings.CutPrefix(p, dir)
	return rest, ok && (rest == "" || rest[0] == '/')
}
