package uplink

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// descriptor is anything that can be passed.
type descriptor interface{ File() (*os.File, error) }

// pair is a connection between a host and a guest.
func pair(t *testing.T) (host, guest *net.UnixConn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	side := func(fd int) *net.UnixConn {
		f := os.NewFile(uintptr(fd), "pair")
		defer f.Close()
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		return c.(*net.UnixConn)
	}
	return side(fds[0]), side(fds[1])
}

// answerWith is the host's side of a connection to a guest that answers with a byte and descriptors.
func answerWith(t *testing.T, answer byte, list ...*os.File) (*net.UnixConn, func()) {
	t.Helper()
	host, guest := pair(t)
	var rights []int
	for _, f := range list {
		rights = append(rights, int(f.Fd()))
	}
	if _, _, err := guest.WriteMsgUnix([]byte{answer}, syscall.UnixRights(rights...), nil); err != nil {
		t.Fatal(err)
	}
	_ = host.SetDeadline(time.Now().Add(10 * time.Second))
	return host, func() { host.Close(); guest.Close() }
}

func fileOf(t *testing.T, d any, err error) *os.File {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if c, ok := d.(io.Closer); ok {
		t.Cleanup(func() { c.Close() })
	}
	f, ok := d.(*os.File)
	if !ok {
		if f, err = d.(descriptor).File(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
	}
	return f
}

// open is how many descriptors this process has.
func open(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// Broken if the host takes from a hostile guest what is no listening TCP socket, or keeps a descriptor of an
// answer that it refuses: the gateway asks again every second, and would run out of them.
func TestTakeFromAHostileGuest(t *testing.T) {
	tcp, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}) // as the guest does
	good := fileOf(t, tcp, err)
	conn, err := net.Dial("tcp4", tcp.Addr().String())
	connected := fileOf(t, conn, err)
	udp, err := net.ListenPacket("udp4", "127.0.0.1:0")
	datagrams := fileOf(t, udp, err)
	un, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	local := fileOf(t, un, err)
	pr, pw, err := os.Pipe()
	pipe := fileOf(t, pr, err)
	defer pw.Close()
	plain, err := os.Create(filepath.Join(t.TempDir(), "f"))
	file := fileOf(t, plain, err)
	many := make([]*os.File, 250) // the kernel passes no more than 253
	for i := range many {
		many[i] = good
	}

	take := func(answer byte, list ...*os.File) (int, error) {
		before := open(t)
		host, end := answerWith(t, answer, list...)
		got, err := Take(host, nil)
		for _, l := range got {
			l.Close()
		}
		end()
		if after := open(t); after != before {
			t.Errorf("%d descriptors passed with %d: %d are open that were not", len(list), answer, after-before)
		}
		return len(got), err
	}
	if n, err := take(0, good, good); n != 2 || err != nil {
		t.Fatalf("an honest guest: %d sockets, %v", n, err)
	}
	if n, err := take(0, many...); err == nil && n > MaxSockets {
		t.Errorf("%d sockets of %d were taken", n, len(many))
	}
	for name, f := range map[string]*os.File{"a connection": connected, "a UDP socket": datagrams,
		"a unix socket": local, "a pipe": pipe, "a file": file} {
		if _, err := take(0, good, f); !errors.Is(err, errNoListener) {
			t.Errorf("%s beside a socket: %v", name, err)
		}
	}
	if _, err := take(1, good, good, file); err == nil {
		t.Error("a refusal is none")
	}
	if _, err := take(0); !errors.Is(err, errNoSockets) {
		t.Errorf("nothing: %v", err)
	}
}

// Broken if a hand-over makes the sockets block: a host that accepts then, another one than it was for, waits in
// the kernel, and can be stopped by nothing.
func TestHandedSocketsDoNotBlock(t *testing.T) {
	var u server
	u.Sockets = new(Sockets)
	for range 2 {
		l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		u.TCP = append(u.TCP, l)
	}
	blocks := func(l *net.TCPListener) bool {
		raw, err := l.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var flags uintptr
		if err := raw.Control(func(fd uintptr) {
			flags, _, _ = syscall.Syscall(syscall.SYS_FCNTL, fd, syscall.F_GETFL,
				0)
		}); err != nil {
			t.Fatal(err)
		}
		return flags&syscall.O_NONBLOCK == 0
	}
	host, guest := pair(t)
	defer host.Close()
	if err := u.pass(guest); err != nil {
		t.Fatal(err)
	}
	oob := make([]byte, syscall.CmsgSpace(4*MaxSockets))
	_, n, _, _, err := host.ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		t.Fatal(err)
	}
	msgs, err := syscall.ParseSocketControlMessage(oob[:n])
	if err != nil || len(msgs) != 1 {
		t.Fatalf("%d messages: %v", len(msgs), err)
	}
	fds, err := syscall.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 2 {
		t.Fatalf("%d sockets: %v", len(fds), err)
	}
	for i, fd := range fds {
		if at, err := syscall.Getsockname(fd); err != nil || at.(*syscall.SockaddrInet4).
			Port != u.TCP[i].Addr().(*net.TCPAddr).Port {
			t.Errorf("socket %d is at %v: %v", i, at, err)
		}
		syscall.Close(fd)
		if blocks(u.TCP[i]) {
			t.Errorf("socket %d blocks", i)
		}
	}
	control := fileOf(t, u.TCP[0], nil)
	if control.Fd(); !blocks(u.TCP[0]) {
		t.Error("the control does not block")
	}
}
