//go:build linux

package native_test

import (
	"archive/tar"
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

func packed(t *testing.T, p *native.Provider, id, base outboard.CheckpointID) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := p.Pack(t.Context(), id, base, &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// hostileTar is a workspace of everything that a copy may get wrong and no shell command makes.
func hostileTar(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	add := func(h tar.Header, content string) {
		h.Format, h.Size = tar.FormatPAX, int64(len(content))
		if h.ModTime.IsZero() {
			h.ModTime = time.Unix(1234567890, 123456789)
		}
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, content); err != nil {
			t.Fatal(err)
		}
	}
	attr := map[string]string{"SCHILY.xattr.user.note": "a\x00b\n", "SCHILY.xattr.user.empty": ""}
	add(tar.Header{Typeflag: tar.TypeDir, Name: "workspace/", Mode: 0o750, PAXRecords: attr}, "")
	add(tar.Header{Typeflag: tar.TypeReg, Name: "workspace/attr", Mode: 0o640, PAXRecords: attr}, "x")
	add(tar.Header{Typeflag: tar.TypeReg, Name: "workspace/sparse", Mode: 0o600},
		strings.Repeat("\x00", 3<<20)+"middle"+strings.Repeat("\x00", 3<<20))
	add(tar.Header{Typeflag: tar.TypeDir, Name: "workspace/odd\n\xff name/", Mode: 0o1777, ModTime: time.Unix(1, 1)},
		"")
	add(tar.Header{Typeflag: tar.TypeReg, Name: "workspace/odd\n\xff name/" + strings.Repeat("n", 255), Mode: 0},
		"closed")
	add(tar.Header{Typeflag: tar.TypeSymlink, Name: "workspace/out", Linkname: "../../etc/shadow"}, "")
	add(tar.Header{Typeflag: tar.TypeSymlink, Name: "workspace/loop", Linkname: "loop"}, "")
	add(tar.Header{Typeflag: tar.TypeFifo, Name: "workspace/fifo", Mode: 0o622}, "")
	add(tar.Header{Typeflag: tar.TypeReg, Name: "workspace/one", Mode: 0o4755}, "linked")
	add(tar.Header{Typeflag: tar.TypeLink, Name: "workspace/two", Linkname: "workspace/one"}, "")
	add(tar.Header{Typeflag: tar.TypeDir, Name: "workspace/locked/", Mode: 0o100}, "")
	add(tar.Header{Typeflag: tar.TypeDir, Name: "home/user/", Mode: 0o755}, "")
	add(tar.Header{Typeflag: tar.TypeReg, Name: "home/user/.profile", Mode: 0o644}, "echo")
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Broken if a checkpoint restored on another machine differs in anything from what was saved: content, kinds,
// modes, times, hard and symbolic links, holes, attributes, names.
func TestPackRestore(t *testing.T) {
	p, other := layered(t), layered(t)
	m := start(t, p, "")
	if err := m.Load(t.Context(), "hostile", bytes.NewReader(hostileTar(t))); err != nil {
		t.Fatal(err)
	}
	first, _ := push(t, m)
	bash(t, m, "cd /workspace; mkdir -p tree/a/b; echo 1 > tree/a/b/c; echo 2 > tree/a/d; ln one three; echo gone > "+
		"gone; echo x > kind; mkdir kinddir")
	second, _ := push(t, m)
	bash(t, m, "cd /workspace; mv tree renamed; rm gone; echo 3 >> renamed/a/d; rm -r renamed/a/b; mkdir "+
		"renamed/a/b; echo new > renamed/a/b/n; echo more >> two; rm kind; mkdir kind; rmdir kinddir; echo f > "+
		"kinddir; chmod 700 attr; touch -d @5 one")
	third, _ := push(t, m)
	bash(t, m, "cd /workspace; mv renamed/a moved; rm -r renamed; echo in > moved/b/again")
	last, _ := push(t, m)
	whole := packed(t, p, last, "")

	tests := map[string][][]byte{
		"whole": {whole},
		"each": {packed(t, p, first, ""), packed(t, p, second, first), packed(t, p, third, second),
			packed(t, p, last, third)},
		"several layers":  {packed(t, p, first, ""), packed(t, p, last, first)},
		"two and another": {packed(t, p, first, ""), packed(t, p, third, first), packed(t, p, last, third)},
	}
	for name, tars := range tests {
		t.Run(name, func(t *testing.T) {
			r := start(t, other, "")
			for _, b := range tars {
				if err := r.Load(t.Context(), "l", bytes.NewReader(b)); err != nil {
					t.Fatal(err)
				}
			}
			id, _ := push(t, r)
			if got := packed(t, other, id, ""); !bytes.Equal(got, whole) {
				t.Errorf("the tree differs:\n%s", diffTars(t, got, whole))
			}
			if out := bash(t, r, "cd /workspace; stat -c %b sparse; [ one -ef two ] && [ two -ef three ] && cat two"); out != "8\nlinkedmore\n" {
				t.Errorf("sparse blocks and links: %q", out)
			}
		})
	}
	if bytes.Equal(packed(t, p, third, ""), whole) {
		t.Error("different states make the same tar")
	}
}

// Broken if a session whose workspace has a file that is mostly holes, as databases and disk images are, never
// has a durable checkpoint.
func TestPackHoles(t *testing.T) {
	p, other := layered(t), layered(t)
	m := start(t, p, "")
	const made = "cd /workspace; for f in d/big e; do stat -c '%n %s %b %a' $f; done; tail -c 4 d/big; head -c 5 e; " +
		"[ e -ef d/e2 ] && echo same; stat -c '%h %F' l d/l2 p d/p2"
	bash(t, m, "cd /workspace; mkdir d; truncate -s 2G d/big; echo end >> d/big; echo begin > e; truncate -s 1G e; "+
		"ln -s e l; ln -P l d/l2; mkfifo p; ln p d/p2; chmod 640 e; ln e d/e2")
	want := bash(t, m, made)
	id, _ := push(t, m)
	tar := packed(t, p, id, "")
	if len(tar) > 100<<10 {
		t.Errorf("the tar has %d bytes", len(tar))
	}
	r := start(t, other, "")
	if err := r.Load(t.Context(), "l", bytes.NewReader(tar)); err != nil {
		t.Fatal(err)
	}
	if got := bash(t, r, made); got != want || !strings.Contains(want, "beginsame\n2 symbolic link\n2 symbolic "+
		"link\n2 fifo\n2 fifo\n") {
		t.Errorf("restored:\n%swas:\n%s", got, want)
	}
	again, _ := push(t, r)
	if got := packed(t, other, again, ""); !bytes.Equal(got, tar) {
		t.Errorf("the tree differs:\n%s", diffTars(t, got, tar))
	}
}

// diffTars lists the headers that one of two tars has.
func diffTars(t *testing.T, a, b []byte) string {
	t.Helper()
	list := func(data []byte) (lines []string) {
		tr := tar.NewReader(bytes.NewReader(data))
		for {
			h, err := tr.Next()
			if err != nil {
				return lines
			}
			body, _ := io.ReadAll(tr)
			lines = append(lines,
				strings.Join([]string{h.Name, string(h.Typeflag), h.Linkname, h.ModTime.String(), h.FileInfo().Mode().
					String(), string(body[:min(len(body), 20)])}, " | "))
		}
	}
	x, y := list(a), list(b)
	var out strings.Builder
	for _, l := range x {
		if !slices.Contains(y, l) {
			out.WriteString("+ " + l + "\n")
		}
	}
	for _, l := range y {
		if !slices.Contains(x, l) {
			out.WriteString("- " + l + "\n")
		}
	}
	return out.String()
}
