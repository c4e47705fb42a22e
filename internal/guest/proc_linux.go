package guest

import (
	"bytes"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/outboard-dev/outboard/internal/guest/spawn"
)

// children starts processes and knows which ones are waited for, so that reaping orphans never takes another's
// exit status.
type children struct {
	spawning sync.RWMutex // read-held from fork to registration; the reaper excludes it
	mu       sync.Mutex
	own      map[int]bool
	started  chan struct{} // capacity 1: there is a child again, perhaps
	reaped   chan struct{} // capacity 1: one of own was waited for
	plain    atomic.Bool   // this kernel gives no descriptors of processes, or lacks what package spawn needs
	// the kernel is gVisor's: processes, threads and calls are dear, and too little memory ends the sandbox as a
	// whole
	gvisor bool
}

// process is one child. status is valid once done is closed.
type process struct {
	pid    int
	fd     int // descriptor of the process until it is waited for, -1 where the kernel has none
	done   chan struct{}
	status syscall.WaitStatus
	child  *spawn.Child // of begin

	mu   sync.Mutex
	gone bool // it was waited for: its pid is anybody's; guarded by mu
}

func newChildren() *children {
	return &children{own: make(map[int]bool), started: make(chan struct{}, 1), reaped: make(chan struct{}, 1)}
}

// start runs the program at path. The goroutine that waits for it belongs to wg.
//
// It does not use package os, which at its first process starts another one to learn what this kernel's
// descriptors of processes can do, while the first call of a sandbox waits, and which uses such a descriptor for
// more than its end.
func (c *children) start(path string, argv []string, attr *os.ProcAttr, wg *sync.WaitGroup) (*process, error) {
	sys := syscall.SysProcAttr{}
	if attr.Sys != nil {
		sys = *attr.Sys
	}
	a := &syscall.ProcAttr{Dir: attr.Dir, Env: lastOfEach(attr.Env), Sys: &sys}
	for _, f := range attr.Files {
		a.Files = append(a.Files, f.Fd())
	}
	c.spawning.RLock()
	pid, fd, err := c.fork(path, argv, a)
	runtime.KeepAlive(attr)
	if err != nil {
		c.spawning.RUnlock()
		return nil, &os.PathError{Op: "fork/exec", Path: path, Err: err}
	}
	p := &process{pid: pid, fd: fd, done: make(chan struct{})}
	c.register(p)
	if !c.gvisor {
		volunteer(pid)
	}
	c.await(p, wg)
	return p, nil
}

// register makes a process one that is waited for. It ends the read lock on c.spawning under which that was started.
func (c *children) register(p *process) {
	c.mu.Lock()
	c.own[p.pid] = true
	c.mu.Unlock()
	c.spawning.RUnlock()
	raise(c.started)
}

// await has a process waited for by a goroutine that belongs to wg.
func (c *children) await(p *process, wg *sync.WaitGroup) {
	wg.Go(func() {
		untilEnded(p.pid, p.fd)
		c.ended(p)
	})
}

// ended takes the status of a process that has ended, and tells.
func (c *children) ended(p *process) {
	p.reap()
	c.mu.Lock()
	delete(c.own, p.pid)
	c.mu.Unlock()
	raise(c.reaped)
	close(p.done)
}

// usualSlack is by how many nanoseconds the timers of a program may be late, if it asks for nothing else: the
// kernel's default.
const usualSlack = 50_000

// Punctual gives the calling thread the usual slack of timers, which what it starts inherits. The host has the
// guest executed with a larger one, for the runtime's monitor; a thread that the monitor starts has it too.
func Punctual() {
	const prSetTimerSlack = 29
	// where the kernel knows none, there is none to have
	syscall.RawSyscall(syscall.SYS_PRCTL, prSetTimerSlack, usualSlack, 0)
}

// fork starts a process and returns a descriptor of it, -1 where the kernel has none. Kernels that are not Linux
// may refuse to give one instead of ignoring that they are asked.
func (c *children) fork(path string, argv []string, a *syscall.ProcAttr) (pid, fd int, err error) {
	fd = -1
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	Punctual()
	if !c.plain.Load() {
		a.Sys.PidFD = &fd
		if pid, _, err = syscall.StartProcess(path, argv, a); err != syscall.EINVAL {
			return pid, fd, err
		}
		a.Sys.PidFD, fd = nil, -1
	}
	pid, _, err = syscall.StartProcess(path, argv, a)
	if err == nil {
		c.plain.Store(true)
	}
	return pid, fd, err
}

// volunteer has the kernel end the process pid, and what it starts, before the guest, when they take more memory
// than there is: a guest is larger than many a tool is, and the sandbox ends with it. A process that hides from
// the guest has the guest's own score.
func volunteer(pid int) {
	fd, err := syscall.Open("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", syscall.O_WRONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	syscall.Write(fd, []byte("1000")) // the most there is
	syscall.Close(fd)
}

// reap takes the status of a child that has ended.
func (p *process) reap() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone = true
	for {
		switch _, err := syscall.Wait4(p.pid, &p.status, 0, nil); err {
		case nil:
			return
		case syscall.EINTR:
		default: // nobody else waits for it; but what is not known is no success
			p.status = 255 << 8
			return
		}
	}
}

// kill ends the process, if it has not ended.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.gone {
		syscall.Kill(p.pid, syscall.SIGKILL) // of an identity that the guest may signal
	}
}

