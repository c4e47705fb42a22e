package guest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outboard-dev/outboard/internal/guest/form"
)

// Limits of a server.
const (
	// maxConns bounds connections: a host uses a few per process that looks at the sandbox.
	maxConns = 256
	// maxExchanges bounds the requests of one connection that are under way.
	maxExchanges = maxPending
)

// server is one guest.
type server struct {
	cfg      ServerConfig
	table    *table
	children *children
	shells   shells
	pipes    pipes
	scratch  tmpfsScratch
	store    workspace
	procs    processes
	sameID   bool                   // tools run as the guest itself
	watches  chan struct{}          // capacity maxWatches
	begin    atomic.Pointer[string] // where tools begin, once it was said; see beginIn

	wg sync.WaitGroup // of everything but runs
}

// Serve answers the host until ctx ends or the listener fails; then it ends every tool and returns. It is the
// whole guest.
func Serve(ctx context.Context, cfg ServerConfig) error {
	if err := cfg.fill(); err != nil {
		return err
	}
	if err := clean(cfg.Run); err != nil {
		return fmt.Errorf("making the run directory: %w", err)
	}
	runs, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	s := &server{cfg: cfg, children: newChildren(), watches: make(chan struct{}, maxWatches)}
	s.sameID = cfg.ToolUID == os.Geteuid() && cfg.ToolGID == os.Getegid()
	s.children.gvisor = cfg.Watches > 0
	s.procs.s = s
	s.pipes = pipes{dir: cfg.Run, scratch: &s.scratch, draining: make(map[*os.File]bool)}
	s.shells = shells{s: s, byName: make(map[string]*shell)}

	t, err := openTable(runs, cfg.State, cfg.Volatile, cfg.Run, cfg.Generation, s.prepare)
	if err != nil {
		return err
	}
	s.table = t
	quit := make(chan struct{})
	if cfg.Watches > 0 {
		if s.store.witness, err = newWitness(cfg.Watches); err != nil {
			return err
		}
		s.wg.Go(func() { s.store.witness.run(quit) })
	}
	if cfg.Init {
		go s.children.reap(quit) // not waited for: what goes on living, nobody ends
	}
	if err = s.identify(ctx); err == nil {
		err = s.accept(ctx)
	}
	s.table.over.Store(true)
	stop(errStopping)
	s.table.wg.Wait()
	s.shells.stop()
	s.procs.stop()
	s.pipes.stop()
	s.scratch.remove()
	close(quit)
	s.wg.Wait()
	s.store.witness.close()
	return errors.Join(err, s.table.journal.close())
}

// identify waits until the sandbox is somebody's, where it was made before that. Nothing but a shell that has
// run no command exists until then.
func (s *server) identify(ctx context.Context) error {
	if s.cfg.Await == nil {
		return nil
	}
	if err := s.shells.keepWarmShell(); err != nil {
		return err
	}
	_, _ = s.rehearseCall() // where it fails, the first call pays, and says why if it fails as well
	s.shells.settle(ctx)
	generation, env, err := s.cfg.Await(ctx)
	if err != nil {
		return err
	}
	if generation == "" {
		return errors.New("a sandbox's identity has no generation")
	}
	s.cfg.Generation, s.table.gen = generation, generation
	s.cfg.Env = append(s.cfg.Env, env...)
	s.shells.late = env
	return nil
}

// clean makes the run directory and removes what a guest before this one left there, but for output.
func clean(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), logSuffix) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return err
}

// accept serves connections until ctx ends, and returns when the last one has ended.
func (s *server) accept(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var conns sync.WaitGroup
	defer conns.Wait()
	defer cancel()
	stop := context.AfterFunc(ctx, func() { s.cfg.Listener.Close() })
	defer stop()
	slots := make(chan struct{}, maxConns)
	if s.cfg.First != nil {
		conns.Go(func() { serve(ctx, s.cfg.First, s.handle) })
	}
	for {
		conn, err := s.cfg.Listener.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("accepting connections: %w", err)
		}
		select {
		case slots <- struct{}{}:
			conns.Go(func() {
				serve(ctx, conn, s.handle)
				<-slots
			})
		default:
			conn.Close()
		}
	}
}

