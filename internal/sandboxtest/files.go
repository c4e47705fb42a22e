//go:build linux

package sandboxtest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

type m = map[string]any

// If this fails, a model does not see a file as it is, or does not write what it meant.
func testFileTools(t *testing.T, r *rig) {
	b := r.create(t)
	want(t, "write", b.tool("write", m{"file_path": "a/b/c.txt", "content": "one\ntwo\nthree\n"}),
		"wrote 14 bytes to a/b/c.txt")
	want(t, "what bash sees", b.sh("cat a/b/c.txt; stat -c %a a/b/c.txt a/b"), "one\ntwo\nthree\n644\n755\n")
	want(t, "read", b.tool("read", m{"file_path": "/workspace/a/b/c.txt"}), "     1\tone\n     2\ttwo\n     3\tthree\n")
	for _, c := range []struct {
		from, to int
		want     string
	}{
		{1, 1, "     1\tone"}, {2, 3, "     2\ttwo\n     3\tthree"}, {2, 99, "     2\ttwo\n     3\tthree\n"}, {2, -1,
			"     2\ttwo\n     3\tthree\n"},
		{0, 1, "     1\tone"}, {3, 2, ""},
	} {
		got := b.tool("read", m{"file_path": "a/b/c.txt", "view_range": []int{c.from, c.to}})
		want(t, fmt.Sprintf("lines %d to %d", c.from, c.to), got, c.want)
	}
	b.refuses("read", m{"file_path": "a/b/c.txt", "view_range": []int{9, 12}}, "has 3 lines")
	b.sh("chmod 755 a/b/c.txt; ln -s a/b/c.txt link; printf 'x\\xff\\0y' > bin; seq 100000 > long; head -c 300000 " +
		"/dev/zero | tr '\\0' z > line")
	b.tool("write", m{"file_path": "link", "content": "new"})
	want(t, "through a link, mode kept", b.sh("cat a/b/c.txt; test -L link; stat -c ' %a' a/b/c.txt"), "new 755\n")
	for path, real := range map[string]string{"link": "/workspace/a/b/c.txt",
		"/workspace/a/../link": "/workspace/a/b/c.txt", "none/at/all": "/workspace/none/at/all"} {
		got, err := b.Real(ctx(t), path)
		if err != nil || got != real {
			t.Errorf("%s leads to %q, %v; want %s", path, got, err, real)
		}
	}
	b.refuses("read", m{"file_path": "bin"}, "NUL bytes")
	want(t, "a range of a large file", b.tool("read", m{"file_path": "long", "view_range": []int{99999, 100000}}),
		" 99999\t99999\n100000\t100000")
	b.refuses("read", m{"file_path": "long"}, "view_range")
	b.refuses("read", m{"file_path": "line", "view_range": []int{1, 1}}, "more than")
	b.refuses("read", m{"file_path": "long", "view_range": []int{1}}, "view_range must be")
	want(t, "an empty file", b.tool("write", m{"file_path": "empty", "content": ""})+b.tool("read",
		m{"file_path": "empty"}), "wrote 0 bytes to empty(the file is empty)")
	s := b.call("read", m{"file_path": "long", "view_range": []int{1, 30000}})
	s.OutputLimit = 3000
	res := b.run(s)
	if !res.Truncated || len(res.Output) > 3000 || !strings.HasPrefix(string(res.Output), "     1\t1\n     2\t2\n") ||
		res.FullPath == "" {
		t.Errorf("a long answer of a file tool: %s, %d bytes", show(res), len(res.Output))
	}
}

