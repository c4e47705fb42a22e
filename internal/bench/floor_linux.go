package bench

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// SyncFloor measures what one durable 4 KiB append costs in dir: write + fdatasync, n times. It is what every
// append of the log must pay at least once.
func SyncFloor(dir string, n int) ([]time.Duration, error) {
	f, err := os.CreateTemp(dir, "floor-*")
	if err != nil {
		return nil, fmt.Errorf("probing fdatasync: %w", err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	page := make([]byte, 4096)
	samples := make([]time.Duration, 0, n)
	for range n {
		start := time.Now()
		if _, err := f.Write(page); err != nil {
			return nil, fmt.Errorf("probing fdatasync: %w", err)
		}
		if err := syscall.Fdatasync(int(f.Fd())); err != nil {
			return nil, fmt.Errorf("probing fdatasync: %w", err)
		}
		samples = append(samples, time.Since(start))
	}
	return samples, nil
}

// SpawnFloor measures F: spawning and reaping a static program that does nothing, n times. The program is `int
// main(){return 0;}` linked statically by the host's C compiler, the F of docs/lab/bench.md. Without a compiler
// it is an ELF file of one exit system call written on the spot, which has no C library to start and makes for a
// floor several times lower: kind says which it was.
func SpawnFloor(dir string, n int) (samples []time.Duration, kind string, err error) {
	path := filepath.Join(dir, "floor-true")
	if kind, err = doNothing(path); err != nil {
		return nil, "", fmt.Errorf("probing spawn: %w", err)
	}
	defer os.Remove(path)
	for range n {
		start := time.Now()
		pid, err := syscall.ForkExec(path, []string{path}, &syscall.ProcAttr{})
		if err != nil {
			return nil, "", fmt.Errorf("probing spawn: %w", err)
		}
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil {
			return nil, "", fmt.Errorf("probing spawn: %w", err)
		}
		if status.ExitStatus() != 0 {
			return nil, "", fmt.Errorf("probing spawn: exit status %d", status.ExitStatus())
		}
		samples = append(samples, time.Since(start))
	}
	return samples, kind, nil
}

// doNothing makes the program at path and says how.
func doNothing(path string) (kind string, err error) {
	if cc, err := exec.LookPath("cc"); err == nil {
		c := exec.Command(cc, "-x", "c", "-O2", "-static", "-o", path, "-")
		c.Stdin = strings.NewReader("int main(void) { return 0; }\n")
		if c.Run() == nil {
			return "a static C program", nil
		}
	}
	image, err := exitProgram()
	if err != nil {
		return "", err
	}
	return "one exit system call; install gcc for the usual floor", os.WriteFile(path, image, 0o755)
}

// exitProgram returns a static ELF64 executable that calls exit(0): one header, one loadable segment, a few
// instructions.
func exitProgram() ([]byte, error) {
	const base, headers = 0x400000, 64 + 56
	var machine uint16
	var code []byte
	switch runtime.GOARCH {
	case "amd64":
		machine, code = 62, []byte{0x31, 0xff, 0xb8, 0x3c, 0, 0, 0, 0x0f, 0x05} // xor edi,edi; mov eax,60; syscall
	case "arm64":
		// mov x0,0; mov x8,93; svc 0
		machine, code = 183, []byte{0, 0, 0x80, 0xd2, 0xa8, 0x0b, 0x80, 0xd2, 1, 0, 0, 0xd4}
	default:
		return nil, fmt.Errorf("probing spawn: no floor program for %s", runtime.GOARCH)
	}
	b := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 9)...)
	le := binary.LittleEndian
	for _, v := range []any{uint16(2), machine, uint32(1), uint64(base + headers), uint64(64), uint64(0), uint32(0),
		uint16(64), uint16(56), uint16(1), uint16(0), uint16(0), uint16(0)} {
		b, _ = binary.Append(b, le, v)
	}
	size := uint64(headers + len(code))
	for _, v := range []any{uint32(1), uint32(5), uint64(0), uint64(base), uint64(base), size, size, uint64(0x1000)} {
		b, _ = binary.Append(b, le, v)
	}
	return append(b, code...), nil
}
