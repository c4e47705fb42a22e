//go:build linux

package oci_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandboxtest"
)

// If this fails, gVisor's kernel gives tools something that only a filter of system calls would keep from them,
// and it has none.
func TestKernelOfGVisor(t *testing.T) {
	layer := t.TempDir()
	build := exec.Command("go", "build", "-o", filepath.Join(layer, "opt/hostile"), "../native/testdata/hostile")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	sb := create(t, newProvider(t, runtimeFor(t, "runsc"), filepath.Join(t.TempDir(), "s")),
		sandbox.Spec{Layers: []string{layer}})
	said := sandboxtest.Bash(t, sb, "calls", "/opt/hostile calls; /opt/hostile sockets")
	got := map[string]string{}
	for line := range strings.Lines(said) {
		name, answer, _ := strings.Cut(strings.TrimSpace(line), " ")
		got[name] = answer
	}
	for answer, names := range map[string]string{
		"EPERM": "mount umount2 pivot_root chroot fsopen fsmount move_mount unshare_mount bpf kcmp kexec_load " +
			"init_module delete_module reboot swapon acct " +
			"quotactl settimeofday clock_settime adjtimex sethostname vhangup packet packet_dgram raw_icmp raw_tcp6",
		"ENOSYS": "mount_setattr io_uring_setup io_uring_enter io_uring_register userfaultfd keyctl " +
			"fanotify_init syslog",
		"ENOTSUP":      "open_by_handle_at name_to_handle_at",
		"EAFNOSUPPORT": "alg vsock key bluetooth",
		"ok":           "ordinary_open ordinary_exec ordinary_prlimit tcp udp unix netlink_route", // the controls
	} {
		for name := range strings.FieldsSeq(names) {
			if got[name] != answer {
				t.Errorf("%s: %q, want %s", name, got[name], answer)
			}
		}
	}
	// In a namespace of its own a tool would have every right that was refused above.
	const spaces = "for f in -U -Ur -Un -m -n -p -i -u; do unshare $f true 2>/dev/null && echo $f; done; unshare " +
		"true && echo none"
	if got := sandboxtest.Bash(t, sb, "spaces", spaces); got != "none\n" {
		t.Errorf("namespaces that are made: %q", got)
	}
	if out, err := exec.Command("sh", "-c", spaces).CombinedOutput(); err != nil ||
		!strings.Contains(string(out), "-U\n") {
		t.Errorf("control: outside, %v: %s", err, out)
	}
}

// If this fails, what is root in a sandbox of gVisor ends or stops its guest with another signal than the two
// that nobody can handle, or a program has the guest's handlers.
func TestSignalsInGVisor(t *testing.T) {
	sb := create(t, newProvider(t, runtimeFor(t, "runsc"), filepath.Join(t.TempDir(), "s")), sandbox.Spec{})
	const all = "exec 2>/dev/null; for s in $(seq 1 64); do [ $s = 9 ] || [ $s = 19 ] || kill -$s 1; done; sleep " +
		"1000 & kill -TERM $!; wait $!; echo $?"
	if got := asRoot(t, sb, all); got != "143\n" {
		t.Errorf("signals to the guest, and one to a program: %q", got)
	}
	if got := sandboxtest.Bash(t, sb, "after", "echo served"); got != "served\n" {
		t.Errorf("after them: %q", got)
	}
}