// If this fails, an edit changes something else, or nothing.
func testEditTool(t *testing.T, r *rig) {
	b := r.create(t)
	b.sh("printf 'a b a\\n' > f; chmod 600 f; ln -s f l")
	want(t, "edit", b.tool("edit", m{"file_path": "f", "old_string": "b", "new_string": "c"}),
		"edited f (1 replacements)")
	b.refuses("edit", m{"file_path": "f", "old_string": "a", "new_string": "x"}, "2 times")
	b.refuses("edit", m{"file_path": "f", "old_string": "zzz", "new_string": "x"}, "not found")
	b.tool("write", m{"file_path": "dos", "content": "a\r\nb\r\n"})
	b.refuses("edit", m{"file_path": "dos", "old_string": "a\nb", "new_string": "x"}, `\r\n at the end of its lines`)
	want(t, "edit", b.tool("edit", m{"file_path": "dos", "old_string": "a\r\nb", "new_string": "x"}),
		"edited dos (1 replacements)")
	b.refuses("edit", m{"file_path": "f", "old_string": "", "new_string": "x"}, "old_string is required")
	b.refuses("edit", m{"file_path": "f", "old_string": "a", "new_string": "a"}, "the same")
	b.refuses("edit", m{"file_path": "none", "old_string": "a", "new_string": "b"}, "no such file")
	b.tool("edit", m{"file_path": "l", "old_string": "a", "new_string": "x", "replace_all": true})
	want(t, "result", b.sh("cat f; stat -c %a f; test -L l"), "x c x\n600\n")
}

// If this fails, a model does not find what is there.
func testSearchTools(t *testing.T, r *rig) {
	b := r.create(t)
	b.sh(`mkdir -p a/b .git node_modules; echo 'func Main() {}' > a/b/x.go; echo 'main()' > y.go; echo main > z.txt
touch -d '2001-01-01' a/b/x.go; touch -d '2002-01-01' y.go; touch -d '2003-01-01' z.txt
echo main > .git/config; echo main > node_modules/m.js; printf 'main\0' > bin; mkfifo pipe; ln -s / root`)
	want(t, "glob **", b.tool("glob", m{"pattern": "**/*.go"}), "/workspace/y.go\n/workspace/a/b/x.go\n")
	want(t, "glob *", b.tool("glob", m{"pattern": "*.go"}), "/workspace/y.go\n")
	want(t, "glob {}", b.tool("glob", m{"pattern": "*.{go,txt}"}), "/workspace/z.txt\n/workspace/y.go\n")
	want(t, "glob path", b.tool("glob", m{"pattern": "*", "path": "a/b"}), "/workspace/a/b/x.go\n")
	want(t, "glob absolute", b.tool("glob", m{"pattern": "/workspace/a/**/*.go"}), "/workspace/a/b/x.go\n")
	want(t, "glob nothing", b.tool("glob", m{"pattern": "*.rs"}), "no matches")
	b.refuses("glob", m{"pattern": "../*"}, "..")
	b.refuses("glob", m{"pattern": "[a"}, "pattern")
	b.refuses("glob", m{}, "pattern is required")
	want(t, "grep", b.tool("grep", m{"pattern": `\bmain\b`}), "/workspace/y.go:1:main()\n/workspace/z.txt:1:main\n")
	want(t, "grep (?i) in a path", b.tool("grep", m{"pattern": "(?i)main", "path": "a"}),
		"/workspace/a/b/x.go:1:func Main() {}\n")
	want(t, "grep a file", b.tool("grep", m{"pattern": "m", "path": "z.txt"}), "/workspace/z.txt:1:main\n")
	want(t, "grep nothing", b.tool("grep", m{"pattern": "absent"}), "no matches")
	b.refuses("grep", m{"pattern": "("}, "pattern")
	b.refuses("grep", m{"pattern": "x", "path": "none"}, "no such file")
	b.sh("mkdir many; cd many; for i in $(seq 250); do echo line $i > f$i; done; seq 100000 > big")
	if got := b.tool("glob", m{"pattern": "many/f*"}); strings.Count(got, "\n") != 201 ||
		!strings.Contains(got, "200 of 250") {
		t.Errorf("glob of 250: %d lines", strings.Count(got, "\n"))
	}
	if got := b.tool("grep", m{"pattern": ".", "path": "many/big"}); len(got) > 101<<10 ||
		!strings.Contains(got, "ended after") {
		t.Errorf("grep of much: %d bytes", len(got))
	}
}

