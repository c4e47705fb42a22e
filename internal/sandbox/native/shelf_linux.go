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
	// shelfDir holds one directory per process that makes plots ahead, locked while it lives.
	shelfDir = "shelf"
	// plotPrefix begins the names of plots and of their cgroups.
	plotPrefix = "plot_"
)

// shelf keeps plots that were made ahead. It makes new ones after a Create has finished, for the kinds that were asked for last. A nil
// shelf keeps none.
type shelf struct {
	p    *Provider
	dir  string
	lock *os.File
	size int // plots per kind
	hot  int // plots per kind with a guest that waits, besides

	mu     sync.Mutex
	kinds  []*kind // last asked for first; besides those that are kept, at most maxKinds
	making bool
	closed bool
	ctx    context.Context // of what is being made; over with closed
	stop   context.CancelFunc
	wg     sync.WaitGroup // of refill
}

// kind is the plots of one shape.
type kind struct {
	shape shape
	ready []*plot
	warm  []*plot
	keep  int // plots with a guest that waits, whoever asked for it lately; 0 = as for the others

	pause time.Duration // after the next failure, while none could be made; 0 = the last one could
	after time.Time     // none is made before
}

// putOff says that none could be made now.
func (k *kind) putOff(now time.Time) {
	k.pause = min(max(plotPause, 2*k.pause), maxPlotPause)
	k.after = now.Add(k.pause)
}

// guests is how many plots of a kind have a guest that waits, once there are enough.
func (s *shelf) guests(k *kind) int { return max(s.hot, k.keep) }

func (p *Provider) newShelf(size, warm int) (*shelf, error) {
	parent, err := p.lockShelves()
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	s := &shelf{p: p, size: size, hot: warm, dir: filepath.Join(p.dir, shelfDir, rand.Text())}
	s.ctx, s.stop = context.WithCancel(context.Background())
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		return nil, fmt.Errorf("making a shelf: %w", err)
	}
	spread(s.dir)
	if s.lock, err = lockFile(s.dir, unix.LOCK_EX); err != nil {
		return nil, err
	}
	return s, nil
}

// lockShelves keeps other processes from making or sweeping shelves.
func (p *Provider) lockShelves() (*os.File, error) {
	dir := filepath.Join(p.dir, shelfDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the shelf directory: %w", err)
	}
	return lockFile(dir, unix.LOCK_EX)
}

