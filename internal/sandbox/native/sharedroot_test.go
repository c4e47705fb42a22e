//go:build linux

package native_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

// Broken if a checkpoint takes from a sandbox what it has written elsewhere than in the saved directories, or
// has that itself: up to the first one both are written to the same overlay.
func TestPushOfRoot(t *testing.T) {
	const elsewhere = "cat /home/beside " + sandbox.Uploads + "/beside /var/tmp/beside /tmp/beside"
	for what, hold := range map[string]string{"swapped": "",
		"copied": "(cd /workspace; exec sleep 1000) & until grep -qa 1000 /proc/$!/cmdline; do sleep 0.01; done"} {
		t.Run(what, func(t *testing.T) {
			p := layered(t)
			m := start(t, p, "")
			both := func(i int) {
				for _, name := range []string{"/home/beside", sandbox.Uploads + "/beside"} {
					if err := m.Put(t.Context(), name, 0o644, false, strings.NewReader(fmt.Sprintln(i))); err != nil {
						t.Fatal(err)
					}
				}
				bash(t, m, fmt.Sprintf("echo %d | tee -a /tmp/beside >> /var/tmp/beside", i))
			}
			both(1)
			bash(t, m, "cd /; exec 9> /tmp/held; "+hold) // what holds a temporary file holds no saved one
			if _, pushed := push(t, m); pushed.Changed {
				t.Errorf("nothing was written to the saved directories: %+v", pushed)
			}
			bash(t, m, "cd /mnt/session/outputs; mkdir -p d/e; echo a > d/e/f; ln d/e/f g; mkfifo p; cd /")
			want := sandbox.Pushed{Changed: true, Copied: hold != ""}
			var saved []outboard.CheckpointID
			for i := 2; i < 5; i++ {
				both(i)
				bash(t, m, fmt.Sprintf("echo %d >> /mnt/session/outputs/d/beside", i))
				id, pushed := push(t, m)
				if pushed != want {
					t.Fatalf("%d: %+v", i, pushed)
				}
				saved = append(saved, id)
				if _, pushed = push(t, m); pushed.Changed {
					t.Errorf("%d: nothing was written since: %+v", i, pushed)
				}
			}
			if out := bash(t, m, elsewhere+" /mnt/session/outputs/d/beside; ls /home /mnt/session"); out != "4\n4\n1\n2\n3\n4\n1\n2\n3\n4\n2\n3\n4\n/home:\nbeside\nuser\n\n/mnt/session:\noutputs\nuploads\n" {
				t.Errorf("the sandbox itself: %q", out)
			}
			if hold != "" {
				bash(t, m, "kill $!; wait; :")
				if _, pushed := push(t, m); pushed.Changed {
					t.Errorf("only somebody has gone: %+v", pushed)
				}
				bash(t, m, "echo 5 >> /mnt/session/outputs/d/beside")
				if _, pushed := push(t, m); pushed != (sandbox.Pushed{Changed: true}) {
					t.Errorf("nobody is there any more: %+v", pushed)
				}
			}
			fork := start(t, p, saved[1])
			const look = "cd /mnt/session/outputs; find . | sort; cat d/beside; ! " + elsewhere + " 2>/dev/null"
			if out := bash(t, fork, look); out != ".\n./d\n./d/beside\n./d/e\n./d/e/f\n./g\n./p\n2\n3\n" {
				t.Errorf("a fork: %q", out)
			}
		})
	}
}

// Broken if a file that was removed after a checkpoint, and with that, keeps its place on the disk for as long
// as the sandbox lives.
func TestForgottenFiles(t *testing.T) {
	layered(t)
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=256m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	used := func() uint64 {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			t.Fatal(err)
		}
		return (st.Blocks - st.Bfree) * uint64(st.Bsize)
	}
	p := openProvider(t, native.Config{Dir: filepath.Join(dir, "s")})
	if !p.Capabilities().Layers {
		t.Skip("no layers in memory on this host")
	}
	m := start(t, p, "")
	before := used()
	const size = 64 << 20
	bash(t, m, fmt.Sprintf("head -c %d /dev/zero > /workspace/big; cat /workspace/big > /dev/null", size))
	push(t, m)
	bash(t, m, "rm /workspace/big; echo 1 > /workspace/small")
	push(t, m)
	m.Sandbox.(interface{ Settled() }).Settled()
	if now := used(); now < before+size {
		t.Fatalf("the control: %d bytes are used, and %d were before the file was made", now, before)
	}
	// as a sweep does
	if err := os.Remove(filepath.Join(dir, "s", "layers", string(m.ID())+".1", "fs", "workspace", "big")); err != nil {
		t.Fatal(err)
	}
	// the kernel tells nobody
	for deadline := time.Now().Add(time.Minute); used() >= before+size/2; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes are used, and %d were before the file was made", used(), before)
		}
	}
}
