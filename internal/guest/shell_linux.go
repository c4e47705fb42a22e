package guest

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// shells are the persistent shells by name.
type shells struct {
	s *server

	mu        sync.Mutex
	byName    map[string]*shell
	n         int      // for names of command files
	warmShell *shell   // has run nothing; nil when there is none
	late      []string // variables that the warm shell was started without, as KEY=value; set before anything is served
}

const (
	// maxShells bounds live shells: one per thread of a session.
	maxShells = 64
	// interruptPatience is how long a command may take to end after an interrupt before its shell is replaced.
	interruptPatience = time.Second
	// interruptLooks is how often it is looked meanwhile for those that the interrupt has not reached.
	interruptLooks = 20
	// killPatience is how long background processes of an ended call may take between SIGTERM and SIGKILL.
	killPatience = 500 * time.Millisecond
)

// shell is one persistent shell. Its calls run one at a time, in the order of their receipts.
//
// The shell reads two lines per call from its standard input: one that reads the call's variables from a file
// and evaluates its command, with input from /dev/null and output to the call's pipe, and one that reports the
// status with the call's nonce on a descriptor that the command does not have. It is an interactive bash without
// a terminal, because only that one survives an interrupt: it drops the rest of the first line and goes on with
// the second. The lines are short because a shell has to read them byte by byte.
type shell struct {
	line queue

	// Used by the call at the head of the line only.
	proc  *process
	ctl   *os.File
	lines chan string // status lines, closed with the descriptor
	file  *os.File    // the variables of the call
	lost  string      // why there is no shell although there was one; told by the next call
	first string      // what a warm shell still has to be told, until a command of it has ended
	plain bool        // not bash: cannot be interrupted
}

// bashInput is the input of op bash.
type bashInput struct {
	Command   string `json:"command"`
	Restart   bool   `json:"restart"`
	TimeoutMs int64  `json:"timeout_ms"`
}

// bash takes a place in the line of the named shell and returns what runs the call.
func (ss *shells) bash(name string) func(context.Context, <-chan struct{}, Start, *sink) outcome {
	ss.mu.Lock()
	sh := ss.byName[name]
	if sh == nil && len(ss.byName) < maxShells {
		sh = new(shell)
		ss.byName[name] = sh
	}
	ss.mu.Unlock()
	if sh == nil {
		return func(_ context.Context, _ <-chan struct{}, _ Start, k *sink) outcome {
			return refused(k, "bash: there are %d shells already", maxShells)
		}
	}
	place := sh.line.join()
	return func(ctx context.Context, durable <-chan struct{}, c Start, k *sink) outcome {
		defer sh.line.leave(place)
		if strings.HasPrefix(name, OncePrefix) {
			defer ss.forget(name, sh)
		}
		if err := sh.line.wait(ctx, place); err != nil {
			fmt.Fprintf(k, "[killed before it ran]\n")
			return outcome{Cause: causeKilled}
		}
		return ss.run(ctx, durable, sh, c, k)
	}
}

// forget ends a shell that was for one call.
func (ss *shells) forget(name string, sh *shell) {
	sh.end(false)
	ss.mu.Lock()
	defer ss.mu.Unlock()
	delete(ss.byName, name)
}

