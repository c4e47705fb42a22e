package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// machine is a sandbox whose every call has a deadline, and which remembers what was learnt about it on this
// connection.
type machine struct {
	sandbox.Sandbox
	saving   sync.Mutex // one checkpoint or harvest at a time
	defaults defaults   // set before it is used by anybody

	mu      sync.Mutex
	running map[string]bool // keys of calls asked about here and not known to be over
	mounted map[outboard.ResourceID]bool
	broken  bool // a call reported that the machine or the connection is gone

	// The checkpoint that was the parent of the last save, with its depth: rows do not change. Guarded by saving.
	parent outboard.CheckpointID
	depth  int
	top    outboard.CheckpointID // pushed last, and still what the writable layer lies on; "" = not known
}

func newMachine(sb sandbox.Sandbox) *machine {
	return &machine{Sandbox: sb, running: map[string]bool{}, mounted: map[outboard.ResourceID]bool{}}
}

// timed runs one call under its deadline. A deadline of ours that fired is Unavailable; it does not mean that
// the machine is gone.
func (m *machine) timed(ctx context.Context, op string, d time.Duration, call func(context.Context) error) error {
	tctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	err := call(tctx)
	if err == nil {
		return nil
	}
	if sandbox.Gone(err) || errors.Is(err, guest.ErrDisconnected) {
		m.mu.Lock()
		m.broken = true
		m.mu.Unlock()
	}
	if errors.Is(tctx.Err(), context.DeadlineExceeded) && ctx.Err() == nil {
		return outboard.Errorf(outboard.Unavailable, "sandbox %s: %s took longer than %v: %w", m.ID(), op, d, err)
	}
	return fmt.Errorf("sandbox %s: %s: %w", m.ID(), op, err)
}

// track remembers which calls run, from what the guest says about them.
func (m *machine) track(key string, res guest.Result) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if res.State == guest.StateRunning {
		m.running[key] = true
	} else {
		delete(m.running, key)
	}
}

// busy reports whether a call started here may still run.
func (m *machine) busy() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.running) > 0
}

// usable reports whether nothing has shown yet that the machine or the connection to it is gone.
func (m *machine) usable() bool {
	m.mu.Lock()
	broken := m.broken
	m.mu.Unlock()
	if c, ok := m.Sandbox.(interface{ Connected() bool }); ok && !broken {
		broken = !c.Connected()
	}
	if l, ok := m.Sandbox.(interface{ Alive() bool }); ok && !broken {
		broken = !l.Alive()
	}
	return !broken
}

func (m *machine) isMounted(id outboard.ResourceID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mounted[id]
}

func (m *machine) setMounted(id outboard.ResourceID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mounted[id] = true
}

// Start implements sandbox.Sandbox.
func (m *machine) Start(ctx context.Context, s guest.Start) (guest.Result, error) {
	return m.result(ctx, s.Key, "start", CallTimeout, func(ctx context.Context) (guest.Result, error) {
		return m.Sandbox.Start(ctx, s)
	})
}

// Wait implements sandbox.Sandbox.
func (m *machine) Wait(ctx context.Context, key string, epoch int64) (guest.Result, error) {
	return m.Follow(ctx, key, epoch, nil)
}

// Follow implements sandbox.Sandbox.
func (m *machine) Follow(ctx context.Context, key string, epoch int64, line func(string)) (guest.Result, error) {
	return m.result(ctx, key, "wait", outboard.MaxBashTimeout+WaitGrace,
		func(ctx context.Context) (guest.Result, error) {
			return m.Sandbox.Follow(ctx, key, epoch, line)
		})
}

// Kill implements sandbox.Sandbox.
func (m *machine) Kill(ctx context.Context, key string, epoch int64) (guest.Result, error) {
	return m.result(ctx, key, "kill", CallTimeout, func(ctx context.Context) (guest.Result, error) {
		return m.Sandbox.Kill(ctx, key, epoch)
	})
}

func (m *machine) result(ctx context.Context, key, op string, d time.Duration,
	call func(context.Context) (guest.Result, error)) (res guest.Result, err error) {
	m.track(key, guest.Result{State: guest.StateRunning}) // until the guest says otherwise; an error says nothing
	err = m.timed(ctx, op, d, func(ctx context.Context) error {
		var err error
		res, err = call(ctx)
		return err
	})
	if err == nil {
		m.track(key, res)
	}
	return res, err
}

// Real implements sandbox.Files.
func (m *machine) Real(ctx context.Context, path string) (real string, err error) {
	err = m.timed(ctx, "real", CallTimeout, func(ctx context.Context) error {
		real, err = m.Sandbox.Real(ctx, path)
		return err
	})
	return real, err
}

// Ack implements sandbox.Sandbox.
func (m *machine) Ack(ctx context.Context, key string, epoch int64) error {
	return m.timed(ctx, "ack", CallTimeout, func(ctx context.Context) error { return m.Sandbox.Ack(ctx, key, epoch) })
}

// Save implements sandbox.Sandbox.
func (m *machine) Save(ctx context.Context, s guest.Save, w io.Writer) (saved guest.Saved, err error) {
	err = m.timed(ctx, "save", TransferTimeout, func(ctx context.Context) error {
		var err error
		saved, err = m.Sandbox.Save(ctx, s, w)
		return err
	})
	return saved, err
}

// Load implements sandbox.Sandbox.
func (m *machine) Load(ctx context.Context, label string, r io.Reader) error {
	return m.timed(ctx, "load", TransferTimeout,
		func(ctx context.Context) error { return m.Sandbox.Load(ctx, label, r) })
}

// Put implements sandbox.Sandbox.
func (m *machine) Put(ctx context.Context, path string, mode uint32, readOnly bool, r io.Reader) error {
	return m.timed(ctx, "put", TransferTimeout, func(ctx context.Context) error {
		return m.Sandbox.Put(ctx, path, mode, readOnly, r)
	})
}

// Get implements sandbox.Sandbox.
func (m *machine) Get(ctx context.Context, path string, w io.Writer) error {
	return m.timed(ctx, "get", TransferTimeout, func(ctx context.Context) error { return m.Sandbox.Get(ctx, path, w) })
}

// List implements sandbox.Sandbox.
func (m *machine) List(ctx context.Context, dir string) (stats []guest.Stat, err error) {
	err = m.timed(ctx, "list", CallTimeout, func(ctx context.Context) error {
		var err error
		stats, err = m.Sandbox.List(ctx, dir)
		return err
	})
	return stats, err
}

// Freeze implements sandbox.Sandbox.
func (m *machine) Freeze(ctx context.Context) error {
	return m.timed(ctx, "freeze", CallTimeout, m.Sandbox.Freeze)
}

// Thaw implements sandbox.Sandbox.
func (m *machine) Thaw(ctx context.Context) error {
	return m.timed(ctx, "thaw", CallTimeout, m.Sandbox.Thaw)
}
