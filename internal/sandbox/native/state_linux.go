package native

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
)

// state is what a sandbox's directory says about it. It is written before each thing it names exists, so that
// whoever finds the directory after a crash can remove all of it.
type state struct {
	ID         outboard.SandboxID `json:"id"`
	Generation string             `json:"generation"`
	Isolation  string             `json:"isolation"`
	BootID     string             `json:"boot_id"` // a pid means nothing after a reboot
	// of init; 0 = not started, and the guest has not been told to begin
	Pid int `json:"pid,omitempty"`
	// its start time in clock ticks: with the pid, unique per boot
	Start   uint64   `json:"start,omitempty"`
	UIDBase uint32   `json:"uid_base"` // first host uid of the range, 0 without one
	Tool    tool     `json:"tool,omitzero"`
	Cgroups []string `json:"cgroups,omitempty"` // directories
	Lower   []string `json:"lower,omitempty"`   // cached layers in use
	Root    []string `json:"root,omitempty"`    // what the saved directories lie on, where they are layers
	// the first overlay of the saved directories is the root's, too
	SharedRoot bool      `json:"whole,omitempty"`
	Build      bool      `json:"build,omitempty"` // all that is written is in one place, see Commit
	CreatedAt  time.Time `json:"created_at"`
}

const stateFile = "state.json"

// place is a sandbox's directories on the host.
type place struct {
	id  outboard.SandboxID
	dir string
	was string // what dir was while the sandbox lived, of one that was destroyed
}

func (p *Provider) placeOf(id outboard.SandboxID) (place, error) {
	if !outboard.ValidID(outboard.PrefixSandbox, string(id)) {
		return place{}, outboard.Errorf(outboard.Invalid, "%q is not a sandbox id", id)
	}
	return place{id: id, dir: filepath.Join(p.dir, string(id))}, nil
}

func (b place) path(name string) string { return filepath.Join(b.dir, name) }

// stateSize is what a state file is filled up to, so that it does not grow later.
const stateSize = 2 << 10

// save writes the state file, over the old one if there is one: with one write of less than a page, which no
// kill can tear, while the place is locked or nobody's. To replace the file would take a new inode and free an
// old one, which can be the dearest part of a start, and no crash of the machine needs to be thought of: what
// the file speaks of does not survive one.
func (b place) save(s *state) error {
	data, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encoding sandbox state: %w", err)
	}
	var was unix.Stat_t
	_ = unix.Stat(b.path(stateFile), &was)                  // none is one of no size
	fill := max(0, max(stateSize, int(was.Size))-len(data)) // with what means nothing after an object
	if err := writeRaw(b.path(stateFile), unix.O_CREAT, append(data, bytes.Repeat([]byte{'\n'}, fill)...)); err != nil {
		return fmt.Errorf("writing sandbox state: %w", err)
	}
	return nil
}

// load reads the state. A directory without a readable one was left by a crash before anything was started.
func (b place) load() (*state, error) {
	data, err := readRaw(b.path(stateFile))
	if err != nil {
		return nil, fmt.Errorf("reading sandbox state: %w", err)
	}
	s := new(state)
	if err := json.Unmarshal(data, s); err != nil {
		return nil, fmt.Errorf("reading sandbox state: %w", err)
	}
	return s, nil
}

// lock keeps other processes and goroutines from creating or destroying the same sandbox. It fails with
// fs.ErrNotExist when the directory is not there, or went away while waiting.
func (b place) lock(ctx context.Context) (unlock func(), err error) {
	for {
		f, err := openUnpolled(b.dir)
		if err != nil {
			return nil, fmt.Errorf("locking sandbox: %w", err)
		}
		err = waitFor(ctx, func() (bool, error) {
			err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
			if errors.Is(err, unix.EWOULDBLOCK) {
				return false, nil
			}
			return err == nil, err
		})
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("locking sandbox: %w", err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err == nil && st.Nlink > 0 && sameDir(b.dir, &st) {
			return func() { f.Close() }, nil
		}
		f.Close() // removed, or removed and made again, by whoever had the lock: look again
	}
}

func sameDir(path string, st *unix.Stat_t) bool {
	var now unix.Stat_t
	return unix.Lstat(path, &now) == nil && now.Ino == st.Ino && now.Dev == st.Dev
}

// waitFor asks done until it says yes, fails, or ctx ends. It is for what the kernel has no event for.
func waitFor(ctx context.Context, done func() (bool, error)) error {
	for wait := pollEvery / 8; ; wait = min(2*wait, 8*pollEvery) {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return context.Cause(ctx)
		}
	}
}

// process is the init of a sandbox, held by a descriptor that can never come to mean another process.
type process struct{ fd int }

// findProcess returns the live init that s names, or nil when it is gone.
func findProcess(s *state) (*process, error) {
	if s.Pid == 0 || s.BootID != bootID() {
		return nil, nil
	}
	fd, err := unix.PidfdOpen(s.Pid, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("opening process %d: %w", s.Pid, err)
	}
	// The descriptor came first: if the start time read now is right, the descriptor is of that process.
	st, err := readStat(s.Pid)
	if err != nil || st.start != s.Start || st.state == 'Z' || st.state == 'X' {
		unix.Close(fd)
		return nil, nil
	}
	return &process{fd: fd}, nil
}

func (pr *process) close() { unix.Close(pr.fd) }

func (pr *process) kill() error {
	err := unix.PidfdSendSignal(pr.fd, unix.SIGKILL, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// wait returns when the process has ended.
func (pr *process) wait(ctx context.Context) error { return waitFor(ctx, pr.ended) }

// ended reports whether the process has ended, which for the init of a pid namespace means that every process in
// it has.
func (pr *process) ended() (bool, error) {
	fds := []unix.PollFd{{Fd: int32(pr.fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 1)
	if errors.Is(err, unix.EINTR) {
		return false, nil
	}
	return n > 0, err
}

type stat struct {
	state byte
	start uint64
}

// readStat reads what it needs of /proc/<pid>/stat. The command name in it is in parentheses and may contain anything.
func readStat(pid int) (stat, error) {
	data, err := readRaw("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return stat{}, err
	}
	text := string(data)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	const stateField, startField = 0, 19 // fields 3 and 22 of the whole line
	if len(fields) <= startField || fields[stateField] == "" {
		return stat{}, fmt.Errorf("reading the state of process %d: short line", pid)
	}
	start, err := strconv.ParseUint(fields[startField], 10, 64)
	if err != nil {
		return stat{}, fmt.Errorf("reading the state of process %d: %w", pid, err)
	}
	return stat{state: fields[stateField][0], start: start}, nil
}

// bootID names this boot of the machine.
var bootID = sync.OnceValue(func() string {
	b, err := readRaw("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
})

// ids returns the sandboxes that have a directory.
func (p *Provider) ids() ([]outboard.SandboxID, error) {
	entries, err := os.ReadDir(p.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing sandboxes: %w", err)
	}
	var ids []outboard.SandboxID
	for _, e := range entries {
		if e.IsDir() && outboard.ValidID(outboard.PrefixSandbox, e.Name()) {
			ids = append(ids, outboard.SandboxID(e.Name()))
		}
	}
	return ids, nil
}
