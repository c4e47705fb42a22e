//go:build unix

package egress

import (
	"net"
	"syscall"
)

// silent returns what reports whether a kept connection is open and says nothing: what a server says unasked is its end, or belongs to nobody.
func silent(c net.Conn) func() bool {
	s, ok := c.(syscall.Conn)
	if !ok {
		return func() bool { return true }
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return func() bool { return false }
	}
	quiet := false
	look := func(fd uintptr) bool {
		var b [1]byte
		_, err := syscall.Read(int(fd), b[:])
		quiet = err == syscall.EAGAIN
		return true
	}
	return func() bool {
		err := raw.Read(look)
		return err == nil && quiet
	}
}
