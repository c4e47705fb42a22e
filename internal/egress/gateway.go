package egress

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/outbound"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/store"
)

// Config makes a Gateway.
type Config struct {
	Store    *store.Store
	Provider sandbox.Networked
	Dir      string         // holds a certificate authority per sandbox; made when missing, private to the user
	Guard    outbound.Guard // which addresses servers may have
	// Boxes is the most that a box may reach, whatever it asks for. The zero value lets none reach anything.
	Boxes outboard.Networking
	// BoxProxies are the proxies (host:port) that boxes may go through though Boxes does not let them reach
	// those, or they are not public.
	BoxProxies []string
	// ProxyPassword opens the password for a box's proxy, as which the request is described; it records that.
	// Its error's text is shown inside the sandbox. nil = no box's proxy has one.
	ProxyPassword func(context.Context, Subject, Request) (outboard.Secret, error)
	Roots         *x509.CertPool // whom to trust as a server; nil = the system's

	Gate        Gate          // nil = everything may happen
	Policy      Policy        // nil = the network rules decide alone
	Credentials Credentials   // nil = no request carries any
	Asker       Asker         // nil = nobody is asked about what is refused
	Idle        time.Duration // a request that carries no byte for so long is ended; 0 = 10 minutes
	Life        time.Duration // a connection from a sandbox is closed then, whatever goes through it; 0 = 24 hours
	Streams     int           // requests under way of one sandbox; 0 = 1024
	Logger      *slog.Logger
	Now         func() time.Time // nil = time.Now
}

// Gateway serves the sandboxes of this process. It is safe for concurrent use.
type Gateway struct {
	cfg    Config
	dir    string
	log    *slog.Logger
	now    func() time.Time
	server *http.Server
	conns  *handover // connections on their way to server
	ctx    context.Context
	cancel context.CancelFunc
	run    sync.WaitGroup

	mu     sync.Mutex
	ports  map[outboard.SandboxID]*port
	usages map[string]*usage // by the id of their counters; as long as a port uses one
}

// New returns a gateway that serves nobody yet.
func New(cfg Config) (*Gateway, error) {
	if cfg.Store == nil || cfg.Dir == "" {
		return nil, outboard.Errorf(outboard.Invalid, "an egress gateway needs a store and a directory")
	}
	if len(cfg.Guard.Denied)+len(cfg.Guard.Except) > 0 {
		return nil, outboard.Errorf(outboard.Invalid, "the networks that an egress gateway denies are its boxes' "+
			"own, not of its guard")
	}
	if cfg.Idle < 0 || cfg.Life < 0 || cfg.Streams < 0 {
		return nil, outboard.Errorf(outboard.Invalid, "an egress gateway's limits must not be negative")
	}
	cfg.Idle, cfg.Life, cfg.Streams = cmp.Or(cfg.Idle, defaultIdle), cmp.Or(cfg.Life, defaultLife), cmp.Or(cfg.Streams,
		maxStreams)
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, outboard.Errorf(outboard.Unavailable, "making the gateway's directory: %w", err)
	}
	g := &Gateway{cfg: cfg, dir: cfg.Dir, log: cfg.Logger, now: cfg.Now, conns: newHandover(),
		ports: map[outboard.SandboxID]*port{}, usages: map[string]*usage{}}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	if g.now == nil {
		g.now = time.Now
	}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	g.server = &http.Server{
		Handler:   http.HandlerFunc(g.serve),
		Protocols: &protocols,
		// tells the server that connections may speak HTTP/2
		TLSConfig:         &tls.Config{NextProtos: []string{"h2", "http/1.1"}},
		ReadHeaderTimeout: helloTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ConnContext:       withFlow,

		DisableGeneralOptionsHandler: true, // "OPTIONS *" is judged and recorded like everything else
		ErrorLog:                     slog.NewLogLogger(g.log.Handler(), slog.LevelDebug),
	}
	g.run.Go(func() { _ = g.server.Serve(g.conns) }) // ends with Stop
	g.run.Go(g.watch)
	return g, nil
}

// Stop ends every connection. The sandboxes stay, and wait for the next gateway.
func (g *Gateway) Stop() {
	g.cancel()
	g.server.Close()
	g.conns.Close()
	g.run.Wait()
}

// port is one sandbox's way out.
type port struct {
	g       *Gateway
	subject Subject
	reach   atomic.Pointer[reach]
	usage   *usage
	cancel  context.CancelFunc
	slots   chan struct{} // capacity maxConns; one token per connection
	coded   chan struct{} // capacity maxCodedAtOnce; one token per compressed body that is held
	places  *places

	ca  *authority  // set before the first connection, replaced by renewal
	tls *tls.Config // of ca

	changing sync.Mutex // held to replace reach by what the box's row says now

	mu          sync.Mutex
	active      map[*effect]struct{}
	asked       map[string]answerOf // by what was asked about; at most maxAsked
	logRate     logRate
	refusalRate refusalRate
}

