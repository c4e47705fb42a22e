//go:build linux

package sandboxtest

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard/internal/guest"
)

// forged returns tars that no guest writes.
func forged(t *testing.T) map[string][]byte {
	t.Helper()
	pack := func(headers ...*tar.Header) []byte {
		for _, h := range headers {
			h.Mode = 0o777
		}
		return pack(t, headers...)
	}
	file := func(name string) *tar.Header { return &tar.Header{Typeflag: tar.TypeReg, Name: name} }
	link := func(name, to string) *tar.Header {
		return &tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
	}
	attrs := func(n int, value string) *tar.Header {
		h := file("workspace/f")
		h.PAXRecords = make(map[string]string)
		for i := range n {
			h.PAXRecords["SCHILY.xattr.user."+strconv.Itoa(i)] = value
		}
		return h
	}
	return map[string][]byte{
		"outside":            pack(file("outboard-escape")),
		"absolute":           pack(file("/outboard-escape")),
		"dotdot":             pack(file("workspace/../outboard-escape")),
		"dotdot first":       pack(file("../outboard-escape")),
		"a look-alike root":  pack(file("workspace2/outboard-escape")),
		"double slash":       pack(file("workspace//outboard-escape")),
		"dot":                pack(file("workspace/./outboard-escape")),
		"through a link":     pack(link("workspace/out", "/tmp"), file("workspace/out/outboard-escape")),
		"through a rel link": pack(link("workspace/out", "../../../../tmp"), file("workspace/out/outboard-escape")),
		"root as a link":     pack(link("workspace", "/tmp"), file("workspace/outboard-escape")),
		"root as a file":     pack(file("workspace")),
		"hard link outside": pack(&tar.Header{Typeflag: tar.TypeLink, Name: "workspace/passwd",
			Linkname: "etc/passwd"}),
		"hard link dotdot": pack(&tar.Header{Typeflag: tar.TypeLink, Name: "workspace/passwd",
			Linkname: "workspace/../etc/passwd"}),
		"hard link through": pack(link("workspace/e", "/etc"), &tar.Header{Typeflag: tar.TypeLink, Name: "workspace/p",
			Linkname: "workspace/e/passwd"}),
		"device": pack(&tar.Header{Typeflag: tar.TypeChar, Name: "workspace/null", Devmajor: 1,
			Devminor: 3}),
		"block device":       pack(&tar.Header{Typeflag: tar.TypeBlock, Name: "workspace/disk", Devmajor: 8}),
		"a file as a parent": pack(file("workspace/f"), file("workspace/f/outboard-escape")),
		"delete outside":     pack(&tar.Header{Typeflag: tar.TypeReg, Name: ".outboard/deleted", Size: 7}),
		"garbage":            bytes.Repeat([]byte("garbage "), 200),
		"one endless hole":   endlessHole(t),
		"zeros and garbage":  append(make([]byte, 1024), bytes.Repeat([]byte("x"), 700)...),
		"many attributes":    pack(attrs(10_000, "")),
		"large attributes":   pack(attrs(15, strings.Repeat("x", 60<<10))),
		"a name too long":    pack(file("workspace/" + strings.Repeat("n", 300))),
	}
}

// endlessHole is a tar of a few hundred bytes that claims to hold a file of 99 GB.
func endlessHole(t *testing.T) []byte {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "hole"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const size = 60 << 30
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	h := &tar.Header{Typeflag: tar.TypeReg, Name: "workspace/hole", Size: size, Mode: 0o600}
	if done, err := guest.NewSparse(&buf, w).Pack(h, f, nil); err != nil || !done {
		t.Fatalf("packing a hole: %t, %v", done, err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return bytes.ReplaceAll(buf.Bytes(), []byte("realsize="+strconv.Itoa(size)), []byte("realsize=99999999999"))
}

// If this fails, a workspace of another isolation in which a file, a link or a pipe has two names cannot be loaded.
func testLoadLinks(t *testing.T, r *rig) {
	b := r.create(t)
	link := func(name, to string) *tar.Header {
		return &tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to}
	}
	full := pack(t, &tar.Header{Typeflag: tar.TypeDir, Name: "workspace/", Mode: 0o755},
		&tar.Header{Typeflag: tar.TypeReg, Name: "workspace/f", Mode: 0o640}, link("workspace/f2", "workspace/f"),
		&tar.Header{Typeflag: tar.TypeSymlink, Name: "workspace/l", Linkname: "f"}, link("workspace/l2", "workspace/l"),
		&tar.Header{Typeflag: tar.TypeFifo, Name: "workspace/p", Mode: 0o620}, link("workspace/p2", "workspace/p"))
	b.load("linked", full)
	if saved, _ := b.save("linked", "next"); saved.Changed {
		t.Errorf("right after Load: %+v", saved)
	}
	want(t, "names", b.sh("stat -c '%n %F %a' f* p*; readlink l l2; [ f -ef f2 ] && echo one file"),
		"f regular file 640\nf2 regular file 640\np fifo 620\np2 fifo 620\nf\nf\none file\n")
	want(t, "both pipes", b.sh("for p in p p2; do (timeout 20 cat $p & timeout 20 sh -c \"echo through $p > $p\"; "+
		"wait); done"), "through p\nthrough p2\n")
	_, again := b.save("", "whole")
	c := r.create(t)
	c.load("again", again)
	want(t, "loaded again", c.sh("stat -c '%n %F %a' p*"), "p fifo 620\np2 fifo 620\n")
}

// pack makes a tar; each regular file holds the bytes "escaped", or zeros to its size.
func pack(t *testing.T, headers ...*tar.Header) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range headers {
		body := "escaped"
		if h.Typeflag == tar.TypeReg && h.Size == 0 {
			h.Size = int64(len(body))
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write([]byte(body)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}
