package spawner

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"syscall"
	"unsafe"
)

// ServeFD is the descriptor of a spawner's end of the connection, a socket pair of whole messages (SOCK_SEQPACKET).
const ServeFD = 3

// A request is a Child in fixed form with its descriptors, an answer what became of it.
const (
	requestSize = 24 // flags of clone, which of Net and Mount come along and above them the id, owner
	answerSize  = 8  // see born
	maxGroups   = 32

	hasNet, hasMount = 1, 2
	idShift          = 32
)

// Steps of a spawner that can fail.
const (
	didClone = iota
	didNet
	didMount
	didOwner
	didClocks
)

var didNames = [...]string{didClone: "cloning", didNet: "entering a network namespace",
	didMount: "entering a mount namespace", didOwner: "becoming its owner",
	didClocks: "giving it clocks"}

// Ask has the spawner at the other end of a connection make a child, and returns its pid: of a child of this
// process. One caller at a time. An error that is a *Refusal is the kernel's answer; after any other the
// connection is of no more use.
func Ask(conn int, k Child) (pid int, err error) {
	fds := append(append([]int(nil), k.Files[:]...), k.Program, k.Gate)
	marks := uint64(k.ID) << idShift
	if k.Net >= 0 {
		fds, marks = append(fds, k.Net), marks|hasNet
	}
	if k.Mount >= 0 {
		fds, marks = append(fds, k.Mount), marks|hasMount
	}
	if len(k.Groups) > maxGroups {
		return 0, &Refusal{Step: "entering control groups", Errno: syscall.E2BIG}
	}
	fds = append(fds, k.Groups...)
	msg := binary.LittleEndian.AppendUint64(nil, uint64(k.Flags))
	msg = binary.LittleEndian.AppendUint64(msg, marks)
	msg = binary.LittleEndian.AppendUint64(msg, uint64(k.Owner))
	if err := retried(func() error {
		return syscall.Sendmsg(conn, msg, syscall.UnixRights(fds...), nil,
			syscall.MSG_NOSIGNAL)
	}); err != nil {
		return 0, fmt.Errorf("asking the spawner for a process: %w", err)
	}
	var answer [answerSize]byte
	n := 0
	err = retried(func() error {
		n, _, err = syscall.Recvfrom(conn, answer[:], 0)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("waiting for the spawner: %w", err)
	}
	if n != len(answer) {
		return 0, fmt.Errorf("waiting for the spawner: %w", io.ErrUnexpectedEOF)
	}
	if pid = int(binary.LittleEndian.Uint32(answer[:])); pid != 0 {
		return pid, nil
	}
	step := min(int(answer[4]), len(didNames)-1)
	return 0, &Refusal{Step: didNames[step], Errno: syscall.Errno(binary.LittleEndian.Uint16(answer[6:]))}
}

// Refusal is what the kernel did not do.
type Refusal struct {
	Step  string
	Errno syscall.Errno
}

// Error says what was not done, and why.
func (r *Refusal) Error() string { return r.Step + ": " + r.Errno.Error() }

// Unwrap returns the number of the error.
func (r *Refusal) Unwrap() error { return r.Errno }

func retried(f func() error) error {
	for {
		if err := f(); err != syscall.EINTR {
			return err
		}
	}
}

// maxHeld is how many children can be between their clone and their exec at a time: each has a thread that waits
// for it.
const maxHeld = 8

// Processors is how many of Go's processors a spawner needs: a thread that waits for a child keeps one.
const Processors = maxHeld + 1

// Serve makes children for the process at the other end of ServeFD until that closes its end. Then, and after an
// error, the process must exit.
func Serve() error {
	syscall.CloseOnExec(ServeFD)
	if err := reserveLow(); err != nil {
		return fmt.Errorf("opening %s: %w", os.DevNull, err)
	}
	s := &service{ended: make(chan error, 1)}
	s.begin()
	return <-s.ended
}

// service is the threads of a spawner that wait for requests. One of them is always idle, unless there are maxHeld.
type service struct {
	ended chan error // how the first of them ended

	mu         sync.Mutex
	idle, held int // threads
}

// begin starts one more thread.
func (s *service) begin() {
	s.idle++
	go func() {
		runtime.LockOSThread() // for good
		err := s.serve()
		select {
		case s.ended <- err:
		default:
		}
	}()
}

// busy counts a thread that has a request in or out.
func (s *service) busy(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle, s.held = s.idle-n, s.held+n
	if s.idle == 0 && s.held < maxHeld {
		s.begin()
	}
}

// serve answers requests, on a thread of its own.
func (s *service) serve() error {
	if err := keepRights(); err != nil {
		return fmt.Errorf("keeping capabilities: %w", err)
	}
	home, err := openHome()
	if err != nil {
		return fmt.Errorf("finding the host's namespaces: %w", err)
	}
	buf, oob := make([]byte, requestSize), make([]byte, syscall.CmsgSpace(4*(int(Free)+2+maxGroups)))
	for {
		var n, oobn int
		err := retried(func() (err error) {
			n, oobn, _, _, err = syscall.Recvmsg(ServeFD, buf, oob, syscall.MSG_CMSG_CLOEXEC)
			return err
		})
		if err != nil {
			return fmt.Errorf("reading a request: %w", err)
		}
		if n == 0 {
			return nil
		}
		s.busy(1)
		if err := home.serve(buf[:n], oob[:oobn]); err != nil {
			return err
		}
		s.busy(-1)
	}
}

// serve answers one request. An error means that the connection, or the thread, is of no more use.
func (h home) serve(msg, oob []byte) error {
	fds, err := received(oob)
	if err == nil && len(msg) != requestSize {
		err = errors.New("a request of the wrong size")
	}
	var k Child
	if err == nil {
		k, err = decode(msg, fds)
	}
	if err != nil {
		return fmt.Errorf("reading a request: %w", err)
	}
	got, told, err := h.make(k)
	for _, fd := range fds {
		syscall.Close(fd)
	}
	if err != nil || told {
		return err
	}
	answer := (*[answerSize]byte)(unsafe.Pointer(&got))
	if err := retried(func() error {
		return syscall.Sendmsg(ServeFD, answer[:], nil, nil,
			syscall.MSG_NOSIGNAL)
	}); err != nil {
		return fmt.Errorf("answering: %w", err)
	}
	return nil
}

// reserveLow takes all descriptors below Free, so that what arrives has numbers that no child needs for another file.
func reserveLow() error {
	for {
		fd, err := syscall.Open(os.DevNull, syscall.O_RDWR|syscall.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if fd >= Free {
			return syscall.Close(fd)
		}
	}
}

func received(oob []byte) (fds []int, err error) {
	msgs, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for i := range msgs {
		got, err := syscall.ParseUnixRights(&msgs[i])
		if err != nil {
			return nil, err
		}
		fds = append(fds, got...)
	}
	return fds, nil
}

func decode(buf []byte, fds []int) (Child, error) {
	k := Child{Flags: uintptr(binary.LittleEndian.Uint64(buf)), Net: -1, Mount: -1}
	marks := binary.LittleEndian.Uint64(buf[8:])
	k.Owner = uint32(binary.LittleEndian.Uint64(buf[16:]))
	k.ID = uint32(marks >> idShift)
	fixed := FirstFree + 2
	if marks&hasNet != 0 {
		fixed++
	}
	if marks&hasMount != 0 {
		fixed++
	}
	if len(fds) < fixed {
		return k, fmt.Errorf("%d files where there are at least %d", len(fds), fixed)
	}
	copy(k.Files[:], fds)
	k.Program, k.Gate, fds = fds[FirstFree], fds[FirstFree+1], fds[FirstFree+2:]
	if marks&hasNet != 0 {
		k.Net, fds = fds[0], fds[1:]
	}
	if marks&hasMount != 0 {
		k.Mount, fds = fds[0], fds[1:]
	}
	k.Groups = fds
	return k, nil
}

// home is where a spawner's thread comes back to.
type home struct {
	net, mount, root int
	clocks           int // openClocks
}

func openHome() (h home, err error) {
	if err := syscall.Unshare(syscall.CLONE_FS); err != nil { // a mount namespace is entered with a root of one's own
		return h, os.NewSyscallError("unshare", err)
	}
	for _, o := range []struct {
		fd   *int
		path string
	}{{&h.net, "/proc/thread-self/ns/net"}, {&h.mount, "/proc/thread-self/ns/mnt"}, {&h.root, "/"}} {
		if *o.fd, err = syscall.Open(o.path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0); err != nil {
			return h, &os.PathError{Op: "open", Path: o.path, Err: err}
		}
	}
	h.clocks = openClocks()
	return h, nil
}

// make clones a child in the namespaces that it is to be born in, and returns when it has executed its program
// or ended. Told means that it answers itself. An error means that the thread is lost in one of them.
func (h home) make(k Child) (got born, told bool, err error) {
	k.Flags |= syscall.CLONE_PARENT
	if h.clocks >= 0 {
		if errno := freshClocks(h.clocks); errno != 0 {
			return refused(didClocks, errno), false, nil
		}
	}
	if k.Net >= 0 {
		if errno := setns(k.Net, syscall.CLONE_NEWNET); errno != 0 {
			return refused(didNet, errno), false, nil
		}
		defer func() { err = errors.Join(err, back(h.net, syscall.CLONE_NEWNET)) }()
	}
	if k.Mount >= 0 {
		if errno := setns(k.Mount, syscall.CLONE_NEWNS); errno != 0 {
			return refused(didMount, errno), false, nil
		}
		defer func() { err = errors.Join(err, h.returnHome()) }()
	}
	if k.Owner != 0 {
		if errno := become(k.Owner); errno != 0 {
			return refused(didOwner, errno), false, nil
		}
		defer func() {
			if errno := become(0); errno != 0 {
				err = errors.Join(err, fmt.Errorf("becoming root again: %w", errno))
			}
		}()
	}
	c, err := newChild(k)
	if err != nil {
		return refused(didClone, syscall.EINVAL), false, nil
	}
	if _, err := deaf(c.share); err != nil {
		errno, _ := errors.AsType[syscall.Errno](err)
		return refused(didClone, errno), false, nil
	}
	got, told = c.born, c.told
	runtime.KeepAlive(c)
	return got, told, nil
}

func refused(step int, errno syscall.Errno) born {
	return born{step: uint16(step), errno: uint16(errno)}
}

// returnHome goes back to the host's mounts, and to the root there that the spawner was started with.
func (h home) returnHome() error {
	if err := back(h.mount, syscall.CLONE_NEWNS); err != nil {
		return err
	}
	if err := syscall.Fchdir(h.root); err != nil {
		return os.NewSyscallError("fchdir", err)
	}
	return os.NewSyscallError("chroot", syscall.Chroot("."))
}

func back(ns int, kind uintptr) error {
	if errno := setns(ns, kind); errno != 0 {
		return fmt.Errorf("leaving a sandbox's namespace: %w", errno)
	}
	return nil
}

// become gives the thread another effective user. Real and saved one stay root's, so that no process of that
// user may signal or trace it.
func become(uid uint32) syscall.Errno {
	const keep = ^uintptr(0)
	_, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, keep, uintptr(uid), keep)
	return errno
}

// keepRights lets the thread keep root's capabilities while it is another user: some hosts let nobody else make
// user namespaces.
func keepRights() error {
	const prSetSecurebits, noSetuidFixup = 28, 1 << 2
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, prSetSecurebits, noSetuidFixup, 0); errno != 0 {
		return os.NewSyscallError("prctl", errno)
	}
	return nil
}

func setns(ns int, kind uintptr) syscall.Errno {
	_, _, errno := syscall.Syscall(sysSetns, uintptr(ns), kind, 0)
	return errno
}
