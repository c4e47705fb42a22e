//go:build linux

package sandboxtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/outboard-dev/outboard/internal/guest"
)

// heard is what an attachment was told.
type heard struct {
	mu               sync.Mutex
	pid              int
	stdout, stderr   bytes.Buffer
	cursor           int64
	lost             bool
	started, changed chan struct{}
}

func newHeard() *heard { return &heard{started: make(chan struct{}), changed: make(chan struct{})} }

func (h *heard) event(e guest.ProcessEvent) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cursor = e.Cursor
	switch e.Kind {
	case guest.Started:
		h.pid = e.Pid
		close(h.started)
	case guest.Stdout, guest.Terminal:
		h.stdout.Write(e.Data)
	case guest.Stderr:
		h.stderr.Write(e.Data)
	case guest.Lost:
		h.lost = true
	}
	close(h.changed)
	h.changed = make(chan struct{})
	return nil
}

// until waits for text on standard output.
func (h *heard) until(t *testing.T, text string) {
	t.Helper()
	h.matches(t, regexp.QuoteMeta(text))
}

// matches waits until what was said matches the expression.
func (h *heard) matches(t *testing.T, expression string) {
	t.Helper()
	re := regexp.MustCompile(expression)
	for {
		h.mu.Lock()
		ok, changed := re.Match(h.stdout.Bytes()), h.changed
		h.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-ctx(t).Done():
			t.Fatalf("never said %q, only %q", expression, h.stdout.String())
		}
	}
}

func (h *heard) ref() guest.ProcessRef { return guest.ProcessRef{Pid: h.pid} }

// process is a process under way with an attachment.
type process struct {
	*heard
	t    *testing.T
	exit guest.ProcessExit
	err  error
	done chan struct{}
}

// start starts a process and returns when it runs.
func (b *box) start(p guest.ProcessStart) *process {
	b.t.Helper()
	x := &process{heard: newHeard(), t: b.t, done: make(chan struct{})}
	c := ctx(b.t)
	go func() {
		defer close(x.done)
		_, x.exit, x.err = b.StartProcess(c, p, x.event)
	}()
	select {
	case <-x.started:
	case <-x.done: // it may have run and ended by now
		select {
		case <-x.started:
		default:
			b.t.Fatalf("StartProcess %q: %v", p.Argv, x.err)
		}
	}
	return x
}

func (x *process) wait() guest.ProcessExit {
	x.t.Helper()
	<-x.done
	if x.err != nil {
		x.t.Fatalf("the process: %v", x.err)
	}
	return x.exit
}

func shell(command string) []string { return []string{"/bin/bash", "-c", command} }

