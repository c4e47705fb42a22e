package boot

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/outboard-dev/outboard/internal/guest/uplink"
)

// Contained makes this process, which a container runtime has started as the first of a container, the init of a
// sandbox: it takes the host's files from HostDir, furnishes the network, and gives up what it does not need.
// The runtime has made the file systems and the limits. It returns the sockets that the host will connect to.
// After an error the process must exit, with the error as its last words.
func Contained() (*Env, net.Listener, error) {
	c, err := readContained()
	if err != nil {
		return nil, nil, fmt.Errorf("reading the configuration: %w", err)
	}
	env := &Env{Config: c.Config, relay: c.OwnKernel, Watches: c.Watches}
	if err := RunOn(0, Processors(c.MilliCPUs)); err != nil {
		return nil, nil, fmt.Errorf("choosing processors: %w", err)
	}
	if err := tidy(&c.Config); err != nil {
		return nil, nil, fmt.Errorf("laying out the sandbox: %w", err)
	}
	state, err := os.Open(filepath.Join(HostDir, StateDir))
	if err != nil {
		return nil, nil, fmt.Errorf("opening the receipts: %w", err)
	}
	// Kept for good. A descriptor, as in a sandbox of namespaces; its number is not one a tool may be given.
	env.stateDir = state
	env.StateDir = fmt.Sprintf("/proc/self/fd/%d", state.Fd())
	if c.Network != nil {
		if env.uplink, err = furnish(&env.Config); err != nil {
			return nil, nil, err
		}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(HostDir, GuestSocket)})
	if err != nil {
		return nil, nil, fmt.Errorf("listening for the host: %w", err)
	}
	if env.asked, err = c.giveUp(); err != nil {
		return nil, nil, err
	}
	// Last: the host takes the file as the word that the sandbox is finished.
	if err := os.WriteFile(filepath.Join(HostDir, ReadyFile), nil, 0o600); err != nil {
		return nil, nil, fmt.Errorf("reporting to the host: %w", err)
	}
	return env, l, nil
}

// giveUp leaves this process and its children with what the configuration says.
func (c *ContainedConfig) giveUp() (asked *os.File, err error) {
	filter := true
	if c.OwnKernel {
		if err := errors.Join(heedNoSignals(), leaveNothing()); err != nil {
			return nil, err
		}
		filter = refuseUserNamespaces() != nil // one that is older than this
	} else if err := ignoreSignals(); err != nil {
		return nil, err
	}
	if err := dropBounding(); err != nil {
		return nil, err
	}
	if err := dropPrivileges(&c.Config); err != nil || !filter {
		return nil, err
	}
	return installFilter(c.Filter)
}

// leaveNothing gives up what package spawn would otherwise have to take from each child: supplementary groups,
// and a standard input.
func leaveNothing() error {
	if err := syscall.Setgroups(nil); err != nil {
		return fmt.Errorf("leaving all groups: %w", err)
	}
	null, err := syscall.Open(os.DevNull, syscall.O_RDONLY, 0)
	if err == nil && null != 0 {
		err = errors.Join(syscall.Dup3(null, 0, 0), syscall.Close(null))
	}
	if err != nil {
		return fmt.Errorf("replacing the standard input: %w", err)
	}
	return nil
}

// refuseUserNamespaces has the kernel refuse them to everybody, for good: none is given to a process whose root
// directory is not that of its mount namespace, clone(2) says, and tools have no right to change theirs. Where
// the kernel is the sandbox's own it takes the place of the filter of system calls. What that keeps from the
// host, gVisor keeps itself, and asks for a capability wherever Linux does, but for these namespaces. It is dear
// there: for each new thread or process, gVisor runs the filter once for each of 2,001 numbers of calls, which
// was a third of the time of a process (pkg/sentry/kernel/seccomp.go, populateCache, 2026-09).
func refuseUserNamespaces() error {
	const over = "/tmp" // any directory: what lies over it is outside the new root
	if err := syscall.Mount("/", over, "", syscall.MS_BIND|syscall.MS_REC, ""); err != nil {
		return fmt.Errorf("showing the root a second time: %w", err)
	}
	if err := syscall.Chroot(over); err != nil {
		return fmt.Errorf("changing the root: %w", err)
	}
	return os.Chdir("/")
}

func readContained() (*ContainedConfig, error) {
	f, err := os.Open(filepath.Join(HostDir, ConfigFile))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxConfig))
	if err != nil {
		return nil, err
	}
	c := new(ContainedConfig)
	return c, json.Unmarshal(data, c)
}