// If this fails, a path of a model's choice blocks the guest or makes it act for the tool.
func testFileRefusals(t *testing.T, r *rig) {
	b := r.create(t)
	b.sh("mkfifo pipe; mkdir dir; ln -s loop loop; ln -s /proc/self/environ envlink; ln -s /dev/zero zero; ln -s " +
		"/proc/self/fd fds")
	for _, c := range []struct{ path, why string }{
		{"none", "no such file"}, {"dir", "is a directory"}, {"pipe", "not a regular file"}, {"zero",
			"not a regular file"},
		{"/dev/null", "not a regular file"}, {"loop", "symbolic link"}, {"envlink", "/proc"}, {"fds/3", "/proc"},
		{"/proc/self/environ", "/proc"}, {"/proc/1/environ", "/proc"}, {"/proc/self/fd/3", "/proc"}, {"/proc/self/mem",
			"/proc"},
		{"/proc/thread-self/root/etc/passwd", "/proc"}, {"/proc/sys/kernel/hostname", "/proc and /sys"}, {"dir/../none",
			"no such file"},
		{"none/x", "no such file"}, {"", "required"}, {"a\x00b", "invalid argument"}, {strings.Repeat("x", 5000),
			"too long"},
	} {
		b.refuses("read", m{"file_path": c.path}, c.why)
	}
	b.refuses("write", m{"file_path": "dir", "content": "x"}, "is a directory")
	b.refuses("write", m{"file_path": "pipe", "content": "x"}, "not a regular file")
	b.refuses("write", m{"file_path": "/proc/self/comm", "content": "x"}, "/proc")
	b.refuses("write", m{"file_path": "x"}, "content is required")
	b.refuses("write", m{"file_path": "x/", "content": "x"}, "directory")
	b.refuses("edit", m{"file_path": "pipe", "old_string": "a", "new_string": "b"}, "not a regular file")
	b.refuses("read", m{"file_path": 7}, "unreadable input")
	if b.caps.SeparateID {
		b.refuses("write", m{"file_path": "/etc/outboard-probe", "content": "x"}, "")
		b.refuses("read", m{"file_path": "/etc/shadow"}, "")
	}
}

// If this fails, files do not get into a sandbox or out of it.
func testTransfer(t *testing.T, r *rig) {
	b := r.create(t)
	big := strings.Repeat("0123456789abcdef", 300_000) // more than the protocol's window
	b.put("/workspace/new/dir/big", big)
	if got := b.get("/workspace/new/dir/big"); got != big {
		t.Errorf("big file: %d bytes came back", len(got))
	}
	want(t, "owner", b.sh("(cd new/dir; echo x >> big; rm big; echo ok)"), "ok\n")
	if err := b.Put(ctx(t), "/workspace/script", 0o755, false, strings.NewReader("#!/bin/sh\necho ran\n")); err != nil {
		t.Fatal(err)
	}
	want(t, "mode", b.sh("./script; stat -c %a script"), "ran\n755\n")
	b.put("/workspace/script", "replaced")
	want(t, "replaced", b.get("/workspace/script"), "replaced")
	b.sh("mkdir d; mkfifo p; ln -s /proc/self/environ e")
	for path, code := range map[string]string{
		"/workspace/none": guest.NotFound, "/workspace/d": guest.Invalid, "/workspace/p": guest.Invalid, "/workspace/e": guest.Invalid,
		"relative": guest.Invalid, "": guest.Invalid, "/workspace/script/x": guest.Invalid, "/workspace/\x00": guest.Invalid,
	} {
		want(t, fmt.Sprintf("Get %q", path), refusal(b.Get(ctx(t), path, io.Discard)), code)
	}
	b.sh("ln -s /proc/self l")
	for _, path := range []string{"/proc/x", "/workspace/l/comm", "/workspace/d", "rel", "/workspace/script/x"} {
		if err := b.Put(ctx(t), path, 0o644, false, strings.NewReader("x")); refusal(err) != guest.Invalid {
			t.Errorf("Put %q: %v", path, err)
		}
	}
	err := b.Put(ctx(t), "/workspace/half", 0o644, false, io.MultiReader(strings.NewReader("half"), broken{}))
	if err == nil || !strings.Contains(err.Error(), "reader broke") {
		t.Errorf("Put from a broken reader: %v", err)
	}
	// The guest is told that the host gave up, and nobody waits until it has cleared up.
	want(t, "no half file", b.sh("ls -A half 2>/dev/null; timeout 10 sh -c 'while ls -A | grep -q \"^.outboard\"; "+
		"do :; done' && echo none"), "none\n")
}

