package boot

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// spent runs f on a thread that ends with it.
func spent(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}

// If this fails, something of the host lies below the root of every sandbox, or can be put there.
func TestVoid(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root makes mount namespaces")
	}
	var ns *os.File
	if err := spent(func() (err error) { ns, err = Void(); return err }); err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	proc, err := syscall.Open("/proc", pathOnly|syscall.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(proc)
	here, err := mounts(proc)
	if err != nil || len(here) < 2 {
		t.Fatalf("the host has the mounts %q: %v", here, err)
	}
	err = spent(func() error {
		if err := syscall.Unshare(syscall.CLONE_FS); err != nil {
			return err
		}
		if _, _, errno := syscall.Syscall(sysSetns, ns.Fd(), syscall.CLONE_NEWNS, 0); errno != 0 {
			return errno
		}
		all, err := mounts(proc)
		if err != nil || len(all) != 2+len(devices) {
			return fmt.Errorf("the mounts are %q: %w", all, err)
		}
		for _, m := range all {
			f := strings.Fields(m)
			root, at, options := f[3], f[4], f[5]
			directory := (at == "/" || at == "/dev") && root == "/" &&
				strings.HasPrefix(options, "ro,nosuid,nodev,noexec")
			device := slices.Contains(devices, strings.TrimPrefix(at, "/dev/")) &&
				root == strings.TrimPrefix(at, "/dev") && strings.HasPrefix(options, "rw,nosuid,noexec")
			if !directory && !device {
				return fmt.Errorf("there is the mount %s", m)
			}
		}
		if all, err := os.ReadDir("/"); err != nil || len(all) != 1 || all[0].Name() != "dev" {
			return fmt.Errorf("the root has %v: %w", all, err)
		}
		for _, dir := range []string{"/d", "/dev/d"} {
			if err := os.Mkdir(dir, 0o755); !errors.Is(err, syscall.EROFS) {
				return fmt.Errorf("making %s: %w", dir, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// mounts are those of the calling thread's namespace that its root leads to.
func mounts(proc int) ([]string, error) {
	fd, err := syscall.Openat(proc, "thread-self/mountinfo", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "mountinfo")
	defer f.Close()
	var text strings.Builder
	if _, err := f.WriteTo(&text); err != nil {
		return nil, err
	}
	return strings.Split(strings.TrimSpace(text.String()), "\n"), nil
}
