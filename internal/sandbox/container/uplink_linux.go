package container

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"sync"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest/boot"
	"github.com/outboard-dev/outboard/internal/guest/uplink"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

var _ sandbox.Networked = (*Provider)(nil)

// Listen takes over what connects inside a living sandbox: its sockets where they can leave it, else its
// connections one by one.
func (p *Provider) Listen(ctx context.Context, id outboard.SandboxID, ca []byte) (net.Listener, error) {
	m, err := p.find(id)
	if err != nil {
		return nil, err
	}
	conn, err := m.dial(ctx, boot.UplinkSocket)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, outboard.Errorf(outboard.Invalid, "sandbox %s was made without a network", id)
	}
	if err != nil {
		return nil, m.explain(err)
	}
	if p.tech.OwnKernel() {
		l, err := listenRelayed(ctx, m, conn, ca)
		if err != nil {
			return nil, m.explain(err)
		}
		return l, nil
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	sockets, err := uplink.Take(conn, ca)
	if err != nil {
		conn.Close()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, m.explain(err)
	}
	return native.Handed(conn, sockets), nil
}

// relayed is the listener of a sandbox that carries its connections. Each of Reserve goroutines holds one
// connection to the guest until that becomes one made inside, and then takes another.
type relayed struct {
	m     *machine
	ca    []byte
	conns chan net.Conn // unbuffered
	run   context.Context
	end   context.CancelCauseFunc
	done  sync.WaitGroup
}

func listenRelayed(ctx context.Context, m *machine, first *net.UnixConn, ca []byte) (net.Listener, error) {
	if err := greet(ctx, first, ca); err != nil {
		first.Close()
		return nil, err
	}
	run, end := context.WithCancelCause(context.Background())
	r := &relayed{m: m, ca: ca, conns: make(chan net.Conn), run: run, end: end}
	for i := range uplink.Reserve {
		conn := first
		if i > 0 {
			conn = nil
		}
		r.done.Go(func() { r.hold(conn) })
	}
	return r, nil
}

// greet sends the certificate and waits for the guest's word that it is trusted.
func greet(ctx context.Context, conn *net.UnixConn, ca []byte) error {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if _, err := conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(ca))), ca...)); err != nil {
		return fmt.Errorf("asking for connections: %w", err)
	}
	var answer [1]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return fmt.Errorf("asking for connections: %w", err)
	}
	if answer[0] != 0 {
		return errors.New("the guest refused the certificate")
	}
	return nil
}

// hold keeps one place of the reserve.
func (r *relayed) hold(conn *net.UnixConn) {
	for r.run.Err() == nil {
		if conn == nil {
			var err error
			if conn, err = r.m.dial(r.run, boot.UplinkSocket); err == nil {
				err = greet(r.run, conn, r.ca)
			}
			if err != nil {
				r.end(err) // the sandbox has ended
				if conn != nil {
					conn.Close()
				}
				return
			}
		}
		var to [uplink.AddrSize]byte
		stop := context.AfterFunc(r.run, func() { conn.Close() })
		_, err := io.ReadFull(conn, to[:])
		stop()
		if err != nil {
			conn.Close()
			r.end(err)
			return
		}
		select {
		case r.conns <- &carried{conn, uplink.Address(to)}:
		case <-r.run.Done():
			conn.Close()
		}
		conn = nil
	}
}

// Accept returns the next connection made inside.
func (r *relayed) Accept() (net.Conn, error) {
	select {
	case conn := <-r.conns:
		return conn, nil
	case <-r.run.Done():
		return nil, net.ErrClosed
	}
}

// Close stops listening here and waits for what does.
func (r *relayed) Close() error {
	r.end(net.ErrClosed)
	r.done.Wait()
	return nil
}

// Addr is the proxy's address inside.
func (r *relayed) Addr() net.Addr { return proxyAddr }

var proxyAddr = func() net.Addr {
	a, err := net.ResolveTCPAddr("tcp4", uplink.ProxyAddr)
	if err != nil {
		panic(err) // a constant
	}
	return a
}()

// carried is a connection made inside, with the addresses it has there.
type carried struct {
	*net.UnixConn
	to net.Addr
}

// LocalAddr is what the process inside connected to.
func (c *carried) LocalAddr() net.Addr { return c.to }

// RemoteAddr is the sandbox's own loopback: who it is in there is not told.
func (c *carried) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }
