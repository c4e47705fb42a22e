package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/outboard-dev/outboard/internal/guest/form"
)

// Limits of processes.
const (
	// maxProcesses bounds those that run: far above what a person or an agent starts by hand; pids are limited anyway.
	maxProcesses = 512
	// keptProcesses and keptFor bound those that ended and can still be asked about. A client that lost its
	// connection comes back within seconds.
	keptProcesses = 64
	keptFor       = time.Minute
	// keptBytes is how much of the newest output a process keeps for replay: some screens, without being felt in
	// memory.
	keptBytes = 256 << 10
	// stallPatience is how long output waits for an attachment that does not take it, before that one loses what
	// it has not seen.
	stallPatience = 30 * time.Second
	// outputGrace is how long the end of a process waits for output while its children still hold the pipe, and
	// killedGrace the same for one that was told to end: its children are not waited for. What it wrote itself
	// is read in any case.
	outputGrace = 500 * time.Millisecond
	killedGrace = 50 * time.Millisecond
	// maxTag, maxArgs bound what a start may carry besides its frame.
	maxTag  = 256
	maxArgs = 4096
)

// processes are the long-lived processes of a guest.
type processes struct {
	s *server

	mu   sync.Mutex
	list []*proc // oldest first
	over bool    // the guest stops
}

// proc is one of them.
type proc struct {
	info ProcessInfo
	p    *process
	log  outlog
	outs []*os.File // our ends of its output; they close themselves at their end

	input chan struct{} // capacity 1: who holds its element may write to in
	in    *os.File      // nil without standard input or once closed; of a terminal also in outs
	tty   *os.File

	killed atomic.Bool // it was told to end
	over   atomic.Bool // the guest stops: its output is nobody's any more
	timer  *time.Timer
	late   bool // the deadline killed it; guarded by log.mu
	ended  time.Time
}

// handle runs one operation.
func (ps *processes) handle(ctx context.Context, h requestHead, body []byte, st *stream) (form.Message, error) {
	none := form.None{}
	switch h.Op {
	case opProcStart:
		var a processStart
		if err := decode(h.Arg, &a); err != nil {
			return nil, err
		}
		return ps.start(ctx, a, st)
	case opProcAttach:
		var a processAttach
		if err := decode(h.Arg, &a); err != nil {
			return nil, err
		}
		p, err := ps.find(a.ProcessRef)
		if err != nil {
			return nil, err
		}
		return p.follow(ctx, p.log.join(a.From), st)
	case opProcList:
		return none, ps.send(ctx, st)
	}
	var a processControl
	if err := decode(h.Arg, &a); err != nil {
		return nil, err
	}
	p, err := ps.find(a.ProcessRef)
	if err != nil {
		return nil, err
	}
	switch h.Op {
	case opProcInput:
		return none, p.write(ctx, &receiver{ctx: ctx, s: st, rest: body})
	case opProcEOF:
		return none, p.closeInput(ctx)
	case opProcResize:
		return none, p.resize(a.Size)
	default:
		return none, p.signal(ctx, syscall.Signal(a.Signal))
	}
}

// start starts a process; with attach it answers when that has ended.
func (ps *processes) start(ctx context.Context, a processStart, st *stream) (form.Message, error) {
	path := ""
	if a.Program == ProgramSFTP && len(a.Argv) == 0 {
		path, a.Argv = ownProgram, []string{"outboard-guest", ProgramSFTP}
	} else if a.Program != "" {
		return nil, &Error{Code: Invalid, Message: fmt.Sprintf("the guest has no program %q, or it takes no arguments",
			a.Program)}
	}
	if len(a.Argv) == 0 || a.Argv[0] == "" || len(a.Argv) > maxArgs || len(a.Tag) > maxTag {
		return nil, &Error{Code: Invalid, Message: fmt.Sprintf("a process needs 1 to %d arguments and a tag of at "+
			"most %d bytes", maxArgs, maxTag)}
	}
	acc, err := ps.s.account(a.User)
	if err != nil {
		return nil, err
	}
	p := &proc{input: make(chan struct{}, 1)}
	p.info = ProcessInfo{Tag: a.Tag, Argv: a.Argv, Env: a.Env, Cwd: a.Cwd, User: acc.name, Terminal: a.Terminal != nil}
	p.log.init()
	var sub *attachment
	if a.Attach {
		sub = p.log.join(FromStart) // before the first byte can come, so that none is lost however much does
		sub.patient = a.Patient
	}
	if err := ps.launch(p, path, a.ProcessStart, acc); err != nil {
		return nil, err
	}
	if !a.Attach {
		return &ProcessRef{Pid: p.info.Pid}, nil
	}
	exit, err := p.follow(ctx, sub, st)
	if err != nil && a.HangUp {
		p.hangUp(context.WithoutCancel(ctx))
	}
	return exit, err
}