// handler runs one request and returns head and body of its answer.
type handler func(ctx context.Context, h requestHead, body []byte, st *stream) ([]byte, []byte, error)

// peer is one connection of the host.
type peer struct {
	handle handler
	w      *wire
	gone   chan struct{}

	mu   sync.Mutex
	open map[uint32]*job
}

// job is one request under way.
type job struct {
	*stream
	cancel context.CancelFunc
}

// serve runs one connection to its end.
func serve(ctx context.Context, conn net.Conn, handle handler) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	p := &peer{handle: handle, w: newWire(conn), gone: make(chan struct{}), open: make(map[uint32]*job)}
	var jobs sync.WaitGroup
	r := bufio.NewReaderSize(conn, readAhead)
	for {
		f, err := readFrame(r)
		if err != nil || p.dispatch(ctx, f, &jobs) != nil {
			break
		}
	}
	close(p.gone)
	cancel()
	stop()
	conn.Close()
	jobs.Wait()
}

func (p *peer) dispatch(ctx context.Context, f frame, jobs *sync.WaitGroup) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	j := p.open[f.id]
	if f.kind == kindRequest {
		if j != nil || len(p.open) >= maxExchanges {
			return fmt.Errorf("%w: request %d", errFrame, f.id)
		}
		return p.begin(ctx, f, jobs)
	}
	if j == nil {
		return nil // answered already
	}
	switch f.kind {
	case kindData:
		return j.arrived(f.body)
	case kindEnd:
		j.ended()
	case kindCredit:
		return j.credited()
	case kindCancel:
		j.cancel()
	default:
		return fmt.Errorf("%w: kind %d from a host", errFrame, f.kind)
	}
	return nil
}

