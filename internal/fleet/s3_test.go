//go:build linux

package fleet

import (
	"archive/tar"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/blob"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

// bucket returns two hosts' views of the same part of an S3 server, the one that scripts/with-s3 starts.
func bucket(t *testing.T) (here, there blob.Store) {
	t.Helper()
	endpoint := os.Getenv("OUTBOARD_TEST_S3")
	if endpoint == "" {
		if os.Getenv("CI") != "" {
			t.Fatal("CI must have an S3 server: scripts/with-s3")
		}
		t.Skip("no S3 server: run scripts/with-s3 go test ./internal/fleet")
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "test-secret")
	address := "s3://outboard/" + rand.Text() + "?region=us-east-1&endpoint=" + url.QueryEscape(endpoint)
	var views [2]blob.Store
	for i := range views {
		s, err := blob.NewS3(t.Context(), address, t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		views[i] = s
	}
	return views[0], views[1]
}

// hostileWorkspace is what a copy may get wrong and no shell command makes everywhere: attributes, odd names and
// times, modes that close.
func hostileWorkspace(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	add := func(h tar.Header, content string) {
		h.Format, h.Size, h.ModTime = tar.FormatPAX, int64(len(content)), time.Unix(1234567890, 123456789)
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	attr := map[string]string{"SCHILY.xattr.user.note": "a\x00b\n", "SCHILY.xattr.user.empty": ""}
	add(tar.Header{Typeflag: tar.TypeDir, Name: "workspace/", Mode: 0o750, PAXRecords: attr}, "")
	add(tar.Header{Typeflag: tar.TypeReg, Name: "workspace/attr", Mode: 0o640, PAXRecords: attr}, "x")
	add(tar.Header{Typeflag: tar.TypeReg, Name: "workspace/sparse", Mode: 0o600},
		strings.Repeat("\x00", 3<<20)+"middle"+strings.Repeat("\x00", 3<<20))
	add(tar.Header{Typeflag: tar.TypeDir, Name: "workspace/odd\n\xff name/", Mode: 0o1777}, "")
	add(tar.Header{Typeflag: tar.TypeReg, Name: "workspace/odd\n\xff name/" + strings.Repeat("n", 255), Mode: 0},
		"closed")
	add(tar.Header{Typeflag: tar.TypeSymlink, Name: "workspace/out", Linkname: "../../etc/shadow"}, "")
	add(tar.Header{Typeflag: tar.TypeFifo, Name: "workspace/fifo", Mode: 0o622}, "")
	add(tar.Header{Typeflag: tar.TypeReg, Name: "workspace/one", Mode: 0o4755}, "linked")
	add(tar.Header{Typeflag: tar.TypeLink, Name: "workspace/two", Linkname: "workspace/one"}, "")
	add(tar.Header{Typeflag: tar.TypeSymlink, Name: "workspace/lone", Linkname: "one"}, "")
	add(tar.Header{Typeflag: tar.TypeLink, Name: "workspace/ltwo", Linkname: "workspace/lone"}, "")
	add(tar.Header{Typeflag: tar.TypeDir, Name: "workspace/locked/", Mode: 0o100}, "")
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// treeHash is over everything that a whole tar of a checkpoint says: names, kinds, modes, times, links,
// attributes, content.
func treeHash(t *testing.T, p *native.Provider, id outboard.CheckpointID) string {
	t.Helper()
	h := sha256.New()
	if err := p.Pack(t.Context(), id, "", h); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// Broken if a workspace that another host restores from S3 differs in anything from what was saved, or what
// tells them apart is blind.
func TestHostileTreeThroughS3(t *testing.T) {
	s3, same := bucket(t)
	r := newRig(t)
	here, there := nativeProvider(t), nativeProvider(t)
	r.provider = here
	f := r.fleet(func(c *Config) { c.Blob = s3 })
	id := r.session(t)
	b := r.acquire(t, f, id)
	if err := b.Load(t.Context(), "hostile", bytes.NewReader(hostileWorkspace(t))); err != nil {
		t.Fatal(err)
	}
	first := r.checkpoint(t, f, b, id)
	r.bash(t, b, "cd /workspace; mkdir -p tree/a/b kinddir; echo 1 > tree/a/b/c; ln one three; echo gone > gone; "+
		"echo x > kind")
	r.checkpoint(t, f, b, id)
	r.bash(t, b, "cd /workspace; mv tree renamed; rm -r renamed/a/b gone kind kinddir; mkdir renamed/a/b kind; echo "+
		"n > renamed/a/b/n; echo f > kinddir; echo more >> two; chmod 700 attr; touch -d @5 attr")
	last := r.checkpoint(t, f, b, id)
	if err := f.keepAll(t.Context(), here); err != nil {
		t.Fatal(err)
	}
	want := treeHash(t, here, last.ID)
	if treeHash(t, here, first.ID) == want {
		t.Fatal("two states have one hash")
	}

	r.provider = there
	other := r.acquire(t, r.fleet(func(c *Config) { c.Blob, c.Host = same, "host-b" }), id)
	if other.Lost == nil || other.Lost.Restore != last.ID || !there.Keeps(last.ID) {
		t.Fatalf("restored %+v", other.Lost)
	}
	if got := treeHash(t, there, last.ID); got != want {
		t.Errorf("the tree is %s, was %s", got, want)
	}
	const look = "cd /workspace; stat -c '%b %Y' sparse; [ one -ef two ] && [ two -ef three ] && cat three; stat -c " +
		"'%a %Y %h' attr one; stat -c '%h %F' lone ltwo; readlink out ltwo"
	if got, was := r.bash(t, other, look), r.bash(t, b, look); got != was || len(strings.Fields(got)[0]) > 3 {
		t.Errorf("seen from inside %q, was %q", got, was)
	}
}