// ownProgram is the guest's own program in a process that is about to become something: it may have no name inside.
const ownProgram = "/proc/self/exe"

// launch makes the process and puts it into the list. With path "" the program is looked up.
func (ps *processes) launch(p *proc, path string, a ProcessStart, acc account) error {
	s := ps.s
	attr, err := s.attrOf(acc, a)
	if err != nil {
		return err
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.pruneLocked()
	if ps.over || len(ps.list) >= maxProcesses+keptProcesses {
		return &Error{Code: Busy, Message: fmt.Sprintf("%d processes run already", len(ps.list))}
	}
	kinds, theirs, err := p.files(s, a, acc, attr)
	defer closeAll(theirs)
	if err != nil {
		closeAll(append(slices.Clone(p.outs), p.in))
		if refusal, ok := errors.AsType[*Error](err); ok {
			return refusal
		}
		return internal(err)
	}
	if path == "" {
		path, err = lookPath(a.Argv[0], attr.Env)
	}
	if err == nil {
		p.p, err = s.children.start(path, a.Argv, attr, &s.wg)
	}
	if err != nil {
		closeAll(append(slices.Clone(p.outs), p.in))
		return &Error{Code: Invalid, Message: "starting the process: " + err.Error()}
	}
	p.info.Pid, p.info.StartedUs = p.p.pid, time.Now().UnixMicro()
	ps.list = append(ps.list, p)
	if a.TimeoutMs > 0 {
		p.timer = time.AfterFunc(time.Duration(min(a.TimeoutMs, int64(1<<40)))*time.Millisecond, p.expire)
	}
	var pumps, rest sync.WaitGroup
	rest.Add(len(p.outs))
	for i, r := range p.outs {
		pumps.Go(func() { p.pump(r, kinds[i], sync.OnceFunc(rest.Done)) })
	}
	s.wg.Go(func() { p.reap(ps, &pumps, &rest) })
	return nil
}

// files makes what the process reads and writes, and returns the kinds of p.outs and the files to close once it
// has them.
func (p *proc) files(s *server, a ProcessStart, acc account,
	attr *os.ProcAttr) (kinds []ProcessKind, theirs []*os.File, err error) {
	if a.Terminal != nil {
		var slave *os.File
		if p.tty, slave, err = openTerminal(s, acc, *a.Terminal); err != nil {
			return nil, nil, err
		}
		attr.Files = []*os.File{slave, slave, slave}
		attr.Sys.Setctty, attr.Sys.Ctty = true, 0
		p.in, p.outs = p.tty, []*os.File{p.tty}
		return []ProcessKind{Terminal}, []*os.File{slave}, nil
	}
	var stdin *os.File
	if a.Stdin {
		stdin, p.in, err = pipe2(1)
	} else {
		stdin, err = openNull(syscall.O_RDONLY)
	}
	if err != nil {
		return nil, nil, err
	}
	theirs = append(theirs, stdin)
	attr.Files = []*os.File{stdin}
	for range 2 {
		r, w, err := pipe2(0)
		if err != nil {
			return nil, theirs, err
		}
		p.outs, theirs, attr.Files = append(p.outs, r), append(theirs, w), append(attr.Files, w)
	}
	return []ProcessKind{Stdout, Stderr}, theirs, nil
}

// pump reads one output to its end. After the process's end what still comes is read and dropped, so that its
// children live. It calls taken when it has the last that counts; a deadline tells it when that is.
func (p *proc) pump(r *os.File, kind ProcessKind, taken func()) {
	defer taken()
	buf := make([]byte, maxPiece)
	for {
		n, err := r.Read(buf)
		p.log.add(kind, buf[:n])
		if errors.Is(err, os.ErrDeadlineExceeded) && !p.over.Load() {
			p.rest(r, kind, buf)
			taken()
			if r.SetReadDeadline(time.Time{}); !p.over.Load() {
				continue
			}
		}
		if err != nil {
			if p.tty == nil {
				r.Close()
			}
			return
		}
	}
}

// rest reads what is in an output at this moment.
func (p *proc) rest(r *os.File, kind ProcessKind, buf []byte) {
	raw, err := r.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { // an error is that it is closed
		for n := 0; n < maxPipe; {
			got, err := syscall.Read(int(fd), buf)
			if err == syscall.EINTR {
				continue
			}
			if got <= 0 {
				return
			}
			p.log.add(kind, buf[:got])
			n += got
		}
	})
}

