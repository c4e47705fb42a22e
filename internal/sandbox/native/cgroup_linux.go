package native

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
)

// cgroups is what this process may use of the host's control groups. Its zero value is nothing.
type cgroups struct {
	version int               // 1, 2, or 0 for none
	roots   map[string]string // version 1: controller -> directory that holds the sandboxes' groups
	root    string            // version 2: the same, for all controllers
	limits  []string          // which of memory, pids, cpu hold
	freeze  bool
}

// cgroupParent is the group of all sandboxes. It lies at the top of what this process may write, not in the
// process's own group: a service manager that stops the server must not take the sandboxes with it.
const cgroupParent = "outboard"

// detectCgroups finds version 1 controllers first: where they are mounted, the unified hierarchy has none of them.
func detectCgroups(mountinfo, self string) cgroups {
	mounts := cgroupMounts(mountinfo)
	c := cgroups{version: 1, roots: map[string]string{}}
	for _, name := range []string{"memory", "pids", "cpu", "freezer"} {
		dir, ok := mounts[name]
		if !ok {
			continue
		}
		dir = filepath.Join(dir, cgroupParent)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) ||
			unix.Access(dir, unix.W_OK) != nil {
			continue
		}
		c.roots[name] = dir
		if name == "freezer" {
			c.freeze = true
			keepFreezing(dir)
		} else {
			c.limits = append(c.limits, name)
		}
	}
	if len(c.roots) > 0 {
		return c
	}
	if top, ok := mounts[""]; ok {
		return detectUnified(top, self)
	}
	return cgroups{}
}

// keptFrozen is a group of version 1 that is always frozen and always empty.
const keptFrozen = "frozen"

// keepFreezing keeps one group below dir frozen for good. With the first frozen group of a host, and when the
// last one thaws, the kernel rewrites its own code everywhere it asks whether anything freezes (its static key
// freezer_active): most of what freezing one sandbox would take. Where this fails all is well, and slower.
func keepFreezing(dir string) {
	kept := filepath.Join(dir, keptFrozen)
	if err := os.Mkdir(kept, 0o755); err == nil || errors.Is(err, fs.ErrExist) {
		_ = writeControl(kept, "freezer.state", "FROZEN")
	}
}

// cgroupMounts maps each version 1 controller, and "" for version 2, to where it is mounted.
func cgroupMounts(mountinfo string) map[string]string {
	mounts := map[string]string{}
	for sc := bufio.NewScanner(strings.NewReader(mountinfo)); sc.Scan(); {
		before, after, ok := strings.Cut(sc.Text(), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !ok || len(left) < 5 || len(right) < 3 {
			continue
		}
		switch right[0] {
		case "cgroup2":
			mounts[""] = left[4]
		case "cgroup":
			for o := range strings.SplitSeq(right[2], ",") {
				mounts[o] = left[4]
			}
		}
	}
	return mounts
}

// detectUnified finds the highest group of version 2 on the way to our own that we may use, and makes the
// sandboxes' parent there with the controllers it can hand down.
func detectUnified(top, self string) cgroups {
	own := ""
	for line := range strings.SplitSeq(self, "\n") {
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			own = path
		}
	}
	dir := top
	for part := range strings.SplitSeq(strings.Trim(own, "/")+"/", "/") {
		// A process moves between two groups only with the right to write the common parent's cgroup.procs.
		if unix.Access(dir, unix.W_OK) == nil && unix.Access(filepath.Join(dir, "cgroup.procs"), unix.W_OK) == nil {
			if c, ok := useUnified(dir); ok {
				return c
			}
		}
		if part == "" {
			break
		}
		dir = filepath.Join(dir, part)
	}
	return cgroups{}
}

func useUnified(dir string) (cgroups, bool) {
	parent := filepath.Join(dir, cgroupParent)
	if err := os.Mkdir(parent, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return cgroups{}, false
	}
	c := cgroups{version: 2, root: parent, freeze: true}
	for _, name := range []string{"memory", "pids", "cpu"} {
		// Fails where the group above has processes of its own, or lacks the controller: then this limit does not hold.
		enable := "+" + name
		if writeControl(dir, "cgroup.subtree_control", enable) == nil &&
			writeControl(parent, "cgroup.subtree_control", enable) == nil {
			c.limits = append(c.limits, name)
		}
	}
	return c, true
}

// group is the cgroup directories of one sandbox. The zero value has none.
type group struct {
	version int
	dirs    []string
}

// plan returns the group of a sandbox before it exists.
func (c *cgroups) plan(id outboard.SandboxID) group {
	g := group{version: c.version}
	switch c.version {
	case 1:
		for _, root := range c.roots {
			g.dirs = append(g.dirs, filepath.Join(root, string(id)))
		}
		slices.Sort(g.dirs)
	case 2:
		g.dirs = []string{filepath.Join(c.root, string(id))}
	}
	return g
}

// groupOf returns the group that a state file names.
func (c *cgroups) groupOf(s *state) group { return group{version: c.version, dirs: s.Cgroups} }

