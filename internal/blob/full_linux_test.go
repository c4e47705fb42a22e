package blob

import (
	"crypto/rand"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/outboard-dev/outboard"
)

// Broken if a full disk is anything but Unavailable with the path for the log, none for clients, and a hint, or
// leaves bytes behind.
func TestFullDisk(t *testing.T) {
	if dir := os.Getenv("BLOB_TEST_FULL"); dir != "" {
		fullDiskChild(t, dir)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestFullDisk$", "-test.v")
	cmd.Env = append(os.Environ(), "BLOB_TEST_FULL="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		if strings.Contains(err.Error(), "operation not permitted") {
			need(t, "mount namespaces: "+err.Error())
		}
		t.Fatalf("%v\n%s", err, out)
	}
}

// fullDiskChild runs in a mount namespace of its own, on a file system of 4 MB.
func fullDiskChild(t *testing.T, dir string) {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Fatal(err)
	}
	d, err := NewDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	ref := put(t, d, []byte("control"))
	_, err = d.Put(t.Context(), io.LimitReader(rand.Reader, 8<<20), 0)
	if outboard.KindOf(err) != outboard.Unavailable || !strings.Contains(err.Error(), dir) {
		t.Fatalf("got %v", err)
	}
	if !outboard.DiskFull(err) || outboard.HintOf(err) != outboard.HintFullDisk {
		t.Errorf("%v is no full disk, or has another hint: %q", err, outboard.HintOf(err))
	}
	if told := outboard.PublicOf(err); strings.Contains(told, dir) || !strings.Contains(told, "disk is full") {
		t.Errorf("clients are told %q", told)
	}
	// Each failure says the same, so that whoever repeats it can be told once.
	if _, again := d.Put(t.Context(), io.LimitReader(rand.Reader, 8<<20), 0); again == nil ||
		again.Error() != err.Error() {
		t.Errorf("first %v, then %v", err, again)
	}
	if n := temps(t, d); n != 0 {
		t.Errorf("%d temporary files left", n)
	}
	if _, err := Bytes(t.Context(), d, ref, 100); err != nil {
		t.Errorf("reading on a full disk: %v", err)
	}
	put(t, d, []byte("there is room again"))
}
