//go:build linux

package native_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

// TestFullDisk: without it a sandbox that cannot be made on a full disk says neither that nor what to do, or
// tells of the host's paths.
func TestFullDisk(t *testing.T) {
	disk := smallDisk(t, "size=16m")
	p := openProvider(t, native.Config{Dir: filepath.Join(disk, "sandboxes")})
	cycle := func() error {
		id := newID()
		s, err := p.Create(t.Context(), sandbox.Spec{ID: id, Generation: "g"})
		if err != nil {
			return err
		}
		return errors.Join(s.Close(), p.Destroy(context.Background(), id))
	}
	if err := cycle(); err != nil {
		t.Fatal("control:", err)
	}
	p.TrashEmpty()
	filler := fill(t, disk)
	err := cycle()
	if outboard.KindOf(err) != outboard.Unavailable || !outboard.DiskFull(err) ||
		outboard.HintOf(err) != outboard.HintFullDisk {
		t.Errorf("on a full disk: %v (%s), with the hint %q", err, outboard.KindOf(err), outboard.HintOf(err))
	}
	if told := outboard.PublicOf(err); strings.Contains(told, disk) ||
		!strings.Contains(told, "the server's disk is full") {
		t.Errorf("clients are told %q", told)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if err := cycle(); err != nil {
		t.Error("with room again:", err)
	}
}

// TestFullDiskBeforeTheFirst: without it the first sandbox of a server whose disk has no room for the host's
// layer fails with the path of a file that was to be written, and what to do is not said.
func TestFullDiskBeforeTheFirst(t *testing.T) {
	for _, c := range []struct {
		options string
		full    bool
	}{{"size=16m", false}, {"nr_inodes=50", true}, {"size=64k", true}} {
		p := openProvider(t, native.Config{Dir: filepath.Join(smallDisk(t, c.options), "sandboxes")})
		id := newID()
		s, err := p.Create(t.Context(), sandbox.Spec{ID: id, Generation: "g"})
		if c.full {
			if told := outboard.PublicOf(err); outboard.HintOf(err) != outboard.HintFullDisk ||
				!strings.Contains(told, "the server's disk is full") || strings.Contains(told, "etc/") {
				t.Errorf("%s: %v, with the hint %q; clients are told %q", c.options, err, outboard.HintOf(err), told)
			}
			continue
		}
		if err != nil {
			t.Fatal("control:", err)
		}
		if err := errors.Join(s.Close(), p.Destroy(context.Background(), id)); err != nil {
			t.Error(err)
		}
		p.TrashEmpty()
	}
}

// TestFullDiskInReport: without it a disk that becomes full while a sandbox is made, or before the server
// starts, is said to be a mount or a directory that could not be made: what was made for the sandbox is removed
// before it is asked whether there is room.
func TestFullDiskInReport(t *testing.T) {
	disk := smallDisk(t, "size=40m,nr_inodes=5000")
	cfg := native.Config{Dir: filepath.Join(disk, "sandboxes")}
	p := openProvider(t, cfg)
	create := func() error {
		id := newID()
		s, err := p.Create(t.Context(), sandbox.Spec{ID: id, Generation: "g"})
		if err == nil {
			err = errors.Join(s.Close(), p.Destroy(context.Background(), id))
		}
		p.TrashEmpty()
		return err
	}
	if err := create(); err != nil {
		t.Fatal("control:", err)
	}
	refused := 0
	for left := 60; left >= 0; left-- { // whatever comes last fails
		leaveInodes(t, disk, uint64(left))
		if err := create(); err != nil {
			if refused++; outboard.HintOf(err) != outboard.HintFullDisk ||
				!strings.Contains(outboard.PublicOf(err), "the server's disk is full") {
				t.Errorf("with %d inodes left: %v, with the hint %q", left, err, outboard.HintOf(err))
			}
		}
	}
	if refused == 0 || refused > 60 {
		t.Errorf("control: %d of 61 were refused", refused)
	}
	cfg.Guest, cfg.Dir = guestPath(), filepath.Join(disk, "others")
	checks := native.Probe(t.Context(), cfg).Checks
	if last := checks[len(checks)-1]; last.OK || last.Fix != outboard.HintFullDisk {
		t.Errorf("the report on a full disk ends with %+v", last)
	}
}

// TestFullDiskAtStart: without it a server that starts on a full disk says nothing of it, and copies workspaces
// for as long as it runs.
func TestFullDiskAtStart(t *testing.T) {
	disk := smallDisk(t, "size=40m,nr_inodes=5000")
	cfg := native.Config{Dir: filepath.Join(disk, "sandboxes")}
	before := openProvider(t, cfg)
	if !before.Capabilities().Layers {
		t.Skip("this host cannot make layers")
	}
	fillers := leaveInodes(t, disk, 0)
	var log said
	cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	p := openProvider(t, cfg)
	if caps := p.Capabilities(); caps.Layers || !strings.Contains(caps.Gaps[len(caps.Gaps)-1], "disk is full") {
		t.Errorf("on a full disk: layers %v, with the gaps %q", caps.Layers, caps.Gaps)
	}
	if log.count("level=WARN") != 1 || log.count(outboard.HintFullDisk) != 1 {
		t.Errorf("a full disk is in the log %d times, and what to do about it %d times", log.count("level=WARN"),
			log.count(outboard.HintFullDisk))
	}
	for _, f := range fillers {
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
	if !p.Capabilities().Layers {
		t.Fatal("there is room again, and no layers")
	}
	b := start(t, p, "")
	bash(t, b, "echo 1 > f")
	push(t, b)
}

// leaveInodes makes files until a file system has room for so many more, and returns them.
func leaveInodes(t *testing.T, dir string, n uint64) (fillers []string) {
	t.Helper()
	for {
		var st syscall.Statfs_t
		if err := syscall.Statfs(dir, &st); err != nil {
			t.Fatal(err)
		}
		if st.Ffree <= n {
			return fillers
		}
		f, err := os.CreateTemp(dir, "filler")
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		fillers = append(fillers, f.Name())
	}
}

// smallDisk mounts a file system in memory, for as long as the test takes.
func smallDisk(t *testing.T, options string) string {
	t.Helper()
	native.NeedRoot(t)
	disk := t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(disk, 0); err != nil {
			t.Error(err)
		}
	})
	return disk
}