// makeGroup makes the directories and sets the limits.
func (c *cgroups) makeGroup(g group, l outboard.SandboxLimits) error {
	for _, dir := range g.dirs {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return groupError("making the sandbox's control group", err)
		}
		for _, s := range c.settings(filepath.Base(filepath.Dir(filepath.Dir(dir))), l) {
			err := writeControl(dir, s.file, s.value)
			if s.optional && errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return groupError("setting the sandbox's limits", err)
			}
		}
	}
	return nil
}

// groupError is an Unavailable error: this host did not let us use control groups as it did when the server
// began. err, which names a path of the host, is for the log; clients are told the reason.
func groupError(doing string, err error) *outboard.Error {
	reason := err
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		reason = e.Err
	}
	return outboard.Errorf(outboard.Unavailable, "%s: %w", doing, err).WithPublic("%s: %v", doing, reason).
		WithHint(doctorHint)
}

type setting struct {
	file, value string
	optional    bool // absent on some kernels: without swap accounting, without TCP
}

// socketLimit bounds, in version 1, what the buffers of TCP and UDP sockets take beside the limit on memory: it
// counts them apart, and only where they have a limit. Version 2 counts them with the rest.
const socketLimit = "memory.kmem.tcp.limit_in_bytes"

func socketMemory(memory int64) string { return strconv.FormatInt(memory/4, 10) }

// LimitSockets sets it for the group of a process, for who has its groups made by another program.
func LimitSockets(pid int, memory int64) error {
	g, err := memoryGroup(pid)
	if err != nil || g.version != 1 {
		return err
	}
	for _, dir := range g.dirs {
		if err := writeControl(dir, socketLimit, socketMemory(memory)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return groupError("limiting the buffers of sockets", err)
		}
	}
	return nil
}

// settings returns the files to write into one directory; controller is the hierarchy's mount name in version 1.
func (c *cgroups) settings(controller string, l outboard.SandboxLimits) []setting {
	const period = 100_000 // µs, the kernel's default
	memory, pids := strconv.FormatInt(l.MemoryBytes, 10), strconv.Itoa(l.Pids+guestPids)
	quota := strconv.FormatInt(int64(l.CPUs*period), 10)
	if c.version == 2 {
		all := map[string][]setting{
			"memory": {{file: "memory.max", value: memory}, {file: "memory.swap.max", value: "0", optional: true},
				{file: "memory.oom.group", value: "0", optional: true}},
			"pids": {{file: "pids.max", value: pids}},
			"cpu":  {{file: "cpu.max", value: quota + " " + strconv.Itoa(period)}},
		}
		var out []setting
		for _, name := range c.limits {
			out = append(out, all[name]...)
		}
		return out
	}
	switch root := c.rootOf(controller); root {
	case "memory":
		return []setting{{file: "memory.limit_in_bytes", value: memory},
			{file: "memory.memsw.limit_in_bytes", value: memory, optional: true},
			{file: socketLimit, value: socketMemory(l.MemoryBytes), optional: true}}
	case "pids":
		return []setting{{file: "pids.max", value: pids}}
	case "cpu":
		// A new group has this period: to set it would be to have the kernel look at every group of the host once more.
		return []setting{{file: "cpu.cfs_quota_us", value: quota}}
	}
	return nil
}

// rootOf maps a mount's directory name to the controller we use it for: cpu is often mounted together with cpuacct.
func (c *cgroups) rootOf(mount string) string {
	for name, root := range c.roots {
		if filepath.Base(filepath.Dir(root)) == mount {
			return name
		}
	}
	return ""
}

// doors opens the files by which a process of one thread enters a group of version 1: it writes "0", itself, to
// each. Version 2 has none.
func (g group) doors() (files []*os.File, err error) {
	if g.version != 1 {
		return nil, nil
	}
	for _, dir := range g.dirs {
		fd, err := unix.Open(filepath.Join(dir, "tasks"), unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return files, groupError("opening the sandbox's control group",
				&fs.PathError{Op: "open", Path: dir, Err: err})
		}
		files = append(files, os.NewFile(uintptr(fd), "tasks"))
	}
	return files, nil
}

// attach moves a process, with its threads, into a group of version 2.
func (g group) attach(pid int) error {
	if g.version == 1 {
		return nil // it went by itself
	}
	for _, dir := range g.dirs {
		if err := writeControl(dir, "cgroup.procs", strconv.Itoa(pid)); err != nil {
			return groupError("entering the sandbox's control group", err)
		}
	}
	return nil
}

// brake stops the processes of a group and lets them go on. Its files are open, for who has no paths to them: a
// thread inside a sandbox. That of a group without a freezer, or that is gone, does nothing.
type brake struct {
	version      int
	lever, gauge int // what is written to, and what says how far that is; -1 = none
}

// of returns the directory of a controller of version 1, or all where none has the controller's name: a host may
// mount it elsewhere.
func (g group) of(controller string) []string {
	i := slices.IndexFunc(g.dirs,
		func(dir string) bool { return filepath.Base(filepath.Dir(filepath.Dir(dir))) == controller })
	if i < 0 {
		return g.dirs
	}
	return g.dirs[i : i+1]
}

