package native

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// startWork makes the saved directories of a new sandbox: those of checkpoint from, or with "" of the root file
// system. It returns their overlay, and their mounts, to attach to the sandbox.
func (p *Provider) startWork(fds *descriptors, b place, s *state, from outboard.CheckpointID,
	userns int) (mnt int, trees []int, err error) {
	unlock, err := p.lockLayers(unix.LOCK_SH)
	if err != nil {
		return -1, nil, err
	}
	defer unlock()
	st := &stack{BootID: p.boot, Root: s.Root}
	if from != "" {
		name, below, err := p.checkpointLayer(from)
		if err != nil {
			return -1, nil, err
		}
		st.Below = append([]string{name}, below.Below...)
	}
	next, err := p.layWork(b, s, st, 1, userns)
	if err != nil {
		return -1, nil, err
	}
	fds.add(next.mnt)
	if trees, _, err = subtrees(fds, next.mnt, s); err != nil {
		return -1, nil, err
	}
	return next.mnt, trees, os.Rename(b.next(1), b.path("1"))
}

// work is a writable layer with its overlay, attached to nothing yet.
type work struct {
	n      int
	height int // layers that it lies on
	// of its directory: another process may have made it anew, and then nobody would see what is written to ours
	ino uint64
	mnt int
}

func (w *work) close() { unix.Close(w.mnt) }

// layWork makes the writable layer n over a stack, and its overlay.
func (p *Provider) layWork(b place, s *state, st *stack, n, userns int) (*work, error) {
	dir := b.next(n)
	err := os.Mkdir(dir, 0o755)
	if err == nil {
		err = writeStack(dir, st) // before anything can be above what it names
	}
	if err == nil {
		err = os.Mkdir(filepath.Join(dir, "up"), 0o755)
	}
	if err == nil {
		err = os.Mkdir(filepath.Join(dir, "wk"), 0o700)
	}
	if err == nil && n > 1 {
		err = os.Symlink(layerName(b.id, n-1), filepath.Join(dir, "name")) // for the checkpoint that the push will be
	}
	var at unix.Stat_t
	if err == nil {
		err = unix.Lstat(dir, &at)
	}
	if err != nil {
		return nil, fmt.Errorf("making a layer: %w", err)
	}
	mnt, err := p.mountWork(s, st, dir, s.SharedRoot && n == 1, userns)
	if err != nil {
		return nil, err
	}
	return &work{n: n, height: len(st.Below), ino: at.Ino, mnt: mnt}, nil
}

// next returns the directory of writable layer n until its overlay is attached.
func (b place) next(n int) string {
	return b.path(strconv.Itoa(n) + nextSuffix)
}

// discard removes what was made as writable layer n and never attached. It first loses its name: another process
// that has an overlay over it must find all of it or nothing, wherever this one is killed.
func (b place) discard(n int) error {
	gone := b.next(n) + "-" + rand.Text() // which nobody looks for, and goes with the sandbox
	if err := os.Rename(b.next(n), gone); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	return removeTree(gone)
}

// ahead makes the next overlay while a call runs, so that the Push after it does not have to. There is at most
// one per connection.
type ahead struct {
	mu   sync.Mutex // held while it is made
	next *work
	wg   sync.WaitGroup
	off  bool // closed

	waiting atomic.Bool // prepareLater is about to look
}

// prepareLater begins to make the next overlay when a call has gone on for a moment and something was written:
// most calls change nothing, and many sandboxes never do. After the first Push there always is one.
func (m *machine) prepareLater() {
	if len(m.state.Root) == 0 || m.ahead.waiting.Swap(true) {
		return
	}
	time.AfterFunc(aheadDelay, func() {
		m.ahead.waiting.Store(false)
		if n, err := m.p.current(m.place); err == nil && m.written(n) {
			m.prepare() // which does nothing after Close
		}
	})
}

// prepare begins to make the next overlay, if there is none.
func (m *machine) prepare() {
	if len(m.state.Root) == 0 || !m.ahead.mu.TryLock() {
		return
	}
	if m.ahead.next != nil || m.ahead.off {
		m.ahead.mu.Unlock()
		return
	}
	m.ahead.wg.Go(func() {
		defer m.ahead.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), createTimeout)
		defer cancel()
		unlock, err := m.place.lock(ctx)
		if err != nil {
			return // Push finds out what is wrong
		}
		defer unlock()
		unlockLayers, err := m.p.lockLayers(unix.LOCK_SH)
		if err != nil {
			return
		}
		defer unlockLayers()
		if n, err := m.p.current(m.place); err == nil {
			m.ahead.next, _ = m.overlayOver(n)
		}
	})
}

