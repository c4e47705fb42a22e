//go:build linux

package guest

import (
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"
)

// BenchmarkExec is the round trip of `true` through a living shell, with both durable receipts, beside the floors of this machine:
// F is a process started and waited for, sync one fdatasync of a preallocated file.
func BenchmarkExec(b *testing.B) {
	t := &testing.T{}
	_ = t
	dir, err := os.MkdirTemp("", "og")
	if err != nil {
		b.Fatal(err)
	}
	defer os.RemoveAll(dir)
	c := benchGuest(b, dir)
	runBench(b, c, "warm")
	var exec, floor, sync []time.Duration
	f, err := os.Create(dir + "/floor")
	if err != nil {
		b.Fatal(err)
	}
	f.Write(make([]byte, 1<<20))
	f.Sync()
	n := 0
	for b.Loop() {
		n++
		start := time.Now()
		runBench(b, c, fmt.Sprint("k", n))
		exec = append(exec, time.Since(start))
		start = time.Now()
		p, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{})
		if err != nil {
			b.Fatal(err)
		}
		p.Wait()
		floor = append(floor, time.Since(start))
		start = time.Now()
		f.WriteAt([]byte("0123456789"), int64(n*100%(1<<20-10)))
		syscall.Fdatasync(int(f.Fd()))
		sync = append(sync, time.Since(start))
	}
	for name, d := range map[string][]time.Duration{"exec": exec, "F": floor, "fdatasync": sync} {
		slices.Sort(d)
		b.ReportMetric(float64(d[len(d)/2].Microseconds()), name+"-p50-us")
	}
}
