package native

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Broken if what guests run can be written to through /proc, if it is not the program, or if it cannot be
// executed. The control is the same file on the disk.
func TestProgramIsNobodysToWrite(t *testing.T) {
	path, err := exec.LookPath("true")
	if err != nil {
		t.Fatal(err)
	}
	image, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), "true")
	if err := os.WriteFile(copied, image, 0o755); err != nil {
		t.Fatal(err)
	}
	disk, err := os.Open(copied)
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	if err := tamper(disk); err != nil {
		t.Errorf("the control: %v", err)
	}
	makers := map[string]func([]byte) (*os.File, error){"sealed": sealed}
	if os.Geteuid() == 0 { // else it cannot be mounted
		makers["in large pages"] = inLargePages
	}
	for name, maker := range makers {
		f, err := maker(image)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		defer f.Close()
		for range 2 { // before it runs and after
			if err := tamper(f); err == nil {
				t.Errorf("%s: it can be written to", name)
			}
			if out, err := exec.Command(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd())).
				CombinedOutput(); err != nil {
				t.Errorf("%s: %v %s", name, err, out)
			}
		}
		if err := f.Truncate(1); err == nil {
			t.Errorf("%s: it can be cut", name)
		}
		// seals are of the content
		if err := unix.Fchmod(int(f.Fd()), 0o777); name != "sealed" && !errors.Is(err, unix.EROFS) {
			t.Errorf("%s: its mode: %v", name, err)
		}
		got := make([]byte, len(image)+1)
		if n, _ := f.ReadAt(got, 0); !bytes.Equal(got[:n], image) {
			t.Errorf("%s: %d bytes of it are not the program's", name, n)
		}
	}
}

// tamper writes to a file, as who finds it in /proc would.
func tamper(f *os.File) error {
	again, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = again.WriteAt([]byte("x"), 0)
	return errors.Join(err, again.Close())
}
