//go:build linux

package native_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/guest/uplink"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// miniRoot makes a root file system with one program.
func miniRoot(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "root")
	for _, d := range []string{"bin", "etc", "data"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, data := range map[string]string{"etc/passwd": "root:x:0:0::/:/bin/sh",
		"etc/resolv.conf": "nameserver 192.0.2.1\n", "data/f": "image"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := copyFile(filepath.Join(dir, "bin/hostile"), hostilePath(), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// checkMini runs a sandbox of miniRoot and looks around.
func checkMini(t *testing.T, p sandbox.Provider, rootfs string) {
	t.Helper()
	b := create(t, p, sandbox.Spec{Rootfs: rootfs})
	out, code := b.run(t, "/bin/hostile", "cat", "/etc/passwd", "/etc/resolv.conf", "/data/f", "/usr/bin/env",
		"/etc/os-release")
	if code != 0 {
		t.Fatalf("exit status %d: %s", code, out)
	}
	got := answers(out)
	if !strings.Contains(got["/etc/passwd"], `root:x:0:0::/:/bin/sh\nuser:x:1000:1000:`) {
		t.Errorf("accounts: %s", got["/etc/passwd"])
	}
	if got["/etc/resolv.conf"] != `read ""` || got["/data/f"] != `read "image"` {
		t.Errorf("files: %v", got)
	}
	for _, host := range []string{"/usr/bin/env", "/etc/os-release"} {
		if got[host] != "unreadable" {
			t.Errorf("the host's %s shows in a foreign root", host)
		}
	}
	stats, err := b.List(t.Context(), "/data")
	if err != nil || len(stats) != 1 {
		t.Errorf("listing: %v, %v", stats, err)
	}
	if err := b.Put(t.Context(), "/workspace/f", 0o644, false, strings.NewReader("mine")); err != nil {
		t.Error(err)
	}
	if err := p.Destroy(t.Context(), b.ID()); err != nil {
		t.Error(err)
	}
}

// TestDirectoryRoot: a directory as root file system would be missing parts, show the host's, or be changed by a
// sandbox.
func TestDirectoryRoot(t *testing.T) {
	p, _ := newProvider(t)
	root := miniRoot(t)
	checkMini(t, p, root)
	for _, made := range []string{"workspace", "proc", "home", "dev"} {
		if _, err := os.Lstat(filepath.Join(root, made)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the sandbox made %s in the directory itself: %v", made, err)
		}
	}
}

// archive packs a directory.
func archive(t *testing.T, dir string) []byte {
	t.Helper()
	var buf bytes.Buffer
	zw := gzip.NewWriter(&buf)
	tw := tar.NewWriter(zw)
	if err := errors.Join(tw.AddFS(os.DirFS(dir)), tw.Close(), zw.Close()); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// TestArchiveRoot: a root file system from an archive would be wrong, or be unpacked for every sandbox again.
func TestArchiveRoot(t *testing.T) {
	p, dir := newProvider(t)
	data := archive(t, miniRoot(t))
	for _, name := range []string{"one.tar", "two.tar"} { // the same content under another name
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, data, 0o644); err != nil {
			t.Fatal(err)
		}
		checkMini(t, p, file)
	}
	layers, err := filepath.Glob(filepath.Join(dir, "cache", "tar-*"))
	if err != nil || len(layers) != 1 {
		t.Errorf("unpacked into %v, %v", layers, err)
	}
}

// TestHostileArchive: an archive could write outside its directory, or bring devices and set-uid programs.
func TestHostileArchive(t *testing.T) {
	p, dir := newProvider(t)
	outside := filepath.Join(t.TempDir(), "outside")
	if err := errors.Join(os.Mkdir(outside, 0o755), os.WriteFile(filepath.Join(outside, "secret"), []byte(canary),
		0o644)); err != nil {
		t.Fatal(err)
	}
	file := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644} }
	link := func(name, to string) tar.Header {
		return tar.Header{Name: name, Linkname: to, Typeflag: tar.TypeSymlink, Mode: 0o777}
	}
	for name, headers := range map[string][]tar.Header{
		"parent":             {file("../evil")},
		"parent inside":      {file("a/../../evil")},
		"absolute parent":    {file("/../evil")},
		"through a link":     {link("l", outside), file("l/evil")},
		"through a relative": {link("l", "../../../../../../../../.."+outside), file("l/evil")},
		"through two links":  {link("a", "."), link("a/b", ".."), link("a/b/c", ".."), file("a/b/c/evil")},
		"hard link out":      {{Name: "h", Linkname: outside + "/secret", Typeflag: tar.TypeLink}},
		"hard link by link":  {link("l", outside), {Name: "h", Linkname: "l/secret", Typeflag: tar.TypeLink}},
		"a linked etc":       {link("etc", outside), file("f")},
		"nothing":            {},
	} {
		if s, err := p.Create(t.Context(), sandbox.Spec{ID: newID(), Generation: "g",
			Rootfs: pack(t, headers)}); outboard.KindOf(err) != outboard.Invalid || err == nil {
			t.Errorf("%s: %v", name, err)
			if err == nil {
				s.Close()
			}
		}
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) != 1 {
		t.Errorf("written outside: %v, %v", entries, err)
	}
	for _, evil := range []string{filepath.Join(dir, "evil"), filepath.Join(dir, "cache", "evil")} {
		if _, err := os.Lstat(evil); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s was written: %v", evil, err)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, "cache", ".new-*")); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
	b := create(t, p, sandbox.Spec{Rootfs: pack(t,
		[]tar.Header{{Name: "dev/disk", Typeflag: tar.TypeBlock, Devmajor: 254, Mode: 0o666},
			{Name: "node", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 1, Mode: 0o666}, {Name: "setuid",
				Typeflag: tar.TypeReg, Mode: 0o4755},
			{Name: "f", Typeflag: tar.TypeReg, Mode: 0o644}, {Name: "f", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: "f/g",
				Typeflag: tar.TypeReg, Mode: 0o644}})})
	stats, err := b.List(t.Context(), "/f")
	if err != nil || len(stats) != 1 {
		t.Errorf("the last of two entries of one name: %v, %v", stats, err)
	}
	layers, err := filepath.Glob(filepath.Join(dir, "cache", "tar-*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, layer := range layers {
		for _, name := range []string{"node", "dev/disk"} {
			if _, err := os.Lstat(filepath.Join(layer, name)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("device %s was made: %v", name, err)
			}
		}
		if fi, err := os.Lstat(filepath.Join(layer, "setuid")); err == nil && fi.Mode()&fs.ModeSetuid != 0 {
			t.Errorf("a set-uid file was made")
		}
	}
}

// TestRootOfLinks: a root file system whose mount points are links would lead a mount, a file of ours or what a
// tool writes to the host's files.
func TestRootOfLinks(t *testing.T) {
	p, _ := newProvider(t)
	outside := filepath.Join(t.TempDir(), "outside")
	if err := errors.Join(os.Mkdir(outside, 0o777), os.Chmod(outside, 0o777),
		os.WriteFile(filepath.Join(outside, "secret"), []byte(canary), 0o644)); err != nil {
		t.Fatal(err)
	}
	made := 0
	for _, name := range []string{"proc", "dev", "sys", "tmp", "workspace", "home", "run", "mnt", "etc",
		"etc/resolv.conf", "etc/hosts"} {
		for _, to := range []string{outside, strings.Repeat("../", 12) + outside[1:]} {
			root := miniRoot(t)
			if err := errors.Join(os.RemoveAll(filepath.Join(root, name)),
				os.Symlink(to, filepath.Join(root, name))); err != nil {
				t.Fatal(err)
			}
			s, err := p.Create(t.Context(), sandbox.Spec{ID: newID(), Generation: "g", Rootfs: root})
			if err != nil { // refused is well, where its maker is told and not the operator of the host
				if slices.Contains([]string{"proc", "dev", "sys", "tmp"}, name) &&
					(outboard.KindOf(err) != outboard.Invalid || !strings.Contains(err.Error(),
						"its /"+name+" is not a directory")) {
					t.Errorf("%s -> %s: %v", name, to, err)
				}
				continue
			}
			made++
			b := &testSandbox{Sandbox: s}
			_ = b.Put(t.Context(), "/"+name+"/written", 0o644, false, strings.NewReader("x"))
			if out, _ := b.run(t, "/bin/hostile", "cat", "/data/f", "/"+name+"/secret",
				outside+"/secret"); !strings.Contains(out, "image") || strings.Contains(out, canary) {
				t.Errorf("%s -> %s: %s", name, to, out)
			}
			if err := errors.Join(p.Destroy(t.Context(), b.ID()), s.Close()); err != nil {
				t.Error(err)
			}
		}
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) != 1 {
		t.Errorf("the host's directory has %v, %v", entries, err)
	}
	if made == 0 {
		t.Error("the control: none was made, so nothing was tried")
	}
	t.Logf("%d were made", made)
}

// pack writes an archive of empty files.
func pack(t *testing.T, headers []tar.Header) string {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, h := range headers {
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "root.tar")
	if err := os.WriteFile(file, buf.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// layerDir makes a directory of files; a name that begins with ! is deleted by it, and one that ends with /
// hides what lies below.
func layerDir(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, data := range files {
		path := filepath.Join(dir, strings.TrimPrefix(name, "!"))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		switch {
		case strings.HasPrefix(name, "!"):
			err = unix.Mknod(path, unix.S_IFCHR, 0)
		case strings.HasSuffix(name, "/"):
			err = errors.Join(os.MkdirAll(path, 0o755), unix.Setxattr(path, "user.overlay.opaque", []byte("y"), 0))
			if isRoot() {
				err = errors.Join(err, unix.Setxattr(path, "trusted.overlay.opaque", []byte("y"), 0))
			}
		default:
			err = os.WriteFile(path, []byte(data), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestLayerRoot: a root file system of layers would show what an upper layer deleted, miss what a lower one has,
// have other accounts than it says, or not hold as many layers as images have.
func TestLayerRoot(t *testing.T) {
	p, _ := newProvider(t)
	layers := []string{
		layerDir(t, map[string]string{"!data/gone": "", "data/over": "upper", "!etc/group": "", "opaque/": "",
			"opaque/new": "new", "workspace/seed": "seed", "workspace/open/": ""}),
		layerDir(t, map[string]string{"data/gone": "x", "data/over": "lower", "etc/passwd": "app:x:7:7::/:/bin/sh\n",
			"etc/group": "app:x:7:\n", "opaque/old": "x", "workspace/open/old": "x"}),
	}
	for i := range 100 { // more than one mount option takes
		layers = append(layers, layerDir(t, map[string]string{"many/" + strconv.Itoa(i): "x"}))
	}
	layers = append(layers, miniRoot(t))
	b := create(t, p, sandbox.Spec{Rootfs: sandbox.Bare, Layers: layers})
	out, code := b.run(t, "/bin/hostile", "cat", "/data/f", "/data/gone", "/data/over", "/etc/passwd", "/etc/group",
		"/opaque/old", "/opaque/new",
		"/many/0", "/many/99", "/workspace/seed", "/workspace/open/old", "/usr/bin/env")
	if code != 0 {
		t.Fatalf("exit status %d: %s", code, out)
	}
	want := map[string]string{"/data/f": `read "image"`, "/data/gone": "unreadable", "/data/over": `read "upper"`,
		"/opaque/old": "unreadable",
		"/opaque/new": `read "new"`, "/many/0": `read "x"`, "/many/99": `read "x"`, "/workspace/seed": `read "seed"`, "/workspace/open/old": "unreadable",
		"/etc/passwd": `read "app:x:7:7::/:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/bash\n"`, "/etc/group": `read "user:x:1000:\n"`,
		"/usr/bin/env": "unreadable"}
	for name, answer := range answers(out) {
		if want[name] != answer {
			t.Errorf("%s: %s; want %s", name, answer, want[name])
		}
	}
	used, err := p.InUse()
	if err != nil || !used[layers[0]] || !used[layers[len(layers)-1]] {
		t.Errorf("layers in use: %d, %v", len(used), err)
	}
	if err := p.Destroy(t.Context(), b.ID()); err != nil {
		t.Error(err)
	}
	if used, err := p.InUse(); err != nil || used[layers[0]] {
		t.Errorf("layers in use after the end: %v, %v", used, err)
	}
}

// TestLayersOverHost: what lies over the host's programs would not show, or hide them.
func TestLayersOverHost(t *testing.T) {
	p, _ := newProvider(t)
	b := create(t, p, sandbox.Spec{Layers: []string{layerDir(t, map[string]string{"opt/outboard/f": "mine",
		"etc/extra": "x"})}})
	if out, code := b.run(t, "/bin/sh", "-c", "cat /opt/outboard/f /etc/extra && test -x /usr/bin/env"); code != 0 ||
		out != "minex" {
		t.Errorf("exit status %d: %s", code, out)
	}
	if err := p.Destroy(t.Context(), b.ID()); err != nil {
		t.Error(err)
	}
}

// TestBrowserTrust: a browser would not find the gateway's certificate, a checkpoint would have that of another
// gateway, or what a root brings would be hidden: its own database, Firefox's policy, or programs below a /root
// that everybody may read.
func TestBrowserTrust(t *testing.T) {
	p, _ := newProvider(t)
	net := &sandbox.Network{CA: []byte(testCA)}
	const look = "for f in home/user/.pki/nssdb root/.pki/nssdb; do readlink /$f || cat /$f/cert9.db; done; cat " +
		"/etc/firefox/policies/policies.json; stat -c %a /root"
	own := create(t, p, sandbox.Spec{Network: net,
		Layers: []string{layerDir(t, map[string]string{"home/user/.pki/nssdb/cert9.db": "mine\n",
			"etc/firefox/policies/policies.json": "mine too\n"})}})
	if got, want := own.sh(t,
		"cat ~/.pki/nssdb/cert9.db /etc/firefox/policies/policies.json"), "mine\nmine too\n"; got != want {
		t.Errorf("layers over the host: %q, want %q", got, want)
	}
	plain := create(t, p, sandbox.Spec{Network: net})
	policy := `{"policies": {"Certificates": {"Install": ["` + uplink.Certificate + `"]}}}`
	if got, want := plain.sh(t, look), uplink.NSSDir+"\n"+uplink.NSSRootDir+"\n"+policy+"\n755\n"; got != want {
		t.Errorf("the host's programs: %q, want %q", got, want)
	}
	plain.sh(t, "echo content > ~/kept")
	var saved bytes.Buffer
	if _, err := plain.Save(t.Context(), guest.Save{Epoch: 1, Next: "next"}, &saved); err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(saved.Bytes(), []byte("content\n")) || bytes.Contains(saved.Bytes(), []byte("SQLite format 3")) {
		t.Error("a checkpoint has the database, or nothing")
	}
	without := create(t, p, sandbox.Spec{})
	if got := without.sh(t, "mkdir -p ~/.pki/nssdb && echo own > ~/.pki/nssdb/f && ls ~/.pki/nssdb"); got != "f\n" {
		t.Errorf("without a network: %q", got)
	}
	root := layerDir(t, map[string]string{"home/user/.pki/nssdb/cert9.db": "mine", "root/tool": "x"})
	if err := os.Chmod(filepath.Join(root, "root"), 0o711); err != nil {
		t.Fatal(err)
	}
	image := create(t, p, sandbox.Spec{Network: net, Rootfs: sandbox.Bare, Layers: []string{root, miniRoot(t)}})
	out, _ := image.run(t, "/bin/hostile", "cat", "/home/user/.pki/nssdb/cert9.db", "/root/tool",
		"/etc/firefox/policies/policies.json")
	for name, want := range map[string]string{"/home/user/.pki/nssdb/cert9.db": `read "mine"`, "/root/tool": `read "x"`,
		"/etc/firefox/policies/policies.json": fmt.Sprintf("read %q", policy+"\n")} {
		if got := answers(out)[name]; got != want {
			t.Errorf("an image's %s: %s, want %s", name, got, want)
		}
	}
}

// TestLayersRefused: a root that cannot be made would be made of something else.
func TestLayersRefused(t *testing.T) {
	p, _ := newProvider(t)
	one := miniRoot(t)
	for _, spec := range []sandbox.Spec{
		{Rootfs: sandbox.Bare},
		{Rootfs: sandbox.Bare, Layers: []string{filepath.Join(one, "gone")}},
		{Rootfs: sandbox.Bare, Layers: []string{"relative"}},
		{Rootfs: sandbox.Bare, Layers: slices.Repeat([]string{one}, 161)},
		{Rootfs: one, Layers: []string{one}},
		{Rootfs: sandbox.Bare, Layers: []string{layerDir(t, map[string]string{"etc": "a file"})}},
	} {
		spec.ID, spec.Generation = outboard.NewID[outboard.SandboxID](outboard.PrefixSandbox), "g"
		if sb, err := p.Create(t.Context(), spec); err == nil {
			t.Errorf("%q with %d layers was made", spec.Rootfs, len(spec.Layers))
			sb.Close()
		}
	}
}

// TestInstallingTools: tools that are installed as people do it would fail or not be found, dependencies that
// name git hosts by SSH would not come, and a commit would have no author.
func TestInstallingTools(t *testing.T) {
	p, _ := newProvider(t)
	b := create(t, p, sandbox.Spec{})
	for _, dir := range []string{".local/bin", "go/bin", ".cargo/bin"} {
		const install = `mkdir -p ~/%[1]s && printf '#!/bin/sh\necho mine\n' >~/%[1]s/my-tool && chmod +x ~/%[1]s/my-tool && my-tool && rm ~/%[1]s/my-tool`
		if out, code := b.run(t, "/bin/sh", "-c", strings.ReplaceAll(install, "%[1]s", dir)); out != "mine\n" ||
			code != 0 {
			t.Errorf("a program in ~/%s: %q, exit status %d", dir, out, code)
		}
	}
	for _, c := range []struct{ program, script, want string }{
		{"git", "git ls-remote --get-url git@github.com:a/b.git", "https://github.com/a/b.git\n"},
		{"git", "git ls-remote --get-url ssh://git@gitlab.com/a/b.git", "https://gitlab.com/a/b.git\n"},
		{"git", "git ls-remote --get-url git@other.example:a/b.git", "git@other.example:a/b.git\n"}, // the control
		{"git", "cd /workspace && git init -q r && cd r && git commit -q --allow-empty -m x && git log --format=%an",
			"Outboard agent\n"},
		{"git", "cd /workspace/r && git config user.name own && git commit -q --allow-empty -m y && git log -1 " +
			"--format=%an", "own\n"},
		{"npm", "npm prefix -g", "/home/user/.local\n"},
		{"sh", "echo $PIP_BREAK_SYSTEM_PACKAGES", "1\n"},
	} {
		if _, code := b.run(t, "/bin/sh", "-c", "command -v "+c.program); code != 0 {
			continue
		}
		if out := b.sh(t, c.script); out != c.want {
			t.Errorf("%s: %q, want %q", c.script, out, c.want)
		}
	}
}

// TestInstalledProgramsAreFound: what Go and Rust install as people do it, without a flag or a variable, would
// not be found by its name.
func TestInstalledProgramsAreFound(t *testing.T) {
	p, _ := newProvider(t)
	b := create(t, p, sandbox.Spec{})
	for _, c := range []struct{ program, build string }{
		{"go", `mkdir -p /workspace/g && cd /workspace/g && printf 'module example.com/my-go-tool\n' >go.mod &&
			printf 'package main\nfunc main() { println("mine") }\n' >main.go && go install . && cd / && my-go-tool 2>&1`},
		{"cargo", `mkdir -p /workspace/c/src && cd /workspace/c && printf '[package]\nname = "my-cargo-tool"\nversion = "0.1.0"\nedition = "2021"\n' >Cargo.toml &&
			printf 'fn main() { println!("mine") }\n' >src/main.rs && cargo install --offline --quiet --path . >&2 && cd / && my-cargo-tool`},
	} {
		if _, code := b.run(t, "/bin/sh", "-c",
			c.program+" version >/dev/null 2>&1 || "+c.program+" --version"); code != 0 {
			t.Logf("NOT TESTED: sandboxes have no %s on this host", c.program)
			continue
		}
		if out, code := b.run(t, "/bin/sh", "-c", c.build); out != "mine\n" || code != 0 {
			t.Errorf("%s: %q, exit status %d", c.program, out, code)
		}
	}
}