// run runs one call at the head of its shell's line.
func (ss *shells) run(ctx context.Context, durable <-chan struct{}, sh *shell, c Start, k *sink) outcome {
	in, err := readBash(c.Input)
	if err != nil {
		return refused(k, "bash: unreadable input: %v", err)
	}
	if in.Command == "" && !in.Restart {
		return refused(k, "bash: command is required")
	}
	if strings.ContainsRune(in.Command, 0) {
		return refused(k, "bash: command contains a NUL byte")
	}
	if in.Restart {
		<-durable
		sh.end(true)
		sh.lost = ""
		if in.Command == "" {
			fmt.Fprintf(k, "shell restarted\n")
			return outcome{Cause: causeExited, ExitCode: new(int)}
		}
	}
	ctx, cancel, limit := lifetime(ctx, c, in.TimeoutMs)
	defer cancel()
	if ctx.Err() != nil {
		return ended(ctx)
	}
	if err := ss.ensure(sh); err != nil {
		return refused(k, "bash: %v", err)
	}
	if sh.lost != "" {
		fmt.Fprintf(k, "[new shell: %s; its working directory and environment are gone]\n", sh.lost)
		sh.lost = ""
	}
	p, err := ss.s.pipes.take()
	if err != nil {
		return refused(k, "bash: %v", err)
	}
	out := newShellNoise(k, sh.proc.pid)
	pump := startPump(p.r, out, &ss.s.wg)
	o := ss.command(ctx, durable, sh, p, c.Key, in.Command)
	p.w.Close()
	ss.s.pipes.give(p, pump.finish())
	out.flush()
	if o.Cause == causeTimeout || o.Cause == causeKilled {
		state := "the shell goes on"
		if sh.proc == nil {
			state, sh.lost = "the shell was restarted; its working directory and environment are gone", ""
		}
		what := o.Cause
		if o.Cause == causeTimeout {
			what = "timed out after " + limit.String()
		}
		fmt.Fprintf(k, "\n[%s; %s]\n", what, state)
	}
	return o
}

// command gives one command to a living shell, once the call's receipt is durable, and waits for its end.
func (ss *shells) command(ctx context.Context, durable <-chan struct{}, sh *shell, p *pipe, key, text string) outcome {
	nonce := rand.Text()[:16]
	err := ss.tell(sh, sh.first+"export OUTBOARD_CALL_KEY="+quote(key)+"\n__outboard_out="+quote(p.path)+"\n__outboard="+quote(text)+"\n")
	since := thisMoment()
	<-durable
	if ctx.Err() != nil {
		return ended(ctx)
	}
	if err == nil {
		_, err = sh.ctl.WriteString(sh.script(nonce))
	}
	if err != nil {
		sh.end(true)
		sh.lost = "the previous one could not be reached"
		return outcome{Cause: causeError}
	}
	code, err := sh.status(ctx, nonce)
	switch {
	case err == nil:
		sh.first = ""
		return outcome{Cause: causeExited, ExitCode: &code}
	case errors.Is(err, errShellExited):
		code = sh.proc.exitCode()
		sh.end(false)
		sh.lost = "the previous one exited with status " + strconv.Itoa(code)
		return outcome{Cause: causeExited, ExitCode: &code}
	}
	sh.interrupt(nonce, since)
	return ended(ctx)
}

// script is the two lines for one call. Without its file the command of an earlier call must not run again,
// hence the &&.
func (sh *shell) script(nonce string) string {
	if sh.plain {
		return ". $__outboard_in&&command eval \"$__outboard\" </dev/null >$__outboard_out 2>&1 3>&-\necho " + nonce +
			" $?>&3\n"
	}
	return ". $__outboard_in&&__outboard_go&&builtin eval \"$__outboard\" </dev/null >$__outboard_out 2>&1 " +
		"3>&-\n__outboard_end " + nonce + "\n"
}

// tell puts the variables of the next call where the shell reads them.
func (sh *shell) tell(vars string) error {
	if _, err := sh.file.WriteAt([]byte(vars), 0); err != nil {
		return err
	}
	return sh.file.Truncate(int64(len(vars)))
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// open makes the file through which a shell gets its calls. Only the guest can write it.
func (ss *shells) open() (f *os.File, err error) {
	f, err = ss.openIn(ss.s.cfg.Run)
	if errors.Is(err, fs.ErrNotExist) { // removed by a tool that shares the guest's identity
		os.MkdirAll(ss.s.cfg.Run, 0o755)
		f, err = ss.openIn(ss.s.cfg.Run)
	}
	err = ss.s.scratch.instead(err, func(dir string) (err error) {
		f, err = ss.openIn(dir)
		return err
	})
	return f, err
}

func (ss *shells) openIn(dir string) (*os.File, error) {
	ss.mu.Lock()
	ss.n++
	name := filepath.Join(dir, fmt.Sprintf("c%d-%d", os.Getpid(), ss.n))
	ss.mu.Unlock()
	return os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o644)
}

