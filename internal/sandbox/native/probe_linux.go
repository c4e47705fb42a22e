package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// Probe looks at everything a sandbox needs, then makes one and removes it: the only proof that counts.
func Probe(ctx context.Context, cfg Config) Report {
	var r Report
	r.Checks = append(r.Checks, checkKernel(), checkUserNamespaces(), checkSeccomp(), checkOverlay(existing(cfg.Dir)))
	p, err := New(cfg)
	if err != nil {
		r.Checks = append(r.Checks, failed("provider", err))
		return r
	}
	r.Checks = append(r.Checks, p.checkCgroups(), p.checkIDs(), p.checkMaps(), p.checkDisk())
	trial, profile := p.trial(ctx)
	r.Checks = append(r.Checks, trial)
	if trial.OK {
		r.Checks = append(r.Checks, profile)
	}
	if r.Usable = trial.OK; r.Usable {
		caps := p.Capabilities()
		r.Isolation, r.Limits, r.Gaps = caps.Isolation, caps.Limits, caps.Gaps
	}
	return r
}

func failed(name string, err error) Check {
	c := Check{Name: name, Detail: err.Error()}
	if e, ok := errors.AsType[*outboard.Error](err); ok && e.Hint != doctorHint { // which is where this is read
		c.Fix = e.Hint
	}
	return c
}

// minKernel has what is relied on: mount_setattr and overlays in user namespaces. File systems that map owners
// came later, with 5.19 for overlays over them, and are used where present.
var minKernel = [2]int{5, 12}

func checkKernel() Check {
	c := Check{Name: "kernel"}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return failed("kernel", err)
	}
	c.Detail = "Linux " + unix.ByteSliceToString(u.Release[:]) + " " + unix.ByteSliceToString(u.Machine[:])
	var have [2]int
	_, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &have[0], &have[1])
	if c.OK = err == nil && slices.Compare(have[:], minKernel[:]) >= 0; !c.OK {
		c.Fix = fmt.Sprintf("run Linux %d.%d or later", minKernel[0], minKernel[1])
	}
	return c
}

func checkUserNamespaces() Check {
	c := Check{Name: "user namespaces", Detail: namespacesRefused()}
	if c.Detail == "" {
		c.OK, c.Detail = true, "allowed"
		return c
	}
	fixes := map[string]string{
		"max_user_namespaces":       "sysctl user.max_user_namespaces=10000",
		"unprivileged_userns_clone": "sysctl kernel.unprivileged_userns_clone=1, or run the server as root",
		"max_*_namespaces": "raise user.max_user_namespaces, max_net_namespaces and their like, or end " +
			"what holds namespaces",
		"kernel refuses": "in a container, allow it the calls clone, unshare and mount (Docker: --security-opt " +
			"seccomp=unconfined, and " +
			"for root --cap-add SYS_ADMIN); elsewhere look for a security module that keeps namespaces from this user",
		"apparmor_restrict_unprivileged_userns": "sysctl kernel.apparmor_restrict_unprivileged_userns=0, or give " +
			"outboard an AppArmor profile with the userns rule, or run the server as root",
	}
	c.Fix = "use a kernel built with CONFIG_USER_NS"
	for setting, fix := range fixes {
		if strings.Contains(c.Detail, setting) {
			c.Fix = fix
		}
	}
	return c
}

func checkSeccomp() Check {
	const available = 2 // SECCOMP_GET_ACTION_AVAIL
	action := uint32(unix.SECCOMP_RET_KILL_PROCESS)
	_, _, e := unix.Syscall(unix.SYS_SECCOMP, available, 0, uintptr(unsafe.Pointer(&action)))
	if e != 0 {
		return Check{Name: "seccomp", Detail: "filters are not available: " + e.Error(),
			Fix: "use a kernel built with CONFIG_SECCOMP_FILTER"}
	}
	return Check{Name: "seccomp", OK: true, Detail: fmt.Sprintf("filters available; a sandbox gets a program of %d "+
		"instructions", len(filter()))}
}

