package boot

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/outboard-dev/outboard/internal/guest/form"
	"github.com/outboard-dev/outboard/internal/guest/uplink"
)

// Init builds what the host asks for on ControlFD and tells it how that went. After a nil error the process is
// the init of a finished sandbox, ready to serve on ListenFD. After an error it must exit.
func Init() (*Env, error) {
	for fd := ListenFD; fd <= StateFD; fd++ {
		syscall.CloseOnExec(fd)
	}
	control := os.NewFile(ControlFD, "control")
	booted := false
	defer func() {
		if !booted {
			control.Close()
		}
	}()
	cfg, trees, err := receive(ControlFD)
	if err != nil {
		return nil, fmt.Errorf("receiving the configuration: %w", err)
	}
	trees, up, err := splitLink(cfg, trees)
	if err != nil {
		return nil, fmt.Errorf("receiving the configuration: %w", err)
	}
	asked, err := build(cfg, trees, up)
	if err == nil && cfg.Processes != 0 && cfg.alone() {
		keepThreads()
	}
	if werr := report(control, err); werr != nil {
		err = errors.Join(err, fmt.Errorf("reporting to the host: %w", werr))
	}
	if err != nil {
		return nil, err
	}
	booted = true
	return &Env{Control: control, Config: *cfg, asked: asked, StateDir: "/proc/self/fd/" + strconv.Itoa(StateFD),
		uplink: up}, nil
}

// report tells the host in one line how it went, see ReadReport.
func report(control io.Writer, err error) error {
	text := ""
	if err != nil {
		text = err.Error()
	}
	_, err = io.WriteString(control, strconv.Quote(text)+"\n")
	return err
}

// Await tells the host, by a second report on its connection, that a sandbox started ahead has come to rest. It
// waits for the Identity there, and returns its generation and its variables as KEY=value. The end of the
// stream, or of ctx, is an error: whoever started the sandbox is gone, and it has no other use.
func (e *Env) Await(ctx context.Context, conn net.Conn) (generation string, env []string, err error) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if err := report(conn, nil); err != nil {
		return "", nil, fmt.Errorf("reporting to the host: %w", err)
	}
	var head [4]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return "", nil, fmt.Errorf("waiting for an identity: %w", err)
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > MaxConfig {
		return "", nil, fmt.Errorf("waiting for an identity: %d bytes are too many", size)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(conn, body); err != nil {
		return "", nil, fmt.Errorf("waiting for an identity: %w", err)
	}
	var id Identity
	if err := form.Decode(body, &id); err != nil {
		return "", nil, fmt.Errorf("reading an identity: %w", err)
	}
	if id.CA != "" && e.uplink != nil {
		if err := uplink.AddTrust([]byte(id.CA)); err != nil {
			return "", nil, fmt.Errorf("trusting the gateway: %w", err)
		}
	}
	for name, value := range id.Env {
		env = append(env, name+"="+value)
	}
	return id.Generation, env, nil
}

// orphanCheck is how often a guest looks whether its directory on the host is still there. The kernel has no
// event for it while the directory is held open.
const orphanCheck = 15 * time.Second