// tidy makes the tool's directories, gives the tool's name its identity, and opens to everybody what a runtime
// may have closed: a temporary file system takes the mode of the directory that it lies over.
func tidy(cfg *Config) error {
	for _, d := range cfg.Owned { // with /tmp
		if err := ownDir(cfg, d); err != nil {
			return err
		}
		if err := ownTrust(cfg, d.Path); err != nil {
			return err
		}
	}
	for _, file := range []string{"/etc/passwd", "/etc/group"} {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var out strings.Builder
		for line := range strings.Lines(string(data)) {
			if f := strings.Split(line, ":"); len(f) > 3 && f[2] == anyTool {
				if f[2] = strconv.Itoa(cfg.ToolUID); f[3] == anyTool {
					f[3] = strconv.Itoa(cfg.ToolGID)
				}
				line = strings.Join(f, ":")
			}
			out.WriteString(line)
		}
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// ownTrust gives the tool the link in its home directory that leads to the database of NSS. The layer has it
// under an id that is not this sandbox's, and the guest could not remove it.
func ownTrust(cfg *Config, home string) error {
	link := filepath.Join(home, uplink.NSSLink)
	if to, err := os.Readlink(link); err != nil || to != uplink.NSSDir {
		return nil // the image's own, or none
	}
	for _, name := range []string{link, filepath.Dir(link)} {
		if err := os.Lchown(name, cfg.ToolUID, cfg.ToolGID); err != nil {
			return fmt.Errorf("giving %s to the tool: %w", name, err)
		}
	}
	return nil
}

// anyTool is the tool's identity in the account files of root file systems, where ids mean something in one
// sandbox only.
const anyTool = "1000"

// furnish makes the sandbox's network, in a namespace that the runtime has made, with the loopback interface up,
// and in which nobody else runs yet.
func furnish(cfg *Config) (*link, error) {
	redirected, err := uplink.Prepare()
	if err != nil {
		return nil, err
	}
	sockets, err := uplink.Open(redirected)
	if err != nil {
		return nil, err
	}
	hand, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(HostDir, UplinkSocket)})
	if err != nil {
		return nil, fmt.Errorf("listening for the gateway: %w", err)
	}
	l := &link{sockets: sockets, hand: hand}
	l.java, err = trustHere(cfg)
	return l, err
}

// trustHere is trust where nothing may be mounted: the root belongs to this sandbox alone and is never saved, so
// its files are replaced. Those outside /etc may be the host's, shown read-only: the environment names ours.
// java is uplink.Env's.
func trustHere(cfg *Config) (java bool, err error) {
	system, err := uplink.WriteTrust(uplink.TrustDir, []byte(cfg.Network.CA), cfg.ToolUID, cfg.ToolGID)
	if err != nil {
		return false, err
	}
	// In place: a runtime may have mounted it.
	if err := os.WriteFile("/etc/resolv.conf", []byte(Resolver), 0o644); err != nil {
		return false, fmt.Errorf("naming the resolver: %w", err)
	}
	if system != "" {
		if system, err = filepath.EvalSymlinks(system); err != nil {
			return false, fmt.Errorf("trusting the gateway: %w", err)
		}
	}
	if strings.HasPrefix(system, "/etc/") {
		err = replace(system, uplink.Bundle)
	}
	stores := uplink.JavaStores()
	java = len(stores) > 0
	for _, store := range stores {
		if slices.Contains(uplink.JavaSystemStores, store) {
			err = errors.Join(err, replace(store, uplink.Truststore))
		} else {
			java = false
		}
	}
	return java, err
}

// replace puts a link to ours in the place of a file.
func replace(file, ours string) error {
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("trusting the gateway: %w", err)
	}
	if err := os.Symlink(ours, file); err != nil {
		return fmt.Errorf("trusting the gateway: %w", err)
	}
	return nil
}

// dropBounding empties the bounding set on every thread, so that nothing that is executed here can gain a capability.
func dropBounding() error {
	const prCapbsetDrop = 24
	for c := range uintptr(64) {
		have, _, errno := syscall.Syscall(syscall.SYS_PRCTL, prCapbsetRead, c, 0)
		if errno == syscall.EINVAL && c > 0 {
			return nil // past the last capability of this kernel
		}
		if errno == 0 && have != 0 {
			_, _, errno = syscall.AllThreadsSyscall(syscall.SYS_PRCTL, prCapbsetDrop, c, 0)
		}
		if errno != 0 {
			return fmt.Errorf("giving up capability %d for good: %w", c, errno)
		}
	}
	return nil
}
