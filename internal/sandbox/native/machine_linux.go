package native

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

const socketFile = "guest.sock"

// machine is a connected sandbox.
type machine struct {
	place
	state      *state
	group      group
	freezable  bool
	client     *guest.Client
	p          *Provider
	ahead      ahead
	unchanged  unchangedHint
	flattening flattening
}

var (
	_ sandbox.Sandbox = (*machine)(nil)
	_ sandbox.Layered = (*machine)(nil)
)

// ID returns the sandbox's id.
func (m *machine) ID() outboard.SandboxID { return m.state.ID }

// Generation returns the generation it was made with.
func (m *machine) Generation() string { return m.state.Generation }

// Isolation names what isolates it.
func (m *machine) Isolation() string { return m.state.Isolation }

// Connected reports whether neither side has closed the connection to the guest yet.
func (m *machine) Connected() bool { return m.client.Connected() }

// alive returns NotFound when init is gone.
func (m *machine) alive() error {
	if m.client != nil { // of one that is not connected nobody would let go
		if lives, known := m.unchanged.lives(m); known && lives { // one system call instead of five
			return nil
		}
	}
	pr, err := findProcess(m.state)
	if err != nil {
		return outboard.Errorf(outboard.Unavailable, "%w", err)
	}
	if pr == nil {
		return outboard.Errorf(outboard.NotFound, "sandbox %s has ended", m.id)
	}
	pr.close()
	return nil
}

// Alive reports whether the sandbox lives, without asking the guest: what is known of a connection is known a
// moment later.
func (m *machine) Alive() bool {
	if lives, known := m.unchanged.lives(m); known { // one system call instead of five
		return lives
	}
	return !sandbox.Gone(m.alive())
}

// connect dials the guest and makes sure that it is the one the state file names.
func (m *machine) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, helloTimeout, outboard.Errorf(outboard.Unavailable,
		"sandbox %s did not answer within %s", m.id, helloTimeout))
	defer cancel()
	conn, err := m.dial(ctx, socketFile)
	if err != nil {
		return m.explain(err)
	}
	c := guest.NewClient(conn)
	c.Memory = m.group.memory
	if err := Greet(ctx, c, m.id, m.state.Generation); err != nil {
		c.Close()
		return m.explain(err)
	}
	m.client = c
	return nil
}

// Greet makes sure that a guest is the one of a sandbox, and that it can be talked to. One of another version
// never can, however often that is tried: its sandbox is as good as gone.
func Greet(ctx context.Context, c *guest.Client, id outboard.SandboxID, generation string) error {
	h, err := c.Hello(ctx)
	switch {
	case errors.Is(err, guest.ErrVersion):
		return outboard.Errorf(outboard.NotFound, "sandbox %s was started by another version of the server: %w", id,
			err)
	case err == nil && h.Generation != generation:
		return outboard.Errorf(outboard.NotFound, "sandbox %s is of another generation", id)
	}
	return err
}

// dial connects through the directory's descriptor: the path of the socket may be longer than a socket address
// can hold.
func (b place) dial(ctx context.Context, name string) (net.Conn, error) {
	dir, err := os.OpenFile(b.dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("opening the sandbox's directory: %w", err)
	}
	defer dir.Close()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socketPath(dir, name))
	if err != nil {
		return nil, fmt.Errorf("connecting to the guest: %w", err)
	}
	return conn, nil
}

func socketPath(dir *os.File, name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)
}

// ended reports whether init is gone, giving a guest that has just dropped its connections the time to finish dying.
func (m *machine) ended() bool {
	pr, err := findProcess(m.state)
	if err != nil || pr == nil {
		return err == nil
	}
	defer pr.close()
	ctx, cancel := context.WithTimeout(context.Background(), dyingTimeout)
	defer cancel()
	return pr.wait(ctx) == nil
}

