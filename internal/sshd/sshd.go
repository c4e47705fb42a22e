// Package sshd lets people into sandboxes with the programs they have: ssh, scp, sftp and rsync. It
// speaks SSH by golang.org/x/crypto/ssh.
//
// The name of the user is the id of a box or of a session. The only proof is a public key that was
// registered through the API.
//
// Invariants:
//   - Nothing is looked up for a key before its holder has signed: a public key alone finds out
//     nothing.
//   - No connection and no channel has an effect before it is in the audit.
//   - A connection ends within a second of its key, its holder, or a kill of its sandbox.
//   - Everything that a client can make more of is bounded, and so is the time in which it must
//     answer.
//
// It never decides: control says who somebody is and what they can do, and everything that a client
// asks for runs inside the sandbox.
//
// Start reading at Server.
package sshd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// Limits of a server.
const (
	// maxConns bounds connections, maxPerOrg those of one organization and maxPerKey those of one registered
	// key: a person has a few windows, a program some transfers. fullTime is how long one more of a key stays,
	// to be told why it can do nothing.
	maxConns  = 512
	maxPerOrg = maxConns / 4
	maxPerKey = 32
	fullTime  = 10 * time.Second
	// maxHandshakes bounds connections that have not proved anything yet, and maxPerPeer those of one address.
	maxHandshakes = 64
	maxPerPeer    = 16
	// handshakeTime is how long a client has to prove who it is; maxAuthTries how often it may try: an agent
	// offers all keys it has.
	handshakeTime = 20 * time.Second
	maxAuthTries  = 10
	// authTime bounds what is asked of the database about one key.
	authTime = 10 * time.Second
	// maxChannels bounds what goes on over one connection.
	maxChannels = 64
	// keepaliveEvery is how often a client is asked whether it is there, silence how long it may say nothing at
	// all, and writeTime how long one write may take: a laptop that is shut for a moment comes back, one that is
	// gone is not kept for.
	keepaliveEvery = 30 * time.Second
	silence        = 5 * time.Minute
	writeTime      = 2 * time.Minute
	// lookEvery is how often it is asked whether a visit may go on: with what control remembers, within the
	// second that is promised.
	lookEvery = 200 * time.Millisecond
)

// publicKeyAlgorithms are the signatures that are taken: none with SHA-1.
var publicKeyAlgorithms = []string{ssh.KeyAlgoED25519, ssh.KeyAlgoSKED25519, ssh.KeyAlgoSKECDSA256, ssh.KeyAlgoECDSA256,
	ssh.KeyAlgoECDSA384,
	ssh.KeyAlgoECDSA521, ssh.KeyAlgoRSASHA256, ssh.KeyAlgoRSASHA512}

// Config makes a Server.
type Config struct {
	Control *control.Control
	HostKey ssh.Signer
	Logger  *slog.Logger // nil = discard
}

// Server takes SSH connections. It is safe for concurrent use.
type Server struct {
	ctl  *control.Control
	host ssh.Signer
	log  *slog.Logger
	ctx  context.Context // of every connection: a Server owns a run of them
	end  context.CancelFunc

	conns sync.WaitGroup

	mu     sync.Mutex
	all    map[net.Conn]bool
	young  map[string]int // connections in their handshake, by address
	early  int            // all of those
	perKey map[outboard.SSHKeyID]int
	perOrg map[outboard.OrgID]int
}

// New returns a server.
func New(cfg Config) *Server {
	s := &Server{ctl: cfg.Control, host: cfg.HostKey, log: cfg.Logger, all: map[net.Conn]bool{},
		young: map[string]int{}, perKey: map[outboard.SSHKeyID]int{}, perOrg: map[outboard.OrgID]int{}}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.ctx, s.end = context.WithCancel(context.Background())
	return s
}

// Serve takes connections until Close or the listener fails, which is the error it returns.
func (s *Server) Serve(l net.Listener) error {
	stop := context.AfterFunc(s.ctx, func() { l.Close() })
	defer stop()
	for {
		nc, err := l.Accept()
		if s.ctx.Err() != nil {
			if err == nil {
				nc.Close()
			}
			return nil
		}
		if err != nil {
			if passes(err) {
				s.log.Warn("accepting SSH connections", "err", err)
				select {
				case <-time.After(acceptPause):
				case <-s.ctx.Done():
				}
				continue
			}
			return fmt.Errorf("accepting SSH connections: %w", err)
		}
		if !s.enter(nc) {
			nc.Close() // before a word: whoever floods gets nothing
			continue
		}
		s.conns.Go(func() { s.handle(nc) })
	}
}

