package guest

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// children starts processes and knows which ones are waited for, so that reaping orphans never takes another's exit status.
type children struct {
	spawning sync.RWMutex // read-held from fork to registration; the reaper excludes it
	mu       sync.Mutex
	own      map[int]bool
	started  chan struct{} // capacity 1: there is a child again, perhaps
	reaped   chan struct{} // capacity 1: one of own was waited for
}

// process is one child. status is valid once done is closed.
type process struct {
	pid    int
	done   chan struct{}
	status *os.ProcessState
	handle *os.Process
}

func newChildren() *children {
	return &children{own: make(map[int]bool), started: make(chan struct{}, 1), reaped: make(chan struct{}, 1)}
}

// start runs the program at path. The goroutine that waits for it belongs to wg.
func (c *children) start(path string, argv []string, attr *os.ProcAttr, wg *sync.WaitGroup) (*process, error) {
	c.spawning.RLock()
	h, err := os.StartProcess(path, argv, attr)
	if err != nil {
		c.spawning.RUnlock()
		return nil, err
	}
	c.mu.Lock()
	c.own[h.Pid] = true
	c.mu.Unlock()
	c.spawning.RUnlock()
	raise(c.started)
	p := &process{pid: h.Pid, handle: h, done: make(chan struct{})}
	wg.Go(func() {
		untilEnded(h)
		p.status, _ = h.Wait()
		c.mu.Lock()
		delete(c.own, p.pid)
		c.mu.Unlock()
		raise(c.reaped)
		close(p.done)
	})
	return p, nil
}

// raise leaves word in a channel of capacity 1.
func raise(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// untilEnded returns when a child has ended, or when only Wait can tell. Wait keeps a thread of its own for as long as the child lives, which
// counts against the sandbox's limit of processes and is a part of its memory; the poller watches any number by one.
func untilEnded(h *os.Process) {
	fd := -1
	err := h.WithHandle(func(handle uintptr) {
		n, _, errno := syscall.Syscall(syscall.SYS_FCNTL, handle, syscall.F_DUPFD_CLOEXEC, 0)
		if errno == 0 {
			fd = int(n)
		}
	})
	if err != nil || fd < 0 { // a kernel without them, or no descriptor to be had
		return
	}
	if syscall.SetNonblock(fd, true) != nil { // what the poller takes must be
		syscall.Close(fd)
		return
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	defer f.Close()
	defer syscall.SetNonblock(fd, false) // it is so for the handle as well, and Wait would not wait
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	asked := false
	_ = raw.Read(func(fd uintptr) bool { // an error leaves it to Wait as well
		if asked {
			return true // the poller says so; if that is not all, Wait waits for the rest
		}
		asked = true // it may have ended before the poller was told of it
		const pIDFD, wNoWait = 3, 0x01000000
		var info [128]byte
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, pIDFD, fd, uintptr(unsafe.Pointer(&info[0])),
			syscall.WEXITED|syscall.WNOHANG|wNoWait, 0, 0)
		pid := *(*int32)(unsafe.Pointer(&info[sigPidOffset]))
		return errno != 0 && errno != syscall.EAGAIN || pid != 0
	})
}

// exitCode is the status a shell would report: 128+n for a signal.
func (p *process) exitCode() int {
	if p.status == nil {
		return 255
	}
	if ws, ok := p.status.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return p.status.ExitCode()
}

// reapRest is how long the reaper leaves a child alone that has ended. Its end is usually that of a call, whose answer must not wait until
// the runtime sees that its only processor is kept by one who waits again; and more may have ended by then.
const reapRest = time.Millisecond

// reap collects orphans until stop is closed and there is no child, or one ends. A thread waits for them and not signals: to be sent
// SIGCHLD, the runtime keeps three.
func (c *children) reap(stop <-chan struct{}) {
	t := time.NewTimer(reapRest)
	defer t.Stop()
	for {
		_, err := anyEnded(0)
		event := c.reaped // of one that is waited for by another, who is about to take it, and may hide an orphan behind it
		if err != nil {
			event = c.started // there is no child, so there will be no orphan
		} else {
			t.Reset(reapRest)
			select {
			case <-t.C:
			case <-stop:
				return
			}
			if !c.reapOrphans() {
				continue
			}
		}
		select {
		case <-event:
		case <-stop:
			return
		}
	}
}

// reapOrphans takes the children that have ended, up to one that somebody waits for. It reports whether there is one.
func (c *children) reapOrphans() bool {
	for {
		own, more := c.reapOne()
		if own || !more {
			return own
		}
	}
}

// reapOne looks first and takes only what nobody else waits for. What it sees is not taken for another of the same number: nobody is
// started meanwhile.
func (c *children) reapOne() (own, more bool) {
	c.spawning.Lock()
	defer c.spawning.Unlock()
	pid, err := anyEnded(syscall.WNOHANG)
	if err != nil || pid == 0 {
		return false, false
	}
	c.mu.Lock()
	own = c.own[pid]
	c.mu.Unlock()
	if own {
		return true, true
	}
	got, err := syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
	return false, err == nil && got == pid
}

// anyEnded returns the pid of a child that has ended and leaves it as it is; the error is that there is no child. It waits for one to end,
// or with WNOHANG may return 0.
func anyEnded(options uintptr) (int, error) {
	const pAll, wNoWait = 0, 0x01000000
	var info [128]byte // siginfo_t
	for {
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, pAll, 0, uintptr(unsafe.Pointer(&info[0])), syscall.WEXITED|wNoWait|options, 0, 0)
		if errno == 0 {
			return int(*(*int32)(unsafe.Pointer(&info[sigPidOffset]))), nil
		}
		if errno != syscall.EINTR {
			return 0, errno
		}
	}
}