// If this fails, what a user uploaded does not arrive, or the tool passes its own file off as the user's.
func testUploads(t *testing.T, r *rig) {
	b := r.create(t)
	data, deep := sandbox.Uploads+"/data.csv", sandbox.Uploads+"/sub/dir/deep.csv"
	for _, file := range []string{data, deep} {
		if err := b.Put(ctx(t), file, 0o444, true, strings.NewReader("data")); err != nil {
			t.Fatal(err)
		}
		want(t, "an upload", b.get(file), "data")
	}
	stats, err := b.List(ctx(t), sandbox.Uploads)
	if err != nil || len(stats) != 2 {
		t.Errorf("List: %v, %v", stats, err)
	}
	if b.caps.SeparateID {
		b.sh("echo forged > forged")
		for _, file := range []string{data, deep} {
			b.fails("echo x >> " + file)
			b.fails("chmod u+w " + file)
			b.fails("mv -f forged " + file)
			b.fails("rm -f " + file)
			b.fails("mv " + file + " " + file + ".old")
			b.refuses("write", m{"file_path": file, "content": "x"}, "permission denied")
		}
		b.fails("mv " + sandbox.Uploads + "/sub " + sandbox.Uploads + "/other")
		b.fails("mv " + sandbox.Uploads + " " + sandbox.Uploads + ".old")
		b.fails("touch " + sandbox.Uploads + "/mine")
		want(t, "they are readable", b.sh("cat "+data+" "+deep), "datadata")
	}
	if err := b.Put(ctx(t), data, 0o444, true, strings.NewReader("newer")); err != nil {
		t.Errorf("putting it again: %v", err)
	}
	want(t, "a newer one", b.get(data), "newer")
}

type broken struct{}

// Read fails.
func (broken) Read([]byte) (int, error) { return 0, fmt.Errorf("reader broke") }

// If this fails, deliverables are missed.
func testList(t *testing.T, r *rig) {
	b := r.create(t)
	names := []string{"a", "sub/deep/b", "new\nline", "inv\xffalid", "sp ace", ".hidden"}
	for _, n := range names {
		b.put(sandbox.Outputs+"/"+n, n)
	}
	b.put(sandbox.Workspace+"/outside", "x")
	stats, err := b.List(ctx(t), sandbox.Outputs)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range stats {
		name := strings.TrimPrefix(s.Path, sandbox.Outputs+"/")
		got = append(got, name)
		if s.Size != int64(len(name)) || s.Mode != 0o644 || s.ModTime < 1e15 {
			t.Errorf("%+v", s)
		}
	}
	slices.Sort(got)
	slices.Sort(names)
	if !slices.Equal(got, names) {
		t.Errorf("List: %q, want %q", got, names)
	}
	_, err = b.List(ctx(t), "/workspace/none")
	want(t, "a directory that is not there", refusal(err), guest.NotFound)
	_, err = b.List(ctx(t), "/workspace/outside")
	want(t, "a file", refusal(err), guest.Invalid)
	_, err = b.List(ctx(t), "/proc")
	want(t, "/proc", refusal(err), guest.Invalid)
}

// save saves into memory.
func (b *box) save(base, next string) (guest.Saved, []byte) {
	b.t.Helper()
	var buf bytes.Buffer
	saved, err := b.Save(ctx(b.t), guest.Save{Epoch: 1, Base: base, Next: next}, &buf)
	if err != nil {
		b.t.Fatalf("Save from %q to %q: %v", base, next, err)
	}
	return saved, buf.Bytes()
}

func (b *box) load(label string, tars ...[]byte) {
	b.t.Helper()
	if err := b.Load(ctx(b.t), label, bytes.NewReader(bytes.Join(tars, nil))); err != nil {
		b.t.Fatalf("Load %q: %v", label, err)
	}
}

// listing describes the workspace and the home directory in all that a checkpoint keeps.
const listing = `for d in "$OLDPWD" "$HOME"; do cd "$d"; find . ! -type s -printf '%p %y %m %s %T@ %l %n\n' | sed 's/^\(.* d [0-9]*\) [0-9]* \(.*\) [0-9]*$/\1 - \2/' | sort
find . -type f -exec cksum {} + | sort; done`

func (b *box) listing() string {
	b.t.Helper()
	s := b.bash("cd \"$OUTBOARD_ROOT\" 2>/dev/null; cd /; " + listing)
	s.Shell = "" // a fresh shell that stands in the workspace
	return string(b.run(s).Output)
}

