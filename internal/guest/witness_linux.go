package guest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// witness tells which files may have been written without a sign in their times, for a kernel that gives none to
// what is written through a shared mapping: gVisor's (regular_file.go of its pkg/sentry/fsimpl/gofer changes
// them in calls alone). Those are the files that somebody who could write to them holds as a look begins, or has
// let go of since the last one. That kernel gives none to a change of attributes either: of that it tells those
// who watch. What nobody watches counts as held.
type witness struct {
	fd int // an inotify instance, not the poller's: that would wake for every file that is closed
	// how many directories are watched: that kernel keeps two files of the host open for each, of which it has a
	// limited number
	max  int
	proc string // /proc

	mu      sync.Mutex
	dirs    map[int32]string // watch -> the directory's path as the tar has it, of the last look
	paths   map[string]bool  // those
	room    int              // how many more may be watched, during a look
	touched map[touch]bool   // since the last look
	lost    bool             // some touches or holders are not known
}

// touch is a closing of a file, or a change of attributes, named by its directory's watch and its name there.
type touch struct {
	watch int32
	name  string
}

// inode names a file whatever its path.
type inode struct{ dev, ino uint64 }

func (m *mark) inode() inode { return inode{m.dev, m.ino} }

// maxTouched bounds what is remembered between two looks; beyond, the next state is saved whole.
const maxTouched = 1 << 16

// maxRounds is how often holders looks for processes that were made meanwhile: a shell's loop makes them without end.
const maxRounds = 8

// takeEvery is how long the kernel keeps what it has to tell.
const takeEvery = 10 * time.Second

// newWitness watches nothing yet, and later up to so many directories.
func newWitness(directories int) (*witness, error) {
	fd, err := syscall.InotifyInit1(syscall.IN_CLOEXEC | syscall.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	return &witness{fd: fd, max: directories, proc: "/proc", touched: make(map[touch]bool)}, nil
}

// run takes what the kernel has to tell now and then, so that it need not keep it, until stop is closed.
func (w *witness) run(stop <-chan struct{}) {
	every := time.NewTicker(takeEvery)
	defer every.Stop()
	for {
		select {
		case <-every.C:
			w.mu.Lock()
			w.take()
			w.mu.Unlock()
		case <-stop:
			return
		}
	}
}

// close is called when no look is made any more; of no witness it does nothing.
func (w *witness) close() {
	if w != nil {
		syscall.Close(w.fd)
	}
}

// take reads what the kernel has to tell. The caller holds mu.
func (w *witness) take() {
	buf := make([]byte, 16<<10)
	for {
		n, err := syscall.Read(w.fd, buf)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			w.lost = w.lost || err != syscall.EAGAIN
			return
		}
		for b := buf[:n]; len(b) > 0; {
			var e inotifyEvent
			if e, b = parseInotify(b); e.wd == 0 {
				break
			}
			w.note(e)
		}
	}
}

func (w *witness) note(e inotifyEvent) {
	switch {
	case e.mask&syscall.IN_Q_OVERFLOW != 0 || len(w.touched) >= maxTouched:
		w.lost = true
		clear(w.touched)
	case e.mask&(syscall.IN_CLOSE_WRITE|syscall.IN_ATTRIB) != 0:
		w.touched[touch{e.wd, e.name}] = true
	}
}

// begin is called as a look begins. What holds files and cannot be known makes the next state a whole one, as
// touches do that are lost.
func (w *witness) begin(sc *scan) {
	sc.watches, sc.watched = make(map[int32]string), make(map[string]bool)
	held, known := holders(w.proc)
	sc.held = held
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lost = w.lost || !known
	w.room = w.max - len(w.dirs)
}

// watch is called for each directory, before its names are read: name in the open directory dir. Those that were
// watched remain so: a file is sent again when its directory is watched no more.
func (w *witness) watch(sc *scan, dir int, name, path string) {
	if !w.paths[path] {
		if w.room <= 0 {
			return
		}
		w.room--
	}
	at := "/proc/self/fd/" + strconv.Itoa(dir) + "/" + name
	wd, err := syscall.InotifyAddWatch(w.fd, at,
		syscall.IN_CLOSE_WRITE|syscall.IN_ATTRIB|syscall.IN_ONLYDIR|syscall.IN_DONT_FOLLOW)
	if err == nil { // else the kernel has no more for us, or it is gone
		sc.watches[int32(wd)], sc.watched[path] = path, true
	}
}

