package native

import (
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard/internal/guest/spawner"
)

const namespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS

// tryNamespaces makes the namespaces of a sandbox around a process that ends at once, and returns what the
// kernel said. Settings alone do not tell: the seccomp profile of a container, a security module or a limit
// refuse as well.
func tryNamespaces() error {
	pid, err := spawner.AtRest(cloneAndEnd)
	if err != nil {
		return err
	}
	for {
		if _, err := unix.Wait4(pid, nil, 0, nil); err != unix.EINTR {
			return err
		}
	}
}

// cloneAndEnd returns in the parent only.
//
//go:noinline
//go:norace
//go:nosplit
func cloneAndEnd() (uintptr, syscall.Errno) {
	pid, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD)|namespaces|unix.CLONE_NEWNET, 0, 0,
		0, 0, 0)
	if errno != 0 || pid != 0 {
		return pid, errno
	}
	for {
		syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
	}
}

// gate is the host's end of a child's gate.
type gate struct{ *os.File }

// open lets the child go on.
func (g gate) open() error {
	if _, err := g.Write([]byte{1}); err != nil {
		return fmt.Errorf("letting the guest begin: %w", err)
	}
	return nil
}

// failure waits until the child has executed the guest or ended, and returns why it could not.
func (g gate) failure() error {
	var answer [2]byte
	n, err := g.Read(answer[:])
	if n < len(answer) {
		return nil // end of the stream: the gate closed with the exec
	}
	if err != nil {
		return fmt.Errorf("reading from the gate: %w", err)
	}
	step, errno := spawner.Failure(answer)
	return fmt.Errorf("%s: %w", step, errno)
}

// writeMaps gives the user namespace of pid its ids.
func writeMaps(pid int, base uint32, rootless bool) error {
	uids, gids := fmt.Sprintf("0 %d %d\n", base, uidRange), fmt.Sprintf("0 %d %d\n", base, uidRange)
	type file struct{ name, text string }
	files := []file{{"uid_map", uids}, {"gid_map", gids}}
	if rootless {
		// The tool's id, not root's: programs refuse to run as root, and unpack the owners of archives when they
		// are root.
		uids, gids = fmt.Sprintf("%d %d 1\n", toolUID, os.Geteuid()), fmt.Sprintf("%d %d 1\n", toolUID, os.Getegid())
		// Without setgroups denied, a user could drop a group that a file's mode holds against its members.
		files = []file{{"uid_map", uids}, {"setgroups", "deny"}, {"gid_map", gids}}
	}
	for _, f := range files {
		if err := writeControl(fmt.Sprintf("/proc/%d", pid), f.name, f.text); err != nil {
			return fmt.Errorf("mapping the ids %s: %w", strings.TrimSpace(f.text), err)
		}
	}
	return nil
}
