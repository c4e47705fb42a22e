//go:build linux

package guest

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"
)

// BenchmarkExec is the round trip of `true` through a living shell, both durable receipts included, beside the
// floors of this machine in the same run: F is one static program started and waited for, fdatasync one durable
// write of a filled file.
func BenchmarkExec(b *testing.B) {
	dir := b.TempDir()
	c := benchGuest(b, dir)
	runBench(b, c, "warm")
	program := filepath.Join(dir, "exit")
	if err := os.WriteFile(program, exitProgram(b), 0o755); err != nil {
		b.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, "floor"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	const size = 1 << 20
	if _, err := f.Write(make([]byte, size)); err != nil {
		b.Fatal(err)
	}
	f.Sync()
	times := map[string][]time.Duration{}
	timed := func(name string, run func()) {
		start := time.Now()
		run()
		times[name] = append(times[name], time.Since(start))
	}
	n := 0
	for b.Loop() {
		n++
		timed("exec", func() { runBench(b, c, fmt.Sprint("k", n)) })
		timed("F", func() {
			p, err := os.StartProcess(program, []string{program}, &os.ProcAttr{})
			if err != nil {
				b.Fatal(err)
			}
			p.Wait()
		})
		timed("fdatasync", func() {
			f.WriteAt([]byte("0123456789"), int64(n*200%(size-10)))
			syscall.Fdatasync(int(f.Fd()))
		})
	}
	for name, d := range times {
		slices.Sort(d)
		b.ReportMetric(float64(d[len(d)/2].Microseconds()), name+"-p50-us")
	}
}

// exitProgram is the smallest static program: it exits with status 0.
func exitProgram(b *testing.B) []byte {
	machine, code := uint16(62), []byte{0xb8, 60, 0, 0, 0, 0x31, 0xff, 0x0f, 0x05} // mov eax, 60; xor edi, edi; syscall
	if runtime.GOARCH == "arm64" {
		machine = 183
		code = []byte{0xa8, 0x0b, 0x80, 0xd2, 0, 0, 0x80, 0xd2, 0x01, 0, 0, 0xd4} // mov x8, 93; mov x0, 0; svc 0
	}
	const base, headers = 0x400000, 64 + 56
	le := binary.LittleEndian
	e := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 9)...)
	e = le.AppendUint16(e, 2)
	e = le.AppendUint16(e, machine)
	e = le.AppendUint32(e, 1)
	for _, v := range []uint64{base + headers, 64, 0} { // entry, program headers, section headers
		e = le.AppendUint64(e, v)
	}
	e = le.AppendUint32(e, 0)
	for _, v := range []uint16{64, 56, 1, 0, 0, 0} {
		e = le.AppendUint16(e, v)
	}
	e = le.AppendUint32(e, 1) // load
	e = le.AppendUint32(e, 5) // read, execute
	size := uint64(headers + len(code))
	for _, v := range []uint64{0, base, base, size, size, 0x1000} {
		e = le.AppendUint64(e, v)
	}
	return append(e, code...)
}

// BenchmarkSaveUnchanged is a checkpoint of a small workspace in which nothing changed: what every harmless call costs.
func BenchmarkSaveUnchanged(b *testing.B) {
	dir := b.TempDir()
	c := benchGuest(b, dir)
	for i := range 20 {
		if err := os.WriteFile(filepath.Join(dir, "workspace", fmt.Sprint("f", i)), make([]byte, 1000),
			0o644); err != nil {
			b.Fatal(err)
		}
	}
	if _, err := c.Save(b.Context(), Save{Epoch: 1, Next: "a"}, io.Discard); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if s, err := c.Save(b.Context(), Save{Epoch: 1, Base: "a", Next: "b"}, io.Discard); err != nil || s.Changed {
			b.Fatal(s, err)
		}
	}
}
