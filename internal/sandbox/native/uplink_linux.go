package native

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest/boot"
	"github.com/outboard-dev/outboard/internal/guest/uplink"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// uplinkFile is the socket on which the guest hands its network over. Like the guest's own, its path stays
// outside the sandbox.
const uplinkFile = "uplink.sock"

var _ sandbox.Networked = (*Provider)(nil)

// connectNet adds to a configuration what a sandbox with a network needs, and returns the file to send with it, or nil.
func (b place) connectNet(cfg *boot.Config, n *sandbox.Network, ns network) (*os.File, error) {
	if n == nil {
		return nil, nil
	}
	cfg.Network = &boot.Uplink{CA: string(n.CA), Redirected: ns.redirected}
	l, err := b.listen(uplinkFile)
	if err != nil {
		return nil, fmt.Errorf("preparing the network: %w", err)
	}
	return l, nil
}

// Listen takes over the listening sockets of a living sandbox. It waits for one that is frozen.
func (p *Provider) Listen(ctx context.Context, id outboard.SandboxID, ca []byte) (net.Listener, error) {
	b, err := p.placeOf(id)
	if err != nil {
		return nil, err
	}
	s, err := b.load()
	if err != nil {
		return nil, outboard.Errorf(outboard.NotFound, "sandbox %s does not exist on this host", id)
	}
	m := &machine{place: b, state: s}
	if err := m.alive(); err != nil {
		return nil, err
	}
	conn, err := b.dial(ctx, uplinkFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, outboard.Errorf(outboard.Invalid, "sandbox %s was made without a network", id)
	}
	if err != nil {
		return nil, m.explain(err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	sockets, err := uplink.Take(conn.(*net.UnixConn), ca)
	if err != nil {
		conn.Close()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, m.explain(err)
	}
	return newUplinked(conn, sockets), nil
}

// closeTimeout bounds the wait for what accepts in the kernel. Who has a socket shares it with the guest, which
// may have made it block: then nothing ends a wait for a connection, and whoever stops a gateway would wait with
// it.
const closeTimeout = 2 * time.Second

// uplinked is the listener of one sandbox: its listening sockets, for as long as the guest holds the connection.
type uplinked struct {
	conn    net.Conn
	sockets []*net.TCPListener
	conns   chan net.Conn // unbuffered
	failed  chan error    // capacity 1: why it was closed, if nobody asked for that
	closed  chan struct{}
	close   func() error
	done    sync.WaitGroup
}

func newUplinked(conn net.Conn, sockets []*net.TCPListener) *uplinked {
	u := &uplinked{conn: conn, sockets: sockets, conns: make(chan net.Conn), failed: make(chan error, 1),
		closed: make(chan struct{})}
	u.close = sync.OnceValue(func() error {
		close(u.closed)
		return conn.Close()
	})
	u.done.Go(func() { // the end of the stream is the end of the sandbox
		_, _ = io.Copy(io.Discard, conn)
		_ = u.close()
	})
	for _, l := range sockets {
		u.done.Go(func() { u.forward(l) })
		u.done.Go(func() {
			<-u.closed
			l.Close()
		})
	}
	return u
}

// forward accepts from one of the sockets.
func (u *uplinked) forward(l *net.TCPListener) {
	for {
		conn, err := l.AcceptTCP()
		if err != nil {
			select {
			case u.failed <- err:
			default:
			}
			_ = u.close()
			return
		}
		select {
		case u.conns <- meant(conn):
		case <-u.closed:
			conn.Close()
			return
		}
	}
}

// Accept returns the next connection made inside.
func (u *uplinked) Accept() (net.Conn, error) {
	select {
	case conn := <-u.conns:
		return conn, nil
	case <-u.closed:
	}
	select {
	case err := <-u.failed:
		return nil, err
	default:
		return nil, net.ErrClosed
	}
}

// Close stops listening here and waits for what does.
func (u *uplinked) Close() error {
	err := u.close()
	ended := make(chan struct{})
	go func() {
		u.done.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(closeTimeout):
	}
	return err
}

// Addr is the proxy's address inside.
func (u *uplinked) Addr() net.Addr { return u.sockets[0].Addr() }

// uplinkConn is a connection whose local address is the one that the process inside meant.
type uplinkConn struct {
	*net.TCPConn
	to net.Addr
}

// LocalAddr is what the process inside connected to.
func (c *uplinkConn) LocalAddr() net.Addr { return c.to }

func meant(conn *net.TCPConn) net.Conn {
	to, err := uplink.Original(conn)
	if err != nil || to.Port == 0 {
		return conn // made without a redirection
	}
	return &uplinkConn{conn, to}
}