// If this fails, a process started for a client is not what was asked for, or its outputs are mixed up.
func testProcess(t *testing.T, r *rig) {
	b := r.create(t)
	x := b.start(guest.ProcessStart{Argv: shell(`echo out; echo err >&2; echo "$A:$OUTBOARD_SUITE:$HOME"; pwd; exit 7`),
		Env: map[string]string{"A": "b c"}})
	want(t, "exit code", x.wait(), guest.ProcessExit{Code: 7})
	home, _, _ := strings.Cut(strings.Split(x.stdout.String(), "\n")[1][len("b c:value from the spec:"):], "\n")
	want(t, "stdout", x.stdout.String(), "out\nb c:value from the spec:"+home+"\n"+home+"\n")
	want(t, "stderr", x.stderr.String(), "err\n")

	x = b.start(guest.ProcessStart{Argv: []string{"cat"}, Stdin: true, Tag: "cat"})
	big := strings.Repeat("0123456789abcdef", 20_000)
	if err := b.InputProcess(ctx(t), guest.ProcessRef{Tag: "cat"}, strings.NewReader(big)); err != nil {
		t.Fatalf("InputProcess: %v", err)
	}
	for range 2 {
		if err := b.CloseInput(ctx(t), x.ref()); err != nil {
			t.Errorf("CloseInput: %v", err)
		}
	}
	want(t, "exit of cat", x.wait(), guest.ProcessExit{})
	want(t, "what cat says", x.stdout.String() == big, true)
	if err := b.InputProcess(ctx(t), x.ref(), strings.NewReader("x")); refusal(err) != guest.Conflict {
		t.Errorf("input for a process that has ended: %v", err)
	}
	want(t, "input that nobody asked for", b.start(guest.ProcessStart{Argv: []string{"cat"}}).wait(),
		guest.ProcessExit{})

	x = b.start(guest.ProcessStart{Argv: []string{"/bin/bash", "-c", "kill -USR1 $$"}})
	want(t, "a signal", x.wait(), guest.ProcessExit{Code: -1, Signal: int(syscall.SIGUSR1)})
	want(t, "making a directory at home", b.start(guest.ProcessStart{Argv: shell("mkdir -p sub")}).wait(),
		guest.ProcessExit{})
	for cwd, below := range map[string]string{"~": "", "~/": "", "~/sub": "/sub", "sub": "/sub", "~/sub/..": ""} {
		x := b.start(guest.ProcessStart{Argv: shell("pwd"), Cwd: cwd})
		want(t, "exit in "+cwd, x.wait(), guest.ProcessExit{})
		want(t, "where "+cwd+" is", strings.TrimSpace(x.stdout.String()), home+below)
	}
	for what, p := range map[string]guest.ProcessStart{
		"a directory that is not there": {Argv: shell("true"),
			Cwd: "/nowhere"}, "one not there at home": {Argv: shell("true"), Cwd: "~/nowhere"},
		"another's home": {Argv: shell("true"),
			Cwd: "~root"}, "a program that is not there": {Argv: []string{"no-such-program"}},
		"nothing": {}, "an endless tag": {Argv: shell("true"), Tag: strings.Repeat("x", 1000)},
	} {
		if _, _, err := b.StartProcess(ctx(t), p, nil); refusal(err) != guest.Invalid {
			t.Errorf("starting %s: %v", what, err)
		}
	}
	if _, _, err := b.StartProcess(ctx(t), guest.ProcessStart{Argv: shell("true"), User: "nobody-knows"},
		nil); refusal(err) != guest.Denied {
		t.Errorf("an unknown user: %v", err)
	}
	if err := b.SignalProcess(ctx(t), guest.ProcessRef{Pid: 1 << 20}, 15); refusal(err) != guest.NotFound {
		t.Errorf("signalling a pid that was not started here: %v", err)
	}
}

