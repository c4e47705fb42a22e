package guest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// witnessed makes a witness that watches dir as "w", and a scan with the names there.
func witnessed(t *testing.T, dir string) (*witness, func() *scan) {
	t.Helper()
	w, err := newWitness(64)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.close)
	w.proc = t.TempDir() // no processes
	return w, func() *scan {
		sc := &scan{byPath: make(map[string]*item), touched: make(map[inode]bool)}
		w.begin(sc)
		at, err := os.Open(filepath.Dir(dir))
		if err != nil {
			t.Fatal(err)
		}
		defer at.Close()
		w.watch(sc, int(at.Fd()), filepath.Base(dir), "w")
		var st syscall.Stat_t
		if err := syscall.Lstat(dir, &st); err != nil {
			t.Fatal(err)
		}
		sc.add(&item{path: "w", mark: markOf(&st)})
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
	if known := w.end(next, []*scan{base}); !known || !base.touched[next.byPath["w/f"].mark.inode()] ||
		len(base.touched) != 1 {
		t.Errorf("after f was closed: %v, known %v", base.touched, known)
	}
	// tells what a change of attributes does
	if err := errors.Join(os.Chmod(filepath.Join(dir, "f"), 0o640), os.Chmod(dir, 0o750)); err != nil {
		t.Fatal(err)
	}
	base, next = next, look()
	if w.end(next, []*scan{base}); !base.touched[next.byPath["w/f"].mark.inode()] ||
		!base.touched[next.byPath["w"].mark.inode()] {
		t.Errorf("after attributes changed: %v", base.touched)
	}
	for i := range maxTouched + 1 {
		w.note(inotifyEvent{wd: 1, mask: syscall.IN_CLOSE_WRITE, name: fmt.Sprint(i)})
	}
	if w.end(look(), []*scan{next}) {
		t.Error("after too many were closed all is known")
	}
	w.note(inotifyEvent{wd: -1, mask: syscall.IN_Q_OVERFLOW})
	if w.end(look(), []*scan{next}) {
		t.Error("after the kernel's queue was full all is known")
	}
	if last := look(); !w.end(last, []*scan{next}) || len(next.touched) != 0 {
		t.Errorf("a look after that: %v", next.touched)
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

// If this fails, a state lacks what was written where nothing is watched, or a look takes more watches than it may.
func TestWitnessFull(t *testing.T) {
	root := t.TempDir()
	at, err := os.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	file := func(name string) string { return filepath.Join(root, name) }
	for _, dir := range []string{"b", "c", "d"} {
		if err := errors.Join(os.Mkdir(file(dir), 0o700), os.WriteFile(file(dir+"/f"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	w, err := newWitness(2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.close)
	w.proc = t.TempDir() // no processes
	look := func(dirs ...string) (held string) {
		sc := &scan{byPath: make(map[string]*item), touched: make(map[inode]bool)}
		w.begin(sc)
		for _, dir := range dirs {
			w.watch(sc, int(at.Fd()), dir, dir)
			names := []string{dir}
			entries, _ := os.ReadDir(file(dir))
			for _, e := range entries {
				names = append(names, dir+"/"+e.Name())
			}
			for _, name := range names {
				var st syscall.Stat_t
				if err := syscall.Lstat(file(name), &st); err != nil {
					t.Fatal(err)
				}
				it := &item{path: name, mark: markOf(&st)}
				sc.add(it)
				w.see(sc, it)
			}
		}
		w.end(sc, nil)
		if len(w.dirs) > 2 {
			t.Errorf("%d watches", len(w.dirs))
		}
		for _, it := range sc.order {
			if sc.held[it.mark.inode()] {
				held += it.path + " "
			}
		}
		return held
	}
	want := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("held: %q, not %q", got, want)
		}
	}
	want(look("b", "c", "d"), "d d/f ")
	if err := errors.Join(os.Mkdir(file("a"), 0o700), os.WriteFile(file("a/f"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	want(look("a", "b", "c", "d"), "a a/f d d/f ") // not those that were watched
	want(look("a", "c", "d"), "a a/f d d/f ")      // a watch is free from the next look on
	want(look("a", "c", "d"), "d d/f ")
	if err := os.Link(file("c/f"), file("d/g")); err != nil { // c/f may be written under its other name
		t.Fatal(err)
	}
	want(look("a", "c", "d"), "c/f d d/f d/g ")
	want(look("a", "c"), "c/f ")
	if err := os.Link(file("a/f"), file("c/g")); err != nil { // both names are watched
		t.Fatal(err)
	}
	want(look("a", "c"), "c/f ")
}

// If this fails, a process that cannot be asked keeps a state from being saved, or hides what it wrote.
func TestHoldersUnknown(t *testing.T) {
	proc := t.TempDir()
	if err := errors.Join(os.MkdirAll(proc+"/7/fd", 0o700), os.WriteFile(proc+"/7/maps", nil, 0o600),
		os.Mkdir(proc+"/8", 0o700)); err != nil {
		t.Fatal(err)
	}
	if _, known := holders(proc); !known { // 8 has ended meanwhile
		t.Error("the processes could be asked")
	}
	if err := os.WriteFile(proc+"/8/fd", nil, 0o600); err != nil { // which is no directory
		t.Fatal(err)
	}
	if _, known := holders(proc); known {
		t.Error("a process could not be asked")
	}
	if _, known := holders(proc + "/none"); known {
		t.Error("there is no /proc")
	}
}
