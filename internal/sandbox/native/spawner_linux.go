package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard/internal/guest/spawner"
)

// spawnerProcess is the spawner of a provider, see the package of that name: started with the first sandbox,
// anew when it has died, and ended by close. Its zero value is one that is not started.
type spawnerProcess struct {
	mu     sync.Mutex
	conn   *os.File // nil = none is running
	cmd    *exec.Cmd
	closed bool
}

// viaSpawner has the spawner make a child of this process.
func (p *Provider) viaSpawner(k spawner.Child) (pid int, err error) {
	program, err := p.program.open(p.guest)
	if err != nil {
		return 0, fmt.Errorf("reading the guest program: %w", err)
	}
	return p.spawner.clone(program, k)
}

func (n *spawnerProcess) clone(program *os.File, k spawner.Child) (pid int, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for range 2 { // one that died since the last request is found out by asking it
		if n.conn == nil {
			if err := n.startLocked(program); err != nil {
				return 0, fmt.Errorf("starting the spawner: %w", err)
			}
		}
		pid, err = spawner.Ask(int(n.conn.Fd()), k)
		if _, refused := errors.AsType[*spawner.Refusal](err); err == nil || refused {
			return pid, err
		}
		n.endLocked()
		// EPIPE: it was dead. ECONNRESET: it died with the request unread. After any other end it had the
		// request, and whatever it made ends with its gate.
		if !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
			break
		}
	}
	return 0, err
}

func (n *spawnerProcess) startLocked(program *os.File) error {
	if n.closed {
		return errors.New("the provider is closed")
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	conn, theirs := os.NewFile(uintptr(pair[0]), "spawner"), os.NewFile(uintptr(pair[1]), "spawner")
	defer theirs.Close()
	limit := unix.NsecToTimeval(createTimeout.Nanoseconds())
	if err := unix.SetsockoptTimeval(pair[0], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		conn.Close()
		return os.NewSyscallError("setsockopt", err)
	}
	// The copy in memory, which is also what the guests run: another version at the path would not understand
	// us. The child has it under a number of its own, since a fork may use those that it was not told of for
	// itself.
	cmd := exec.CommandContext(context.Background(), fmt.Sprintf("/proc/self/fd/%d", spawner.ServeFD+1), "nursery")
	cmd.Args[0], cmd.Env, cmd.Dir, cmd.ExtraFiles = "outboard-guest", []string{fmt.Sprintf("GOMAXPROCS=%d",
		spawner.Processors)}, "/", []*os.File{theirs, program}
	// an interrupt at the terminal is for the server, which closes what it has
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := leisurely(cmd.Start); err != nil {
		conn.Close()
		return err
	}
	n.conn, n.cmd = conn, cmd
	return nil
}

// leisurely calls start so that a Go program it starts has a monitor that looks seldom, see
// spawner.MonitorSlack: in a spawner no processor is waited for. Where the kernel does not do so it is as usual.
func leisurely(start func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if was, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0); err == nil && was > 0 {
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, spawner.MonitorSlack, 0, 0, 0)
		defer func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(was), 0, 0, 0) }()
	}
	return start()
}

// endLocked ends a spawner. What it made lives on.
func (n *spawnerProcess) endLocked() {
	if n.conn == nil {
		return
	}
	n.conn.Close()
	_ = n.cmd.Process.Kill() // it may be stuck
	_ = n.cmd.Wait()         // how it ended says nothing
	n.conn, n.cmd = nil, nil
}

func (n *spawnerProcess) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	n.endLocked()
}