// sigPidOffset is where siginfo_t has si_pid: after three ints and, on 64-bit machines, padding.
const sigPidOffset = 12 + 4*(^uintptr(0)>>63)

// moment is a point in the order in which processes are made, as fine as /proc tells it.
type moment struct {
	tick uint64 // since boot, in the unit of /proc/pid/stat's start times
	last int    // pid of the newest process then
}

// moment0 is before everything.
var moment0 = moment{}

// thisMoment is now. Where a part of it is unknown, more processes count as later.
func thisMoment() moment {
	const clockBoottime, perSecond = 7, 100 // USER_HZ is 100 on every Linux port Go has
	var m moment
	var ts syscall.Timespec
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&ts)), 0); errno == 0 {
		m.tick = uint64(ts.Sec)*perSecond + uint64(ts.Nsec)/(uint64(time.Second)/perSecond)
	}
	var buf [128]byte // a line of five numbers
	m.last = lastPid(buf[:readSmall("/proc/loadavg", buf[:])], m.tick)
	return m
}

// lastPid returns the pid of the newest process. The line of /proc/loadavg ends with it; gVisor writes a 0 there (tasks_files.go of
// its pkg/sentry/fsimpl/proc, 2026-09), and then it is the highest of those that were started since tick, the only ones it is asked for.
func lastPid(loadavg []byte, tick uint64) int {
	if f := bytes.Fields(loadavg); len(f) == 5 {
		if last, err := strconv.Atoi(string(f[4])); err == nil && last > 0 {
			return last
		}
	}
	last := 0
	for _, pid := range pids() {
		if s, ok := readStat(pid); ok && s.started >= tick {
			last = max(last, pid)
		}
	}
	return last
}

// pids returns those of all processes, none without /proc.
func pids() (all []int) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			all = append(all, pid)
		}
	}
	return all
}

// readSmall reads the beginning of a file of /proc, 0 bytes when it cannot. Every command asks for one: os.ReadFile would register the
// file with the poller and take three times as many calls.
func readSmall(path string, buf []byte) int {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer syscall.Close(fd)
	n, err := syscall.Read(fd, buf)
	if err != nil {
		return 0
	}
	return n
}

// after reports whether a process was made after m. A tick is long: within it, pids tell, unless they just wrapped around.
func (s *procStat) after(m moment) bool {
	return s.started > m.tick || s.started == m.tick && s.pid > m.last
}

// procStat is what /proc says about a process.
type procStat struct {
	pid, parent, session int
	started              uint64
	zombie               bool
}

// members returns the processes that belong to leader, itself excluded: those of its session and its descendants, made after
// since. Without /proc it finds none.
func members(leader int, since moment) []int {
	all := pids()
	procs := make(map[int]procStat, len(all))
	for _, pid := range all {
		if s, ok := readStat(pid); ok {
			procs[pid] = s
		}
	}
	var found []int
	for pid, s := range procs {
		if pid != leader && !s.zombie && s.after(since) && (s.session == leader || descends(procs, pid, leader)) {
			found = append(found, pid)
		}
	}
	slices.Sort(found)
	return found
}

func descends(procs map[int]procStat, pid, leader int) bool {
	for range 1000 { // deeper trees are cut: their members are found by their session
		s, ok := procs[pid]
		if !ok || s.parent == pid {
			return false
		}
		if s.parent == leader {
			return true
		}
		pid = s.parent
	}
	return false
}

// readStat parses /proc/pid/stat. The second field, a name in parentheses, may hold anything.
func readStat(pid int) (procStat, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return procStat{}, false
	}
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 20 {
		return procStat{}, false
	}
	s := procStat{pid: pid, zombie: fields[0][0] == 'Z' || fields[0][0] == 'X'}
	s.parent, _ = strconv.Atoi(string(fields[1]))
	s.session, _ = strconv.Atoi(string(fields[3]))
	s.started, _ = strconv.ParseUint(string(fields[19]), 10, 64)
	return s, true
}
