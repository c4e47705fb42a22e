package uplink

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"
)

// handTimeout bounds one hand-over on each side, but for the time a sandbox is frozen.
const handTimeout = 10 * time.Second

// Serve answers names, and hands the sockets to whoever connects to hand, until ctx ends. It closes both.
func (s *Sockets) Serve(ctx context.Context, hand *net.UnixListener) {
	u := &server{Sockets: s, taken: make(chan struct{}, 1)}
	var wg sync.WaitGroup
	wg.Go(u.names)
	wg.Go(func() { u.alone(ctx) })
	wg.Go(func() {
		for {
			conn, err := hand.AcceptUnix()
			if err != nil {
				return
			}
			wg.Go(func() { u.give(ctx, conn) })
		}
	})
	<-ctx.Done()
	hand.Close()
	s.Close()
	wg.Wait()
}

type server struct {
	*Sockets
	mu    sync.Mutex
	hosts int           // connected
	quiet sync.Mutex    // held while the guest itself accepts
	taken chan struct{} // capacity 1; a signal that hosts has changed
}

// names answers queries for names.
func (u *server) names() {
	buf := make([]byte, 1500)
	for {
		n, from, err := u.DNS.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		if a := Answer(buf[:n]); a != nil {
			_, _ = u.DNS.WriteToUDPAddrPort(a, from) // who does not get it asks again
		}
	}
}

// give hands the sockets to one host, and counts it until it hangs up.
func (u *server) give(ctx context.Context, conn *net.UnixConn) {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	_ = conn.SetDeadline(time.Now().Add(handTimeout))
	if err := u.trust(conn); err != nil {
		_, _ = conn.Write(append([]byte{1}, err.Error()...))
		return
	}
	u.count(1)
	defer u.count(-1)
	u.settle()
	if err := u.pass(conn); err != nil {
		return
	}
	_ = conn.SetDeadline(time.Time{})
	_, _ = io.Copy(io.Discard, conn) // the host says nothing more
}

// settle returns when the guest itself no longer accepts.
func (u *server) settle() {
	u.quiet.Lock()
	defer u.quiet.Unlock()
}

// trust reads the certificate that the host is about to use.
func (u *server) trust(conn io.Reader) error {
	var size [4]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > MaxCA {
		return fmt.Errorf("a certificate of %d bytes is too long", n)
	}
	ca := make([]byte, n)
	if _, err := io.ReadFull(conn, ca); err != nil {
		return err
	}
	return AddTrust(ca)
}

// pass sends the listening sockets. Their descriptors are used as they are: os.File.Fd would make the sockets
// block, for everybody who has them, and who accepts then can be stopped by nothing.
func (u *server) pass(conn *net.UnixConn) error { return pass(conn, u.TCP, nil) }

// pass sends descriptors that are held, those of list first.
func pass(conn *net.UnixConn, list []*net.TCPListener, held []int) error {
	if len(list) == 0 {
		_, _, err := conn.WriteMsgUnix([]byte{0}, syscall.UnixRights(held...), nil)
		return err
	}
	raw, err := list[0].SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = raw.Control(func(fd uintptr) { sent = pass(conn, list[1:], append(held, int(fd))) })
	return errors.Join(err, sent)
}

func (u *server) count(n int) {
	u.mu.Lock()
	u.hosts += n
	if u.hosts > 0 {
		for _, l := range u.TCP {
			_ = l.SetDeadline(time.Unix(1, 0)) // ends accepting here
		}
	}
	u.mu.Unlock()
	select {
	case u.taken <- struct{}{}:
	default:
	}
}

// alone answers connections while no host has for longer than Grace.
func (u *server) alone(ctx context.Context) {
	for ctx.Err() == nil {
		t := time.NewTimer(Grace)
		select {
		case <-ctx.Done():
		case <-u.taken: // wait again from here
		case <-t.C:
			u.refuse(ctx)
			select { // accepting ended because a host came, or the sandbox goes
			case <-u.taken:
			case <-ctx.Done():
			}
		}
		t.Stop()
	}
}

// refuse accepts until a host comes.
func (u *server) refuse(ctx context.Context) {
	u.quiet.Lock()
	defer u.quiet.Unlock()
	u.mu.Lock()
	busy := u.hosts > 0
	if !busy {
		for _, l := range u.TCP {
			_ = l.SetDeadline(time.Time{})
		}
	}
	u.mu.Unlock()
	if busy || ctx.Err() != nil {
		return
	}
	var wg sync.WaitGroup
	for _, l := range u.TCP {
		wg.Go(func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				apologise(conn)
			}
		})
	}
	wg.Wait()
}

// apologise answers what may be a request for HTTP.
func apologise(conn net.Conn) {
	defer conn.Close()
	const body = "outboard: the egress gateway of this sandbox is not running, so nothing can be reached. Try again " +
		"later.\n"
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	var b [1 << 10]byte
	n, _ := conn.Read(b[:])
	const tlsHandshake = 0x16
	if n == 0 || b[0] == tlsHandshake {
		return
	}
	fmt.Fprintf(conn, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nContent-Length: "+
		"%d\r\nConnection: close\r\n\r\n%s", len(body), body)
}