// Prepare returns the certificate that a new sandbox must trust.
func (g *Gateway) Prepare(id outboard.SandboxID) ([]byte, error) {
	a, err := g.authority(id)
	if err != nil {
		if outboard.DiskFull(err) {
			return nil, outboard.FullDisk("making a certificate authority for sandbox "+string(id), err)
		}
		return nil, outboard.Errorf(outboard.Unavailable, "making a certificate authority for sandbox %s: %w", id, err)
	}
	return a.pem, nil
}

// Attach begins to serve a living sandbox, if this gateway does not yet, and goes on until Detach, Stop or its
// end. It returns at once; until a connection can be accepted it waits in the sandbox.
func (g *Gateway) Attach(id outboard.SandboxID, session outboard.SessionID, cfg outboard.SessionConfig) {
	g.attach(Subject{Sandbox: id, Session: session, Config: cfg}, cmp.Or(string(session), string(id)), &outboard.Box{})
}

// AttachBox is Attach for the sandbox of a box. What it may reach is in the box's row, and bounded by
// Config.Boxes; its counters are the box's, whichever sandbox it has.
func (g *Gateway) AttachBox(id outboard.SandboxID, b outboard.Box) {
	cfg := outboard.SessionConfig{Env: b.Env, Owner: outboard.Owner{Org: b.Org, User: b.Person, Key: b.Owner}}
	cfg.Env.Networking = g.ofBox(&b)
	g.attach(Subject{Sandbox: id, Box: b.ID, Config: cfg}, string(b.ID), &b)
}

// attach serves a subject whose counters have an id. b is its box, or none.
func (g *Gateway) attach(s Subject, counters string, b *outboard.Box) {
	g.mu.Lock()
	defer g.mu.Unlock()
	id := s.Sandbox
	if g.ports[id] != nil || g.ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancel(g.ctx)
	n := s.Config.Env.Networking
	p := &port{g: g, subject: s, usage: g.usage(counters, n.Budget), cancel: cancel,
		slots:  make(chan struct{}, maxConns),
		coded:  make(chan struct{}, maxCodedAtOnce),
		places: newPlaces(),
		active: map[*effect]struct{}{}, asked: map[string]answerOf{}}
	p.reach.Store(g.newReach(s, n, b))
	g.ports[id] = p
	g.run.Go(func() {
		defer g.forget(p)
		p.listen(ctx)
	})
}

// usage returns the counters of one more port. g.mu is held.
func (g *Gateway) usage(id string, b outboard.NetBudget) *usage {
	u := g.usages[id]
	if u == nil {
		u = newUsage(g.cfg.Store, id, b, g.now)
		g.usages[id] = u
	}
	u.ports++
	return u
}

