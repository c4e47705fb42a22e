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

// Take is the host's side of a hand-over: it sends the certificate to trust and returns the sandbox's listening sockets. For as long as
// conn is open, the guest leaves them to the host.
func Take(conn *net.UnixConn, ca []byte) (_ []*net.TCPListener, err error) {
	if _, err := conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(ca))), ca...)); err != nil {
		return nil, fmt.Errorf("asking for the sockets: %w", err)
	}
	answer, oob := make([]byte, 512), make([]byte, syscall.CmsgSpace(4*MaxSockets))
	n, oobn, _, _, err := conn.ReadMsgUnix(answer, oob)
	if err != nil {
		return nil, fmt.Errorf("receiving the sockets: %w", err)
	}
	if n == 0 {
		return nil, fmt.Errorf("receiving the sockets: %w", io.ErrUnexpectedEOF)
	}
	if answer[0] != 0 {
		return nil, fmt.Errorf("the guest refused: %q", answer[1:n])
	}
	var out []*net.TCPListener
	defer func() {
		if err != nil {
			for _, l := range out {
				l.Close()
			}
		}
	}()
	msgs, err := syscall.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return nil, fmt.Errorf("receiving the sockets: %w", err)
	}
	for i := range msgs {
		fds, perr := syscall.ParseUnixRights(&msgs[i])
		for _, fd := range fds {
			l, lerr := listener(fd)
			if lerr == nil {
				out = append(out, l)
			}
			perr = errors.Join(perr, lerr)
		}
		if perr != nil {
			return nil, fmt.Errorf("receiving the sockets: %w", perr)
		}
	}
	if len(out) == 0 {
		return nil, errNoSockets
	}
	_ = conn.SetDeadline(time.Time{})
	return out, nil
}

// listener takes over a descriptor, and refuses what is no listening TCP socket.
func listener(fd int) (*net.TCPListener, error) {
	f := os.NewFile(uintptr(fd), "uplink")
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	t, ok := l.(*net.TCPListener)
	if !ok {
		l.Close()
		return nil, errors.New("a descriptor is no TCP listener")
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
