package boot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unsafe"

	"github.com/outboard-dev/outboard/internal/guest/uplink"
)

// link is a sandbox's network while it is being made. A nil link is none.
type link struct {
	hand    *net.UnixListener
	sockets *uplink.Sockets
	java    bool // uplink.Env's
}

// splitLink takes the files that came with a configuration apart: mounts, and with a network the socket of the
// hand-over.
func splitLink(cfg *Config, files []tree) ([]tree, *link, error) {
	want := cfg.Trees
	if cfg.Network != nil {
		want++
	}
	trees := len(cfg.Sources())
	if cfg.Rooted {
		trees = 3 // covers
	}
	if len(files) != want || (cfg.Trees != 0 || cfg.Rooted) && cfg.Trees != trees {
		return nil, nil, fmt.Errorf("%d files came with a configuration of %d", len(files), want)
	}
	if cfg.Network == nil {
		return files, nil, nil
	}
	f := os.NewFile(uintptr(files[want-1]), "uplink")
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, nil, err
	}
	hand, ok := l.(*net.UnixListener)
	if !ok {
		return nil, nil, errors.New("the network's file is not a unix listener")
	}
	hand.SetUnlinkOnClose(false)
	return files[:want-1], &link{hand: hand}, nil
}

// connect opens the sandbox's sockets and makes the gateway trusted.
func (l *link) connect(cfg *Config) (err error) {
	if l == nil {
		return nil
	}
	if l.sockets, err = uplink.Open(cfg.Network.Redirected); err != nil {
		return err
	}
	return l.trust(cfg)
}

// trust makes the gateway's certificate trusted, in the sandbox's root: in files of its own, on a file system
// whose content is never part of a saved one, and in the place of the system's bundle. It gives the resolver its
// server.
func (l *link) trust(cfg *Config) error {
	if err := mountPoint(cfg, uplink.TrustDir, false); err != nil {
		return err
	}
	if err := mountNew(uplink.TrustDir, "tmpfs", attrNoSuid|attrNoDev|attrNoExec, "mode=0755", "size=16m"); err != nil {
		return err
	}
	system, err := uplink.WriteTrust(uplink.TrustDir, []byte(cfg.Network.CA), cfg.ToolUID, cfg.ToolGID)
	if err != nil {
		return err
	}
	resolver := uplink.TrustDir + "/resolv.conf"
	if err := os.WriteFile(resolver, []byte("nameserver 127.0.0.1\n"), 0o644); err != nil {
		return fmt.Errorf("naming the resolver: %w", err)
	}
	if err := showAt(cfg, resolver, "/etc/resolv.conf"); err != nil {
		return err
	}
	if system != "" {
		err = showAt(cfg, uplink.Bundle, system)
	}
	for _, store := range uplink.JavaStores() {
		err = errors.Join(err, showAt(cfg, uplink.Truststore, store))
		l.java = true
	}
	return err
}

// showAt shows a file in the place of another. Where that is a link, it is followed, but not out of the
// sandbox's own files.
func showAt(cfg *Config, file, target string) error {
	real, err := filepath.EvalSymlinks(target)
	if errors.Is(err, fs.ErrNotExist) {
		if err = mountPoint(cfg, target, true); err == nil {
			real = target
		}
	}
	if err != nil {
		return fmt.Errorf("showing a file at %s: %w", target, err)
	}
	for _, dir := range []string{"/proc/", "/dev/", "/sys/", uplink.TrustDir} {
		if strings.HasPrefix(real, dir) {
			return fmt.Errorf("showing a file at %s: it leads to %s", target, real)
		}
	}
	t, err := openTree(file)
	if err != nil {
		return err
	}
	defer t.close()
	if err := t.restrict(attrReadOnly|attrNoSuid|attrNoDev|attrNoExec, false); err != nil {
		return err
	}
	return t.attach(real)
}

// Uplink serves the sandbox's network until ctx ends.
func (e *Env) Uplink(ctx context.Context) {
	switch {
	case e.uplink == nil:
	case e.relay:
		e.uplink.sockets.Relay(ctx, e.uplink.hand)
	default:
		e.uplink.sockets.Serve(ctx, e.uplink.hand)
	}
}

// UplinkEnv is what processes inside must know of the network, as KEY=value.
func (e *Env) UplinkEnv() []string {
	if e.uplink == nil {
		return nil
	}
	return uplink.Env(e.uplink.java)
}

// Network furnishes the network namespace of the calling thread. A host that makes the namespace ahead calls it
// there; else the guest does, as root of the user namespace that the network belongs to. It reports whether
// every connection to uplink.Synthetic is redirected, which with connected it tries.
func Network(connected bool) (redirected bool, err error) {
	proc, err := syscall.Open("/proc", pathOnly|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return false, &os.PathError{Op: "open", Path: "/proc", Err: err}
	}
	defer syscall.Close(proc)
	return furnishNetwork(tree(proc), connected)
}

// furnishNetwork is Network with a proc. It is best one that few network namespaces have been seen through: all
// of them have directories of the same name there, and to find one the kernel looks at each.
func furnishNetwork(proc tree, connected bool) (redirected bool, err error) {
	// Tools have no capability, so let them bind any port of their own loopback.
	fd, err := syscall.Openat(int(proc), "sys/net/ipv4/ip_unprivileged_port_start", syscall.O_WRONLY|syscall.O_CLOEXEC,
		0)
	if err == nil {
		_, err = syscall.Write(fd, []byte("0"))
		syscall.Close(fd)
	}
	if err != nil && err != syscall.ENOENT {
		return false, fmt.Errorf("opening low ports: %w", err)
	}
	if err := linkUp("lo"); err != nil {
		return false, fmt.Errorf("raising the loopback interface: %w", err)
	}
	if !connected {
		return false, nil
	}
	return uplink.Prepare()
}

// linkUp raises a network interface of the current network namespace.
func linkUp(name string) error {
	s, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening a socket: %w", err)
	}
	defer syscall.Close(s)
	var req struct {
		name  [syscall.IFNAMSIZ]byte
		flags uint16
		_     [22]byte
	}
	copy(req.name[:syscall.IFNAMSIZ-1], name)
	req.flags = syscall.IFF_UP | syscall.IFF_RUNNING
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(s), syscall.SIOCSIFFLAGS,
		uintptr(unsafe.Pointer(&req))); errno != 0 {
		return os.NewSyscallError("ioctl", errno)
	}
	return nil
}