// If this fails, a restored session finds another workspace than it left.
func testSaveLoad(t *testing.T, r *rig) {
	a := r.create(t)
	a.sh(`mkdir -p d/e empty; echo one > d/one; ln d/one d/e/hard; ln -s ../nowhere d/link; ln -s d dirlink; mkfifo pipe
chmod 750 d; chmod 4755 d/one; chmod 1777 empty; printf x > $'new\nline'; printf y > $'inv\xffalid'; printf z > 'sp ace'
head -c 3000000 /dev/urandom > big; touch -d '2001-02-03 04:05:06.789012345' old; mkdir -p readonly/sub; echo r > readonly/sub/f
chmod 500 readonly/sub; echo h > "$HOME/.config-file"; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("sock")' 2>/dev/null
n=; for i in $(seq 20); do n=${n}0123456789; done; mkdir $n; echo deep > $n/$n; chmod 000 'sp ace'; true`)
	a.put(sandbox.Outputs+"/result", "done")
	saved, full := a.save("", "one")
	if !saved.Changed || !saved.Full || saved.Bytes != int64(len(full)) || saved.Entries == 0 {
		t.Errorf("first Save: %+v, %d bytes", saved, len(full))
	}
	if again, data := a.save("one", "two"); again.Changed || len(data) != 0 {
		t.Errorf("Save without a change: %+v", again)
	}
	if again, _ := a.save("one", "two"); again.Changed {
		t.Errorf("Save without a change, again: %+v", again)
	}
	a.sh("chmod u-s d/one") // is not kept
	b := r.create(t)
	b.sh("touch left-over; mkdir -p d/one")
	b.load("one", full)
	want(t, "the restored workspace", b.listing(), a.listing())
	want(t, "the outputs", b.get(sandbox.Outputs+"/result"), "done")
	if same, _ := b.save("one", "two"); same.Changed {
		t.Errorf("Save right after Load: %+v", same)
	}
	want(t, "the tool owns it", b.sh("chmod 600 'sp ace'; cat 'sp ace'; rm -rf d dirlink big; echo ok"), "zok\n")
}

// If this fails, checkpoints miss changes, or grow with the workspace instead of with the change.
func testSaveDelta(t *testing.T, r *rig) {
	a := r.create(t)
	a.sh("mkdir -p keep/x gone/y; head -c 1000000 /dev/urandom > keep/big; echo 1 > gone/y/f; echo 1 > f; ln f g; " +
		"ln -s f s; echo 1 > kind")
	_, full := a.save("", "c1")
	steps := []string{
		"echo 2 > f", // same length
		"rm -rf gone; echo new > new",
		"rm kind; mkdir kind; echo in > kind/in",
		"rm -rf kind; ln -s f kind; mv new moved; chmod 600 keep/big",
		"ln f h; ln -sfn keep s; rm g",
		"mkdir -p gone/y; echo back > gone/y/f",
		"touch -d 2001-01-01 f; rmdir keep/x",
	}
	tars := [][]byte{full}
	base := "c1"
	for i, step := range steps {
		a.sh(step)
		next := fmt.Sprintf("c%d", i+2)
		saved, delta := a.save(base, next)
		if !saved.Changed || saved.Full {
			t.Errorf("%s: %+v", step, saved)
		}
		if len(delta) > 100_000 && !strings.Contains(step, "big") {
			t.Errorf("%s: a delta of %d bytes", step, len(delta))
		}
		tars, base = append(tars, delta), next
	}
	want1 := a.listing()
	b := r.create(t)
	b.load(base, tars...)
	want(t, "restored in one go", b.listing(), want1)
	c := r.create(t)
	for i, tar := range tars {
		c.load(fmt.Sprintf("c%d", i+1), tar)
	}
	want(t, "restored one by one", c.listing(), want1)
	c.sh("echo more > more")
	saved, _ := c.save(base, "next")
	if saved.Full || !saved.Changed || saved.Entries > 3 {
		t.Errorf("a delta to what was loaded: %+v", saved)
	}
	saved, _ = a.save("c1", "again") // older than the two states that are kept
	want(t, "a base long gone", saved.Full, true)
	saved, _ = a.save("unknown", "again2")
	want(t, "an unknown base", saved.Full, true)
	a.sh("echo 3 > f")
	saved, _ = a.save("again", "retry1")
	saved2, _ := a.save("again", "retry2") // the answer to the first was lost
	if saved.Full || saved2.Full || saved.Entries != saved2.Entries {
		t.Errorf("a repeated Save: %+v, then %+v", saved, saved2)
	}
	_, err := a.Save(ctx(t), guest.Save{Epoch: 1, Base: "again"}, io.Discard)
	want(t, "Save without a label", refusal(err), guest.Invalid)
}

