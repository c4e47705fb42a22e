package outboard

import (
	"math"
	"strings"
	"testing"
)

// If this fails, limits are saved that no sandbox can have, or one that a sandbox can have is refused, or the
// one who asked is not told which of them it was.
func TestLimitsCheck(t *testing.T) {
	for _, c := range []struct {
		limits SandboxLimits
		want   string // in the error; "" = they are taken
	}{
		{limits: SandboxLimits{}},
		{limits: SandboxLimits{MemoryBytes: MinMemoryBytes, CPUs: MinCPUs, Pids: MinPids, DiskBytes: MinDiskBytes}},
		{limits: SandboxLimits{MemoryBytes: MaxMemoryBytes, CPUs: MaxCPUs, Pids: MaxPids, DiskBytes: MaxDiskBytes}},
		{SandboxLimits{MemoryBytes: MinMemoryBytes - 1}, "memory_bytes must be 8388608 to 70368744177664, or 0 for " +
			"the default, not 8388607"},
		{SandboxLimits{MemoryBytes: MaxMemoryBytes + 1}, "memory_bytes must be"},
		{SandboxLimits{MemoryBytes: -1}, "memory_bytes must be"},
		{SandboxLimits{CPUs: 0.000001}, "cpus must be 0.01 to 1024, or 0 for the default, not 1e-06"},
		{SandboxLimits{CPUs: 0.0099}, "cpus must be"},
		{SandboxLimits{CPUs: 1024.1}, "cpus must be"},
		{SandboxLimits{CPUs: -1}, "cpus must be"},
		{SandboxLimits{CPUs: math.NaN()}, "cpus must be"},
		{SandboxLimits{CPUs: math.Inf(1)}, "cpus must be"},
		{SandboxLimits{Pids: 1}, "pids must be 16 to 1000000, or 0 for the default, not 1"},
		{SandboxLimits{Pids: MinPids - 1}, "pids must be"},
		{SandboxLimits{Pids: MaxPids + 1}, "pids must be"},
		{SandboxLimits{Pids: -1}, "pids must be"},
		{SandboxLimits{DiskBytes: 9e18}, "disk_bytes must be 16777216 to 8796093022208, or 0 for the default, not " +
			"9000000000000000000"},
		{SandboxLimits{DiskBytes: MinDiskBytes - 1}, "disk_bytes must be"},
		{SandboxLimits{DiskBytes: MaxDiskBytes + 1}, "disk_bytes must be"},
		{SandboxLimits{DiskBytes: -1}, "disk_bytes must be"},
	} {
		err := c.limits.Check()
		if c.want == "" && err != nil || c.want != "" && (KindOf(err) != Invalid ||
			!strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v, want %q", c.limits, err, c.want)
		}
	}
}
