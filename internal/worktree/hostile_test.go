package worktree

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// What comes back is hostile: it must not leave its directory, run a program or plant a repository.
func TestImportHostileWorkspaces(t *testing.T) {
	r := newRepo(t)
	r.commit(map[string]string{"a.txt": "1\n"})
	ran := filepath.Join(t.TempDir(), "ran")
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.Mkdir(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	r.git("config", "filter.evil.clean", "touch "+ran+"; cat")
	tree, snap, _ := r.send()
	entries := []tar.Header{
		{Name: "workspace/a.txt"},
		{Name: "workspace/.git/config", Uname: "[core]\n\tfsmonitor = touch " + ran + "\n"},
		{Name: "workspace/.git/hooks/pre-commit", Mode: 0o755, Uname: "#!/bin/sh\ntouch " + ran + "\n"},
		{Name: "workspace/sub/.GIT/config", Uname: "x"},
		{Name: "workspace/git~1/config", Uname: "x"},
		{Name: "workspace/.git /config", Uname: "x"},
		{Name: "workspace/.g\u200cit/config", Uname: "x"},
		{Name: "workspace/.git::$INDEX_ALLOCATION/config", Uname: "x"},
		{Name: "workspace/.gitattributes", Uname: "* filter=evil\n"},
		{Name: "workspace/../../escape.txt", Uname: "x"},
		{Name: "/etc/escape.txt", Uname: "x"},
		{Name: "workspace/link", Typeflag: tar.TypeSymlink, Linkname: outside},
		{Name: "workspace/fifo", Typeflag: tar.TypeFifo},
		{Name: "workspace/dev", Typeflag: tar.TypeChar},
		{Name: "workspace/hard", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"},
		{Name: "workspace/hard-out", Typeflag: tar.TypeLink, Linkname: "workspace/link"},
		{Name: "workspace/hard-in", Typeflag: tar.TypeLink, Linkname: "workspace/.gitattributes"},
		{Name: "other/place.txt", Uname: "x"},
		{Name: "workspace-evil/place.txt", Uname: "x"},
	}
	res, err := tree.Import(t.Context(), snap.Sent(), "workspace/", hostile(t, entries), true)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Close()
	names, err := res.Diff(t.Context(), NameOnly)
	if err != nil || string(names) != ".gitattributes\na.txt\nhard-in\nhard-out\nlink\n" {
		t.Errorf("the result changes %q, %v", names, err)
	}
	if links, err := res.Links(t.Context()); err != nil ||
		!slices.Equal(links, []string{"hard-out -> " + outside, "link -> " + outside}) {
		t.Errorf("links out of the tree: %q, %v", links, err)
	}
	r.apply(res, Applied)
	if exists(ran) {
		t.Error("a program named by the workspace ran")
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("something was written through a link: %v, %v", left, err)
	}
	// Positive control: the same importer does see an entry that is in order.
	if r.read("a.txt") != "" {
		t.Errorf("a.txt = %q, want the entry's empty content", r.read("a.txt"))
	}
}

// A file behind a link that the same tar planted would be written outside.
func TestUnpackDoesNotFollowLinks(t *testing.T) {
	outside, dir := t.TempDir(), t.TempDir()
	_, err := Unpack(t.Context(), hostile(t, []tar.Header{
		{Name: "link", Typeflag: tar.TypeSymlink, Linkname: outside},
		{Name: "link/evil.txt", Uname: "x"},
	}), "", dir, nil, true)
	if err == nil {
		t.Error("writing through a link was not refused")
	}
	if left, _ := os.ReadDir(outside); len(left) > 0 {
		t.Error("a file was written outside")
	}
	_, err = Unpack(t.Context(), hostile(t, []tar.Header{{Name: "a.txt", Uname: "new"}}), "", dir, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Unpack(t.Context(), hostile(t, []tar.Header{{Name: "a.txt", Uname: "newer"}}), "", dir, nil, false)
	if err == nil {
		t.Error("an existing file was overwritten")
	}
}

// hostile writes headers as a tar; Uname carries a regular file's content.
func hostile(t *testing.T, entries []tar.Header) *bytes.Buffer {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range entries {
		body := h.Uname
		h.Uname, h.Format = "", tar.FormatPAX
		if h.Typeflag == 0 {
			h.Typeflag, h.Size = tar.TypeReg, int64(len(body))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(body)); err != nil && body != "" {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &buf
}