// raise leaves word in a channel of capacity 1.
func raise(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// untilEnded returns when a child has ended, and leaves it to be waited for. It closes fd. To wait without a
// descriptor keeps a thread for as long as the child lives, which counts against the sandbox's limit of
// processes and is a part of its memory; the poller watches any number by one.
func untilEnded(pid, fd int) {
	if fd >= 0 && syscall.SetNonblock(fd, true) != nil { // what the poller takes must be
		syscall.Close(fd)
	} else if fd >= 0 {
		f := os.NewFile(uintptr(fd), "pidfd")
		defer f.Close()
		if raw, err := f.SyscallConn(); err == nil {
			asked := false
			_ = raw.Read(func(uintptr) bool { // an error leaves it to what follows
				if asked {
					return true // the poller says so
				}
				asked = true // it may have ended before the poller was told of it
				ended, err := hasEnded(pPid, pid, syscall.WNOHANG)
				return err != nil || ended != 0
			})
		}
	}
	_, _ = hasEnded(pPid, pid, 0)
}

// failure is why a process that has ended never ran its program, nil when it did.
func (p *process) failure() error {
	if p.child == nil {
		return nil
	}
	return p.child.Err()
}

// exitCode is the status a shell would report: 128+n for a signal.
func (p *process) exitCode() int {
	if p.status.Signaled() {
		return 128 + int(p.status.Signal())
	}
	return p.status.ExitStatus()
}

// reapRest is how long the reaper leaves a child alone that has ended. Its end is usually that of a call, whose
// answer must not wait until the runtime sees that its only processor is kept by one who waits again; and more
// may have ended by then. Where threads are dear, it is longer than from one call to the next.
const (
	reapRest     = time.Millisecond
	reapRestDear = 100 * time.Millisecond
)

// reap collects orphans until stop is closed and there is no child, or one ends. A thread waits for them and not
// signals: to be sent SIGCHLD, the runtime keeps three.
func (c *children) reap(stop <-chan struct{}) {
	rest := reapRest
	if c.gvisor {
		rest = reapRestDear
	}
	t := time.NewTimer(rest)
	defer t.Stop()
	for {
		_, err := hasEnded(pAll, 0, 0)
		// of one that is waited for by another, who is about to take it, and may hide an orphan behind it
		event := c.reaped
		if err != nil {
			event = c.started // there is no child, so there will be no orphan
		} else {
			t.Reset(rest)
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

// reapOne looks first and takes only what nobody else waits for. What it sees is not taken for another of the
// same number: nobody is started meanwhile.
func (c *children) reapOne() (own, more bool) {
	c.spawning.Lock()
	defer c.spawning.Unlock()
	pid, err := hasEnded(pAll, 0, syscall.WNOHANG)
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

// Kinds of ids for hasEnded.
const (
	pAll = 0
	pPid = 1
)

// hasEnded returns the pid of a child that has ended, any or one, and leaves it as it is; the error is that
// there is no such child. It waits for one to end, or with WNOHANG may return 0.
func hasEnded(kind, id int, options uintptr) (int, error) {
	const wNoWait = 0x01000000
	var info [128]byte // siginfo_t
	for {
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, uintptr(kind), uintptr(id),
			uintptr(unsafe.Pointer(&info[0])),
			syscall.WEXITED|wNoWait|options, 0, 0)
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
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&ts)),
		0); errno == 0 {
		m.tick = uint64(ts.Sec)*perSecond + uint64(ts.Nsec)/(uint64(time.Second)/perSecond)
	}
	var buf [128]byte // a line of five numbers
	m.last = lastPid(buf[:readRaw("/proc/loadavg", buf[:])], m.tick)
	return m
}

// lastPid returns the pid of the newest process. The line of /proc/loadavg ends with it; gVisor writes a 0 there
// (tasks_files.go of its pkg/sentry/fsimpl/proc, 2026-09), and then it is the highest of those that were started
// since tick, the only ones it is asked for.
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

// pids returns those of all processes, none without /proc. Package os would give the directory to the poller and
// take it back.
func pids() (all []int) {
	dir, err := syscall.Open("/proc", syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer syscall.Close(dir)
	var buf [8 << 10]byte
	for {
		n, err := syscall.ReadDirent(dir, buf[:])
		if err == syscall.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return all
		}
		_, _, names := syscall.ParseDirent(buf[:n], -1, nil)
		for _, name := range names {
			if pid, err := strconv.Atoi(name); err == nil {
				all = append(all, pid)
			}
		}
	}
}

// readRaw reads the beginning of a file of /proc, 0 bytes when it cannot. Every command asks for one:
// os.ReadFile would register the file with the poller and take three times as many calls.
func readRaw(path string, buf []byte) int {
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

// after reports whether a process was made after m. A tick is long: within it, pids tell, unless they just
// wrapped around.
func (s *procStat) after(m moment) bool {
	return s.started > m.tick || s.started == m.tick && s.pid > m.last
}

// procStat is what /proc says about a process.
type procStat struct {
	pid, parent, session int
	started              uint64
	zombie               bool
}

// diesOfInterrupt reports whether SIGINT would end a process: it neither handles nor ignores nor blocks it. told
// is false where /proc does not say so, as gVisor's.
func diesOfInterrupt(pid int) (dies, told bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return false, true // it is gone
	}
	const sigint = 1 << (syscall.SIGINT - 1)
	masks := 0
	for line := range bytes.Lines(b) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch string(name) {
		case "SigBlk", "SigIgn", "SigCgt":
			mask, err := strconv.ParseUint(string(bytes.TrimSpace(value)), 16, 64)
			if err != nil || mask&sigint != 0 {
				return false, true
			}
			masks++
		}
	}
	return masks == 3, masks > 0
}

// members returns the processes that belong to leader, itself excluded: those of its session and its
// descendants, made after since. Without /proc it finds none.
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
	var buf [2 << 10]byte // a name of at most 64 bytes and some fifty numbers
	b := buf[:readRaw("/proc/"+strconv.Itoa(pid)+"/stat", buf[:])]
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
