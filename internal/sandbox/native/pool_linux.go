package native

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

const (
	// poolDir (still "shelf" on disk) holds one directory per process that makes slots ahead, locked while it lives.
	poolDir = "shelf"
	// slotPrefix (still "plot_" on disk) begins the names of slots and of their cgroups.
	slotPrefix = "plot_"
)

// pool keeps slots that were made ahead. It makes new ones after a Create has finished, for the kinds that were
// asked for last. A nil pool keeps none.
type pool struct {
	p    *Provider
	dir  string
	lock *os.File
	size int // slots per kind
	hot  int // slots per kind with a guest that waits, besides

	mu     sync.Mutex
	kinds  []*kind // last asked for first; besides those that are kept, at most maxKinds
	making bool
	closed bool
	ctx    context.Context // of what is being made; over with closed
	stop   context.CancelFunc
	wg     sync.WaitGroup // of refill
}

// kind is the slots of one shape.
type kind struct {
	shape shape
	ready []*slot
	warm  []*slot
	keep  int // slots with a guest that waits, whoever asked for it lately; 0 = as for the others

	pause time.Duration // after the next failure, while none could be made; 0 = the last one could
	after time.Time     // none is made before
}

// putOff says that none could be made now.
func (k *kind) putOff(now time.Time) {
	k.pause = min(max(slotPause, 2*k.pause), maxSlotPause)
	k.after = now.Add(k.pause)
}

// guests is how many slots of a kind have a guest that waits, once there are enough.
func (s *pool) guests(k *kind) int { return max(s.hot, k.keep) }

func (p *Provider) newPool(size, warm int) (*pool, error) {
	parent, err := p.lockPools()
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	s := &pool{p: p, size: size, hot: warm, dir: filepath.Join(p.dir, poolDir, rand.Text())}
	s.ctx, s.stop = context.WithCancel(context.Background())
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		return nil, fmt.Errorf("making a pool: %w", err)
	}
	spread(s.dir)
	if s.lock, err = lockFile(s.dir, unix.LOCK_EX); err != nil {
		return nil, err
	}
	return s, nil
}

// lockPools keeps other processes from making or sweeping pools.
func (p *Provider) lockPools() (*os.File, error) {
	dir := filepath.Join(p.dir, poolDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the pool directory: %w", err)
	}
	return lockFile(dir, unix.LOCK_EX)
}

