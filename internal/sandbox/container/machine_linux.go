package container

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/guest/boot"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

// machine is a connected sandbox. The guest's client does all that needs no technology; its errors are explained
// by Lost.
type machine struct {
	*guest.Client
	p     *Provider
	dir   string
	state *state
}

var _ sandbox.Sandbox = (*machine)(nil)

// ID returns the sandbox's id.
func (m *machine) ID() outboard.SandboxID { return m.state.ID }

// Generation returns the generation it was made with.
func (m *machine) Generation() string { return m.state.Generation }

// Isolation names what isolates it.
func (m *machine) Isolation() string { return m.p.Capabilities().Isolation }

// alive returns NotFound when the container has ended.
func (m *machine) alive() error {
	switch ok, err := m.state.Alive(); {
	case err != nil:
		return outboard.Errorf(outboard.Unavailable, "%w", err)
	case !ok:
		return m.ended()
	}
	return nil
}

// ended is the error of a container that has ended. Its control group outlives it, and knows whether the limit
// on memory did that: a kernel of its own is a process like any other to the host's.
func (m *machine) ended() error {
	if count := native.MemoryIn(m.state.Memory); count != nil && m.p.tech.OwnKernel() {
		if n, known := count(); known && n.Hit(guest.MemoryCount{}) {
			return outboard.Errorf(outboard.NotFound, "sandbox %s has ended: %w", m.state.ID, sandbox.ErrMemory)
		}
	}
	return outboard.Errorf(outboard.NotFound, "sandbox %s has ended", m.state.ID)
}

// ready waits until the guest says that the sandbox is finished.
func (m *machine) ready(ctx context.Context) error {
	return native.WaitFor(ctx, func() (bool, error) {
		_, err := os.Lstat(filepath.Join(m.dir, hostDir, boot.ReadyFile))
		if err == nil {
			return true, nil
		}
		if ok, _ := m.state.Alive(); !ok {
			return false, outboard.Errorf(outboard.Unavailable,
				"the sandbox could not be built: its first process has ended")
		}
		return false, nil
	})
}

// connect dials the guest and makes sure that it is the one the state file names.
func (m *machine) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, helloTimeout, outboard.Errorf(outboard.Unavailable,
		"sandbox %s did not answer within %s", m.ID(), helloTimeout))
	defer cancel()
	conn, err := m.dial(ctx, boot.GuestSocket)
	if err != nil {
		return m.explain(err)
	}
	c := guest.NewClient(conn)
	c.Lost = m.explain
	if !m.p.tech.OwnKernel() { // where the limit ends the whole sandbox, no call lives to tell of it: see ended
		c.Memory = native.MemoryIn(cmp.Or(m.state.Memory, native.MemoryGroup(m.state.Process)))
	}
	if err := native.Greet(ctx, c, m.ID(), m.state.Generation); err != nil {
		c.Close()
		return m.explain(err)
	}
	m.Client = c
	return nil
}

// dial connects to a socket that the guest made. The directory is the guest's as well: a guest that somebody has
// taken over could put a link to a socket of the host there, so what is connected to is a descriptor that has
// been looked at.
func (m *machine) dial(ctx context.Context, name string) (*net.UnixConn, error) {
	dir, err := unix.Open(filepath.Join(m.dir, hostDir), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening the sandbox's directory: %w", err)
	}
	defer unix.Close(dir)
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("looking for the guest's socket: %w", err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, errors.New("the guest's socket is not a socket")
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return nil, fmt.Errorf("connecting to the guest: %w", err)
	}
	return conn.(*net.UnixConn), nil
}

// explain gives an error of the connection its kind: NotFound when the machine is gone, else Unavailable. What
// the guest refused stays a *guest.Error.
func (m *machine) explain(err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if _, ok := errors.AsType[*guest.Error](err); ok {
		return err
	}
	if _, ok := errors.AsType[*outboard.Error](err); ok {
		return err
	}
	if m.state.Ended() {
		return m.ended()
	}
	return outboard.Errorf(outboard.Unavailable, "talking to sandbox %s: %w", m.ID(), err)
}

// Freeze stops every process inside until Thaw.
func (m *machine) Freeze(ctx context.Context) error { return m.setFrozen(ctx, true) }

// Thaw lets them continue.
func (m *machine) Thaw(ctx context.Context) error { return m.setFrozen(ctx, false) }

func (m *machine) setFrozen(ctx context.Context, frozen bool) error {
	if err := m.alive(); err != nil {
		return err
	}
	unlock, err := native.Lock(ctx, m.dir) // two at a time would see each other's state
	if err != nil {
		return m.explain(err)
	}
	defer unlock()
	if err := m.p.tech.SetFrozen(ctx, m.ID(), frozen, m.alive); err != nil {
		return m.explain(fmt.Errorf("freezing: %w", err))
	}
	return nil
}

var _ io.Closer = (*machine)(nil)