// realDisk returns a directory on a file system of that size that is no memory: of that the kernel does not
// count who writes.
func realDisk(t *testing.T, size int64) string {
	t.Helper()
	native.NeedRoot(t)
	image, disk := filepath.Join(t.TempDir(), "image"), t.TempDir()
	for _, args := range [][]string{{"truncate", "-s", strconv.FormatInt(size, 10), image},
		{"mkfs.ext4", "-q", "-F", "-m", "0", image}, {"mount", "-o", "loop", image, disk}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("no file system for this test: %v: %v: %s", args, err, out)
		}
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(disk, 0); err != nil {
			t.Error(err)
		}
	})
	return disk
}

// fill writes a file that takes all the room of a directory's disk, and returns its path.
func fill(t *testing.T, dir string) string {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.Copy(f, zeros{}); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("filling the disk: %v", err)
	}
	return f.Name()
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// TestReserve: without it one sandbox takes the whole disk from the server and all others, or what was kept from
// writing stays so.
func TestReserve(t *testing.T) {
	disk := realDisk(t, 400<<20)
	p := openProvider(t, native.Config{Dir: filepath.Join(disk, "sandboxes"), Reserve: 100 << 20})
	if len(p.Capabilities().Limits) == 0 {
		t.Skip("no control groups here")
	}
	b := create(t, p, sandbox.Spec{})
	if out := b.shell(t, "control", "x=kept; for i in $(seq 25); do echo; head -c 2000000 /dev/zero; sleep .02; "+
		"done > small; wc -c < small"); out != "50000025\n" {
		t.Fatalf("control: 50 MB with room: %q", out)
	}
	allocate := "python3 -c 'import os, sys, ctypes; f = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR); " +
		"r = ctypes.CDLL(None, use_errno=True).fallocate(f, int(sys.argv[2]), ctypes.c_long(0), " +
		"ctypes.c_long(int(sys.argv[3]))); " +
		"print(r, os.strerror(ctypes.get_errno()), os.fstat(f).st_blocks >> 11)' "
	for call, want := range map[string]string{"all 0 1099511627776": "-1 Operation not supported 0\n",
		"one 0 67108864":       "-1 Operation not supported 0\n",
		"keeping 1 4294967296": "-1 Operation not supported 0\n", "some 0 50331648": "0 Success 48\n"} {
		if out := b.shell(t, call, allocate+call); out != want {
			t.Errorf("fallocate of %s: %q, want %q", call, out, want)
		}
	}
	if out := b.shell(t, "punch", allocate+"some 3 1099511627776; rm all one keeping some"); out != "0 Success 0\n" {
		t.Errorf("making room again: %q", out)
	}
	// Much slower than the disk is looked at, as a program of the network or a build is.
	out := b.shell(t, "fill",
		"perl -e '$b = \"x\" x 1e6; open F, \">big\"; for (1..1000) { syswrite(F, $b) or die; select undef, undef, "+
			"undef, .01 }'; echo $?")
	if !strings.Contains(out, "File size limit exceeded") && !strings.Contains(out, "153\n") {
		t.Errorf("filling the disk: %q", out)
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(disk, &st); err != nil {
		t.Fatal(err)
	}
	if free := int64(st.Bavail) * st.Bsize; free < 50<<20 {
		t.Errorf("%d MiB are left of a reserve of 100", free>>20)
	}
	id := newID()
	s, err := p.Create(t.Context(), sandbox.Spec{ID: id, Generation: "g"})
	if err == nil {
		err = errors.Join(s.Close(), p.Destroy(context.Background(), id), errors.New("it was made"))
	}
	if !outboard.HasCode(err, outboard.CodeDiskFull) || outboard.HintOf(err) != outboard.HintFullDisk ||
		strings.Contains(outboard.PublicOf(err), disk) {
		t.Errorf("a sandbox more: %v; clients are told %q", err, outboard.PublicOf(err))
	}
	if out := b.shell(t, "more",
		"echo more > less; cat less; echo $x; rm big small; sync -f ."); out != "more\nkept\n" {
		t.Errorf("what is small: %q", out)
	}
	if out := b.shell(t, "again", "head -c 50000000 /dev/zero > small; wc -c < small"); out != "50000000\n" {
		t.Errorf("with room again: %q", out)
	}
	c := create(t, p, sandbox.Spec{})
	if out := c.sh(t, "echo fine"); out != "fine\n" {
		t.Errorf("a sandbox with room again: %q", out)
	}
}

// TestLimitsAreNoFullDisk: without it whoever runs into a limit of the kernel's is told to remove sessions.
func TestLimitsAreNoFullDisk(t *testing.T) {
	p, dir := newProvider(t)
	for err, full := range map[error]bool{
		syscall.ENOSPC: false,
		&fs.PathError{Op: "write", Path: "/proc/1/uid_map", Err: syscall.ENOSPC}:       false,
		&fs.PathError{Op: "write", Path: dir + "/sbx_1/state.json", Err: syscall.EIO}:  false,
		&fs.PathError{Op: "write", Path: dir + "/sbx_1/state", Err: syscall.ENOSPC}:    true,
		&os.LinkError{Op: "link", Old: "/x", New: dir + "/sbx_1", Err: syscall.EDQUOT}: true,
	} {
		if got := outboard.HintOf(p.Full(err)) == outboard.HintFullDisk; got != full {
			t.Errorf("%v is a full disk: %v", err, got)
		}
	}
}
