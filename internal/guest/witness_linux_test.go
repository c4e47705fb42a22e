package guest

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// witnessed makes a witness that watches dir as "w", and a scan with the names there.
func witnessed(t *testing.T, dir string) (*witness, func() *scan) {
	t.Helper()
	w, err := newWitness()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.close)
	return w, func() *scan {
		sc := &scan{byPath: make(map[string]*item), watches: make(map[int32]string), closed: make(map[inode]bool)}
		at, err := os.Open(filepath.Dir(dir))
		if err != nil {
			t.Fatal(err)
		}
		defer at.Close()
		if err := w.watch(sc, int(at.Fd()), filepath.Base(dir), "w"); err != nil {
			t.Fatal(err)
		}
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			var st syscall.Stat_t
			if err := syscall.Lstat(filepath.Join(dir, e.Name()), &st); err != nil {
				t.Fatal(err)
			}
			sc.add(&item{path: "w/" + e.Name(), mark: markOf(&st)})
		}
		return sc
	}
}

// If this fails, a state after more files were closed than are remembered lacks what was written to them.
func TestWitnessLoses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "w")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	touch := func(name string) {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	touch("f")
	w, look := witnessed(t, dir)
	base := look()
	if !w.end(base, nil) {
		t.Error("the first look is not known")
	}
	touch("f")
	next := look()
	if known := w.end(next, []*scan{base}); !known || !base.closed[next.byPath["w/f"].mark.inode()] || len(base.closed) != 1 {
		t.Errorf("after f was closed: %v, known %v", base.closed, known)
	}
	for i := range maxClosings + 1 {
		w.note(inotifyEvent{wd: 1, mask: syscall.IN_CLOSE_WRITE, name: fmt.Sprint(i)})
	}
	if w.end(look(), []*scan{next}) {
		t.Error("after too many were closed all is known")
	}
	w.note(inotifyEvent{wd: -1, mask: syscall.IN_Q_OVERFLOW})
	if w.end(look(), []*scan{next}) {
		t.Error("after the kernel's queue was full all is known")
	}
	if last := look(); !w.end(last, []*scan{next}) || len(next.closed) != 0 {
		t.Errorf("a look after that: %v", next.closed)
	}
}

// If this fails, what a process could write to is not found, and a state lacks what it writes later.
func TestHolders(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "") // of other file systems maps may have another device than stat
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "f")
	if err := os.WriteFile(path, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	holds := func() bool {
		held := make(map[inode]bool)
		if err := opened("/proc/self", held); err != nil {
			t.Error(err)
		}
		if err := mapped("/proc/self", held); err != nil {
			t.Error(err)
		}
		return held[inode{uint64(st.Dev), st.Ino}]
	}
	for _, c := range []struct {
		how  string
		flag int
		want bool
	}{{"to read", os.O_RDONLY, false}, {"to write", os.O_WRONLY, false}, {"to read and write", os.O_RDWR, true}} {
		f, err := os.OpenFile(path, c.flag, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := holds(); got != c.want {
			t.Errorf("opened %s: %v", c.how, got)
		}
		f.Close()
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	page, err := syscall.Mmap(int(f.Fd()), 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	if !holds() {
		t.Error("mapped and closed: not held")
	}
	if err := syscall.Munmap(page); err != nil || holds() {
		t.Errorf("held after munmap, %v", err)
	}
}