// Detach ends the service of a sandbox that is being destroyed.
func (g *Gateway) Detach(id outboard.SandboxID) {
	g.mu.Lock()
	p := g.ports[id]
	g.mu.Unlock()
	if p != nil {
		p.cancel()
		g.forgetCounters(p)
	}
	if err := os.Remove(g.caPath(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		g.log.Warn("a sandbox's certificate authority was not removed", "sandbox", id, "err", err)
	}
}

// forgetCounters removes the counters of what is no more. A session goes on in another sandbox, and so may a box.
func (g *Gateway) forgetCounters(p *port) {
	ctx := context.Background()
	if p.subject.Session != "" {
		return
	}
	if p.subject.Box != "" {
		if _, err := g.cfg.Store.Box(ctx, p.subject.Box); outboard.KindOf(err) != outboard.NotFound {
			return
		}
	}
	if err := g.cfg.Store.ForgetNet(ctx, p.usage.id); err != nil {
		g.log.Warn("counters of what a sandbox has sent stay", "sandbox", p.subject.Sandbox, "err", err)
	}
}

func (g *Gateway) forget(p *port) {
	p.cancel()
	p.end(errGone)
	p.reach.Load().out.close()
	p.tellLeftOut()
	g.mu.Lock()
	delete(g.ports, p.subject.Sandbox)
	p.usage.ports--
	last := p.usage.ports == 0
	if last {
		delete(g.usages, p.usage.id)
	}
	g.mu.Unlock()
	if last {
		if err := p.usage.give(); err != nil { // then it counts as used, which is safe
			g.log.Warn("what was not sent was not given back", "session", p.subject.Session, "sandbox",
				p.subject.Sandbox, "err", err)
		}
	}
}

var errGone = errors.New("the sandbox is no longer served")

// listen accepts from the sandbox until ctx ends or the sandbox does, through renewals of its authority.
func (p *port) listen(ctx context.Context) {
	for ctx.Err() == nil {
		err := p.accept(ctx)
		switch outboard.KindOf(err) {
		case outboard.NotFound:
			return
		case outboard.Invalid: // made without a network
			p.g.log.Warn("sandbox not served", "sandbox", p.subject.Sandbox, "err", err)
			return
		}
		if err != nil && ctx.Err() == nil {
			level := slog.LevelWarn
			if errors.Is(err, net.ErrClosed) { // by its provider, with the machine, as a rule
				level = slog.LevelDebug
			}
			p.g.log.Log(ctx, level, "a sandbox's listener failed", "sandbox", p.subject.Sandbox, "err", err)
			pause(ctx, attachRetry)
		}
	}
}

// accept serves one listener, until it fails or the authority is due for renewal.
func (p *port) accept(ctx context.Context) error {
	a, err := p.g.authority(p.subject.Sandbox)
	if err != nil {
		return err
	}
	p.use(a)
	l, err := p.g.cfg.Provider.Listen(ctx, p.subject.Sandbox, a.pem)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithDeadlineCause(ctx, a.cert.NotBefore.Add(caRenew), errRenew)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	for {
		conn, err := l.Accept()
		if err != nil {
			l.Close()
			if errors.Is(context.Cause(ctx), errRenew) {
				return nil
			}
			return fmt.Errorf("accepting: %w", err)
		}
		p.take(ctx, conn)
	}
}

var errRenew = errors.New("the certificate authority is due for renewal")

func (p *port) use(a *authority) {
	// whole records: what is large is copied in few
	cfg := &tls.Config{NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12,
		DynamicRecordSizingDisabled: true}
	cfg.GetCertificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		f, ok := hello.Conn.(*conn)
		if !ok {
			return nil, errors.New("a connection from nowhere")
		}
		name, err := f.flow.named(hello.ServerName)
		if err != nil {
			return nil, err
		}
		return a.leaf(name)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ca, p.tls = a, cfg
}

// watch looks after requests that last.
func (g *Gateway) watch() {
	t := time.NewTicker(gateEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-g.ctx.Done():
			return
		}
		g.Recheck()
	}
}

// Recheck ends the requests under way that are idle, those of boxes whose rules have changed since, those whose
// grants or credentials were withdrawn or that the policies forbid now, and those that the gate, which is asked
// about each sandbox, forbids. It returns how many.
func (g *Gateway) Recheck() (ended int) {
	g.mu.Lock()
	ports := make([]*port, 0, len(g.ports))
	for _, p := range g.ports {
		ports = append(ports, p)
	}
	g.mu.Unlock()
	for _, p := range ports {
		if !p.busy() {
			continue
		}
		if n := p.endIdle(g.now(), g.cfg.Idle); n > 0 {
			g.log.Info("idle requests ended", "session", p.subject.Session, "sandbox", p.subject.Sandbox, "requests", n)
			ended += n
		}
		if n := p.endOutdated(g.ctx); n > 0 {
			g.log.Info("requests ended because the rules changed", "box", p.subject.Box, "sandbox", p.subject.Sandbox,
				"requests", n)
			ended += n
		}
		if n := p.endTakenBack(g.ctx); n > 0 {
			g.log.Info("requests ended because a grant was taken back", "session", p.subject.Session, "sandbox",
				p.subject.Sandbox, "requests", n)
			ended += n
		}
		if n := p.endRevoked(g.ctx); n > 0 {
			g.log.Info("requests ended because they are no longer allowed, or their credential was withdrawn",
				"session", p.subject.Session, "sandbox", p.subject.Sandbox, "requests", n)
			ended += n
		}
		if g.cfg.Gate == nil {
			continue
		}
		if err := g.cfg.Gate.May(g.ctx, p.subject); err != nil {
			ended += p.end(err)
		}
	}
	return ended
}

// Flows is how many requests are under way for the sandboxes whose subject is covered.
func (g *Gateway) Flows(covered func(Subject) bool) (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.ports {
		if covered(p.subject) {
			p.mu.Lock()
			n += len(p.active)
			p.mu.Unlock()
		}
	}
	return n
}

// End ends the requests under way for the sandboxes whose subject is covered.
func (g *Gateway) End(covered func(Subject) bool, cause error) {
	g.mu.Lock()
	ports := make([]*port, 0, len(g.ports))
	for _, p := range g.ports {
		if covered(p.subject) {
			ports = append(ports, p)
		}
	}
	g.mu.Unlock()
	for _, p := range ports {
		p.end(cause)
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func (p *port) busy() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.active) > 0
}

// end cancels every request under way, and returns how many there were.
func (p *port) end(cause error) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for e := range p.active {
		e.end(cause)
	}
	return len(p.active)
}

var _ net.Listener = (*handover)(nil)
