package native

import (
	"context"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

var _ sandbox.Measured = (*machine)(nil)

// Usage reads what the sandbox's group has used. What this host does not count is zero.
func (m *machine) Usage(context.Context) (sandbox.Usage, error) {
	var u sandbox.Usage
	for _, dir := range m.group.dirs {
		m.group.read(dir, &u)
	}
	if u.CPUs == 0 {
		u.CPUs = DefaultCPUs
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(m.dir, &fs); err != nil {
		return u, outboard.Errorf(outboard.Unavailable, "measuring sandbox %s: %w", m.id, err)
	}
	u.DiskMax = int64(fs.Blocks) * fs.Bsize
	u.Disk = u.DiskMax - int64(fs.Bavail)*fs.Bsize
	return u, nil
}

// read adds what one directory of the group counts.
func (g group) read(dir string, u *sandbox.Usage) {
	number := func(file string) int64 {
		b, err := readRaw(filepath.Join(dir, file))
		if err != nil {
			return 0
		}
		n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64) // "max" is no number, and no limit
		return n
	}
	stat := func(file, key string) int64 {
		b, err := readRaw(filepath.Join(dir, file))
		if err != nil {
			return 0
		}
		for line := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(line, key+" "); ok {
				n, _ := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
				return n
			}
		}
		return 0
	}
	if g.version == 2 {
		u.CPU, u.Memory, u.MemoryMax = time.Duration(stat("cpu.stat",
			"usage_usec"))*time.Microsecond, number("memory.current"), number("memory.max")
		u.Cache = stat("memory.stat", "inactive_file")
		b, _ := readRaw(filepath.Join(dir, "cpu.max"))
		if f := strings.Fields(string(b)); len(f) == 2 {
			quota, _ := strconv.ParseFloat(f[0], 64)
			period, _ := strconv.ParseFloat(f[1], 64)
			if period > 0 {
				u.CPUs = quota / period
			}
		}
		return
	}
	u.CPU += time.Duration(number("cpuacct.usage"))
	u.Memory += number("memory.usage_in_bytes")
	u.Cache += stat("memory.stat", "total_inactive_file")
	u.MemoryMax += number("memory.limit_in_bytes")
	if period := number("cpu.cfs_period_us"); period > 0 {
		u.CPUs = float64(number("cpu.cfs_quota_us")) / float64(period)
	}
}