// overlayOver makes the overlay that comes after that of <n>, and the read-only layer in it that <n> will
// become. The directory of the overlay is made after that layer and taken away before it: whoever finds the
// directory that it made finds the layer too, wherever another process was killed.
func (m *machine) overlayOver(n int) (*work, error) {
	st, err := m.stack(n)
	if err != nil {
		return nil, err
	}
	userns, err := userNamespaceOf(m.state.Pid)
	if err != nil {
		return nil, err
	}
	defer unix.Close(userns)
	name := layerName(m.id, n)
	// what is of a push that failed or was cut short, or of another process that is about to find out
	err = m.discard(n + 1)
	if err == nil {
		err = m.p.layerToBe(name, st)
	}
	if err != nil {
		return nil, fmt.Errorf("making a layer: %w", err)
	}
	over := &stack{BootID: st.BootID, Root: st.Root, Below: append([]string{name}, m.p.shortened(m.place, st.Below)...)}
	return m.p.layWork(m.place, m.state, over, n+1, userns)
}

// taken returns what was made ahead, or nil. It waits for what is being made, which takes the sandbox's lock:
// the caller has not.
func (a *ahead) taken() *work {
	a.mu.Lock()
	defer a.mu.Unlock()
	w := a.next
	a.next = nil
	return w
}

// following returns the overlay that comes after that of <n>: w, if it is that one still, else a new one. It
// takes w over.
func (m *machine) following(n int, w *work) (*work, error) {
	if w != nil {
		if w.n == n+1 && m.still(w) {
			return w, nil
		}
		w.close()
	}
	return m.overlayOver(n)
}

// still reports whether what was made ahead is what the disk has: another process may have made it anew, or
// begun to. Its open mount keeps the number of its directory from being given to another.
func (m *machine) still(w *work) bool {
	var at unix.Stat_t
	if unix.Lstat(m.next(w.n), &at) != nil || at.Ino != w.ino {
		return false
	}
	_, err := m.p.loadStack(layerName(m.id, w.n-1))
	return err == nil
}

// Settled waits until nothing is made for the sandbox in the background.
func (m *machine) Settled() {
	m.ahead.mu.Lock() // and not its wait group, to which prepareLater may be adding
	defer m.ahead.mu.Unlock()
	m.flattening.wg.Wait()
}

// stopAhead ends what prepare began.
func (m *machine) stopAhead() {
	m.ahead.mu.Lock()
	m.ahead.off = true
	if m.ahead.next != nil {
		m.ahead.next.close()
		m.ahead.next = nil
	}
	m.ahead.mu.Unlock()
	m.ahead.wg.Wait()
}

// Push implements sandbox.Layered.
func (m *machine) Push(ctx context.Context, id, parent outboard.CheckpointID) (sandbox.Pushed, error) {
	if len(m.state.Root) == 0 {
		return sandbox.Pushed{}, outboard.Errorf(outboard.Unimplemented, "sandbox %s has no layers", m.id)
	}
	if m.unchangedSince(parent) {
		return sandbox.Pushed{}, nil
	}
	next := m.ahead.taken()
	defer func() {
		if next != nil {
			next.close()
		}
	}()
	unlock, err := m.place.lock(ctx) // against Destroy
	if errors.Is(err, fs.ErrNotExist) {
		return sandbox.Pushed{}, outboard.Errorf(outboard.NotFound, "sandbox %s has ended", m.id)
	}
	if err != nil {
		return sandbox.Pushed{}, err
	}
	defer unlock()
	n, err := m.current()
	if err != nil {
		return sandbox.Pushed{}, err
	}
	if err := m.alive(); err != nil {
		return sandbox.Pushed{}, err
	}
	unlockLayers, err := m.p.lockLayers(unix.LOCK_SH) // against Sweep
	if err != nil {
		return sandbox.Pushed{}, err
	}
	defer unlockLayers()
	pushed, err := m.pushWritten(ctx, id, parent, n, &next)
	if err == nil && !pushed.Changed {
		m.remember(n, parent)
	}
	if err != nil {
		// nobody knows what is attached: nothing may be saved of it either
		if _, cerr := m.current(); sandbox.Gone(cerr) {
			return pushed, errors.Join(cerr, err)
		}
	}
	// it died meanwhile, or what is left of it is half removed
	if kind := outboard.KindOf(err); err != nil && kind != outboard.Exhausted && kind != outboard.Unimplemented &&
		m.ended() {
		return pushed, outboard.Errorf(outboard.NotFound, "sandbox %s has ended: %w", m.id, err)
	}
	return pushed, err
}

