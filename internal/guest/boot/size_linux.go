package boot

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"unsafe"
)

// Programs ask the kernel how large the machine is, to choose heaps, caches and numbers of threads, and it tells
// them about the host. A sandbox shows them its own size instead: in the files of SizeFiles, in the answer to
// sysinfo (see answer) and in the processors that a process may run on.

// MemInfo is where the directory of SizeFiles has what /proc/meminfo shows.
const MemInfo = "fs/meminfo"

// emptyDir is a directory of SizeFiles that is always empty. Directories of proc are covered with it.
const emptyDir = "block"

// SizeFile is a file, or a directory, below the /sys of a sandbox. There is no sysfs.
type SizeFile struct {
	Name string // relative; parents come first
	Data string
	Same string // another file that it is one with
	Dir  bool
}

// SizeFiles are the files for a limit on memory in bytes and on processors in thousandths. Programs look for
// either version of control groups.
func SizeFiles(memory int64, milliCPUs int) []SizeFile {
	const period = 100_000 // microseconds
	quota := strconv.Itoa(max(milliCPUs, 1) * period / 1000)
	processors := "0-" + strconv.Itoa(Processors(milliCPUs)-1) + "\n"
	if Processors(milliCPUs) == 1 {
		processors = "0\n"
	}
	const cgroup, cpus = "fs/cgroup", "devices/system/cpu"
	return []SizeFile{
		{Name: emptyDir, Dir: true},
		{Name: "fs", Dir: true}, {Name: cgroup, Dir: true}, {Name: cgroup + "/memory", Dir: true}, {Name: cgroup +
			"/cpu", Dir: true},
		{Name: "devices", Dir: true}, {Name: "devices/system", Dir: true}, {Name: cpus, Dir: true},
		{Name: MemInfo, Data: memInfo(memory)},
		{Name: cgroup + "/cgroup.controllers", Data: "cpu memory\n"},
		{Name: cgroup + "/memory.max", Data: strconv.FormatInt(memory, 10) + "\n"},
		{Name: cgroup + "/memory/memory.limit_in_bytes", Same: cgroup + "/memory.max"},
		{Name: cgroup + "/cpu.max", Data: quota + " " + strconv.Itoa(period) + "\n"},
		{Name: cgroup + "/cpu/cpu.cfs_quota_us", Data: quota + "\n"},
		{Name: cgroup + "/cpu/cpu.cfs_period_us", Data: strconv.Itoa(period) + "\n"},
		{Name: cpus + "/online", Data: processors},
		{Name: cpus + "/possible", Same: cpus + "/online"},
		{Name: cpus + "/present", Same: cpus + "/online"},
	}
}

// memInfo is a /proc/meminfo. What is in use changes, and is left out: all of it shows as free.
func memInfo(memory int64) string {
	var b strings.Builder
	all := memory >> 10
	for _, f := range []struct {
		name string
		kb   int64
	}{
		{"MemTotal", all}, {"MemFree", all}, {"MemAvailable", all}, {"Buffers", 0}, {"Cached", 0}, {"SwapCached",
			0}, {"Active", 0}, {"Inactive", 0},
		{"Active(anon)", 0}, {"Inactive(anon)", 0}, {"Active(file)", 0}, {"Inactive(file)", 0}, {"Unevictable",
			0}, {"Mlocked", 0}, {"SwapTotal", 0},
		{"SwapFree", 0}, {"Dirty", 0}, {"Writeback", 0}, {"AnonPages", 0}, {"Mapped", 0}, {"Shmem", 0}, {"KReclaimable",
			0}, {"Slab", 0},
		{"SReclaimable", 0}, {"SUnreclaim", 0}, {"KernelStack", 0}, {"PageTables", 0}, {"CommitLimit",
			all}, {"Committed_AS", 0}, {"AnonHugePages", 0},
		{"Hugepagesize", 2048},
	} {
		fmt.Fprintf(&b, "%-16s%8d kB\n", f.name+":", f.kb)
	}
	return b.String()
}

// Processors is how many processors a number of thousandths takes at least.
func Processors(milli int) int { return max(1, (milli+999)/1000) }

// WriteSize makes the files below dir. own gives each to who it belongs to.
func WriteSize(dir string, files []SizeFile, own func(path string) error) error {
	for _, f := range files {
		path := filepath.Join(dir, f.Name)
		var err error
		switch {
		case f.Dir:
			if err = os.Mkdir(path, 0o700); err == nil {
				err = os.Chmod(path, 0o755)
			}
		case f.Same != "":
			err = os.Link(filepath.Join(dir, f.Same), path)
		default:
			err = os.WriteFile(path, []byte(f.Data), 0o444)
		}
		if err = errors.Join(err, own(path)); err != nil {
			return fmt.Errorf("making a file of the sandbox's size: %w", err)
		}
	}
	return nil
}

// SizeEnv is what programs are told that ask nobody: Go's runtime collects garbage in time.
func (e *Env) SizeEnv() []string {
	if e.Memory == 0 {
		return nil
	}
	return []string{"GOMEMLIMIT=" + strconv.FormatInt(e.Memory-e.Memory/8, 10)}
}

// cpuSet is a set of processors in the kernel's form.
type cpuSet [16]uint64

// RunOn lets a process run on so many of the processors that it may run on now, chosen at random. It has one
// thread, or is 0: then it is this process with all its threads.
func RunOn(pid, processors int) error {
	var have, chosen cpuSet
	_, _, errno := syscall.RawSyscall(syscall.SYS_SCHED_GETAFFINITY, uintptr(pid), unsafe.Sizeof(have),
		uintptr(unsafe.Pointer(&have)))
	if errno != 0 {
		return os.NewSyscallError("sched_getaffinity", errno)
	}
	var all []int
	for i := range len(have) * 64 {
		if have[i/64]&(1<<(i%64)) != 0 {
			all = append(all, i)
		}
	}
	if processors >= len(all) {
		return nil
	}
	for _, i := range rand.Perm(len(all))[:processors] {
		chosen[all[i]/64] |= 1 << (all[i] % 64)
	}
	call := syscall.RawSyscall
	if pid == 0 {
		call = syscall.AllThreadsSyscall
	}
	_, _, errno = call(syscall.SYS_SCHED_SETAFFINITY, uintptr(pid), unsafe.Sizeof(chosen),
		uintptr(unsafe.Pointer(&chosen)))
	if errno != 0 {
		return os.NewSyscallError("sched_setaffinity", errno)
	}
	return nil
}