// lockFile locks a file or directory until it is closed.
func lockFile(path string, how int) (*os.File, error) {
	f, err := openQuiet(path)
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

// sweepShelves removes the plots of processes that are gone.
func (p *Provider) sweepShelves(ctx context.Context) error {
	parent, err := p.lockShelves()
	if err != nil {
		return err
	}
	defer parent.Close()
	shelves, err := filepath.Glob(filepath.Join(p.dir, shelfDir, "*"))
	if err != nil {
		return err
	}
	for _, dir := range shelves {
		lock, err := lockFile(dir, unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			continue
		}
		if err == nil {
			err = errors.Join(p.clearShelf(ctx, dir), lock.Close())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// clearShelf removes a shelf whose lock the caller has.
func (p *Provider) clearShelf(ctx context.Context, dir string) error {
	plots, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading a shelf: %w", err)
	}
	for _, e := range plots {
		if err := p.remove(ctx, box{id: outboard.SandboxID(e.Name()), dir: filepath.Join(dir, e.Name())}); err != nil {
			return fmt.Errorf("removing a plot: %w", err)
		}
	}
	return os.Remove(dir)
}

// take returns a plot of a shape, or nil.
func (s *shelf) take(want shape) *plot {
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
		pl := k.warm[0] // the oldest: it has had the longest to settle
		k.warm = k.warm[1:]
		if pl.birth.waits() {
			return pl
		}
		s.wg.Go(func() { s.discard(pl) }) // it ended, by whatever cause
	}
	if n := len(k.ready); n > 0 {
		pl := k.ready[n-1]
		k.ready = k.ready[:n-1]
		return pl
	}
	return nil
}

// put adds a plot: a new one, or one that was taken in vain. In whose place a new one was made meanwhile is too many, and goes.
func (s *shelf) put(pl *plot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.kinds {
		if s.closed || !k.shape.equal(pl.shape) {
			continue
		}
		switch {
		case pl.birth != nil && len(k.warm) < s.guests(k):
			k.warm = append(k.warm, pl)
			return
		case pl.birth == nil && len(k.ready) < s.size:
			k.ready = append(k.ready, pl)
			return
		}
	}
	s.wg.Go(func() { s.discard(pl) })
}

// want says that a plot of this kind was asked for, and has the shelf filled up.
func (s *shelf) want(shape shape) {
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
func (s *shelf) trimLocked() {
	lately := 0
	s.kinds = slices.DeleteFunc(s.kinds, func(k *kind) bool {
		if k.keep == 0 {
			lately++
		}
		var old []*plot
		gone := k.keep == 0 && lately > maxKinds
		if gone {
			old = slices.Concat(k.ready, k.warm)
		} else if n := s.guests(k); len(k.warm) > n {
			old, k.warm = slices.Clone(k.warm[n:]), k.warm[:n]
		}
		for _, pl := range old {
			s.wg.Go(func() { s.discard(pl) })
		}
		return gone
	})
}

func (s *shelf) refillLocked() {
	if !s.making {
		s.making = true
		s.wg.Go(s.refill)
	}
}

// Keep implements sandbox.Stocker.
func (p *Provider) Keep(stock []sandbox.Stock) error {
	s := p.shelf
	if s == nil || s.hot == 0 {
		return nil
	}
	var shapes []shape
	for _, st := range stock {
		root, err := p.rootfs(st.Spec.Rootfs, st.Spec.Layers, st.Spec.User)
		if err != nil {
			return err
		}
		shapes = append(shapes, shape{root: root, limits: withDefaults(st.Spec.Limits), connected: st.Spec.Network != nil})
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
		s.kinds[at].keep = max(s.kinds[at].keep, min(stock[i].Count, maxWarm))
	}
	s.trimLocked()
	s.refillLocked()
	return nil
}

// refill makes plots until every kind has enough of them, those with a guest first. A kind of which one cannot be made is put off, longer
// each time: whoever asks for plots next, a Create or Keep, has it tried again once that is over.
func (s *shelf) refill() {
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
		var pl *plot
		if n := len(k.ready); warm && n > 0 {
			pl = k.ready[n-1]
			k.ready = k.ready[:n-1]
		}
		s.mu.Unlock()
		var err error
		if pl == nil {
			pl, err = s.make(k)
		}
		if err == nil && warm {
			if err = s.p.warm(s.ctx, pl); err != nil {
				s.discard(pl)
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
			s.p.log.Warn("plot not made", "err", err, "again", pause)
			continue
		}
		s.put(pl)
	}
}

func (s *shelf) make(k *kind) (*plot, error) {
	name := plotPrefix + rand.Text()
	b := box{id: outboard.SandboxID(name), dir: filepath.Join(s.dir, name)}
	if err := os.Mkdir(b.dir, 0o700); err != nil {
		return nil, err
	}
	pl, err := s.p.plant(b, k.shape)
	if err != nil {
		s.p.undo(context.Background(), b)
		return nil, err
	}
	return pl, nil
}

func (s *shelf) discard(pl *plot) {
	pl.close()
	s.p.undo(context.Background(), pl.box)
}

// filled waits until nothing is being made.
func (s *shelf) filled() {
	if s != nil {
		s.wg.Wait()
	}
}

// close removes all plots. It may be called twice.
func (s *shelf) close() error {
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
		for _, pl := range slices.Concat(k.ready, k.warm) {
			s.wg.Go(func() { s.discard(pl) })
		}
	}
	s.kinds = nil
	s.mu.Unlock()
	s.wg.Wait()
	return errors.Join(os.Remove(s.dir), s.lock.Close())
}