// current returns the number of the writable layer in use. NotFound: the sandbox cannot be used any more.
func (m *machine) current() (int, error) {
	n, err := m.p.current(m.place)
	if err == nil {
		_, err = os.Lstat(m.workPath(n, "up")) // without it nothing can be written inside
	}
	if errors.Is(err, errPushing) || errors.Is(err, fs.ErrNotExist) {
		return 0, outboard.Errorf(outboard.NotFound, "sandbox %s: %w", m.id, err)
	}
	return n, err
}

// pushWritten pushes if there is something to push. ahead is what was made for it, or nil; it is taken.
func (m *machine) pushWritten(ctx context.Context, id, parent outboard.CheckpointID, n int,
	ahead **work) (sandbox.Pushed, error) {
	if !m.written(n) {
		return m.unwritten(id, parent, n)
	}
	if m.copied(parent, n) {
		return sandbox.Pushed{}, nil
	}
	// also where the next one was made before it was damaged
	if st, err := m.stack(n); err != nil || len(st.Below) >= maxLayers {
		if err == nil {
			err = outboard.Errorf(outboard.Unimplemented, "sandbox %s has %d layers, which is the limit", m.id,
				len(st.Below))
		}
		return sandbox.Pushed{}, err
	}
	next, err := m.following(n, *ahead)
	*ahead = nil
	if err != nil {
		return sandbox.Pushed{}, err
	}
	return m.push(ctx, id, n, next)
}

// unwritten is Push where nothing was written since the last one. Whoever called that may have died before it
// could commit what it made: then the state has no name that the caller knows.
func (m *machine) unwritten(id, parent outboard.CheckpointID, n int) (sandbox.Pushed, error) {
	st, err := m.stack(n)
	if err != nil || len(st.Below) == 0 {
		return sandbox.Pushed{}, err
	}
	if parent != "" {
		if top, _, err := m.p.checkpointLayer(parent); err == nil && top == st.Below[0] {
			return sandbox.Pushed{}, nil
		}
	}
	return sandbox.Pushed{Changed: true}, m.p.nameCheckpoint(id, st.Below[0])
}

func (m *machine) workPath(n int, name string) string {
	return m.path(filepath.Join(strconv.Itoa(n), name))
}

// push swaps the mounts. The overlay that comes next was made before anything stops.
func (m *machine) push(ctx context.Context, id outboard.CheckpointID, n int,
	next *work) (pushed sandbox.Pushed, err error) {
	x := &swap{m: m, n: n, next: next, index: -1, root: -1, settled: make(chan struct{}), placed: make(chan struct{})}
	defer func() {
		err = errors.Join(err, x.thaw(), x.end())
		m.prepare()
		m.flattenLater(next.height)
	}()
	if err := x.begin(); err != nil {
		return sandbox.Pushed{}, err
	}
	done := make(chan error, 1)
	go func() { done <- x.run(ctx) }()
	var named error
	if <-x.settled; x.attached {
		named = m.nameNow(id, layerName(m.id, n), x.to)
	}
	var thawed error
	if <-x.placed; x.attached && !x.lost { // else what is copied is copied of a sandbox that is stopped
		thawed = x.thaw()
	}
	if err = <-done; err == nil {
		err = thawed
	}
	if errors.Is(err, errInUse) {
		return m.pushCopy(id, n)
	}
	if err != nil {
		return sandbox.Pushed{}, fmt.Errorf("swapping the workspace: %w", err)
	}
	return sandbox.Pushed{Changed: true}, named
}

// pushCopy is Push of a sandbox that is stopped, and whose workspace cannot be swapped.
func (m *machine) pushCopy(id outboard.CheckpointID, n int) (sandbox.Pushed, error) {
	name, err := m.copyLayer(n)
	if err != nil {
		return sandbox.Pushed{}, err
	}
	return sandbox.Pushed{Changed: true, Copied: true}, m.p.nameCheckpoint(id, name)
}

// nameNow is nameCheckpoint by the link that was made with the next overlay, in its directory, if it is there still.
func (m *machine) nameNow(id outboard.CheckpointID, layer string, next int) error {
	if unix.Renameat2(next, "name", unix.AT_FDCWD, filepath.Join(m.p.dir, checkpointsDir, string(id)),
		unix.RENAME_NOREPLACE) == nil {
		return nil
	}
	return m.p.nameCheckpoint(id, layer)
}

// nameCheckpoint says which layer a checkpoint is.
func (p *Provider) nameCheckpoint(id outboard.CheckpointID, layer string) error {
	if err := os.Symlink(layer, filepath.Join(p.dir, checkpointsDir, string(id))); err != nil {
		return fmt.Errorf("naming a checkpoint: %w", err)
	}
	return nil
}
