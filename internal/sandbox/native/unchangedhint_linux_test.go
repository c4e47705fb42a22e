package native

import (
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Broken if a directory is taken for empty because a signal came while it was read: what a sandbox wrote would
// not be saved.
func TestIsEmptyInterrupted(t *testing.T) {
	full, empty := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "workspace"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	tid, over := unix.Gettid(), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-over:
				return
			default:
				_ = unix.Tgkill(unix.Getpid(), tid, unix.SIGURG) // which the runtime takes for one of its own
			}
		}
	})
	for range 5000 { // a few hundred found it, each time
		if isEmpty(full) || !isEmpty(empty) {
			t.Error("a directory with a file is empty, or one without is not")
			break
		}
	}
	close(over)
	wg.Wait()
}