// see is called for each name: what lies where nothing is watched could have been written at any time. A
// directory tells of itself as well.
func (w *witness) see(sc *scan, it *item) {
	if it.mark.hasAttrs() && !sc.watched[path.Dir(it.path)] && !sc.watched[it.path] {
		sc.held[it.mark.inode()] = true
	}
}

// end is called when a look is over: older ones learn what was touched until now. It reports whether all of that
// is known.
func (w *witness) end(now *scan, older []*scan) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.take()
	for wd := range w.dirs {
		if _, ok := now.watches[wd]; !ok {
			syscall.InotifyRmWatch(w.fd, uint32(wd)) // of a directory that is gone there is none any more
		}
	}
	for c := range w.touched {
		dir, ok := now.watches[c.watch]
		if it := now.byPath[path.Join(dir, c.name)]; ok && it != nil {
			for _, sc := range older {
				sc.touched[it.mark.inode()] = true
			}
		}
	}
	elsewhere(now)
	known := !w.lost
	w.dirs, w.paths, w.lost = now.watches, now.watched, false
	clear(w.touched)
	return known
}

// elsewhere counts files as held of which another name is not in a watched directory.
func elsewhere(sc *scan) {
	seen := make(map[inode]uint64)
	for _, it := range sc.order {
		if it.mark.nlink > 1 && sc.watched[path.Dir(it.path)] {
			seen[it.mark.inode()]++
		}
	}
	for _, it := range sc.order {
		if it.mark.nlink > 1 && seen[it.mark.inode()] < it.mark.nlink {
			sc.held[it.mark.inode()] = true
		}
	}
}

// holders finds the files that other processes hold so that they can write to them through a mapping: those they
// opened to be read and written, and those they have mapped shared, whatever they may do there now. It reports
// whether every process could be asked. Processes that were made meanwhile are asked too: one may have what
// another, which is gone, held.
func holders(proc string) (held map[inode]bool, known bool) {
	held, known = make(map[inode]bool), true
	asked := map[string]bool{strconv.Itoa(os.Getpid()): true}
	for range maxRounds {
		entries, err := os.ReadDir(proc)
		if err != nil {
			return held, false
		}
		fresh := false
		for _, e := range entries {
			if _, err := strconv.Atoi(e.Name()); err != nil || asked[e.Name()] {
				continue
			}
			fresh, asked[e.Name()] = true, true
			of := proc + "/" + e.Name()
			if err := errors.Join(opened(of, held), mapped(of, held)); err != nil {
				known = false
			}
		}
		if !fresh {
			break
		}
	}
	return held, known
}

func opened(proc string, held map[inode]bool) error {
	entries, err := os.ReadDir(proc + "/fd")
	if err != nil {
		return unlessOver(err)
	}
	for _, e := range entries {
		var st syscall.Stat_t
		if err := unlessOver(syscall.Stat(proc+"/fd/"+e.Name(), &st)); err != nil {
			return fmt.Errorf("file %s: %w", e.Name(), err)
		}
		if st.Mode&syscall.S_IFMT != syscall.S_IFREG {
			continue // closed meanwhile, or nothing that can be mapped
		}
		info, err := os.ReadFile(proc + "/fdinfo/" + e.Name())
		if unlessOver(err) != nil {
			return err
		}
		_, rest, _ := bytes.Cut(info, []byte("flags:"))
		line, _, _ := bytes.Cut(rest, []byte("\n"))
		flags, err := strconv.ParseUint(string(bytes.TrimSpace(line)), 8, 64)
		if err == nil && flags&syscall.O_ACCMODE == syscall.O_RDWR {
			held[inode{uint64(st.Dev), st.Ino}] = true
		}
	}
	return nil
}

// mapped reads lines as "7f00-7f01 rw-s 00000000 00:12 4 /workspace/f".
func mapped(proc string, held map[inode]bool) error {
	maps, err := os.ReadFile(proc + "/maps")
	if err != nil {
		return unlessOver(err)
	}
	for line := range bytes.Lines(maps) {
		f := bytes.Fields(line)
		if len(f) < 5 || len(f[1]) != 4 || f[1][3] != 's' {
			continue
		}
		var major, minor, ino uint64
		if _, err := fmt.Sscanf(string(f[3])+" "+string(f[4]), "%x:%x %d", &major, &minor, &ino); err != nil {
			return fmt.Errorf("%s/maps: %q: %w", proc, line, err)
		}
		held[inode{minor&0xff | major<<8 | minor&^0xff<<12, ino}] = true // as the kernel's new_encode_dev
	}
	return nil
}

// unlessOver is err but for a process that is no more.
func unlessOver(err error) error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}