// acceptPause is the wait before the next try where there is no descriptor for a connection.
const acceptPause = 100 * time.Millisecond

// passes reports whether a listener that failed so goes on: a client that was gone already, or descriptors that
// ran out for now.
func passes(err error) bool {
	return errors.Is(err, syscall.ECONNABORTED) || errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// Close ends every connection and waits for what they ran to be told. It may be called twice.
func (s *Server) Close() {
	s.end()
	s.mu.Lock()
	for nc := range s.all {
		nc.Close()
	}
	s.mu.Unlock()
	s.conns.Wait()
}

func peerOf(nc net.Conn) string {
	host, _, err := net.SplitHostPort(nc.RemoteAddr().String())
	if err != nil {
		return nc.RemoteAddr().String()
	}
	return host
}

// enter counts a connection in, if there may be one more.
func (s *Server) enter(nc net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	peer := peerOf(nc)
	if len(s.all) >= maxConns || s.early >= maxHandshakes || s.young[peer] >= maxPerPeer || s.ctx.Err() != nil {
		return false
	}
	s.all[nc] = true
	s.early++
	s.young[peer]++
	return true
}

// grown says that a connection's handshake is over, one way or the other.
func (s *Server) grown(nc net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	peer := peerOf(nc)
	s.early--
	if s.young[peer]--; s.young[peer] == 0 {
		delete(s.young, peer)
	}
}

// seat is where a connection is counted besides all of them.
type seat struct {
	org outboard.OrgID
	key outboard.SSHKeyID
}

// claim counts a connection of a key, and says where. It is not let in at all where its organization has as many
// as it may, and is told so where its key has: then key is "".
func (s *Server) claim(k *outboard.SSHKey) (at seat, in bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.perOrg[k.Org] >= maxPerOrg {
		return seat{}, false
	}
	at.org = k.Org
	s.perOrg[k.Org]++
	if s.perKey[k.ID] < maxPerKey {
		at.key = k.ID
		s.perKey[k.ID]++
	}
	return at, true
}

func (s *Server) leave(nc net.Conn, at seat, in bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, nc)
	if !in {
		return
	}
	if s.perOrg[at.org]--; s.perOrg[at.org] == 0 {
		delete(s.perOrg, at.org)
	}
	if at.key == "" {
		return
	}
	if s.perKey[at.key]--; s.perKey[at.key] == 0 {
		delete(s.perKey, at.key)
	}
}

// handle runs one connection to its end. What breaks here breaks one connection.
func (s *Server) handle(nc net.Conn) {
	var at seat
	var in bool
	defer func() { nc.Close(); s.leave(nc, at, in) }()
	defer s.recover("connection", nc.RemoteAddr().String())
	live := &lively{Conn: nc}
	sc, chans, reqs, visit, err := s.shake(live)
	s.grown(nc)
	if err != nil {
		s.log.Debug("no SSH connection", "from", nc.RemoteAddr(), "err", err)
		return
	}
	live.grown.Store(true)
	if at, in = s.claim(&visit.Key); !in {
		s.log.Warn("an SSH connection was closed: its organization has as many as it may", "org", visit.Key.Org, "most",
			maxPerOrg)
		sc.Close()
		return
	}
	c := &conn{s: s, sc: sc, visit: visit, full: at.key == "", log: s.log.With("target", visit.Target(), "ssh_key",
		visit.Key.ID, "from", nc.RemoteAddr().String())}
	c.log.Info("ssh connection")
	c.run(chans, reqs)
}

// shake proves who the client is.
func (s *Server) shake(nc net.Conn) (*ssh.ServerConn, <-chan ssh.NewChannel, <-chan *ssh.Request, *control.SSHVisit,
	error) {
	if err := nc.SetDeadline(time.Now().Add(handshakeTime)); err != nil {
		return nil, nil, nil, nil, err
	}
	var visit *control.SSHVisit
	stranger := false
	cfg := &ssh.ServerConfig{MaxAuthTries: maxAuthTries, ServerVersion: "SSH-2.0-Outboard",
		PublicKeyAuthAlgorithms: publicKeyAlgorithms,
		// Every key is worth a signature: to say which ones are known would tell strangers.
		PublicKeyCallback: func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) {
			return &ssh.Permissions{},
				nil
		},
		VerifiedPublicKeyCallback: func(m ssh.ConnMetadata, key ssh.PublicKey, _ *ssh.Permissions,
			_ string) (*ssh.Permissions, error) {
			ctx, cancel := context.WithTimeout(s.ctx, authTime)
			defer cancel()
			v, err := s.ctl.OpenSSH(ctx, ssh.FingerprintSHA256(key), m.User(), m.RemoteAddr().String())
			if err != nil {
				stranger = stranger || errors.Is(err, control.ErrSSHStranger)
				if outboard.KindOf(err) != outboard.Denied {
					s.log.Error("an SSH connection was refused because nobody could tell whether it may be", "err", err)
				}
				return nil, err
			}
			visit = v
			return &ssh.Permissions{}, nil
		}}
	cfg.AddHostKey(s.host)
	sc, chans, reqs, err := ssh.NewServerConn(nc, cfg)
	if err == nil && visit == nil {
		err = errors.Join(errors.New("nobody was admitted"), sc.Close())
	}
	if err != nil && stranger { // clients show every key they have: only if none was good was somebody refused
		s.ctl.Refused(s.ctx, outboard.Caller{}, control.RefusedRequest{Route: "ssh", From: nc.RemoteAddr().String(),
			Why: control.ErrSSHStranger})
	}
	return sc, chans, reqs, visit, err
}