// brake opens that of a group. In version 1 only one of the directories has one.
func (g group) brake() (*brake, error) {
	b := &brake{version: g.version, lever: -1, gauge: -1}
	dirs, lever, flags := g.dirs, "freezer.state", unix.O_RDWR
	if g.version == 2 {
		lever, flags = "cgroup.freeze", unix.O_WRONLY
	} else {
		dirs = g.of("freezer")
	}
	for _, dir := range dirs {
		fd, err := openRaw(filepath.Join(dir, lever), flags, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			b.lever, b.gauge = fd, fd
		}
		if err == nil && g.version == 2 {
			b.gauge, err = openRaw(filepath.Join(dir, "cgroup.events"), unix.O_RDONLY, 0)
		}
		if err != nil {
			b.close()
			return nil, groupError("opening the sandbox's freezer", err)
		}
		break
	}
	return b, nil
}

func (b *brake) close() {
	if b.gauge >= 0 && b.gauge != b.lever {
		unix.Close(b.gauge)
	}
	if b.lever >= 0 {
		unix.Close(b.lever)
	}
	b.lever, b.gauge = -1, -1
}

// words returns what the kernel is told, and what it then says when that is done.
func (b *brake) words(frozen bool) (order, done string) {
	switch {
	case b.version == 2 && frozen:
		return "1", "frozen 1\n"
	case b.version == 2:
		return "0", "frozen 0\n"
	case frozen:
		return "FROZEN", "FROZEN\n"
	}
	return "THAWED", "THAWED\n"
}

// set begins to stop every process of the group, or lets them go on.
func (b *brake) set(frozen bool) error {
	if b.lever < 0 {
		return nil
	}
	order, _ := b.words(frozen)
	_, err := uninterrupted(func() (int, error) { return unix.Pwrite(b.lever, []byte(order), 0) })
	if err != nil && err != unix.ENODEV { // the group is gone
		return fmt.Errorf("writing freezer state: %w", err)
	}
	return nil
}

// wait returns when it is done.
func (b *brake) wait(ctx context.Context, frozen bool) error {
	if b.gauge < 0 {
		return nil
	}
	_, done := b.words(frozen)
	var buf [256]byte
	looks := 0
	err := waitFor(ctx, func() (bool, error) {
		for range freezeSpins { // most often it is a matter of microseconds, and to sleep takes a millisecond
			n, err := unix.Pread(b.gauge, buf[:], 0)
			if err == unix.ENODEV {
				return true, nil
			}
			if err != nil && err != unix.EINTR {
				return false, err
			}
			if strings.Contains(string(buf[:max(0, n)]), done) {
				return true, nil
			}
			unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
		}
		// Version 1 may never come to its end when a process was being made or was ending: begin again.
		if looks++; frozen && b.version != 2 && looks%freezeLooks == 0 {
			return false, errors.Join(b.set(false), b.set(true))
		}
		return false, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for the freezer: %w", err)
	}
	return nil
}

// setFrozen stops or continues every process of the group and waits until that is so.
func (g group) setFrozen(ctx context.Context, frozen bool) error {
	b, err := g.brake()
	if err != nil {
		return err
	}
	defer b.close()
	if err := b.set(frozen); err != nil {
		return err
	}
	return b.wait(ctx, frozen)
}

// thaw lets every process go on, and waits for nothing.
func (g group) thaw() error {
	b, err := g.brake()
	if err != nil {
		return err
	}
	defer b.close()
	return b.set(false)
}

// busy reports whether a process may be in the group. Without a group nobody knows.
func (g group) busy() (bool, error) {
	for _, dir := range g.dirs {
		data, err := readRaw(filepath.Join(dir, "cgroup.procs"))
		if len(data) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
			return true, err
		}
	}
	return len(g.dirs) == 0, nil
}

// kill sends SIGKILL to every process of the group. It is for what has no init to kill: a crash between clone
// and record.
func (g group) kill() error {
	for _, dir := range g.dirs {
		if g.version == 2 && writeControl(dir, "cgroup.kill", "1") == nil {
			continue
		}
		data, err := readRaw(filepath.Join(dir, "cgroup.procs"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("reading cgroup: %w", err)
		}
		for line := range strings.FieldsSeq(string(data)) {
			pid, err := strconv.Atoi(line)
			if err != nil || pid <= 1 {
				continue
			}
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("killing process %d of a cgroup: %w", pid, err)
			}
		}
	}
	return nil
}

// remove removes the directories once they are empty.
func (g group) remove(ctx context.Context) error {
	for _, dir := range g.dirs {
		err := waitFor(ctx, func() (bool, error) {
			err := unix.Rmdir(dir)
			switch {
			case err == nil, errors.Is(err, unix.ENOENT):
				return true, nil
			case errors.Is(err, unix.EBUSY):
				return false, g.kill()
			}
			return false, err
		})
		if err != nil {
			return fmt.Errorf("removing cgroup %s: %w", dir, err)
		}
	}
	return nil
}
