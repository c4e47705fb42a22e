package image

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
)

// If this failed, what makes a system would go on after whoever wanted it is gone, or leave a tree behind.
func TestUnpackEnds(t *testing.T) {
	if _, err := exec.LookPath("debootstrap"); err != nil || os.Geteuid() != 0 {
		t.Skip("this takes root and debootstrap")
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	left := make(chan struct{}, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		cancel(errors.New("nobody wants it"))
		select {
		case <-r.Context().Done(): // who fetches is gone
			left <- struct{}{}
		case <-time.After(time.Minute):
		}
	}))
	defer srv.Close()
	dir := t.TempDir()
	s, err := New(Config{Dir: dir, Owners: true})
	if err != nil {
		t.Fatal(err)
	}
	layer, err := s.Unpack(ctx, Base{"bookworm", "minbase"}, srv.URL)
	if outboard.KindOf(err) != outboard.Canceled {
		t.Fatalf("got %q, %v", layer, err)
	}
	select {
	case <-left:
	case <-time.After(10 * time.Second):
		t.Error("what fetches for a system that nobody wants goes on")
	}
	if half, _ := filepath.Glob(filepath.Join(dir, "tmp", "*")); len(half) > 0 {
		t.Errorf("half-made is %v", half)
	}
}

// If this failed, a system would be made of packages from anywhere, or not at all where nobody configured a mirror.
func TestAptMirror(t *testing.T) {
	if _, err := exec.LookPath("apt-get"); err != nil {
		t.Skip("this host has no apt")
	}
	first, err := aptMirror(t.Context(), "no-such-suite")
	if err != nil && outboard.KindOf(err) != outboard.Unavailable {
		t.Fatal(err)
	}
	if err != nil {
		t.Skip("this host's apt has no packages: ", err)
	}
	out, err := exec.CommandContext(t.Context(), "apt-get", "indextargets", "--format", "$(RELEASE)|$(REPO_URI)",
		"Created-By: Packages").Output()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if release, uri, _ := strings.Cut(strings.TrimSpace(line), "|"); all[release] == "" {
			all[release] = uri
		}
	}
	found := false
	for release, uri := range all {
		got, err := aptMirror(t.Context(), release)
		if err != nil {
			t.Errorf("%s: %v", release, err)
		}
		found = found || uri == first
		if got != uri && got != first {
			t.Errorf("%s is from %s; want %s", release, got, uri)
		}
	}
	if !found {
		t.Errorf("%s is none of this host's", first)
	}
}
