package native

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/guest/boot"
	"github.com/outboard-dev/outboard/internal/guest/form"
	"github.com/outboard-dev/outboard/internal/guest/spawner"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// birth is a sandbox being started.
type birth struct {
	pid     int
	start   uint64        // the process's start time
	gate    gate          // holds the process back until its ids and cgroups are ready
	control *net.UnixConn // our end of the control socket
}

func (b *birth) close() {
	if b.gate.File != nil {
		b.gate.Close()
	}
	if b.control != nil {
		b.control.Close()
	}
}

// spawn makes the first process of a slot, in new namespaces. The child does nothing until the gate opens, and
// ends when the gate or the control socket is closed before that: it cannot outlive a host that died before it
// knew the pid.
func (p *Provider) spawn(sl *slot) (_ *birth, err error) {
	program, err := p.program.open(p.guest)
	if err != nil {
		return nil, fmt.Errorf("reading the guest program: %w", err)
	}
	nb := new(birth)
	defer func() {
		if err != nil {
			nb.close()
		}
	}()
	control, err := nb.sockets()
	defer closeAll(control)
	if err != nil {
		return nil, err
	}
	doors, err := sl.group.doors()
	defer closeAll(doors)
	if err != nil {
		return nil, err
	}
	k := spawner.Child{Net: -1, Mount: -1, Flags: namespaces, Gate: int(control[1].Fd()), Program: int(program.Fd()),
		Owner: sl.state.UIDBase}
	if p.rootless {
		k.ID = toolUID
	}
	null, log, listen, state := int(sl.files[0].Fd()), int(sl.files[1].Fd()), int(sl.files[2].Fd()), int(sl.files[3].Fd())
	k.Files = [spawner.FirstFree]int{null, log, log, listen, int(control[0].Fd()), state}
	for _, d := range doors {
		k.Groups = append(k.Groups, int(d.Fd()))
	}
	if nb.pid, err = p.clone(k, sl); err != nil {
		return nil, unavailable("the kernel refuses new namespaces: %w", err)
	}
	st, err := readStat(nb.pid)
	if err != nil {
		nb.gate.Close() // ends it
		_, _ = unix.Wait4(nb.pid, nil, 0, nil)
		return nil, fmt.Errorf("looking at the guest: %w", err)
	}
	nb.start = st.start
	return nb, nil
}

// sockets makes the control socket and the gate, and returns the guest's ends.
func (b *birth) sockets() (theirs []*os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	theirs = append(theirs, os.NewFile(uintptr(pair[1]), "control"))
	mine := os.NewFile(uintptr(pair[0]), "control")
	defer mine.Close()
	conn, err := net.FileConn(mine)
	if err != nil {
		return theirs, fmt.Errorf("opening the control socket: %w", err)
	}
	b.control = conn.(*net.UnixConn)
	if pair, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0); err != nil {
		return theirs, os.NewSyscallError("socketpair", err)
	}
	b.gate = gate{os.NewFile(uintptr(pair[0]), "gate")}
	return append(theirs, os.NewFile(uintptr(pair[1]), "gate")), nil
}

// clone makes the first process of a slot: in the spawner, and where this process is an ordinary user's, which
// has no namespaces to bring it into, itself.
func (p *Provider) clone(k spawner.Child, sl *slot) (int, error) {
	if sl.net.made() {
		k.Net = int(sl.net.ns.Fd())
		if sl.mnt != nil {
			k.Mount = int(sl.mnt.Fd())
		}
		return p.viaSpawner(k)
	}
	all := append(slices.Clone(k.Files[:]), k.Program, k.Gate)
	fds, err := duplicate(all...)
	defer closeFDs(fds)
	if err != nil {
		return 0, err
	}
	copy(k.Files[:], fds)
	k.Program, k.Gate = fds[spawner.FirstFree], fds[spawner.FirstFree+1]
	k.Flags |= unix.CLONE_NEWNET
	return k.Clone()
}