// tell puts the variables of the next call where its shell reads them: on a full disk in another file, of which
// the shell is told.
func (ss *shells) tell(sh *shell, vars string) error {
	return ss.s.scratch.instead(sh.tell(vars), func(dir string) error {
		file, err := ss.openIn(dir)
		if err != nil {
			return err
		}
		old := sh.file
		sh.file = file
		old.Close()
		os.Remove(old.Name())
		if _, err := sh.ctl.WriteString("__outboard_in=" + quote(file.Name()) + "\n"); err != nil {
			return err
		}
		return sh.tell(vars)
	})
}

var errShellExited = errors.New("shell exited")

// status waits for the line with this nonce.
func (sh *shell) status(ctx context.Context, nonce string) (int, error) {
	lines, done := sh.lines, sh.proc.done
	for {
		select {
		case l, ok := <-lines:
			if !ok {
				lines = nil // the descriptor is gone, by whatever trick; the process will tell, or the clock
				continue
			}
			if got, rest, _ := strings.Cut(l, " "); got == nonce {
				return strconv.Atoi(rest)
			}
		case <-done:
			return 0, errShellExited
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// interrupt ends a command: first as a person would (^C), then by ending the shell with it. What the call left
// in the background ends as well; what earlier calls left does not.
func (sh *shell) interrupt(nonce string, since moment) {
	if !sh.plain && sh.dropped(nonce, since) {
		sweep(sh.proc.pid, since)
		return
	}
	leader := sh.proc.pid
	rest := members(leader, since)
	sh.end(false)
	signalAll(rest, syscall.SIGTERM)
	sweep(leader, since)
	signalAll(rest, syscall.SIGKILL)
}

// dropped interrupts a command and reports whether its shell has said soon after that it goes on without it.
// Bash waits for a child that the interrupt has not reached, so it is looked again.
func (sh *shell) dropped(nonce string, since moment) bool {
	struck := members(sh.proc.pid, since)
	// The shell first: it takes the interrupt for its own only when it knows of it before its child is dead.
	signalAll(append([]int{sh.proc.pid}, struck...), syscall.SIGINT)
	for look := range interruptLooks {
		ctx, cancel := context.WithTimeout(context.Background(), interruptPatience/interruptLooks)
		_, err := sh.status(ctx, nonce)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			return err == nil
		}
		signalAll(sh.unreached(struck, since, look), syscall.SIGINT)
	}
	return false
}

// unreached returns those that live on although an interrupt would end them. A child that bash has just forked
// still has bash's own handler, which takes the interrupt and does nothing for the program that the child
// becomes; so some of struck are among them. From the half of the looks on, so are children of the shell that
// were forked after the others had been looked for. Those may also be how a trap of the shell cleans up, which
// is why they are given a while. Who handles it must not be interrupted twice, which many take for an order not
// to clean up: where nobody can tell, it is done once, shortly before the shell would be replaced and all of it
// killed.
func (sh *shell) unreached(struck []int, since moment, look int) (pids []int) {
	fresh, late := look >= interruptLooks/2, look == interruptLooks*3/4
	for _, pid := range members(sh.proc.pid, since) {
		st, ok := readStat(pid)
		if !ok || !slices.Contains(struck, pid) && (!fresh || st.parent != sh.proc.pid) {
			continue
		}
		if dies, told := diesOfInterrupt(pid); dies || !told && late {
			pids = append(pids, pid)
		}
	}
	return pids
}

// sweep ends what a session has started since then, and returns when it is gone or was sent SIGKILL.
func sweep(leader int, since moment) {
	left := members(leader, since)
	signalAll(left, syscall.SIGTERM)
	tick := time.NewTicker(killPatience / 20)
	defer tick.Stop()
	for range 20 {
		if left = members(leader, since); len(left) == 0 {
			return
		}
		<-tick.C
	}
	for range 3 { // a process may fork between the look and the signal
		if left = members(leader, since); len(left) == 0 {
			return
		}
		signalAll(left, syscall.SIGKILL)
	}
}

func signalAll(pids []int, sig syscall.Signal) {
	for _, pid := range pids {
		syscall.Kill(pid, sig)
	}
}

// awaitGone waits until processes that were sent SIGKILL are gone and reaped, or for a while: one whose parent
// does not care for it stays a zombie.
func awaitGone(pids []int) {
	const looks = 100
	tick := time.NewTicker(killPatience / looks)
	defer tick.Stop()
	for range looks {
		if !slices.ContainsFunc(pids, func(pid int) bool { return syscall.Kill(pid, 0) == nil }) {
			return
		}
		<-tick.C
	}
}

// end ends the shell's process, if there is one; everything also ends all its jobs.
func (sh *shell) end(everything bool) {
	if sh.proc == nil {
		return
	}
	var rest []int
	if everything {
		rest = members(sh.proc.pid, moment0)
	}
	sh.proc.kill()
	<-sh.proc.done
	signalAll(rest, syscall.SIGKILL)
	if everything {
		late := members(sh.proc.pid, moment0)
		signalAll(late, syscall.SIGKILL)
		awaitGone(append(rest, late...))
	}
	sh.ctl.Close()
	sh.file.Close()
	os.Remove(sh.file.Name())
	sh.proc, sh.ctl, sh.file, sh.first = nil, nil, nil, ""
}

// bashSetup prepares bash. Between calls the shell is in /, so that it does not hold the file system of its
// working directory, which the host may want to exchange for a checkpoint. It stays where there would be no way
// back, in a directory that was removed.
const bashSetup = `PS1= PS2=;unset MAILCHECK;set +o history +H +m;shopt -s expand_aliases;exit(){ builtin exit "$@" 2>/dev/null;};` +
	`__outboard_go(){ builtin [ -z "${__outboard_pwd-}" ]||if builtin cd -- "$__outboard_pwd";then OLDPWD=$__outboard_old;` +
	`else __outboard="builtin echo '[the working directory is gone; this is $HOME]';builtin cd;$__outboard";fi;__outboard_pwd=;};` +
	`__outboard_end(){ __outboard_rc=$?;if builtin [ "$PWD" -ef . ]&&builtin [ "$PWD" != / ];then __outboard_pwd=$PWD __outboard_old=${OLDPWD-};` +
	`builtin cd /;fi;builtin echo $1 $__outboard_rc>&3;};`

// ensure starts the shell's process if it does not live.
func (ss *shells) ensure(sh *shell) error {
	if sh.proc != nil {
		select {
		case <-sh.proc.done:
			sh.lost = "the previous one exited with status " + strconv.Itoa(sh.proc.exitCode())
		default:
			var st syscall.Stat_t
			if syscall.Fstat(int(sh.file.Fd()), &st) == nil && st.Nlink > 0 {
				return nil
			}
			sh.lost = "the files of the previous one were removed"
		}
		sh.end(false)
	}
	if ss.takeWarmShell(sh) {
		return nil
	}
	return ss.begin(sh, "")
}

// begin starts a shell's process in dir, "" for the workspace.
func (ss *shells) begin(sh *shell, dir string) error {
	argv := []string{"/bin/bash", "--noprofile", "--norc", "--noediting", "-i"}
	setup := bashSetup
	if _, err := os.Stat(argv[0]); err != nil {
		argv, setup, sh.plain = []string{"/bin/sh"}, "", true
	}
	file, err := ss.open()
	if err != nil {
		return err
	}
	if sh.proc, sh.ctl, sh.lines, err = ss.spawn(argv, dir); err != nil {
		return errors.Join(err, file.Close(), os.Remove(file.Name()))
	}
	sh.file = file
	_, err = sh.ctl.WriteString(setup + "__outboard_in=" + quote(file.Name()) + "\n")
	return err
}

// spawn starts a shell's process with its control pipe as input and its status pipe as descriptor 3.
func (ss *shells) spawn(argv []string, dir string) (*process, *os.File, chan string, error) {
	ctlR, ctlW, err := pipe2(1)
	if err != nil {
		return nil, nil, nil, err
	}
	defer ctlR.Close()
	statR, statW, err := pipe2(0)
	if err != nil {
		return nil, nil, nil, errors.Join(err, ctlW.Close())
	}
	defer statW.Close()
	null, err := openNull(syscall.O_RDWR)
	if err != nil {
		return nil, nil, nil, errors.Join(err, ctlW.Close(), statR.Close())
	}
	defer null.Close()
	attr := ss.s.attr(dir)
	attr.Files = []*os.File{ctlR, null, null, statW}
	proc, err := ss.s.children.start(argv[0], argv, attr, &ss.s.wg)
	if err != nil {
		return nil, nil, nil, errors.Join(fmt.Errorf("starting %s: %w", argv[0], err), ctlW.Close(), statR.Close())
	}
	lines := make(chan string, 16)
	ss.s.wg.Go(func() { readLines(statR, lines, proc.done) })
	return proc, ctlW, lines, nil
}

// readLines passes status lines on until the shell is gone. It is the only sender on lines.
func readLines(r *os.File, lines chan<- string, done <-chan struct{}) {
	defer close(lines)
	stop := make(chan struct{})
	go func() { // ends with the shell; closing r is what ends the loop below when a job still holds the descriptor
		select {
		case <-done:
		case <-stop:
		}
		r.Close()
	}()
	defer close(stop)
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 0, 256), 4096)
	for sc.Scan() {
		select {
		case lines <- sc.Text():
		case <-done:
			return
		}
	}
}