// begin runs a request in its own goroutine. p.mu is held.
func (p *peer) begin(ctx context.Context, f frame, jobs *sync.WaitGroup) error {
	h, err := readHead(f.head)
	if err != nil {
		return fmt.Errorf("%w: %w", errFrame, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	j := &job{stream: newStream(f.id, p.w, p.gone, nil), cancel: cancel}
	if !h.More {
		j.ended()
	}
	p.open[f.id] = j
	jobs.Go(func() {
		defer cancel()
		answer := frame{kind: kindResponse, id: f.id}
		var err error
		if answer.head, answer.body, err = p.handle(ctx, h, f.body, j.stream); err != nil {
			answer = frame{kind: kindFailure, id: f.id, head: failure(err)}
		}
		p.mu.Lock()
		delete(p.open, f.id)
		p.mu.Unlock()
		if err := p.w.send(ctx, answer); err != nil && ctx.Err() == nil {
			p.w.conn.Close()
		}
	})
	return nil
}

// failure encodes an error for the host.
func failure(err error) []byte {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		e = &Error{Code: Internal, Message: err.Error()}
	}
	e = &Error{Code: e.Code, Message: strings.ToValidUTF8(e.Message[:min(len(e.Message), 4096)], "\uFFFD")}
	return form.Encode(e)
}

// handle runs one operation and returns the head and body of its answer.
func (s *server) handle(ctx context.Context, h requestHead, body []byte, st *stream) ([]byte, []byte, error) {
	switch h.Op {
	case opHello:
		head, err := json.Marshal(s.hello())
		return head, nil, err
	case opStart:
		r, err := s.start(ctx, h, body, st)
		return split(r, err)
	case opWait:
		return split(s.wait(ctx, h, st))
	case opKill, opAck:
		var a keyArg
		if err := decode(h.Arg, &a); err != nil {
			return nil, nil, err
		}
		if h.Op == opKill {
			return split(s.table.stop(ctx, a))
		}
		return encoded(form.None{}, s.table.ack(ctx, a))
	case opProcStart, opProcAttach, opProcInput, opProcEOF, opProcResize, opProcSignal, opProcList:
		return encoded(s.procs.handle(ctx, h, body, st))
	case opStat, opReadDir, opMkdir, opMove, opRemove, opRead, opWrite, opWatch:
		return encoded(s.fsOp(ctx, h, body, st))
	case opReal:
		return encoded(s.realOp(h))
	case opDial:
		return encoded(form.None{}, s.dial(ctx, h, st))
	}
	return encoded(s.transfer(ctx, h, body, st))
}

// split takes the output out of a result, to travel as bytes.
func split(r Result, err error) ([]byte, []byte, error) {
	head, _, err := encoded(&r, err)
	return head, r.Output[:min(len(r.Output), maxOutput+chunkSize)], err
}

// encoded makes an answer of one that has no body.
func encoded(m form.Message, err error) ([]byte, []byte, error) {
	if err != nil {
		return nil, nil, err
	}
	return form.Encode(m), nil, nil
}

func decode(arg []byte, m form.Message) error {
	if err := form.DecodeText(arg, m); err != nil {
		return &Error{Code: Invalid, Message: "unreadable request: " + err.Error()}
	}
	return nil
}

func (s *server) hello() Hello {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	return Hello{Version: ProtocolVersion, Generation: s.cfg.Generation, MaxEpoch: s.table.max, Pid: os.Getpid()}
}

// start reads the call's input, which may be longer than a frame, before anything else happens.
func (s *server) start(ctx context.Context, h requestHead, body []byte, st *stream) (Result, error) {
	var c Start
	if err := decode(h.Arg, &c); err != nil {
		return Result{}, err
	}
	if h.More {
		rest, err := io.ReadAll(io.LimitReader(&receiver{ctx: ctx, s: st}, maxInput+1))
		if err != nil {
			return Result{}, err
		}
		if body = append(body, rest...); len(body) > maxInput {
			return Result{}, &Error{Code: Invalid, Message: fmt.Sprintf("input over %d bytes", maxInput)}
		}
	}
	c.Input = body
	if c.OutputLimit <= 0 {
		c.OutputLimit = defaultOutput
	}
	c.OutputLimit = min(c.OutputLimit, maxOutput)
	return s.table.start(ctx, c)
}

// wait waits for a call's end, and tells its newest line where the host asks for it.
func (s *server) wait(ctx context.Context, h requestHead, st *stream) (Result, error) {
	var a waitArg
	if err := decode(h.Arg, &a); err != nil {
		return Result{}, err
	}
	var say func(string) bool
	if a.Lines {
		say = func(line string) bool { return st.w.offer(frame{kind: kindLine, id: st.id, body: []byte(line)}) }
	}
	return s.table.wait(ctx, a.Key, a.Epoch, say)
}

// prepare takes a call's place in line and returns what runs it.
func (s *server) prepare(c Start, said *progress) func(context.Context, <-chan struct{}) outcome {
	var body func(context.Context, <-chan struct{}, Start, *sink) outcome
	switch c.Op {
	case "bash":
		body = s.shells.bash(c.Shell)
	case "exec":
		body = s.exec
	case OpSettle:
		body = s.beginIn
	default:
		body = s.fileTool
	}
	return func(ctx context.Context, durable <-chan struct{}) outcome {
		k := &sink{path: s.table.path(c.Key), said: said}
		o := body(ctx, durable, c, k)
		o.Limit = c.OutputLimit
		k.close(&o)
		return o
	}
}

// refused is the outcome of a call that the tool would not run.
func refused(k *sink, format string, args ...any) outcome {
	fmt.Fprintf(k, format, args...)
	return outcome{Cause: causeError}
}

// lifetime applies a call's timeout to its context. The cause of the end tells the two apart.
func lifetime(ctx context.Context, c Start, asked int64) (context.Context, context.CancelFunc, time.Duration) {
	limit := defaultTimeout
	for _, ms := range []int64{asked, c.TimeoutMs} { // the host's word comes last
		if ms > 0 {
			limit = min(time.Duration(min(ms, maxTimeout.Milliseconds()))*time.Millisecond, maxTimeout)
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errTimeout)
	return ctx, cancel, limit
}

const (
	// defaultTimeout is the executor's of the reference wire.
	defaultTimeout = 120 * time.Second
	// maxTimeout bounds what a caller may ask for.
	maxTimeout = 60 * time.Minute
)

var errTimeout = errors.New("timed out")

// ended is the outcome of a call whose context ended.
func ended(ctx context.Context) outcome {
	if context.Cause(ctx) == errTimeout {
		return outcome{Cause: causeTimeout}
	}
	return outcome{Cause: causeKilled}
}
