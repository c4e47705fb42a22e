//go:build linux

package spawner

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// serveEnv makes this program a spawner.
const serveEnv = "OUTBOARD_TEST_SPAWNER"

func TestMain(m *testing.M) {
	if os.Getenv(serveEnv) != "" {
		if err := Serve(); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// start runs a spawner and returns our end of its connection.
func start(t *testing.T) (*exec.Cmd, int) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root enters namespaces of the host")
	}
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "spawner")
	defer theirs.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env, cmd.Stderr, cmd.ExtraFiles = append(os.Environ(), serveEnv+"=1"), t.Output(), []*os.File{theirs}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, pair[0]
}

// ask has it make a child that runs true, and returns our end of its gate.
func ask(t *testing.T, conn int, change func(*Child)) (pid int, gate *os.File, err error) {
	t.Helper()
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "gate")
	defer theirs.Close()
	program, err := os.Open("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	n := int(null.Fd())
	k := Child{Files: [FirstFree]int{n, n, n, n, n, n}, Program: int(program.Fd()), Gate: pair[1], Net: -1, Mount: -1,
		Flags: syscall.CLONE_NEWUSER}
	if change != nil {
		change(&k)
	}
	pid, err = Ask(conn, k)
	return pid, os.NewFile(uintptr(pair[0]), "gate"), err
}

func status(t *testing.T, pid int) syscall.WaitStatus {
	t.Helper()
	var ws syscall.WaitStatus
	if err := retried(func() error { _, err := syscall.Wait4(pid, &ws, 0, nil); return err }); err != nil {
		t.Fatalf("child %d is not ours: %v", pid, err)
	}
	return ws
}

// open gives a child root's id in its user namespace, and lets it go on.
func open(t *testing.T, pid int, gate *os.File) {
	t.Helper()
	for _, name := range []string{"uid_map", "gid_map"} {
		if err := os.WriteFile(fmt.Sprintf("/proc/%d/%s", pid, name), []byte("0 0 1"), 0); err != nil {
			t.Fatal(err)
		}
	}
	gate.Write([]byte{1})
}

// failure is what a child says at its gate.
func failure(gate *os.File) string {
	var answer [2]byte
	if n, err := gate.Read(answer[:]); n < len(answer) {
		return "nothing: " + err.Error()
	}
	step, errno := Failure(answer)
	return step + ": " + errno.Error()
}

// If this fails, a child is not the server's to wait for, runs before it may, goes on without its server, or a
// spawner without one.
func TestSpawner(t *testing.T) {
	cmd, conn := start(t)
	pid, gate, err := ask(t, conn, nil)
	if err != nil {
		t.Fatal(err)
	}
	var ws syscall.WaitStatus
	if got, err := syscall.Wait4(pid, &ws, syscall.WNOHANG, nil); got != 0 || err != nil {
		t.Errorf("before the gate is open: %d, %v", got, err)
	}
	open(t, pid, gate)
	if ws := status(t, pid); !ws.Exited() || ws.ExitStatus() != 0 {
		t.Errorf("ended with %v, at %s", ws, failure(gate))
	}
	if pid, gate, err = ask(t, conn, nil); err != nil {
		t.Fatal(err)
	}
	gate.Close()
	if ws := status(t, pid); !ws.Exited() || ws.ExitStatus() != 1 {
		t.Errorf("with its gate closed it ended with %v", ws)
	}
	syscall.Close(conn)
	if err := cmd.Wait(); err != nil {
		t.Errorf("a spawner whose server is gone: %v", err)
	}
}

// If this fails, what the kernel refuses for one sandbox is told wrongly, or spoils the next one.
func TestRefused(t *testing.T) {
	cmd, conn := start(t)
	for _, c := range []struct {
		name, step string
		change     func(*Child)
	}{
		{"network", "entering a network namespace", func(k *Child) { k.Net = k.Files[0] }},
		{"mounts", "entering a mount namespace", func(k *Child) { k.Mount = k.Files[0] }},
		{"flags", "cloning", func(k *Child) { k.Flags = syscall.CLONE_NEWNS | syscall.CLONE_FS }}, // not both
		{"groups", "entering control groups", func(k *Child) { k.Groups = make([]int, maxGroups+1) }},
	} {
		_, gate, err := ask(t, conn, c.change)
		gate.Close()
		if r, ok := errors.AsType[*Refusal](err); !ok || r.Step != c.step {
			t.Errorf("%s: %v", c.name, err)
		}
		pid, gate, err := ask(t, conn, nil)
		if err != nil {
			t.Fatalf("after %s: %v", c.name, err)
		}
		open(t, pid, gate)
		if ws := status(t, pid); !ws.Exited() || ws.ExitStatus() != 0 {
			t.Errorf("after %s: ended with %v", c.name, ws)
		}
	}
	syscall.Close(conn)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