// Orphaned returns when the host's directory of this sandbox was deleted under it, or with ctx. Nobody can reach
// the sandbox then, or destroy it: it must end by itself.
func (e *Env) Orphaned(ctx context.Context) {
	fd := StateFD
	if e.stateDir != nil {
		fd = int(e.stateDir.Fd())
	}
	t := time.NewTicker(orphanCheck)
	defer t.Stop()
	for {
		var st syscall.Stat_t
		if err := syscall.Fstat(fd, &st); err == nil && st.Nlink == 0 {
			return
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// keepThreads makes the Go runtime start threads that it keeps for later. Where tools share the guest's identity
// they share its limit of processes, and a runtime that cannot have a thread when it needs one ends the program.
func keepThreads() {
	const spare = 16 // more than the guest has busy at once: connections and calls wait in the poller, not in threads
	var ready, done sync.WaitGroup
	ready.Add(spare)
	release := make(chan struct{})
	for range spare {
		done.Go(func() {
			runtime.LockOSThread() // one thread each
			defer runtime.UnlockOSThread()
			ready.Done()
			<-release
		})
	}
	ready.Wait()
	close(release)
	done.Wait()
}

// receive reads the configuration and the mounts sent with it. The end of the stream before that means that the
// host is gone.
func receive(fd int) (*Config, []tree, error) {
	var head [4]byte
	oob := make([]byte, syscall.CmsgSpace(4*(MaxTrees+1)))
	n, oobn, _, _, err := syscall.Recvmsg(fd, head[:], oob, syscall.MSG_WAITALL|syscall.MSG_CMSG_CLOEXEC)
	if err != nil {
		return nil, nil, err
	}
	if n != len(head) {
		return nil, nil, io.ErrUnexpectedEOF
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > MaxConfig {
		return nil, nil, fmt.Errorf("%d bytes are too many", size)
	}
	body := make([]byte, size)
	for got := 0; got < len(body); {
		n, err := syscall.Read(fd, body[got:])
		if err != nil {
			return nil, nil, err
		}
		if n == 0 {
			return nil, nil, io.ErrUnexpectedEOF
		}
		got += n
	}
	cfg := new(Config)
	if err := form.Decode(body, cfg); err != nil {
		return nil, nil, err
	}
	trees, err := parseTrees(oob[:oobn])
	if err != nil {
		return nil, nil, err
	}
	return cfg, trees, nil
}

func parseTrees(oob []byte) ([]tree, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var trees []tree
	for i := range msgs {
		fds, err := syscall.ParseUnixRights(&msgs[i])
		if err != nil {
			return nil, err
		}
		for _, fd := range fds {
			trees = append(trees, tree(fd))
		}
	}
	return trees, nil
}

// build does all the work, in the order the package comment gives.
func build(cfg *Config, trees []tree, up *link) (asked *os.File, err error) {
	if err := buildRoot(cfg, trees); err != nil {
		return nil, err
	}
	if err := up.connect(cfg); err != nil {
		return nil, err
	}
	if err := syscall.Sethostname([]byte(cfg.Hostname)); err != nil {
		return nil, fmt.Errorf("setting the host name: %w", err)
	}
	if err := ignoreSignals(); err != nil {
		return nil, err
	}
	if err := dropPrivileges(cfg); err != nil {
		return nil, err
	}
	return installFilter(cfg.Filter)
}

// dropPrivileges leaves the process with what Config.Keep names and its children with nothing, but for what
// Config.Inherit gives to those of root: the kernel lets the programs of root have what is inheritable, and
// those of others not.
func dropPrivileges(cfg *Config) error {
	limits := []struct {
		resource int
		value    uint64
	}{
		// No core dumps: they would copy memory into the workspace, or to the host's crash handler. 1 is too
		// little for any, and unlike 0 it holds for handlers that are given dumps through a pipe.
		{syscall.RLIMIT_CORE, 1},
		{syscall.RLIMIT_NOFILE, cfg.Files},
		{rlimitNproc, cfg.Processes},
		{syscall.RLIMIT_DATA, cfg.DataBytes},
	}
	for _, l := range limits {
		if l.value == 0 {
			continue
		}
		if err := lowerLimit(l.resource, l.value); err != nil {
			return fmt.Errorf("setting resource limit %d to %d: %w", l.resource, l.value, err)
		}
	}
	syscall.Umask(0o022)
	// Not dumpable: without CAP_SYS_PTRACE nobody opens /proc/1/{fd,mem,root,environ} or attaches, whatever its uid.
	if _, _, errno := syscall.Syscall6(syscall.SYS_PRCTL, prSetDumpable, 0, 0, 0, 0, 0); errno != 0 {
		return fmt.Errorf("making init not dumpable: %w", errno)
	}
	if err := checkBounding(); err != nil {
		return err
	}
	return setCapabilities(cfg.Keep, cfg.Inherit&cfg.Keep)
}

// checkBounding makes sure that the host has emptied the capability bounding set before the exec, when this was
// one thread.
func checkBounding() error {
	for c := range uintptr(64) {
		have, _, errno := syscall.Syscall(syscall.SYS_PRCTL, prCapbsetRead, c, 0)
		if errno == syscall.EINVAL && c > 0 {
			return nil // past the last capability of this kernel
		}
		if errno != 0 || have != 0 {
			return fmt.Errorf("capability %d is still in the bounding set", c)
		}
	}
	return nil
}

// lowerLimit sets both limits to value, or leaves a lower hard limit as it is.
func lowerLimit(resource int, value uint64) error {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(resource, &l); err != nil {
		return err
	}
	l.Max = min(l.Max, value)
	l.Cur = l.Max
	return syscall.Setrlimit(resource, &l)
}
