//go:build linux

package sandboxtest

import (
	"archive/tar"
	"fmt"
	"strings"
	"syscall"
	"testing"
)

// attrs returns a sandbox in which "attr" sets, removes and lists extended attributes, or skips where files have none.
func (r *rig) attrs(t *testing.T) *box {
	t.Helper()
	b := r.create(t)
	b.sh(fmt.Sprintf(`cat > /tmp/attr <<'E'
my ($do, @a) = @ARGV;
if ($do eq "set") { syscall(%d, $a[0], $a[1], $a[2], length $a[2], 0) == 0 or die "$a[0]: $!\n"; exit }
if ($do eq "rm") { syscall(%d, $a[0], $a[1]) == 0 or die "$a[0]: $!\n"; exit }
for my $p (@a) {
  my ($names, $value) = ("\0" x 65536, "\0" x 65536);
  my $n = syscall(%d, $p, $names, 65536);
  $n >= 0 or die "$p: $!\n";
  for my $name (sort split /\0/, substr($names, 0, $n)) {
    next if $name !~ /^(user|trusted)\.|^security.capability/;
    my $m = syscall(%d, $p, $name, $value, 65536);
    print "$p $name=", $m < 0 ? "$!" : unpack("H*", substr($value, 0, $m)), "\n";
  }
}
E
attr() { perl /tmp/attr "$@"; }`, syscall.SYS_SETXATTR, syscall.SYS_REMOVEXATTR, syscall.SYS_LISTXATTR, syscall.SYS_GETXATTR))
	if got := b.sh("touch try && attr set try user.x y 2>&1; rm try"); strings.Contains(got, "not supported") {
		t.Skip("files have no attributes here: " + got)
	}
	return b
}

const attributed = `attr get . d f g sparse ro ro/f; cd ~; attr get .; cd "$OLDPWD"`

// If this fails, a checkpoint lacks the attributes of files and directories, or the last change of one.
func testSaveAttrs(t *testing.T, r *rig) {
	a := r.attrs(t)
	a.sh(`mkdir d ro && echo f > f && ln f g && echo r > ro/f && truncate -s 8M sparse
attr set f user.note $'line\nbreak=\xff' && attr set f user.empty '' && attr set sparse user.holes many && attr set ro/f user.of 'ro/f' && attr set ro user.x 1
attr set d user.dir 1 && attr set . user.root 1 && attr set "$HOME" user.home 1 && chmod 400 ro/f && chmod 500 ro`)
	before := a.sh(attributed)
	if n := strings.Count(before, "\n"); n != 10 || !strings.Contains(before, "user.note=6c696e650a627265616b3dff\n") {
		t.Fatalf("attributes inside: %d lines\n%s", n, before) // the control
	}
	saved, full := a.save("", "0")
	want(t, "a full state", saved.Full, true)
	if again, _ := a.save("0", "same"); again.Changed {
		t.Errorf("with nothing changed: %+v", again)
	}
	b := r.attrs(t)
	b.sh("attr set . user.left over; attr set \"$HOME\" user.left over")
	b.load("0", full)
	want(t, "restored", b.sh(attributed), before)
	base, tars := "0", [][]byte{full}
	for i, step := range []string{
		"attr set f user.note other", "attr set f user.note again", "attr rm g user.note", "attr set d user.dir 2", "attr rm d user.dir",
		"attr set . user.root 2", "attr rm . user.root", "chmod 700 ro; attr set ro user.x 2; chmod 500 ro", "attr set sparse user.holes more",
		"attr set ro/f user.of none 2>/dev/null || attr set sparse user.second 1",
	} {
		a.sh(step)
		next := fmt.Sprint(i + 1)
		saved, delta := a.save(base, next)
		if !saved.Changed || saved.Full || saved.Entries > 3 {
			t.Fatalf("%s: %+v", step, saved)
		}
		b.load(next, delta)
		want(t, step, b.sh(attributed), a.sh(attributed))
		base, tars = next, append(tars, delta)
	}
	if again, _ := b.save(base, "same"); again.Changed {
		t.Errorf("right after Load: %+v", again)
	}
	c := r.attrs(t)
	c.load(base, tars...)
	want(t, "restored in one go", c.sh(attributed), a.sh(attributed))
	c.sh("attr set d user.dir 3")
	if saved, _ := c.save(base, "changed"); !saved.Changed || saved.Full {
		t.Errorf("changed after Load: %+v", saved)
	}
}

// If this fails, an archive gives files attributes that mean something to a kernel.
func testLoadAttrs(t *testing.T, r *rig) {
	b := r.attrs(t)
	records := map[string]string{"SCHILY.xattr.user.note": "a",
		"SCHILY.xattr.security.capability":    "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
		"SCHILY.xattr.trusted.overlay.opaque": "y", "SCHILY.xattr.system.posix_acl_access": "x", "LIBARCHIVE.xattr.user.other": "eA=="}
	b.load("forged", pack(t, &tar.Header{Typeflag: tar.TypeDir, Name: "workspace/", Mode: 0o755, PAXRecords: records},
		&tar.Header{Typeflag: tar.TypeReg, Name: "workspace/f", Mode: 0o755, PAXRecords: records},
		&tar.Header{Typeflag: tar.TypeSymlink, Name: "workspace/l", Linkname: "f", PAXRecords: records},
		&tar.Header{Typeflag: tar.TypeFifo, Name: "workspace/p", PAXRecords: records}))
	want(t, "of them", b.sh("attr get . f p"), ". user.note=61\nf user.note=61\n")
}