// If this fails, a file that takes a second to make, a terabyte of nothing, is read to its end before it is said
// that it cannot be saved; or whoever asked does not learn that; or the sandbox is lost with it.
func testSaveTooLarge(t *testing.T, r *rig) {
	a := r.create(t)
	a.sh("head -c 3000000 /dev/urandom > a; truncate -s 1T b; echo c > c")
	short, cancel := context.WithTimeout(ctx(t), time.Minute)
	defer cancel()
	_, err := a.Save(short, guest.Save{Epoch: 1, Next: "large"}, io.Discard)
	want(t, "saving a terabyte of nothing", refusal(err), guest.TooLarge)
	a.sh("rm b")
	saved, err := a.Save(ctx(t), guest.Save{Epoch: 1, Next: "small"}, io.Discard)
	if err != nil || !saved.Changed || !saved.Full {
		t.Errorf("saving without it: %+v, %v", saved, err)
	}
}

// If this fails, what a process writes through a mapping of a file is in no checkpoint.
func testSaveMapped(t *testing.T, r *rig) {
	a := r.create(t)
	if res := a.run(a.bash("type python3")); res.ExitCode == nil || *res.ExitCode != 0 {
		t.Skip("no python3 inside")
	}
	a.sh(`cat > /tmp/mapped.py <<'E'
import mmap, os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
f = open("f", "r+b")
page = mmap.mmap(f.fileno(), 4096)
os.closerange(3, 64) # the mapping alone stays
for c in b"abc":
    page[0] = c
    print("wrote", chr(c), flush=True)
    signal.sigwait([signal.SIGUSR1])
E
cat > /tmp/once.py <<'E'
import mmap, sys
f = open(sys.argv[1], "r+b")
mmap.mmap(f.fileno(), 4096)[0] = ord(sys.argv[2])
E
cat > /tmp/unmapped.py <<'E'
import mmap, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
f = open("f", "r+b")
print("opened", flush=True)
signal.sigwait([signal.SIGUSR1])
page = mmap.mmap(f.fileno(), 4096)
page[0] = ord("f")
page.close()
print("wrote f", flush=True)
signal.sigwait([signal.SIGUSR1])
E
mkdir sub; for n in f g sub/h; do head -c 4096 /dev/zero > $n; done; (exec python3 /tmp/mapped.py > /tmp/said) & until grep -q 'wrote a' /tmp/said; do sleep 0.01; done`)
	base, tars := "", [][]byte(nil)
	has := func(file, wrote, how string) {
		t.Helper()
		saved, tar := a.save(base, wrote)
		if !saved.Changed {
			t.Errorf("with %s written %s: %+v", wrote, how, saved)
			return
		}
		base, tars = wrote, append(tars, tar)
		b := r.create(t)
		b.load(base, tars...)
		want(t, "restored with "+wrote+" written "+how, b.sh("head -c 1 "+file), wrote)
	}
	for _, wrote := range []string{"a", "b", "c"} {
		has("f", wrote, "by a process that lives")
		a.sh("kill -USR1 $!; [ " + wrote + " = c ] || until tail -n 1 /tmp/said | grep -qv 'wrote " + wrote +
			"'; do sleep 0.01; done")
	}
	a.sh("wait $!; python3 /tmp/once.py g d")
	has("g", "d", "by a process that is gone")
	a.sh("mv sub elsewhere; python3 /tmp/once.py elsewhere/h e; mv elsewhere sub")
	has("sub/h", "e", "while its directory had another name")
	a.sh(`(exec python3 /tmp/unmapped.py > /tmp/said) & until grep -q opened /tmp/said; do sleep 0.01; done`)
	// a kernel that gives no times for this cannot know that it was not written
	if saved, tar := a.save(base, "opened"); saved.Changed {
		base, tars = "opened", append(tars, tar)
	}
	if saved, _ := a.save(base, "still"); saved.Changed {
		t.Errorf("with nothing written by a process that could: %+v", saved)
	}
	a.sh("kill -USR1 $!; until grep -q wrote /tmp/said; do sleep 0.01; done")
	has("f", "f", "by a process that still could")
	a.sh("kill -USR1 $!; wait $!")
	for _, next := range []string{"ended", "later"} {
		if saved, _ := a.save(base, next); saved.Changed && next == "later" {
			t.Errorf("with nothing written any more: %+v", saved)
		} else if saved.Changed {
			base = next
		}
	}
}

