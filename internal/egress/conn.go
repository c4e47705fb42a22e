package egress

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/outboard-dev/outboard/internal/netrule"
)

// proxyPort is where clients that know of proxies connect. Every other port is one that a client believes to be
// a server's.
const proxyPort = 3128

// flow is what is known about a connection before its first request.
type flow struct {
	port   *port
	to     int    // the TCP port that the client meant; proxyPort for the proxy's own
	tunnel string // host of a CONNECT, canonical; "" outside a tunnel
	tls    bool
	sni    string // with tls: the name that the client gave
	name   string // with tls: it, or what stands for it, in canonical form; "" = it has none
	once   sync.Once
	end    *time.Timer // closes the connection when it has lasted for Config.Life
}

// done gives the connection's slot back.
func (f *flow) done() {
	f.once.Do(func() {
		f.end.Stop()
		<-f.port.slots
	})
}

// named is the name that a client expects in the certificate: SNI, or where it sends none the tunnel's, which is
// then an address.
func (f *flow) named(sni string) (string, error) {
	if sni == "" {
		if f.tunnel == "" {
			return "", errors.New("the client names no server")
		}
		return f.tunnel, nil
	}
	host, port, err := netrule.Host(sni)
	if err == nil && port != 0 {
		err = errors.New("a server name with a port")
	}
	if err != nil {
		return "", err // and no name: what has none matches no host
	}
	return host, nil
}

// conn is a client's connection whose first bytes have been read.
type conn struct {
	net.Conn
	head []byte
	flow *flow
}

// Read returns what was read ahead first.
func (c *conn) Read(b []byte) (int, error) {
	if len(c.head) > 0 {
		n := copy(b, c.head)
		c.head = c.head[n:]
		return n, nil
	}
	return c.Conn.Read(b)
}

// CloseWrite tells the client that nothing follows.
func (c *conn) CloseWrite() error { return closeWrite(c.Conn) }

// Close gives the slot back.
func (c *conn) Close() error {
	c.flow.done()
	return c.Conn.Close()
}

// closeWrite closes one direction of a connection. Of one that cannot, its user closes both.
func closeWrite(c any) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return http.ErrNotSupported
}

type flowKey struct{}

// withFlow lets a handler know its connection.
func withFlow(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	if c, ok := c.(*conn); ok {
		return context.WithValue(ctx, flowKey{}, c.flow)
	}
	return ctx
}

// take begins with a connection from the sandbox. Over the limit it waits for another one to end, and those
// behind it wait in the sandbox's own kernel.
func (p *port) take(ctx context.Context, c net.Conn) {
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		c.Close()
		return
	}
	to := 0
	if a, ok := c.LocalAddr().(*net.TCPAddr); ok {
		to = a.Port
	}
	// whoever serves it finds that out, and ends what it carries
	end := time.AfterFunc(p.g.cfg.Life, func() { c.Close() })
	p.g.run.Go(func() { p.sniff(&conn{Conn: c, flow: &flow{port: p, to: to, end: end}}) })
}

// sniff looks at how a connection begins, ends TLS where it is TLS, and hands the connection to the HTTP server.
func (p *port) sniff(c *conn) {
	if !p.readAhead(c, 1) {
		c.Close()
		return
	}
	const handshake = 0x16
	toProxy := c.flow.to == proxyPort && c.flow.tunnel == ""
	switch {
	case c.head[0] == handshake && toProxy:
		c.Close() // TLS to the proxy itself: no client of ours is told to
	case c.head[0] == handshake:
		p.secure(c)
	case !toProxy && c.head[0] == sshMark[0] && p.readAhead(c, len(sshMark)) &&
		string(c.head[:len(sshMark)]) == sshMark:
		p.refuseSSH(c)
	default:
		p.g.conns.give(c)
	}
}

// readAhead waits until the first n bytes of a connection are in its head, and reports whether they came.
func (p *port) readAhead(c *conn, n int) bool {
	missing := n - len(c.head)
	if missing <= 0 {
		return true
	}
	_ = c.SetReadDeadline(time.Now().Add(helloTimeout)) // a dead socket fails below
	stop := context.AfterFunc(p.g.ctx, func() { c.Close() })
	defer stop()
	more := make([]byte, missing)
	got, err := io.ReadFull(c.Conn, more)
	c.head = append(c.head, more[:got]...)
	_ = c.SetReadDeadline(time.Time{})
	return err == nil
}

// secure ends TLS, and hands what is inside to the HTTP server.
func (p *port) secure(c *conn) {
	c.flow.tls = true
	p.mu.Lock()
	cfg := p.tls
	p.mu.Unlock()
	t := tls.Server(c, cfg)
	ctx, cancel := context.WithTimeout(p.g.ctx, helloTimeout)
	defer cancel()
	if err := t.HandshakeContext(ctx); err != nil {
		c.Close()
		return
	}
	state := t.ConnectionState()
	c.flow.sni = state.ServerName
	c.flow.name, _ = c.flow.named(state.ServerName)
	p.g.conns.give(t)
}

// tunnel answers a CONNECT and goes on with what comes through it.
func (p *port) tunnel(w http.ResponseWriter, host string, port int) {
	under, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, "outboard: CONNECT needs HTTP/1.1", http.StatusBadRequest)
		return
	}
	inner, ok := under.(*conn)
	if !ok {
		under.Close()
		return
	}
	n := buf.Reader.Buffered()
	head, _ := buf.Peek(n) // cannot fail: it is buffered
	next := &conn{Conn: inner.Conn, head: append([]byte(nil), head...),
		flow: &flow{port: p, to: port, tunnel: host, end: inner.flow.end}}
	if _, err := inner.Conn.Write([]byte("HTTP/1.1 200 Connection established\r\n\r\n")); err != nil {
		inner.Close()
		return
	}
	p.g.run.Go(func() { p.sniff(next) }) // which owns the slot from here
}

// handover is a listener whose connections were accepted elsewhere.
type handover struct {
	conns  chan net.Conn // unbuffered
	closed chan struct{}
	once   sync.Once
}

func newHandover() *handover {
	return &handover{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (h *handover) give(c net.Conn) {
	select {
	case h.conns <- c:
	case <-h.closed:
		c.Close()
	}
}

// Accept implements net.Listener.
func (h *handover) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (h *handover) Close() error {
	h.once.Do(func() { close(h.closed) })
	return nil
}

// Addr implements net.Listener.
func (h *handover) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4zero} }