func checkOverlay(dir string) Check {
	c := Check{Name: "overlay"}
	data, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return failed("overlay", err)
	}
	for line := range strings.Lines(string(data)) {
		if strings.HasSuffix(strings.TrimSpace(line), "overlay") {
			c.OK = true
		}
	}
	if !c.OK {
		c.Detail, c.Fix = "this kernel has no overlay file system loaded", "modprobe overlay"
		return c
	}
	c.Detail = "writable layers under " + dir
	if !holdsUpper(dir) {
		c.Detail, c.Fix = "the file system of "+dir+" cannot hold writable layers; they are kept in memory", "use --data on ext4, xfs, btrfs or tmpfs"
	}
	return c
}

// existing returns the nearest directory to dir that is there already.
func existing(dir string) string {
	for {
		if fi, err := os.Stat(dir); err == nil && fi.IsDir() {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return dir
		}
		dir = parent
	}
}

func (p *Provider) checkCgroups() Check {
	c := Check{Name: "cgroups", OK: len(p.cgroups.limits) > 0}
	if p.cgroups.version == 0 {
		c.Detail = "no cgroup that this user may write: limits of a sandbox do not hold, and idle ones are not frozen"
	} else {
		freezer := "no freezer"
		if p.cgroups.freeze {
			freezer = "freezer"
		}
		c.Detail = fmt.Sprintf("version %d: %s; %s", p.cgroups.version, strings.Join(p.cgroups.limits, ", "), freezer)
	}
	if missing := slices.DeleteFunc([]string{"memory", "pids", "cpu"},
		func(l string) bool { return slices.Contains(p.cgroups.limits, l) }); len(missing) > 0 {
		c.OK = false
		c.Fix = "run the server as root, or as a systemd user service with Delegate=" + strings.Join(missing, " ")
	}
	return c
}

func (p *Provider) checkIDs() Check {
	if p.rootless {
		return Check{Name: "identities", Detail: fmt.Sprintf("one uid (%d) for all sandboxes, guest and tools alike",
			os.Geteuid()),
			Fix: "run the server as root to give every sandbox a uid range of its own"}
	}
	return Check{Name: "identities", OK: true, Detail: fmt.Sprintf("a range of %d uids per sandbox, reserved in %s",
		uidRange, p.uids.dir)}
}

// checkMaps tries what the root file systems of sandboxes are shared with: a mount of the data directory, and of
// the host's programs, whose owners are mapped into a sandbox's range.
func (p *Provider) checkMaps() Check {
	c := Check{Name: "idmapped mounts"}
	if p.rootless {
		c.Detail, c.Fix = "not for an ordinary user: files of the host's root show inside as nobody's", "run the server as root"
		return c
	}
	const anyRange = 1 << 30
	userns, err := p.userNamespace(anyRange)
	if err != nil {
		return failed(c.Name, err)
	}
	defer userns.Close()
	for what, dir := range map[string]string{"the data directory": p.dir, "the host's programs": "/usr"} {
		var fds descriptors
		_, err := mappedTree(&fds, dir, int(userns.Fd()))
		fds.close()
		if err != nil {
			c.Detail = fmt.Sprintf("the file system of %s cannot map owners: %v", what, err)
			c.Fix = "put it on ext4, xfs, btrfs or overlay of a kernel from 6.0 on"
			return c
		}
	}
	c.OK, c.Detail = true, "work on the data directory and on the host's programs"
	return c
}

