package native

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// If this fails, a guest that makes its listening socket block, which it shares with the host, keeps a server
// from ever ending.
func TestListenerThatBlocks(t *testing.T) {
	for name, hostile := range map[string]bool{"as an honest guest": false, "made to block": true} {
		t.Run(name, func(t *testing.T) {
			l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
			if err != nil {
				t.Fatal(err)
			}
			host, guest := net.Pipe()
			defer guest.Close()
			address := l.Addr().String()
			if hostile {
				raw, err := l.SyscallConn()
				if err == nil {
					err = errors.Join(raw.Control(func(fd uintptr) { err = unix.SetNonblock(int(fd), false) }), err)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			u := newUplinked(host, []*net.TCPListener{l})
			meet := func() net.Conn { // both ends exist only if it is accepted
				c, err := net.Dial("tcp4", address)
				if err != nil {
					t.Fatal(err)
				}
				return c
			}
			c := meet()
			accepted, err := u.Accept()
			if err != nil {
				t.Fatal(err)
			}
			accepted.Close()
			if _, err := c.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("reading what was closed: %v", err)
			}
			c.Close()
			begin := time.Now()
			if err := u.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			if d := time.Since(begin); d > closeTimeout+5*time.Second {
				t.Errorf("it took %v", d)
			}
			if _, err := u.Accept(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("Accept after Close: %v", err)
			}
			if hostile {
				// lets go of what waits in the kernel, unless it was closed before it came there
				if c, err := net.Dial("tcp4", address); err == nil {
					c.Close()
				}
				u.done.Wait()
			}
		})
	}
}
