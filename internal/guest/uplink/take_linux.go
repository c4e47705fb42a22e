package uplink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// Take is the host's side of a hand-over: it sends the certificate to trust and returns the sandbox's listening
// sockets. For as long as conn is open, the guest leaves them to the host.
func Take(conn *net.UnixConn, ca []byte) (_ []*net.TCPListener, err error) {
	if _, err := conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(ca))), ca...)); err != nil {
		return nil, fmt.Errorf("asking for the sockets: %w", err)
	}
	answer, oob := make([]byte, 512), make([]byte, syscall.CmsgSpace(4*MaxSockets))
	n, oobn, _, _, err := conn.ReadMsgUnix(answer, oob)
	out, perr := received(oob[:oobn]) // whatever the answer is: descriptors that have come are ours to close
	defer func() {
		if err != nil {
			for _, l := range out {
				l.Close()
			}
		}
	}()
	switch {
	case err != nil:
		return nil, fmt.Errorf("receiving the sockets: %w", err)
	case n == 0:
		return nil, fmt.Errorf("receiving the sockets: %w", io.ErrUnexpectedEOF)
	case answer[0] != 0:
		return nil, fmt.Errorf("the guest refused: %q", answer[1:n])
	case perr != nil:
		return nil, fmt.Errorf("receiving the sockets: %w", perr)
	case len(out) == 0:
		return nil, errNoSockets
	}
	_ = conn.SetDeadline(time.Time{})
	return out, nil
}

// received takes over the descriptors that came with a message. Of those that are no listening TCP sockets none
// stays open.
func received(oob []byte) (out []*net.TCPListener, err error) {
	msgs, err := syscall.ParseSocketControlMessage(oob)
	for i := range msgs {
		fds, perr := syscall.ParseUnixRights(&msgs[i])
		err = errors.Join(err, perr)
		for _, fd := range fds {
			l, lerr := listener(fd)
			if lerr == nil {
				out = append(out, l)
			}
			err = errors.Join(err, lerr)
		}
	}
	return out, err
}

// errNoListener is of a descriptor by which nothing could be accepted, or something else than a sandbox's connections.
var errNoListener = errors.New("a descriptor is no listening TCP socket")

// listener takes over a descriptor, and refuses what is no listening TCP socket.
func listener(fd int) (*net.TCPListener, error) {
	f := os.NewFile(uintptr(fd), "uplink")
	defer f.Close()
	domain, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_DOMAIN)
	if err != nil || domain != syscall.AF_INET {
		return nil, errNoListener
	}
	// IPPROTO_MPTCP: what net listens with where the kernel can; what it accepts from others is TCP
	const multipath = 262
	protocol, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_PROTOCOL)
	if err != nil || protocol != syscall.IPPROTO_TCP && protocol != multipath {
		return nil, errNoListener
	}
	if listening, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_ACCEPTCONN); err != nil ||
		listening != 1 {
		return nil, errNoListener
	}
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	t, ok := l.(*net.TCPListener)
	if !ok {
		l.Close()
		return nil, errNoListener
	}
	return t, nil
}

// Original returns the address that the process inside meant, before a redirection.
func Original(conn *net.TCPConn) (*net.TCPAddr, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	const soOriginalDst = 80
	var addr syscall.RawSockaddrInet4
	var errno error
	err = raw.Control(func(fd uintptr) { addr, errno = sockaddrOpt(fd, syscall.IPPROTO_IP, soOriginalDst) })
	if err = errors.Join(err, errno); err != nil {
		return conn.LocalAddr().(*net.TCPAddr), err
	}
	port := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, addr.Port))
	return &net.TCPAddr{IP: net.IP(addr.Addr[:]), Port: int(port)}, nil
}
