package native

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
)

// trashDir holds the directories of sandboxes that were destroyed, as <id>.<random>, until somebody has removed
// them: Destroy ends the processes and moves the directory there; to remove control groups, mounts and files is
// for the background. Any process may do it, under the directory's lock, and what a killed one left is there for
// the next.
const trashDir = "graves"

// Destroy ends a sandbox, whatever state it is in: then there is no process of it, and no sandbox of its name.
// What it leaves is removed soon.
func (p *Provider) Destroy(ctx context.Context, id outboard.SandboxID) error {
	b, err := p.placeOf(id)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, destroyTimeout)
	defer cancel()
	defer p.trash.ahead()()
	unlock, err := b.lock(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		// Destroyed, perhaps by another process, which could not collect our child.
		if err := p.reap(ctx, id); err != nil {
			return outboard.Errorf(outboard.Unavailable, "destroying sandbox %s: waiting for its init: %w", id, err)
		}
		return nil
	}
	if err != nil {
		return err
	}
	err = p.end(ctx, b.stateOr(p))
	if err == nil {
		err = os.Rename(b.dir, filepath.Join(p.dir, trashDir, string(id)+"."+rand.Text()))
	}
	unlock() // before it is to be removed, which leaves alone what somebody has locked
	if err != nil {
		return outboard.Errorf(outboard.Unavailable, "destroying sandbox %s: %w", id, err)
	}
	p.trash.begin(p)
	return nil
}

// trash removes what Destroy left, in the background while there is something.
type trash struct {
	mu      sync.Mutex
	running bool
	again   bool // somebody asked since the last look
	wg      sync.WaitGroup
	ending  int           // Destroys under way
	ended   chan struct{} // closed when there is none any more
}

// trashPatience is for how long what was destroyed lies there while more is being destroyed.
const trashPatience = 2 * time.Second

// ahead says that something is being destroyed, until what it returns is called.
func (u *trash) ahead() (done func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ending++; u.ending == 1 {
		u.ended = make(chan struct{})
	}
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		if u.ending--; u.ending == 0 {
			close(u.ended)
		}
	}
}

// rest lets Destroys go first, for whom somebody waits. It is also less to do then: when a control group ends,
// the kernel looks at every file system that there still is of sandboxes.
func (u *trash) rest() {
	u.mu.Lock()
	ending, ended := u.ending, u.ended
	u.mu.Unlock()
	if ending == 0 {
		return
	}
	patience := time.NewTimer(trashPatience)
	defer patience.Stop()
	select {
	case <-ended:
	case <-patience.C:
	}
}

// begin has everything removed that is in the trash now.
func (u *trash) begin(p *Provider) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.again = true
	if u.running {
		return
	}
	u.running = true
	u.wg.Go(func() {
		for u.next() {
			u.rest()
			if err := p.emptyTrash(); err != nil {
				p.log.Warn("destroyed sandboxes not removed; the next look at the directory tries again", "err", err)
			}
		}
	})
}

// next reports whether to look again.
func (u *trash) next() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.running, u.again = u.again, false
	return u.running
}

// TrashEmpty waits until what is left of destroyed sandboxes is removed, as far as it can be.
func (p *Provider) TrashEmpty() { p.trash.wg.Wait() }

// trashWidth is how many of the destroyed are removed at a time: while one waits for the disk or for a lock of
// the kernel, another goes on.
const trashWidth = 4