// checkDisk says what keeps a limit on the bytes that a sandbox writes (disk_bytes).
func (p *Provider) checkDisk() Check {
	c := Check{Name: "disk quota"}
	err := p.disks()
	if err == nil {
		c.OK, c.Detail = true, "sized loop: a sandbox with disk_bytes writes to an ext4 file system of that size; "+
			"project quotas are not used"
		return c
	}
	c.Detail, c.Fix = "none: "+err.Error()+"; environments with disk_bytes are refused", "modprobe loop; in a container, give it /dev/loop-control and loop devices"
	_, missing := mkfsPath()
	switch {
	case p.rootless:
		c.Fix = "run the server as root"
	case p.upperTmp:
		c.Detail = "tmpfs: what sandboxes write is in memory and counts as memory, since " + err.Error() +
			"; environments with disk_bytes are refused"
		c.Fix = "put the data directory on ext4, xfs or btrfs (--data)"
	case missing != nil && errors.Is(unix.Access("/dev/loop-control", unix.W_OK), nil):
		c.Fix = "apt-get install e2fsprogs"
	}
	return c
}

// trial makes a sandbox in its own directory, so that it is not mistaken for a server's, asks a process inside
// what it may, and removes the sandbox.
func (p *Provider) trial(ctx context.Context) (made, profile Check) {
	const name = "sandbox"
	dir, err := os.MkdirTemp(p.dir, ".probe-")
	if err != nil {
		return failed(name, err), profile
	}
	defer os.RemoveAll(dir)
	t := &Provider{dir: dir, guest: p.guest, log: p.log, rootless: p.rootless, upperTmp: p.upperTmp, uids: p.uids,
		cgroups: p.cgroups,
		caps:    p.caps, boot: p.boot, children: make(map[outboard.SandboxID]int)}
	t.layering.works.Store(p.hasLayers())
	for _, d := range []string{cacheDir, layersDir, checkpointsDir, trashDir} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			return failed(name, err), profile
		}
	}
	id := outboard.NewID[outboard.SandboxID](outboard.PrefixSandbox)
	s, err := t.Create(ctx, sandbox.Spec{ID: id, Generation: "probe"})
	if err == nil {
		profile = effective(ctx, s)
		err = s.Close()
	}
	if err = errors.Join(err, t.Destroy(ctx, id), t.Close()); err != nil {
		return failed(name, err), profile
	}
	return Check{Name: name, OK: true, Detail: "made one and removed it: " + p.caps.Isolation +
		", loopback network only"}, profile
}

// effective is what the kernel says of a process inside.
func effective(ctx context.Context, s sandbox.Sandbox) Check {
	c := Check{Name: "profile", Fix: "report it: a sandbox has more rights than it should"}
	call := guest.Start{Key: "probe", Epoch: 1, Generation: s.Generation(), Digest: "probe", Op: "exec",
		OutputLimit: 16 << 10,
		Input:       []byte(`{"argv":["cat","/proc/self/status"]}`), TimeoutMs: helloTimeout.Milliseconds()}
	res, err := s.Start(ctx, call)
	if err == nil && res.State != guest.StateDone {
		res, err = s.Wait(ctx, call.Key, call.Epoch)
	}
	if err != nil {
		return failed(c.Name, err)
	}
	have := map[string]string{}
	for line := range strings.Lines(string(res.Output)) {
		name, value, _ := strings.Cut(line, ":")
		have[name] = strings.Join(strings.Fields(value), " ")
	}
	const none = "0000000000000000"
	var excess []string
	for name, want := range map[string]string{"CapEff": none, "CapPrm": none, "CapBnd": none, "CapAmb": none,
		"NoNewPrivs": "1", "Seccomp": "2"} {
		if have[name] != want {
			excess = append(excess, fmt.Sprintf("%s is %q, not %q", name, have[name], want))
		}
	}
	if c.OK = len(excess) == 0; !c.OK {
		slices.Sort(excess)
		c.Detail = strings.Join(excess, "; ")
		return c
	}
	uid, _, _ := strings.Cut(have["Uid"], " ")
	c.Fix, c.Detail = "", fmt.Sprintf("a tool is uid %s inside, has no capability and can get none (no_new_privs); "+
		"%d instructions of system call "+
		"filter, %d masked paths", uid, len(filter()), len(maskedPaths))
	return c
}