// If this fails, a client that comes back has lost its process, or misses or repeats a part of its output.
func testProcessAttach(t *testing.T, r *rig) {
	b := r.create(t)
	pid, _, err := b.StartProcess(ctx(t), guest.ProcessStart{Argv: shell("echo one; read x; echo two; read x; exit 3"),
		Stdin: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ref := guest.ProcessRef{Pid: pid}
	first := newHeard()
	c, leave := context.WithCancel(ctx(t))
	left := make(chan error)
	go func() {
		_, err := b.AttachProcess(c, ref, guest.FromStart, first.event)
		left <- err
	}()
	first.until(t, "one\n")
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("leaving: %v", err)
	}
	var wg sync.WaitGroup
	again, whole, late := newHeard(), newHeard(), newHeard()
	for h, from := range map[*heard]int64{again: first.cursor, whole: guest.FromStart, late: guest.FromNow} {
		wg.Go(func() {
			exit, err := b.AttachProcess(ctx(t), ref, from, h.event)
			if err != nil || exit.Code != 3 {
				t.Errorf("attached from %d: %+v, %v", from, exit, err)
			}
		})
	}
	for _, h := range []*heard{again, whole, late} {
		<-h.started
	}
	for range 2 {
		if err := b.InputProcess(ctx(t), ref, strings.NewReader("go\n")); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
	want(t, "who left and came back", first.stdout.String()+again.stdout.String(), "one\ntwo\n")
	want(t, "who sees it from the start", whole.stdout.String(), "one\ntwo\n")
	want(t, "who came late", late.stdout.String(), "two\n")
	after := newHeard()
	if exit, err := b.AttachProcess(ctx(t), ref, guest.FromStart, after.event); err != nil || exit.Code != 3 ||
		after.stdout.String() != "one\ntwo\n" {
		t.Errorf("attached after the end: %+v, %v, %q", exit, err, after.stdout.String())
	}
	list, err := b.Processes(ctx(t))
	if err != nil || len(list) != 1 || list[0].Pid != pid || list[0].Exit == nil || list[0].Exit.Code != 3 {
		t.Errorf("Processes: %+v, %v", list, err)
	}
}

// If this fails, a process that is to end with its client outlives one that was killed, or one that is to
// outlive it does not.
func testProcessHangUp(t *testing.T, r *rig) {
	b := r.create(t)
	conn, err := r.p.Open(ctx(t), b.spec.ID)
	if err != nil {
		t.Fatal(err)
	}
	second := &box{Sandbox: conn, t: t, spec: b.spec}
	loop := shell("echo here; while :; do sleep 0.01; done")
	bound, free := second.start(guest.ProcessStart{Argv: loop,
		HangUp: true}), second.start(guest.ProcessStart{Argv: loop})
	reads := second.start(guest.ProcessStart{Argv: shell("trap '' HUP; echo here; read x; exit 5"), Stdin: true,
		HangUp: true})
	for _, p := range []*process{bound, free, reads} {
		p.until(t, "here")
	}
	if err := conn.Close(); err != nil { // all that a guest sees of a server that is killed
		t.Fatal(err)
	}
	exit, err := b.AttachProcess(ctx(t), bound.ref(), guest.FromStart, newHeard().event)
	if err != nil || exit.Signal != int(syscall.SIGHUP) {
		t.Errorf("the client is gone: %+v, %v", exit, err)
	}
	if exit, err := b.AttachProcess(ctx(t), reads.ref(), guest.FromStart, newHeard().event); err != nil ||
		exit.Code != 5 {
		t.Errorf("one that goes by the end of its input: %+v, %v", exit, err)
	}
	if err := b.SignalProcess(ctx(t), free.ref(), int(syscall.SIGKILL)); err != nil {
		t.Errorf("one that outlives its client has not: %v", err)
	}
	for _, p := range []*process{bound, free, reads} {
		<-p.done
	}
}

// If this fails, output is lost on the way to a reader that takes all of it, or kept without end for one that does not.
func testProcessOutput(t *testing.T, r *rig) {
	b := r.create(t)
	const lines = 1_000_000
	x := b.start(guest.ProcessStart{Argv: shell(fmt.Sprintf("seq %d; echo done >&2", lines))})
	want(t, "exit", x.wait(), guest.ProcessExit{})
	if got := bytes.Count(x.stdout.Bytes(), []byte("\n")); got != lines || x.lost ||
		!bytes.HasSuffix(x.stdout.Bytes(), []byte("\n1000000\n")) {
		t.Errorf("%d of %d lines, lost %v", got, lines, x.lost)
	}
	want(t, "stderr", x.stderr.String(), "done\n")
	late := newHeard()
	if _, err := b.AttachProcess(ctx(t), x.ref(), guest.FromStart, late.event); err != nil {
		t.Fatal(err)
	}
	if n := late.stdout.Len(); !late.lost || n == 0 || n > 1<<20 || !bytes.HasSuffix(x.stdout.Bytes(),
		late.stdout.Bytes()) {
		t.Errorf("replayed %d bytes, lost %v", n, late.lost)
	}
}

// If this fails, an interactive program does not find a terminal.
func testTerminal(t *testing.T, r *rig) {
	b := r.create(t)
	x := b.start(guest.ProcessStart{Argv: []string{"/bin/bash", "--norc", "-i"},
		Terminal: &guest.Size{Cols: 91, Rows: 17}, Env: map[string]string{"PS1": "> ", "TERM": "xterm"}})
	say := func(line string) {
		t.Helper()
		if err := b.InputProcess(ctx(t), x.ref(), strings.NewReader(line)); err != nil {
			t.Fatalf("InputProcess: %v", err)
		}
	}
	say("stty size; test -t 2 && echo is-a-\"terminal\"\n")
	x.until(t, "17 91\r\n")
	// Readline reads the terminal's size and sets it again as it makes its prompt: a size given in between would
	// be taken back.
	x.matches(t, `is-a-terminal\r\n(?s:.*)> $`)
	if err := b.ResizeProcess(ctx(t), x.ref(), guest.Size{Cols: 120, Rows: 40}); err != nil {
		t.Fatalf("ResizeProcess: %v", err)
	}
	say("stty size\n")
	x.until(t, "40 120\r\n")
	say("sleep 1000\n")
	x.until(t, "sleep 1000\r\n")
	b.until("pgrep -x sleep >/dev/null || [ -n \"$(grep -l ^sleep /proc/[0-9]*/comm 2>/dev/null)\" ]")
	say("\x03echo in\"terrupted\"\n")
	x.until(t, "interrupted\r\n")
	if err := b.CloseInput(ctx(t), x.ref()); refusal(err) != guest.Invalid {
		t.Errorf("closing a terminal's input: %v", err)
	}
	say("exit 5\n")
	want(t, "exit", x.wait(), guest.ProcessExit{Code: 5})
}

// If this fails, processes outlive their deadline or their killing, or their end waits for strangers.
func testProcessEnd(t *testing.T, r *rig) {
	b := r.create(t)
	x := b.start(guest.ProcessStart{Argv: shell("sleep 1000 & sleep 1000"), TimeoutMs: 200})
	want(t, "deadline", x.wait(), guest.ProcessExit{Code: -1, Signal: 9, Timeout: true})
	x = b.start(guest.ProcessStart{Argv: shell("echo up; sleep 1000")})
	x.until(t, "up")
	if err := b.SignalProcess(ctx(t), x.ref(), int(syscall.SIGKILL)); err != nil {
		t.Fatalf("SignalProcess: %v", err)
	}
	b.fails(fmt.Sprintf("kill -0 %d", x.pid)) // at once: it is gone when the answer comes
	want(t, "killed", x.wait(), guest.ProcessExit{Code: -1, Signal: 9})
	x = b.start(guest.ProcessStart{Argv: shell(`trap 'echo bye; exit 4' TERM; echo up; while :; do sleep 0.01; done`)})
	x.until(t, "up")
	if err := b.SignalProcess(ctx(t), x.ref(), int(syscall.SIGTERM)); err != nil {
		t.Fatalf("SignalProcess: %v", err)
	}
	want(t, "asked to end", x.wait(), guest.ProcessExit{Code: 4})
	want(t, "what it said last", x.stdout.String(), "up\nbye\n")
	begin := time.Now()
	x = b.start(guest.ProcessStart{Argv: shell("sleep 1000 & echo $!")})
	want(t, "with a background job", x.wait(), guest.ProcessExit{})
	if d := time.Since(begin); d > 20*time.Second {
		t.Errorf("the end took %v", d)
	}
	b.sh("kill " + strings.TrimSpace(x.stdout.String())) // it lives on
	if err := b.SignalProcess(ctx(t), x.ref(), 99); refusal(err) != guest.Invalid && refusal(err) != guest.NotFound {
		t.Errorf("signal 99: %v", err)
	}
}

// If this fails, who asks for another user gets more than that user's rights, or not even these.
func testProcessUser(t *testing.T, r *rig) {
	if !r.p.Capabilities().SeparateID {
		t.Log("tools share the guest's identity here: there are no users to tell apart")
		return
	}
	b := r.create(t)
	x := b.start(guest.ProcessStart{Argv: shell("[ $(id -u) != 0 ] && echo not root; id -un; echo $HOME $USER; grep " +
		"CapEff /proc/self/status")})
	x.wait()
	want(t, "the default user", x.stdout.String(), "not root\nuser\n/home/user user\nCapEff:\t0000000000000000\n")
	x = b.start(guest.ProcessStart{Argv: shell("id -u; echo $HOME $USER; grep -E 'CapEff|CapPrm|CapBnd' " +
		"/proc/self/status | cut -f2; echo x > /etc/by-root && cat /etc/by-root; readlink /proc/1/fd/3 || echo no; " +
		"ls /proc/1/root/ /proc/1/fd/5/ || echo no; cat /proc/1/environ /proc/1/mem || echo no"), User: "root"})
	x.wait()
	want(t, "root", x.stdout.String(), "0\n/root root\n"+strings.Repeat("0000000000000000\n", 3)+"x\nno\nno\nno\n")
	b.fails("echo y > /etc/by-root")
	if !hostsKernel(r) {
		return // memory is its own affair there
	}
	x = b.start(guest.ProcessStart{Argv: shell("echo 900 > /proc/1/oom_score_adj; echo 15 > /proc/1/oom_adj; echo " +
		"1000 > /proc/self/oom_score_adj && cat /proc/1/oom_score_adj"), User: "root"})
	x.wait()
	want(t, "who ends first when memory does", x.stdout.String(), "200\n")
}

// testHalfClose has a connection whose client says all it has to say, and then waits for the rest of the answer.
func testHalfClose(t *testing.T, b *box, port uint16) {
	t.Helper()
	conn, err := b.DialPort(ctx(t), port)
	if err != nil {
		t.Fatalf("DialPort: %v", err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "the last line")
	if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatalf("CloseWrite: %v", err)
	}
	if got, err := io.ReadAll(conn); err != nil || string(got) != "echo the last line" {
		t.Errorf("after the end of what was sent: %q, %v", got, err)
	}
	if _, err := conn.Write([]byte("more")); err == nil {
		t.Error("a write after the end was taken")
	}
}

// testCutOff has a connection end under a client: by the program on the port, the control, and by the end of who
// passes it on.
func testCutOff(t *testing.T, r *rig, b *box, port uint16) {
	t.Helper()
	through, err := r.p.Open(ctx(t), b.spec.ID)
	if err != nil {
		t.Fatal(err)
	}
	for _, cut := range []bool{false, true} {
		conn, err := through.DialPort(ctx(t), port)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(conn, "hello")
		if _, err := io.ReadFull(conn, make([]byte, len("echo hello\n"))); err != nil {
			t.Fatal(err)
		}
		if !cut {
			fmt.Fprintln(conn, "quit")
		} else if err := through.Close(); err != nil {
			t.Fatal(err)
		}
		if n, err := conn.Read(make([]byte, 1)); n != 0 || (err == io.EOF) == cut ||
			errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("cut off %v: it ends with %v", cut, err)
		}
	}
}

// If this fails, a program that listens inside cannot be reached from outside, or one that does not seems to.
func testDialPort(t *testing.T, r *rig) {
	b := r.create(t)
	x := b.start(guest.ProcessStart{Argv: []string{"perl", "-e", `use IO::Socket::INET; $|=1;
		$s = IO::Socket::INET->new(Listen => 5, LocalAddr => "127.0.0.1", LocalPort => 0) or die "listen: $!"; print $s->sockport, "\n";
		while ($c = $s->accept) { while (<$c>) { last if /quit/; print $c "echo $_" } close $c }`}})
	x.until(t, "\n")
	var port uint16
	fmt.Sscan(x.stdout.String(), &port)
	for range 3 {
		conn, err := b.DialPort(ctx(t), port)
		if err != nil {
			t.Fatalf("DialPort: %v", err)
		}
		fmt.Fprintf(conn, "hello\nquit\n")
		got, err := io.ReadAll(conn)
		if err != nil || string(got) != "echo hello\n" {
			t.Errorf("through the connection: %q, %v", got, err)
		}
		conn.Close()
	}
	testHalfClose(t, b, port)
	testCutOff(t, r, b, port)
	if _, err := b.DialPort(ctx(t), 1); refusal(err) != guest.NotFound {
		t.Errorf("a port where nobody listens: %v", err)
	}
	for _, own := range []uint16{3128, 53} {
		if _, err := b.DialPort(ctx(t), own); refusal(err) != guest.Denied {
			t.Errorf("port %d, which is Outboard's own: %v", own, err)
		}
	}
}