// explain gives an error of the connection its kind: NotFound when the machine is gone, else Unavailable. What
// the guest refused stays a *guest.Error.
func (m *machine) explain(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*guest.Error](err); ok {
		return err
	}
	if _, ok := errors.AsType[*outboard.Error](err); ok {
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if m.ended() {
		return outboard.Errorf(outboard.NotFound, "sandbox %s has ended", m.id)
	}
	return outboard.Errorf(outboard.Unavailable, "talking to sandbox %s: %w", m.id, err)
}

// Start starts a call or finds it.
func (m *machine) Start(ctx context.Context, s guest.Start) (guest.Result, error) {
	m.prepareLater()
	r, err := m.client.Start(ctx, s)
	return r, m.explain(err)
}

// Wait returns when the call is done.
func (m *machine) Wait(ctx context.Context, key string, epoch int64) (guest.Result, error) {
	r, err := m.client.Wait(ctx, key, epoch)
	return r, m.explain(err)
}

// Follow is Wait that shows the newest line of the call's output.
func (m *machine) Follow(ctx context.Context, key string, epoch int64, line func(string)) (guest.Result, error) {
	r, err := m.client.Follow(ctx, key, epoch, line)
	return r, m.explain(err)
}

// Kill ends a call.
func (m *machine) Kill(ctx context.Context, key string, epoch int64) (guest.Result, error) {
	r, err := m.client.Kill(ctx, key, epoch)
	return r, m.explain(err)
}

// Ack lets the guest drop a call's output.
func (m *machine) Ack(ctx context.Context, key string, epoch int64) error {
	return m.explain(m.client.Ack(ctx, key, epoch))
}

// Save writes the workspace to w.
func (m *machine) Save(ctx context.Context, s guest.Save, w io.Writer) (guest.Saved, error) {
	r, err := m.client.Save(ctx, s, w)
	return r, m.explain(err)
}

// Load applies a tar made by Save. On a disk with a limit, programs have its spare room too for as long as it
// takes; there are none in a sandbox that begins.
func (m *machine) Load(ctx context.Context, label string, r io.Reader) (err error) {
	if err := m.giveSpare(spareToLoad(m.state)); err != nil {
		return outboard.Errorf(outboard.Unavailable, "loading sandbox %s: %w", m.id, err)
	}
	defer func() {
		if cerr := m.giveSpare(spareToNone); cerr != nil && err == nil {
			err = outboard.Errorf(outboard.Unavailable, "loading sandbox %s: %w", m.id, cerr)
		}
	}()
	return m.explain(m.client.Load(ctx, label, r))
}

// Put writes one file inside.
func (m *machine) Put(ctx context.Context, path string, mode uint32, readOnly bool, r io.Reader) error {
	return m.explain(m.client.Put(ctx, path, mode, readOnly, r))
}

// Get reads one regular file inside.
func (m *machine) Get(ctx context.Context, path string, w io.Writer) error {
	return m.explain(m.client.Get(ctx, path, w))
}

// List walks a directory inside.
func (m *machine) List(ctx context.Context, dir string) ([]guest.Stat, error) {
	l, err := m.client.List(ctx, dir)
	return l, m.explain(err)
}

// Freeze stops every process inside until Thaw.
func (m *machine) Freeze(ctx context.Context) error { return m.setFrozen(ctx, true) }

// Thaw lets them continue.
func (m *machine) Thaw(ctx context.Context) error { return m.setFrozen(ctx, false) }

func (m *machine) setFrozen(ctx context.Context, frozen bool) error {
	if !m.freezable {
		return outboard.Errorf(outboard.Unavailable, "this host has no freezer that the server may use")
	}
	if err := m.alive(); err != nil {
		return err
	}
	if err := m.group.setFrozen(ctx, frozen); err != nil {
		return outboard.Errorf(outboard.Unavailable, "freezing sandbox %s: %w", m.id, err)
	}
	return nil
}

// Close drops the connection; the machine lives on.
func (m *machine) Close() error {
	m.stopAhead()
	m.stopFlattening()
	m.unchanged.forget()
	return m.client.Close()
}