// emptyTrash removes everything in the trash that no other process is at.
func (p *Provider) emptyTrash() error {
	found, err := os.ReadDir(filepath.Join(p.dir, trashDir))
	if err != nil {
		return fmt.Errorf("listing destroyed sandboxes: %w", err)
	}
	var (
		next = make(chan string, len(found))
		mu   sync.Mutex
		errs []error
		wg   sync.WaitGroup
	)
	for _, e := range found {
		next <- e.Name()
	}
	close(next)
	for range min(trashWidth, len(found)) {
		wg.Go(func() {
			for name := range next {
				if err := p.removeTrashed(name); err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// removeTrashed removes one destroyed sandbox, unless another process is at it.
func (p *Provider) removeTrashed(name string) error {
	id, _, _ := strings.Cut(name, ".")
	b := place{id: outboard.SandboxID(id), dir: filepath.Join(p.dir, trashDir, name), was: filepath.Join(p.dir, id)}
	lock, err := lockFile(b.dir, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), destroyTimeout)
		err = p.remove(ctx, b)
		cancel()
		lock.Close()
	}
	if err != nil {
		return fmt.Errorf("sandbox %s: %w", id, err)
	}
	return nil
}

// stateOr returns the state of a place. It is written before anything else is made, in one step: without it
// there is nothing but the directory, and perhaps control groups.
func (b place) stateOr(p *Provider) *state {
	s, err := b.load()
	if err != nil {
		return &state{ID: b.id, Cgroups: p.cgroups.plan(b.id).dirs}
	}
	return s
}

// remove undoes a sandbox in the order that a crash at any point leaves the rest findable: the state file goes
// last but for the directory itself.
func (p *Provider) remove(ctx context.Context, b place) error {
	s := b.stateOr(p)
	// else Destroy has ended it, and a control group that has a process says so when it is removed
	if b.was == "" || len(s.Cgroups) == 0 {
		if err := p.end(ctx, s); err != nil {
			return err
		}
	}
	if err := p.reap(ctx, b.id); err != nil {
		return fmt.Errorf("waiting for init to end: %w", err)
	}
	if err := p.cgroups.groupOf(s).remove(ctx); err != nil {
		return err
	}
	if err := p.endWork(b); err != nil {
		return fmt.Errorf("removing the sandbox's layers: %w", err)
	}
	if err := b.unmountDisk(); err != nil {
		return err
	}
	b.removeMarks()
	if err := removeContents(b.dir, stateFile); err != nil {
		return fmt.Errorf("removing the sandbox's files: %w", err)
	}
	if p.uids != nil && s.UIDBase != 0 {
		if err := p.uids.release(s.UIDBase, cmp.Or(b.was, b.dir)); err != nil {
			return fmt.Errorf("releasing the uid range: %w", err)
		}
	}
	return removeTree(b.dir)
}

// end kills every process and waits until they are gone.
func (p *Provider) end(ctx context.Context, s *state) error {
	g := p.cgroups.groupOf(s)
	pr, err := findProcess(s)
	if err != nil {
		return err
	}
	if pr == nil {
		return g.kill() // a guest that was never recorded ends by itself, but may be slow
	}
	defer pr.close()
	if err := pr.kill(); err != nil {
		return fmt.Errorf("killing init: %w", err)
	}
	// A frozen process of version 1 takes even SIGKILL only when it thaws, and somebody may be freezing the
	// sandbox all the while.
	err = waitFor(ctx, func() (bool, error) {
		if err := g.thaw(); err != nil {
			return false, err
		}
		return pr.ended()
	})
	if err != nil {
		return fmt.Errorf("waiting for init to end: %w", err)
	}
	return nil
}

// removeContents removes what is in dir but for one name.
func removeContents(dir, keep string) error {
	names, err := readNamesAt(unix.AT_FDCWD, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range names {
		if name == keep {
			continue
		}
		if err := removeTree(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// workMarks is what the kernel leaves in the work directory of an overlay, innermost first: most of the
// directories that most sandboxes have.
var workMarks = []string{"work/incompat/volatile/dirty", "work/incompat/volatile", "work/incompat", "work", "index"}

// removeMarks removes those of a sandbox that has ended, by their names: to look for them takes several times as
// long. What it cannot remove is removed with the rest.
func (b place) removeMarks() {
	fd, err := openPath(unix.AT_FDCWD, b.dir, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	for _, work := range []string{"work/", "1/wk/", rootDir + "/wk/"} {
		if unix.Unlinkat(fd, work+workMarks[0], 0) == unix.ENOENT {
			continue
		}
		for _, dir := range workMarks[1:] {
			_ = unix.Unlinkat(fd, work+dir, unix.AT_REMOVEDIR)
		}
	}
}