// reap waits for the end of the process, of its output as far as that is due, and tells. Rest is of the pumps
// that have not got the last that counts.
func (p *proc) reap(ps *processes, pumps, rest *sync.WaitGroup) {
	<-p.p.done
	if p.timer != nil {
		p.timer.Stop()
	}
	drained := make(chan struct{})
	ps.s.wg.Go(func() {
		pumps.Wait()
		close(drained)
	})
	p.drain(drained)
	for _, r := range p.outs { // on a busy machine a pump may be behind: what the process wrote is in the pipe still
		_ = r.SetReadDeadline(time.Unix(1, 0)) // an error is that it was read to its end
	}
	rest.Wait()
	exit := ProcessExit{Code: -1}
	if p.p.status.Signaled() {
		exit.Signal = int(p.p.status.Signal())
	} else {
		exit.Code = p.p.status.ExitStatus()
	}
	ps.mu.Lock()
	p.ended = time.Now()
	p.log.mu.Lock()
	exit.Timeout = p.late
	p.info.Exit = &exit
	p.log.endLocked()
	p.log.mu.Unlock()
	ps.pruneLocked()
	ps.mu.Unlock()
	p.input <- struct{}{}
	if p.tty == nil && p.in != nil {
		p.in.Close()
	}
	p.in = nil
	<-p.input
	if p.tty != nil {
		<-drained // a background job may keep the terminal; it ends with the guest
		p.tty.Close()
	}
}

// drain waits for the output of a process that has ended, as long as somebody who takes it slowly needs, but
// only a moment for children that keep it open.
func (p *proc) drain(drained <-chan struct{}) {
	grace := outputGrace
	if p.killed.Load() {
		grace = killedGrace
	}
	tick := time.NewTicker(grace)
	defer tick.Stop()
	for {
		select {
		case <-drained:
			return
		case <-tick.C:
			if !p.log.blocked() {
				return
			}
		}
	}
}

// follow sends what an attachment sees until the process has ended.
func (p *proc) follow(ctx context.Context, a *attachment, st *stream) (form.Message, error) {
	defer p.log.leave(a)
	buf := appendRecord(nil, Started, a.at, strconv.AppendInt(nil, int64(p.info.Pid), 10))
	for {
		if err := st.send(ctx, buf); err != nil {
			return nil, err
		}
		var done bool
		var err error
		if buf, done, err = p.log.next(ctx, a, buf[:0]); err != nil {
			return nil, err
		}
		if len(buf) == 0 && done {
			return p.info.Exit, st.end(ctx)
		}
	}
}

// write copies r to the process's input.
func (p *proc) write(ctx context.Context, r io.Reader) error {
	buf := make([]byte, chunkSize)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if err := p.writeOnce(ctx, buf[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (p *proc) writeOnce(ctx context.Context, b []byte) error {
	select {
	case p.input <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-p.input }()
	if p.in == nil {
		return &Error{Code: Conflict, Message: fmt.Sprintf("process %d takes no input", p.info.Pid)}
	}
	stop := context.AfterFunc(ctx, func() { p.in.SetWriteDeadline(time.Unix(1, 0)) })
	_, err := p.in.Write(b)
	if !stop() {
		p.in.SetWriteDeadline(time.Time{})
	}
	if errors.Is(err, syscall.EPIPE) {
		return &Error{Code: Conflict, Message: fmt.Sprintf("process %d has closed its input", p.info.Pid)}
	}
	return err
}

func (p *proc) closeInput(ctx context.Context) error {
	if p.info.Terminal {
		return &Error{Code: Invalid, Message: "the input of a terminal cannot be closed: send it an end-of-file " +
			"character"}
	}
	select {
	case p.input <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-p.input }()
	if p.in == nil {
		return nil
	}
	err := p.in.Close()
	p.in = nil
	return err
}

// hangUpTime bounds the wait for who writes to a process that is told that its client is gone.
const hangUpTime = 5 * time.Second

// hangUp tells a process that its client is gone, as the end of a line would. It may have ended by now.
func (p *proc) hangUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, hangUpTime)
	defer cancel()
	_ = p.signal(ctx, syscall.SIGHUP)
	if !p.info.Terminal {
		_ = p.closeInput(ctx) // for one that takes the signal as a reason to end once it has read all
	}
}

func (p *proc) resize(size Size) error {
	if p.tty == nil {
		return &Error{Code: Invalid, Message: fmt.Sprintf("process %d has no terminal", p.info.Pid)}
	}
	return setSize(p.tty, size)
}

// signal signals the process and its group. The end that a kill brings is awaited, so that the answer means that
// it is gone.
func (p *proc) signal(ctx context.Context, sig syscall.Signal) error {
	if sig < 1 || sig > 64 {
		return &Error{Code: Invalid, Message: fmt.Sprintf("there is no signal %d", int(sig))}
	}
	select {
	case <-p.p.done:
		return &Error{Code: NotFound, Message: fmt.Sprintf("process %d has ended", p.info.Pid)}
	default:
	}
	if sig == syscall.SIGKILL || sig == syscall.SIGTERM {
		p.killed.Store(true)
	}
	if err := syscall.Kill(-p.p.pid, sig); err != nil && err != syscall.ESRCH {
		return internal(err)
	}
	if sig != syscall.SIGKILL {
		return nil
	}
	select {
	case <-p.p.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// expire kills a process at its deadline, with what descends from it.
func (p *proc) expire() {
	p.log.mu.Lock()
	p.late = true
	p.log.mu.Unlock()
	p.killed.Store(true)
	select {
	case <-p.p.done:
	default:
		// Itself first: a shell that lives on for a moment would report its child's end as its own.
		signalAll(append([]int{p.p.pid}, members(p.p.pid, moment0)...), syscall.SIGKILL)
	}
}

// find returns the newest process of a name; what ended is found for a while.
func (ps *processes) find(ref ProcessRef) (*proc, error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, p := range slices.Backward(ps.list) {
		if ref.Pid != 0 && p.info.Pid == ref.Pid || ref.Pid == 0 && ref.Tag != "" && p.info.Tag == ref.Tag {
			return p, nil
		}
	}
	if ref.Pid == 0 {
		return nil, &Error{Code: NotFound, Message: fmt.Sprintf("no process with tag %q", ref.Tag)}
	}
	return nil, &Error{Code: NotFound, Message: fmt.Sprintf("no process with pid %d", ref.Pid)}
}

// send writes the list as JSON.
func (ps *processes) send(ctx context.Context, st *stream) error {
	list := []ProcessInfo{}
	ps.mu.Lock()
	ps.pruneLocked()
	for _, p := range ps.list {
		p.log.mu.Lock()
		list = append(list, p.info)
		p.log.mu.Unlock()
	}
	ps.mu.Unlock()
	w := &sender{ctx: ctx, s: st}
	if err := json.NewEncoder(w).Encode(list); err != nil {
		return err
	}
	if err := w.flush(); err != nil {
		return err
	}
	return st.end(ctx)
}

// pruneLocked forgets processes that ended too long ago, or too many.
func (ps *processes) pruneLocked() {
	ended := 0
	for _, p := range ps.list {
		if !p.ended.IsZero() {
			ended++
		}
	}
	ps.list = slices.DeleteFunc(ps.list, func(p *proc) bool {
		gone := !p.ended.IsZero() && (ended > keptProcesses || time.Since(p.ended) > keptFor)
		if gone {
			ended--
		}
		return gone
	})
}

// stop kills everything.
func (ps *processes) stop() {
	ps.mu.Lock()
	ps.over = true
	list := slices.Clone(ps.list)
	ps.mu.Unlock()
	for _, p := range list {
		select {
		case <-p.p.done:
		default:
			signalAll(append([]int{p.p.pid}, members(p.p.pid, moment0)...), syscall.SIGKILL)
		}
		p.over.Store(true)
		for _, f := range p.outs {
			f.SetReadDeadline(time.Unix(1, 0)) // a child elsewhere may hold the other end
		}
	}
}

// attrOf is how a process starts: its own session, its user's identity and environment.
func (s *server) attrOf(acc account, a ProcessStart) (*os.ProcAttr, error) {
	dir, err := s.userPath(acc, a.Cwd)
	if err != nil {
		return nil, err
	}
	err = s.as(acc, func() error {
		f, err := s.openTree(dir)
		if err == nil {
			f.Close()
		}
		return err
	})
	if err != nil && a.Cwd == "" {
		dir, err = "/", nil // an account whose home was never made
	}
	if err != nil {
		return nil, &Error{Code: Invalid, Message: fmt.Sprintf("cwd %q: %s", a.Cwd, plain(err))}
	}
	attr := &os.ProcAttr{Dir: s.cfg.real(dir), Sys: &syscall.SysProcAttr{Setsid: true}}
	attr.Env = append(attr.Env, "PATH="+basePath, "LANG=C.UTF-8", "SHELL=/bin/bash", "HOME="+s.cfg.real(acc.home),
		"USER="+acc.name,
		"LOGNAME="+acc.name)
	attr.Env = append(attr.Env, s.cfg.Env...)
	for _, k := range slices.Sorted(maps.Keys(a.Env)) {
		attr.Env = append(attr.Env, k+"="+a.Env[k])
	}
	if !s.sameID {
		attr.Sys.Credential = &syscall.Credential{Uid: uint32(acc.uid), Gid: uint32(acc.gid)}
	}
	return attr, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}