// openNull opens /dev/null for a process. Package os would give it to the poller, where there is one that takes
// it, and take it back.
func openNull(mode int) (*os.File, error) {
	fd, err := syscall.Open(os.DevNull, mode|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: os.DevNull, Err: err}
	}
	return os.NewFile(uintptr(fd), os.DevNull), nil
}

// pipe2 makes a pipe whose ends no child inherits by accident. End ours (0 or 1) is for this process, so that a
// read or write of it ends when it is closed; the other one is for a child, in blocking mode.
func pipe2(ours int) (r, w *os.File, err error) {
	var fd [2]int
	if err := syscall.Pipe2(fd[:], syscall.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	if err := syscall.SetNonblock(fd[ours], true); err != nil {
		return nil, nil, errors.Join(os.NewSyscallError("fcntl", err), syscall.Close(fd[0]), syscall.Close(fd[1]))
	}
	return os.NewFile(uintptr(fd[0]), "pipe"), os.NewFile(uintptr(fd[1]), "pipe"), nil
}

// stop ends all shells; no call runs any more.
func (ss *shells) stop() {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, sh := range ss.byName {
		sh.end(true)
	}
	if ss.warmShell != nil {
		ss.warmShell.end(true)
	}
}

// queue lets its members through one at a time, in the order in which they joined.
type queue struct {
	mu   sync.Mutex
	line []chan struct{} // the first one's is closed
}

func (q *queue) join() chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := make(chan struct{})
	if q.line = append(q.line, p); len(q.line) == 1 {
		close(p)
	}
	return p
}

func (q *queue) wait(ctx context.Context, p chan struct{}) error {
	select {
	case <-p:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// leave gives up p's place, whether it had its turn or not.
func (q *queue) leave(p chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, x := range q.line {
		if x == p {
			q.line = append(q.line[:i], q.line[i+1:]...)
			if i == 0 && len(q.line) > 0 {
				close(q.line[0])
			}
			return
		}
	}
}