// recover keeps what a client broke from ending the server.
func (s *Server) recover(what, who string) {
	if v := recover(); v != nil {
		s.log.Error("an ssh "+what+" panicked", "from", who, "panic", v, "stack", string(debug.Stack()))
	}
}

// lively is a connection on which silence and a reader that takes nothing have an end. Its first deadline, of
// the handshake, stands until grown.
type lively struct {
	net.Conn
	grown atomic.Bool
}

// Read implements net.Conn.
func (l *lively) Read(p []byte) (int, error) {
	if l.grown.Load() {
		if err := l.SetReadDeadline(time.Now().Add(silence)); err != nil {
			return 0, err
		}
	}
	return l.Conn.Read(p)
}

// Write implements net.Conn.
func (l *lively) Write(p []byte) (int, error) {
	if l.grown.Load() {
		if err := l.SetWriteDeadline(time.Now().Add(writeTime)); err != nil {
			return 0, err
		}
	}
	return l.Conn.Write(p)
}

// conn is one admitted connection.
type conn struct {
	s     *Server
	sc    *ssh.ServerConn
	visit *control.SSHVisit
	full  bool // the key has as many connections as it may
	log   *slog.Logger
	open  atomic.Int32 // channels
}

// errCut is why the programs of a connection are killed, and not just hung up on.
var errCut = errors.New("the connection may not go on")

// run serves channels until the connection ends.
func (c *conn) run(chans <-chan ssh.NewChannel, reqs <-chan *ssh.Request) {
	ctx, cancel := context.WithCancelCause(c.s.ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel(nil)
	defer c.sc.Close()
	guard := func(what string, f func()) {
		work.Go(func() {
			defer c.s.recover(what, c.sc.RemoteAddr().String())
			f()
		})
	}
	if c.full {
		defer time.AfterFunc(fullTime, func() { c.sc.Close() }).Stop()
	}
	guard("watch", func() { c.watch(ctx, cancel) })
	guard("keepalive", func() { c.keepalive(ctx) })
	guard("request", func() { ssh.DiscardRequests(reqs) }) // remote forwarding and the like: refused
	for n := range chans {
		switch {
		case c.full:
			n.Reject(ssh.ResourceShortage, fmt.Sprintf("this key has %d connections already", maxPerKey))
		case c.open.Load() >= maxChannels:
			n.Reject(ssh.ResourceShortage, fmt.Sprintf("at most %d channels", maxChannels))
		case !slices.Contains([]string{"session", "direct-tcpip"}, n.ChannelType()):
			n.Reject(ssh.UnknownChannelType, "only sessions and connections to ports of the sandbox")
		default:
			c.open.Add(1)
			guard("channel", func() {
				defer c.open.Add(-1)
				if n.ChannelType() == "session" {
					c.session(ctx, n)
				} else {
					c.forward(ctx, n)
				}
			})
		}
	}
}

// watch ends the connection when it may not go on.
func (c *conn) watch(ctx context.Context, cancel context.CancelCauseFunc) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		if err := c.visit.Alive(ctx); err != nil && ctx.Err() == nil {
			c.log.Info("ssh connection cut", "why", err)
			cancel(errCut)
			c.sc.Close()
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// keepalive asks now and then whether the client is there: any answer will do, since what counts is that
// something arrives.
func (c *conn) keepalive(ctx context.Context) {
	tick := time.NewTicker(keepaliveEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if _, _, err := c.sc.SendRequest("keepalive@openssh.com", true, nil); err != nil {
				return
			}
		}
	}
}
