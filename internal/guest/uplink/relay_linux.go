package uplink

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Where the sandbox's kernel is not the host's, its sockets cannot be handed over. Then connections are carried:
// the host keeps some connections to the guest in reserve, each opened as for a hand-over (certificate, answer),
// and the guest spends one for each connection made inside: it writes where that was meant to go, AddrSize
// bytes, and then both are one stream.

const (
	// AddrSize is the length of the address before a carried connection: IPv4 and port, big endian.
	AddrSize = 6
	// Reserve is how many connections the host keeps open for the next ones made inside.
	Reserve = 8
	// maxReserve bounds what the guest holds of them: several processes of a host may serve one sandbox.
	maxReserve = 64
)

// Relay answers names, and carries connections to whoever keeps a reserve of connections at hand, until ctx
// ends. It closes both.
func (s *Sockets) Relay(ctx context.Context, hand *net.UnixListener) {
	u := &server{Sockets: s}
	r := &relay{reserve: make(chan net.Conn, maxReserve)}
	var wg sync.WaitGroup
	wg.Go(u.names)
	for _, l := range s.TCP {
		wg.Go(func() { r.accept(ctx, l) })
	}
	wg.Go(func() {
		for {
			conn, err := hand.AcceptUnix()
			if err != nil {
				return
			}
			wg.Go(func() { r.keep(u, conn) })
		}
	})
	<-ctx.Done()
	hand.Close()
	s.Close()
	wg.Wait()
}

// relay is the reserve of connections to hosts.
type relay struct {
	reserve chan net.Conn // capacity maxReserve
}

// keep takes a host's connection into the reserve.
func (r *relay) keep(u *server, conn *net.UnixConn) {
	_ = conn.SetDeadline(time.Now().Add(handTimeout))
	if err := u.trust(conn); err != nil {
		_, _ = conn.Write(append([]byte{1}, err.Error()...))
		conn.Close()
		return
	}
	if _, err := conn.Write([]byte{0}); err != nil {
		conn.Close()
		return
	}
	_ = conn.SetDeadline(time.Time{})
	select {
	case r.reserve <- conn:
	default:
		conn.Close()
	}
}

// accept carries what is connected to one of the sockets.
func (r *relay) accept(ctx context.Context, l *net.TCPListener) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		conn, err := l.AcceptTCP()
		if err != nil {
			return
		}
		wg.Go(func() { r.carry(ctx, conn) })
	}
}

// carry spends a connection of the reserve on conn. One that its host has let go of meanwhile refuses the address.
func (r *relay) carry(ctx context.Context, conn *net.TCPConn) {
	defer conn.Close()
	to := address(conn)
	t := time.NewTimer(Grace)
	defer t.Stop()
	for {
		select {
		case host := <-r.reserve:
			if _, err := host.Write(to); err != nil {
				host.Close()
				continue
			}
			stop := context.AfterFunc(ctx, func() { host.Close(); conn.Close() })
			join(conn, host)
			stop()
			return
		case <-t.C:
			apologise(conn)
			return
		case <-ctx.Done():
			return
		}
	}
}

// address encodes what a connection was meant to reach.
func address(conn *net.TCPConn) []byte {
	to, err := Original(conn)
	if err != nil || to.Port == 0 {
		to, _ = conn.LocalAddr().(*net.TCPAddr)
	}
	var b []byte
	if ip, ok := netip.AddrFromSlice(to.IP.To4()); ok {
		b = append(b, ip.AsSlice()...)
	} else {
		b = append(b, 0, 0, 0, 0)
	}
	return binary.BigEndian.AppendUint16(b, uint16(to.Port))
}

// Address decodes it.
func Address(b [AddrSize]byte) *net.TCPAddr {
	return &net.TCPAddr{IP: net.IP(append([]byte(nil), b[:4]...)), Port: int(binary.BigEndian.Uint16(b[4:]))}
}

// join makes two connections one, each direction to its own end, and closes them.
func join(a, b net.Conn) {
	var wg sync.WaitGroup
	pipe := func(to, from net.Conn) {
		_, err := io.Copy(to, from)
		if half, ok := to.(interface{ CloseWrite() error }); err != nil || !ok || half.CloseWrite() != nil {
			a.Close()
			b.Close()
		}
	}
	wg.Go(func() { pipe(a, b) })
	wg.Go(func() { pipe(b, a) })
	wg.Wait()
	a.Close()
	b.Close()
}
