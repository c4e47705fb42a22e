package native

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard/internal/guest/boot"
)

// program is the guest in a form that the first process of a new user namespace can execute: it has uids that may reach neither
// the path of the program nor the server's other files. A sealed copy in memory also cannot be overwritten through
// /proc/<pid>/exe from inside (the attack of CVE-2019-5736).
type program struct {
	mu   sync.Mutex
	file *os.File
}

func (g *program) open(path string) (*os.File, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.file != nil {
		return g.file, nil
	}
	src, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	fd, err := unix.MemfdCreate("outboard-guest", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "outboard-guest")
	if _, err := io.Copy(f, src); err != nil {
		f.Close()
		return nil, err
	}
	seals := unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		f.Close()
		return nil, os.NewSyscallError("fcntl", err)
	}
	g.file = f
	return f, nil
}

// birth is a sandbox being started.
type birth struct {
	child   *os.Process
	control *net.UnixConn // our end of the control socket
	start   uint64        // the child's start time
}

const programFD = boot.StateFD + 1

// spawn clones the guest into new namespaces. It has done nothing yet when spawn returns, and ends when our end of the control
// socket is closed before it got its configuration.
func (p *Provider) spawn(b box, s *state) (*birth, error) {
	files, theirs, ours, err := p.files(b)
	defer closeAll(files)
	if err != nil {
		return nil, err
	}
	files = append(files, theirs)
	handles := [programFD + 1]*os.File{boot.ControlFD: theirs}
	handles[0], handles[1], handles[2] = files[0], files[1], files[1]
	handles[boot.ListenFD], handles[boot.StateFD] = files[2], files[3]
	if handles[programFD], err = p.program.open(p.guest); err != nil {
		ours.Close()
		return nil, fmt.Errorf("reading the guest program: %w", err)
	}
	child, err := os.StartProcess(fmt.Sprintf("/proc/self/fd/%d", programFD), []string{"outboard-guest", "init"}, &os.ProcAttr{
		Dir: "/", Env: []string{}, Files: handles[:], Sys: p.attributes(s)})
	if err != nil {
		ours.Close()
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EUSERS) {
			return nil, unavailable("the kernel refuses new namespaces: %w", err)
		}
		return nil, fmt.Errorf("starting the guest: %w", err)
	}
	st, err := readStat(child.Pid)
	if err != nil {
		ours.Close()
		_ = child.Kill() // it may be gone already
		_, _ = child.Wait()
		return nil, fmt.Errorf("looking at the guest: %w", err)
	}
	return &birth{child: child, control: ours, start: st.start}, nil
}

// attributes says how to clone: every namespace but time and cgroup, in a session of its own and without a parent-death signal, so
// that the machine outlives the server. The guest takes its cgroup namespace itself, once it is in its cgroup.
func (p *Provider) attributes(s *state) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		Setsid:     true,
		Credential: &syscall.Credential{Uid: 0, Gid: 0, NoSetGroups: p.rootless},
	}
	if p.rootless {
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
		return a
	}
	a.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(s.UIDBase), Size: uidRange}}
	a.GidMappings = a.UidMappings
	a.GidMappingsEnableSetgroups = true
	return a
}

// files opens what the guest inherits: null, log, socket, state; and makes the control socket.
func (p *Provider) files(b box) (files []*os.File, theirs *os.File, ours *net.UnixConn, err error) {
	for _, o := range []struct {
		path  string
		flags int
	}{
		{os.DevNull, os.O_RDONLY},
		{b.path("guest.log"), os.O_CREATE | os.O_WRONLY | os.O_APPEND},
	} {
		f, err := os.OpenFile(o.path, o.flags, 0o600)
		if err != nil {
			return files, nil, nil, err
		}
		files = append(files, f)
	}
	l, err := b.listen()
	if err != nil {
		return files, nil, nil, err
	}
	files = append(files, l)
	dir, err := os.OpenFile(b.path("state"), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return files, nil, nil, err
	}
	files = append(files, dir)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return files, nil, nil, os.NewSyscallError("socketpair", err)
	}
	theirs, mine := os.NewFile(uintptr(pair[1]), "control"), os.NewFile(uintptr(pair[0]), "control")
	defer mine.Close()
	conn, err := net.FileConn(mine)
	if err != nil {
		theirs.Close()
		return files, nil, nil, fmt.Errorf("opening the control socket: %w", err)
	}
	return files, theirs, conn.(*net.UnixConn), nil
}

// listen makes the socket on which the guest serves. Its path stays outside the sandbox.
func (b box) listen() (*os.File, error) {
	dir, err := os.OpenFile(b.dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), socketFile)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: socketPath(dir)}); err != nil {
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

// configure sends the configuration and waits until the guest is ready to serve.
func (b *birth) configure(ctx context.Context, cfg *boot.Config, trees []int) error {
	deadline := time.Now().Add(createTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	_ = b.control.SetDeadline(deadline) // cannot fail on an open socket
	stop := context.AfterFunc(ctx, func() { _ = b.control.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	cfg.Trees = len(trees)
	body, err := json.Marshal(cfg)
	if err != nil {
		return fmt.Errorf("encoding the guest's configuration: %w", err)
	}
	if len(body) > boot.MaxConfig {
		return fmt.Errorf("encoding the guest's configuration: %d bytes are too many", len(body))
	}
	msg := append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
	var rights []byte
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
	var report boot.Report
	if err := json.NewDecoder(io.LimitReader(b.control, boot.MaxConfig)).Decode(&report); err != nil {
		return b.silent(ctx, err)
	}
	if report.Error != "" {
		return unavailable("the sandbox could not be built: %s", strings.ToValidUTF8(report.Error, "?"))
	}
	return nil
}

// silent explains why the guest said nothing.
func (b *birth) silent(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("waiting for the guest: %w", err)
}
