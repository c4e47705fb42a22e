package guest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

// pipes are the named pipes through which shells' commands write. A pipe belongs to one call; it is used again
// only when the call's end proved that nobody has it open any more. A pipe, unlike a file, bears programs that
// open /dev/stderr anew.
type pipes struct {
	dir     string
	scratch *tmpfsScratch // instead of dir while the disk is full

	mu       sync.Mutex
	n        int
	free     []*pipe
	draining map[*os.File]bool // read ends of pipes that background jobs still write to
	wg       sync.WaitGroup
}

const (
	// keptPipes is how many idle pipes wait for the next call.
	keptPipes = 16
	// maxKeptAlive bounds calls whose background jobs still write. Above it, such a job gets SIGPIPE.
	maxDraining = 128
)

// pipe is one named pipe with both ends open here, so that opening it never blocks and reading it never ends early.
type pipe struct {
	path string
	r, w *os.File
}

// take returns a pipe that nobody else has open.
func (ps *pipes) take() (*pipe, error) {
	for {
		ps.mu.Lock()
		var p *pipe
		if n := len(ps.free); n > 0 {
			p, ps.free = ps.free[n-1], ps.free[:n-1]
		}
		ps.mu.Unlock()
		if p == nil {
			return ps.make()
		}
		w, err := os.OpenFile(p.path, os.O_WRONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
		if err == nil && sameFile(p.r, w) {
			p.w = w
			return p, nil
		}
		if err == nil {
			w.Close()
		}
		p.r.Close() // somebody removed or replaced it
	}
}

func sameFile(a, b *os.File) bool {
	x, err1 := a.Stat()
	y, err2 := b.Stat()
	return err1 == nil && err2 == nil && os.SameFile(x, y)
}

func (ps *pipes) make() (*pipe, error) {
	ps.mu.Lock()
	ps.n++
	p, n := new(pipe), ps.n
	ps.mu.Unlock()
	fifo := func(dir string) error {
		p.path = filepath.Join(dir, fmt.Sprintf("o%d-%d", os.Getpid(), n))
		return syscall.Mkfifo(p.path, 0o600)
	}
	err := os.MkdirAll(ps.dir, 0o755)
	if err == nil {
		err = fifo(ps.dir)
	}
	if err = ps.scratch.instead(err, fifo); err != nil {
		return nil, fmt.Errorf("making an output pipe: %w", err)
	}
	err = os.Chmod(p.path, 0o666) // the tool's user writes; there are no others inside
	if err == nil {
		p.r, err = os.OpenFile(p.path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	}
	if err == nil {
		p.w, err = os.OpenFile(p.path, os.O_WRONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	}
	if err != nil {
		os.Remove(p.path)
		return nil, errors.Join(fmt.Errorf("making an output pipe: %w", err), p.r.Close())
	}
	return p, nil
}

// give ends a call's use of a pipe: alone says that all other writers are gone.
func (ps *pipes) give(p *pipe, alone bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if alone && len(ps.free) < keptPipes && ps.draining != nil {
		ps.free = append(ps.free, p)
		return
	}
	os.Remove(p.path)
	if alone {
		p.r.Close()
		return
	}
	ps.drainLocked(p.r)
}

// drain keeps reading a pipe whose call is over, for the processes that still write to it.
func (ps *pipes) drain(r *os.File) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.drainLocked(r)
}

func (ps *pipes) drainLocked(r *os.File) {
	if ps.draining == nil || len(ps.draining) >= maxDraining {
		r.Close()
		return
	}
	ps.draining[r] = true
	ps.wg.Go(func() {
		discard(r)
		ps.mu.Lock()
		delete(ps.draining, r)
		ps.mu.Unlock()
	})
}

// stop closes everything.
func (ps *pipes) stop() {
	ps.mu.Lock()
	for _, p := range ps.free {
		os.Remove(p.path)
		p.r.Close()
	}
	for r := range ps.draining {
		r.Close()
	}
	ps.free, ps.draining = nil, nil
	ps.mu.Unlock()
	ps.wg.Wait()
}