// duplicate copies files to descriptors above the numbers that a child gives them, so that none is overwritten
// before its turn.
func duplicate(files ...int) (fds []int, err error) {
	for _, f := range files {
		fd, err := unix.FcntlInt(uintptr(f), unix.F_DUPFD_CLOEXEC, spawner.Free)
		if err != nil {
			return fds, os.NewSyscallError("fcntl", err)
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

// files opens what the guest inherits: null, log, socket and state directory. The caller closes them, also after
// an error.
func (p *Provider) files(b place) (files []*os.File, err error) {
	for _, o := range []struct {
		path  string
		flags int
	}{
		{os.DevNull, os.O_RDONLY},
		{b.path("guest.log"), os.O_CREATE | os.O_WRONLY | os.O_APPEND},
	} {
		f, err := os.OpenFile(o.path, o.flags, 0o600)
		if err != nil {
			return files, err
		}
		files = append(files, f)
	}
	l, err := b.listen(socketFile)
	if err != nil {
		return files, err
	}
	files = append(files, l)
	dir, err := os.OpenFile(b.path("state"), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return files, err
	}
	return append(files, dir), nil
}

// listen makes a socket on which the guest serves. Its path stays outside the sandbox.
func (b place) listen(name string) (*os.File, error) {
	dir, err := os.OpenFile(b.dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: socketPath(dir, name)}); err != nil {
		f.Close()
		return nil, os.NewSyscallError("bind", err)
	}
	if err := unix.Listen(fd, 128); err != nil {
		f.Close()
		return nil, os.NewSyscallError("listen", err)
	}
	return f, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// waits reports whether a guest that was started ahead is still there: it says nothing before it is spoken to,
// and closes nothing.
func (b *birth) waits() bool {
	raw, err := b.control.SyscallConn()
	if err != nil {
		return false
	}
	silent := false
	err = raw.Control(func(fd uintptr) {
		polled := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLRDHUP}}
		n, err := unix.Poll(polled, 0)
		silent = n == 0 && err == nil
	})
	return err == nil && silent
}

// identify tells a guest that was started ahead whose it is. It does not answer: what it is asked next says
// whether it lives.
func (b *birth) identify(spec sandbox.Spec, path string) error {
	id := boot.Identity{Generation: spec.Generation, Env: environment(spec, path)}
	if spec.Network != nil {
		id.CA = string(spec.Network.CA)
	}
	msg, err := frame(&id)
	if err != nil {
		return err
	}
	if msg = msg[b.put(msg):]; len(msg) == 0 {
		return nil
	}
	_ = b.control.SetWriteDeadline(time.Now().Add(createTimeout)) // cannot fail on an open socket
	if _, err := b.control.Write(msg); err != nil {
		return fmt.Errorf("telling the guest whose it is: %w", err)
	}
	_ = b.control.SetWriteDeadline(time.Time{})
	return nil
}

// put writes what the control socket takes without waiting, and returns how much. It needs no deadline, for the
// sake of which the runtime would wake who waits for its sockets; whatever goes wrong, the next write meets as
// well.
func (b *birth) put(msg []byte) int {
	n := 0
	if raw, err := b.control.SyscallConn(); err == nil {
		_ = raw.Write(func(fd uintptr) bool {
			n, _ = unix.Write(int(fd), msg)
			return true
		})
	}
	return max(n, 0)
}

// frame encodes what a guest is sent before it serves.
func frame(m form.Message) ([]byte, error) {
	body := form.Encode(m)
	if len(body) > boot.MaxConfig {
		return nil, outboard.Errorf(outboard.Invalid, "encoding the guest's configuration: %d bytes are too many",
			len(body))
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...), nil
}

// configure sends the configuration and waits until the guest is ready to serve, or, where it is to wait for an
// identity, to be told whom.
func (b *birth) configure(ctx context.Context, cfg *boot.Config, trees []int, uplink *os.File) error {
	deadline := time.Now().Add(createTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	_ = b.control.SetDeadline(deadline) // cannot fail on an open socket
	stop := context.AfterFunc(ctx, func() { _ = b.control.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	cfg.Trees = len(trees)
	msg, err := frame(cfg)
	if err != nil {
		return err
	}
	var rights []byte
	if uplink != nil {
		trees = append(trees, int(uplink.Fd()))
	}
	if len(trees) > 0 {
		rights = unix.UnixRights(trees...)
	}
	n, _, err := b.control.WriteMsgUnix(msg, rights, nil)
	if err == nil && n < len(msg) {
		_, err = b.control.Write(msg[n:])
	}
	if err != nil {
		return b.silent(ctx, err)
	}
	if err := b.reports(ctx, cfg.Later); err != nil {
		return err
	}
	if !stop() {
		return context.Cause(ctx)
	}
	_ = b.control.SetDeadline(time.Time{})
	return nil
}

// reports reads how it went: whether the sandbox was built, and, of a guest that is to wait, that its start is
// over. Both can come at once.
func (b *birth) reports(ctx context.Context, later bool) error {
	r := bufio.NewReader(io.LimitReader(b.control, boot.MaxConfig))
	for n := 0; n == 0 || later && n == 1; n++ {
		line, err := r.ReadString('\n')
		if err != nil {
			return b.silent(ctx, err)
		}
		failed, err := boot.ReadReport(strings.TrimSuffix(line, "\n"))
		if err != nil {
			return fmt.Errorf("reading the guest's report %.100q: %w", line, err)
		}
		if failed != "" {
			return unavailable("the sandbox could not be built: %s", strings.ToValidUTF8(failed, "?"))
		}
	}
	if n := r.Buffered(); n != 0 {
		return fmt.Errorf("the guest said %d bytes more than its report", n)
	}
	return nil
}

// client makes the control socket the host's first connection: to dial one and to ask who answers would be two
// more turns of waiting for each other.
func (b *birth) client() *guest.Client {
	conn := b.control
	b.control = nil
	return guest.NewClient(conn)
}

// silent explains why the guest said nothing.
func (b *birth) silent(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if why := b.gate.failure(); why != nil {
		return unavailable("the sandbox could not be built: %w", why)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return outboard.Errorf(outboard.Unavailable, "the sandbox was not ready within %v: the host has much to do, "+
			"or the sandbox's limits leave it too little", createTimeout)
	}
	return fmt.Errorf("waiting for the guest: %w", err)
}