// lockFile locks a file or directory until it is closed.
func lockFile(path string, how int) (*os.File, error) {
	f, err := openUnpolled(path)
	if err != nil {
		return nil, fmt.Errorf("locking: %w", err)
	}
	for {
		err = unix.Flock(int(f.Fd()), how)
		if err != unix.EINTR {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	return f, nil
}

// sweepPools removes the slots of processes that are gone.
func (p *Provider) sweepPools(ctx context.Context) error {
	parent, err := p.lockPools()
	if err != nil {
		return err
	}
	defer parent.Close()
	pools, err := filepath.Glob(filepath.Join(p.dir, poolDir, "*"))
	if err != nil {
		return err
	}
	for _, dir := range pools {
		lock, err := lockFile(dir, unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			continue
		}
		if err == nil {
			err = errors.Join(p.clearPool(ctx, dir), lock.Close())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// clearPool removes a pool whose lock the caller has.
func (p *Provider) clearPool(ctx context.Context, dir string) error {
	slots, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading a pool: %w", err)
	}
	for _, e := range slots {
		if err := p.remove(ctx, place{id: outboard.SandboxID(e.Name()),
			dir: filepath.Join(dir, e.Name())}); err != nil {
			return fmt.Errorf("removing a slot: %w", err)
		}
	}
	return os.Remove(dir)
}

// take returns a slot of a shape, or nil.
func (s *pool) take(want shape) *slot {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.kinds, func(k *kind) bool { return k.shape.equal(want) })
	if i < 0 {
		return nil
	}
	k := s.kinds[i]
	for len(k.warm) > 0 {
		sl := k.warm[0] // the oldest: it has had the longest to settle
		k.warm = k.warm[1:]
		if sl.birth.waits() {
			return sl
		}
		s.wg.Go(func() { s.discard(sl) }) // it ended, by whatever cause
	}
	if n := len(k.ready); n > 0 {
		sl := k.ready[n-1]
		k.ready = k.ready[:n-1]
		return sl
	}
	return nil
}

// put adds a slot: a new one, or one that was taken in vain. In whose place a new one was made meanwhile is too
// many, and goes.
func (s *pool) put(sl *slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.kinds {
		if s.closed || !k.shape.equal(sl.shape) {
			continue
		}
		switch {
		case sl.birth != nil && len(k.warm) < s.guests(k):
			k.warm = append(k.warm, sl)
			return
		case sl.birth == nil && len(k.ready) < s.size:
			k.ready = append(k.ready, sl)
			return
		}
	}
	s.wg.Go(func() { s.discard(sl) })
}

// want says that a slot of this kind was asked for, and has the pool filled up.
func (s *pool) want(shape shape) {
	if s == nil || shape.build { // one layer is never built twice
		return
	}
	shape.from = "" // see place
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	i := slices.IndexFunc(s.kinds, func(k *kind) bool { return k.shape.equal(shape) })
	if i < 0 {
		s.kinds = append(s.kinds, &kind{shape: shape})
		i = len(s.kinds) - 1
	}
	k := s.kinds[i]
	s.kinds = slices.Insert(slices.Delete(s.kinds, i, i+1), 0, k)
	s.trimLocked()
	s.refillLocked()
}

// trimLocked lets go of the kinds that were not asked for lately, and of guests that are too many.
func (s *pool) trimLocked() {
	lately := 0
	s.kinds = slices.DeleteFunc(s.kinds, func(k *kind) bool {
		if k.keep == 0 {
			lately++
		}
		var old []*slot
		gone := k.keep == 0 && lately > maxKinds
		if gone {
			old = slices.Concat(k.ready, k.warm)
		} else if n := s.guests(k); len(k.warm) > n {
			old, k.warm = slices.Clone(k.warm[n:]), k.warm[:n]
		}
		for _, sl := range old {
			s.wg.Go(func() { s.discard(sl) })
		}
		return gone
	})
}

func (s *pool) refillLocked() {
	if !s.making {
		s.making = true
		s.wg.Go(s.refill)
	}
}

// Keep implements sandbox.Pooler.
func (p *Provider) Keep(specs []sandbox.PoolSpec) error {
	s := p.pool
	if s == nil || s.hot == 0 {
		return nil
	}
	var shapes []shape
	for _, st := range specs {
		root, err := p.rootfs(st.Spec.Rootfs, st.Spec.Layers, st.Spec.User)
		if err != nil {
			return err
		}
		shapes = append(shapes, shape{root: root, limits: withDefaults(st.Spec.Limits),
			connected: st.Spec.Network != nil})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	for _, k := range s.kinds {
		k.keep = 0
	}
	for i, shape := range shapes {
		at := slices.IndexFunc(s.kinds, func(k *kind) bool { return k.shape.equal(shape) })
		if at < 0 {
			at = len(s.kinds)
			s.kinds = append(s.kinds, &kind{shape: shape})
		}
		s.kinds[at].keep = max(s.kinds[at].keep, min(specs[i].Count, maxWarm))
	}
	s.trimLocked()
	s.refillLocked()
	return nil
}

// refill makes slots until every kind has enough of them, those with a guest first. A kind of which one cannot
// be made is put off, longer each time: whoever asks for slots next, a Create or Keep, has it tried again once
// that is over.
func (s *pool) refill() {
	delay := time.NewTimer(refillDelay)
	defer delay.Stop()
	select {
	case <-delay.C:
	case <-s.ctx.Done():
	}
	for {
		s.mu.Lock()
		now := time.Now()
		i := slices.IndexFunc(s.kinds, func(k *kind) bool {
			return (len(k.warm) < s.guests(k) || len(k.ready) < s.size) && !now.Before(k.after)
		})
		if i < 0 || s.closed {
			s.making = false
			s.mu.Unlock()
			return
		}
		k := s.kinds[i]
		warm := len(k.warm) < s.guests(k)
		var sl *slot
		if n := len(k.ready); warm && n > 0 {
			sl = k.ready[n-1]
			k.ready = k.ready[:n-1]
		}
		s.mu.Unlock()
		var err error
		if sl == nil {
			sl, err = s.make(k)
		}
		if err == nil && warm {
			if err = s.p.warm(s.ctx, sl); err != nil {
				s.discard(sl)
			}
		}
		if s.ctx.Err() != nil && err != nil {
			continue // it was given up
		}
		s.mu.Lock()
		if err == nil {
			k.pause = 0
		} else {
			k.putOff(time.Now())
		}
		pause := k.pause
		s.mu.Unlock()
		if err != nil {
			s.p.log.Warn("slot not made", "err", err, "again", pause)
			continue
		}
		s.put(sl)
	}
}

func (s *pool) make(k *kind) (*slot, error) {
	name := slotPrefix + rand.Text()
	b := place{id: outboard.SandboxID(name), dir: filepath.Join(s.dir, name)}
	if err := os.Mkdir(b.dir, 0o700); err != nil {
		return nil, err
	}
	sl, err := s.p.makeSlot(b, k.shape)
	if err != nil {
		s.p.undo(context.Background(), b)
		return nil, err
	}
	return sl, nil
}

func (s *pool) discard(sl *slot) {
	sl.close()
	s.p.undo(context.Background(), sl.place)
}

// filled waits until nothing is being made.
func (s *pool) filled() {
	if s != nil {
		s.wg.Wait()
	}
}

// close removes all slots. It may be called twice.
func (s *pool) close() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.stop()
	for _, k := range s.kinds {
		for _, sl := range slices.Concat(k.ready, k.warm) {
			s.wg.Go(func() { s.discard(sl) })
		}
	}
	s.kinds = nil
	s.mu.Unlock()
	s.wg.Wait()
	return errors.Join(os.Remove(s.dir), s.lock.Close())
}
