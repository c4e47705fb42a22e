package server

import (
	"context"
	"crypto/sha256"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
	"github.com/outboard-dev/outboard/internal/store"
)

// guestProgram is the in-sandbox half of the product.
const guestProgram = "outboard-guest"

// FindGuest returns the path of the guest program, which must run where there is nothing beside it.
func FindGuest(env func(string) string) (string, error) {
	path, err := locateGuest(env)
	if err != nil {
		return "", err
	}
	if loader := loaderOf(path); loader != "" {
		return "", outboard.Errorf(outboard.Unavailable,
			"%s needs the dynamic loader %s, which a sandbox does not have", path, loader).
			WithCode(CodeNoIsolation).WithHint("CGO_ENABLED=0 go build -o %s ./cmd/%s", path, guestProgram)
	}
	return path, nil
}

// loaderOf returns the dynamic loader that an ELF program asks for, "" for a static program and for what is no
// ELF file.
func loaderOf(path string) string {
	f, err := elf.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			b, _ := io.ReadAll(io.LimitReader(p.Open(), 256))
			return strings.TrimRight(string(b), "\x00")
		}
	}
	return ""
}

// CodeNoIsolation marks the error of a host that can isolate nothing.
const CodeNoIsolation = "no_isolation"

// SQLitePath is where a data directory has its database, unless that is PostgreSQL.
func SQLitePath(data string) string { return filepath.Join(data, "outboard.db") }

// HostKeyPath is where a data directory keeps the key of its SSH server.
func HostKeyPath(data string) string { return filepath.Join(data, "ssh_host_ed25519_key") }

// SandboxDir is where a data directory has the sandboxes of this host.
func SandboxDir(data string) string { return filepath.Join(data, "sandboxes") }

// RemoveSandboxes removes every sandbox of a data directory that no server uses any more. guest is the guest program.
func RemoveSandboxes(ctx context.Context, data, guest string) error {
	p, err := native.New(native.Config{Dir: SandboxDir(data), Guest: guest})
	if err != nil {
		return err
	}
	ids, err := p.List(ctx)
	for _, id := range ids {
		err = errors.Join(err, p.Destroy(ctx, id))
	}
	return errors.Join(err, p.Close())
}

// locateGuest looks next to this executable, else where OUTBOARD_GUEST says, else on PATH.
func locateGuest(env func(string) string) (string, error) {
	if exe, err := os.Executable(); err == nil {
		if real, err := filepath.EvalSymlinks(exe); err == nil {
			exe = real
		}
		if p := filepath.Join(filepath.Dir(exe), guestProgram); isProgram(p) {
			return p, nil
		}
	}
	if p := env("OUTBOARD_GUEST"); p != "" {
		if isProgram(p) {
			return filepath.Abs(p)
		}
		return "", outboard.Errorf(outboard.Unavailable, "OUTBOARD_GUEST=%s is not a program", p).
			WithCode(CodeNoIsolation).WithHint("make build, then OUTBOARD_GUEST=bin/%s", guestProgram)
	}
	if p, err := exec.LookPath(guestProgram); err == nil {
		return filepath.Abs(p)
	}
	return "", outboard.Errorf(outboard.Unavailable, "the program %s, which runs inside sandboxes, is not there",
		guestProgram).
		WithCode(CodeNoIsolation).WithHint("make build puts it next to outboard; OUTBOARD_GUEST names another place")
}

func isProgram(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular() && (runtime.GOOS == "windows" || st.Mode()&0o111 != 0)
}

// HostName names this machine and data directory in sandbox rows: a sandbox can be opened only where its directory is.
func HostName(data string) string {
	name, err := os.Hostname()
	if err != nil {
		name = "unknown"
	}
	return fmt.Sprintf("%s/%.8x", name, sha256.Sum256([]byte(data)))
}

// A worker's host, as registered, is "<host> <kernel> <pid> <start>": kernel names one boot and one pid
// namespace, so that a process found missing under the same kernel is certain to be dead.
func workerHost(host string) string {
	pid := os.Getpid()
	return strings.Join([]string{host, KernelID(), strconv.Itoa(pid), ProcessStart(pid)}, " ")
}

// deadWorker reports whether host was registered by a process of this kernel that no longer exists.
func deadWorker(host, kernel string) bool {
	f := strings.Fields(host)
	if len(f) != 4 || f[1] != kernel || kernel == "" {
		return false
	}
	pid, err := strconv.Atoi(f[2])
	return err == nil && ProcessStart(pid) != f[3]
}

// releaseDead gives up the leases of processes on this machine that were killed. A lease is only ever a hint
// about liveness: if this were wrong, the epoch would still keep the old holder from writing.
func releaseDead(ctx context.Context, st *store.Store, log *slog.Logger) error {
	workers, err := st.Workers(ctx)
	if err != nil {
		return err
	}
	kernel := KernelID()
	for _, w := range workers {
		if !deadWorker(w.Host, kernel) {
			continue
		}
		log.Info("releasing the sessions of a dead process", "worker", w.ID, "host", w.Host)
		if err := st.Deregister(ctx, w.ID); err != nil {
			return err
		}
	}
	return nil
}
