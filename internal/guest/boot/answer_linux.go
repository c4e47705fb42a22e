package boot

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"
	"unsafe"
)

// A program that calls sysinfo is stopped by the filter of system calls until the guest has answered: with the
// sandbox's own memory and age, where the kernel would tell the host's. The guest writes the answer to where the
// program wants it, with the program's own identity: it can change nothing that the program could not. What it
// cannot answer, the kernel does.

// sysinfo is the kernel's struct of that name.
type sysinfo struct {
	uptime                 int64
	loads                  [3]uint64
	total, free, shared    uint64
	buffer, swap, swapFree uint64
	procs, _               uint16
	_                      uint32
	highTotal, highFree    uint64
	unit                   uint32
	_                      uint32
}

// notice is struct seccomp_notif, reply struct seccomp_notif_resp.
type (
	notice struct {
		id         uint64
		pid, flags uint32
		number     int32
		arch       uint32
		ip         uint64
		args       [6]uint64
	}
	reply struct {
		id    uint64
		value int64
		errno int32
		flags uint32
	}
)

const (
	noticeReceive = 0xc0502100 // SECCOMP_IOCTL_NOTIF_RECV
	noticeSend    = 0xc0182101 // SECCOMP_IOCTL_NOTIF_SEND
	noticeValid   = 0x40082102 // SECCOMP_IOCTL_NOTIF_ID_VALID
	letKernel     = 1          // SECCOMP_USER_NOTIF_FLAG_CONTINUE
)

// Answer answers the calls that the filter stops, until ctx ends.
func (e *Env) Answer(ctx context.Context) {
	if e.asked == nil {
		return
	}
	defer e.asked.Close()
	stop := context.AfterFunc(ctx, func() { _ = e.asked.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	raw, err := e.asked.SyscallConn()
	if err != nil {
		return
	}
	born := time.Now()
	for ctx.Err() == nil {
		var n notice
		err := raw.Read(func(fd uintptr) bool { return receiveNotice(fd, &n) })
		if err != nil {
			return
		}
		_ = raw.Control(func(fd uintptr) {
			r := reply{id: n.id}
			if err := e.answer(fd, &n, time.Since(born)); err != nil {
				r.flags = letKernel
			}
			ioctl(fd, noticeSend, unsafe.Pointer(&r)) // who does not want it any more has ended
		})
	}
}

// receiveNotice takes a notice where there is one: the kernel would wait for it, whatever the descriptor says.
func receiveNotice(fd uintptr, n *notice) bool {
	const pollIn = 1
	p := struct {
		fd              int32
		events, revents int16
	}{int32(fd), pollIn, 0}
	var now syscall.Timespec
	r, _, errno := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&p)), 1, uintptr(unsafe.Pointer(&now)), 0,
		0, 0)
	if errno != 0 || r != 1 || p.revents&pollIn == 0 {
		return false
	}
	*n = notice{} // as the kernel wants it
	return ioctl(fd, noticeReceive, unsafe.Pointer(n)) == 0
}

func ioctl(fd, request uintptr, arg unsafe.Pointer) syscall.Errno {
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, request, uintptr(arg))
	return errno
}

// answer writes what sysinfo returns to the memory of the process that asks.
func (e *Env) answer(fd uintptr, n *notice, age time.Duration) error {
	if n.number != syscall.SYS_SYSINFO || n.pid == 0 || e.Memory == 0 {
		return syscall.ENOSYS
	}
	info := sysinfo{uptime: int64(age.Seconds()) + 1, total: uint64(e.Memory), free: uint64(e.Memory), procs: 1,
		unit: 1}
	mem, err := openMemory(n.pid)
	if err != nil {
		return err
	}
	defer syscall.Close(mem)
	if errno := ioctl(fd, noticeValid, unsafe.Pointer(&n.id)); errno != 0 { // else its number may be another's by now
		return errno
	}
	b := unsafe.Slice((*byte)(unsafe.Pointer(&info)), unsafe.Sizeof(info))
	if w, err := syscall.Pwrite(mem, b, int64(n.args[0])); err != nil || w != len(b) {
		return syscall.EFAULT // which the kernel then says
	}
	return nil
}

// openMemory opens the memory of a process as the user that it runs as.
func openMemory(pid uint32) (fd int, err error) {
	path := fmt.Sprintf("/proc/%d", pid)
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		return -1, err
	}
	open := func() { fd, err = syscall.Open(path+"/mem", syscall.O_WRONLY|syscall.O_CLOEXEC, 0) }
	if int(st.Uid) == os.Geteuid() && int(st.Gid) == os.Getegid() {
		open()
		return fd, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // a thread that does not become the guest again ends
		set := func(uid, gid int) bool {
			_, _, _ = syscall.RawSyscall(syscall.SYS_SETFSGID, uintptr(gid), 0, 0)
			_, _, _ = syscall.RawSyscall(syscall.SYS_SETFSUID, uintptr(uid), 0, 0)
			g, _, _ := syscall.RawSyscall(syscall.SYS_SETFSGID, ^uintptr(0), 0, 0)
			u, _, _ := syscall.RawSyscall(syscall.SYS_SETFSUID, ^uintptr(0), 0, 0)
			return int(u) == uid && int(g) == gid
		}
		if err = syscall.EPERM; set(int(st.Uid), int(st.Gid)) {
			open()
		}
		if set(os.Geteuid(), os.Getegid()) {
			runtime.UnlockOSThread()
		}
	}()
	<-done
	return fd, err
}

// allowAsked makes a filter one that lets the calls pass which it would stop for an answer, for a kernel that
// lets nobody answer here.
func allowAsked(program []byte) []byte {
	const retConst, notify, allow = 0x06, 0x7fc00000, 0x7fff0000
	out := append([]byte(nil), program...)
	for i := 0; i+8 <= len(out); i += 8 {
		if binary.NativeEndian.Uint16(out[i:]) == retConst && binary.NativeEndian.Uint32(out[i+4:]) == notify {
			binary.NativeEndian.PutUint32(out[i+4:], allow)
		}
	}
	return out
}