// If this fails, more directories than a kernel of its own can watch end the sandbox or its checkpoints, or hide
// what is written there.
func testSaveMany(t *testing.T, r *rig) {
	a := r.create(t)
	if res := a.run(a.bash("type python3")); res.ExitCode == nil || *res.ExitCode != 0 {
		t.Skip("no python3 inside")
	}
	a.sh(`cat > /tmp/once.py <<'E'
import mmap, sys
f = open(sys.argv[1], "r+b")
mmap.mmap(f.fileno(), 4096)[0] = ord(sys.argv[2])
E
python3 -c "
import os
for i in range(3000): os.mkdir('d%05d' % i)
for d in 'd00000', 'd02999': open(d + '/f', 'wb').write(bytes(4096))"`)
	saved, tar := a.save("", "a")
	tars := [][]byte{tar}
	if saved.Entries < 3000 {
		t.Errorf("the first state: %+v", saved)
	}
	// gVisor gives a file that it has forgotten meanwhile the time of the host's, once.
	if saved, _ := a.save("a", "same"); saved.Entries > 4 {
		t.Errorf("with nothing written: %+v", saved)
	}
	a.sh("python3 /tmp/once.py d00000/f b; python3 /tmp/once.py d02999/f c")
	saved, tar = a.save("a", "b")
	if !saved.Changed || saved.Full {
		t.Errorf("with two files written: %+v", saved)
	}
	b := r.create(t)
	b.load("b", append(tars, tar)...)
	want(t, "restored", b.sh("head -c 1 d00000/f; head -c 1 d02999/f; ls | wc -l"), "bc3000\n")
}

// If this fails, files that change while they are saved break a checkpoint, or their last state is never saved.
func testSaveHostile(t *testing.T, r *rig) {
	a := r.create(t)
	a.sh(`mkdir w; (i=0; while [ ! -e stop ]; do
i=$((i+1)); echo $i > w/count; head -c $((RANDOM * 30)) /dev/zero > w/size
mkdir -p w/d; rm -rf w/d; ln -sfn / w/d; rm -f w/d; mv w/size w/size2 2>/dev/null; done) 2>/dev/null & echo $! > pid`)
	base := ""
	var tars [][]byte
	for i := range 12 {
		next := fmt.Sprint("h", i)
		saved, data := a.save(base, next)
		if saved.Changed {
			tars, base = append(tars, data), next
		}
	}
	a.sh("touch stop; wait $(cat pid); touch done") // not kill, which leaves a writer behind
	_, last := a.save(base, "end")
	b := r.create(t)
	b.load("end", append(tars, last)...)
	want(t, "the last state", b.listing(), a.listing())
}

// If this fails, a damaged or forged checkpoint writes where it must not.
func testLoadRefusals(t *testing.T, r *rig) {
	b := r.create(t)
	b.sh("echo safe > f")
	_, full := b.save("", "good")
	for name, tar := range forged(t) {
		err := b.Load(ctx(t), "forged", bytes.NewReader(tar))
		if refusal(err) != guest.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, n := range []int{1, 100, 512, 600, 1024, 1500, len(full) - 1024, len(full) - 1} {
		if err := b.Load(ctx(t), "cut", bytes.NewReader(full[:n])); err == nil {
			t.Errorf("a tar cut after %d bytes was loaded", n)
		}
	}
	b.load("good", full)
	want(t, "after all that", b.sh("cat f; ls -d /outboard-escape* /tmp/outboard-escape* 2>/dev/null | wc -l"),
		"safe\n0\n")
	want(t, "Load without a label", refusal(b.Load(ctx(t), "", bytes.NewReader(full))), guest.Invalid)
}
