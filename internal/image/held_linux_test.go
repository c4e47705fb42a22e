package image_test

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/outboard-dev/outboard/internal/image"
)

// If this failed, what a killed server had half unpacked or half received would fill the disk for ever, or what
// a living one makes would be taken from under it.
func TestKilledMaker(t *testing.T) {
	if dir := os.Getenv("IMAGE_TEST_DIR"); dir != "" {
		s := newStore(t, image.Config{Dir: dir})
		var err error
		if ref := os.Getenv("IMAGE_TEST_PULL"); ref != "" {
			_, err = s.Pull(t.Context(), ref)
		} else {
			_, err = s.Import(t.Context(), "local/app:1", os.Stdin)
		}
		t.Fatal("it ended:", err)
	}
	h, dir := newHub(t), filepath.Join(t.TempDir(), "images")
	layer := layerOf(t, archive(t, file("f", "x")))
	digest, err := layer.Digest()
	if err != nil {
		t.Fatal(err)
	}
	ref := h.push(t, "one:1", imageOf(t, v1.Config{}, layer))
	asked := make(chan struct{}, 100)
	h.allow.Store(func(r *http.Request) bool {
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, digest.String()) {
			asked <- struct{}{}
			<-r.Context().Done()
		}
		return true
	})
	s := newStore(t, image.Config{Dir: dir})
	pull := killable(t, dir, ref)
	<-asked
	upload := killable(t, dir, "")
	if _, err := upload.stdin.Write(make([]byte, 4<<20)); err != nil { // more than a pipe holds: it is being received
		t.Fatal(err)
	}
	abandoned := func(want int) {
		t.Helper()
		if err := s.Abandoned(t.Context()); err != nil {
			t.Fatal(err)
		}
		if left, err := os.ReadDir(filepath.Join(dir, "tmp")); err != nil || len(left) != want {
			t.Errorf("%v, %v: want %d", left, err, want)
		}
	}
	abandoned(2)
	pull.kill(t)
	abandoned(1)
	upload.kill(t)
	h.allow.Store(func(*http.Request) bool { return true })
	if _, err := s.Pull(t.Context(), ref); err != nil { // without a start, too
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "tmp")); err != nil || len(left) != 0 {
		t.Errorf("after the next pull: %v, %v", left, err)
	}
}

// maker is another process that makes something in a store's directory, until it is killed.
type maker struct {
	cmd   *exec.Cmd
	stdin io.Writer
}

func killable(t *testing.T, dir, pull string) *maker {
	t.Helper()
	m := &maker{cmd: exec.Command(os.Args[0], "-test.run=^TestKilledMaker$")}
	m.cmd.Env = append(os.Environ(), "IMAGE_TEST_DIR="+dir, "IMAGE_TEST_PULL="+pull)
	m.cmd.Stdout, m.cmd.Stderr = t.Output(), t.Output()
	var err error
	if m.stdin, err = m.cmd.StdinPipe(); err == nil {
		err = m.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.kill(t) })
	return m
}

func (m *maker) kill(t *testing.T) {
	t.Helper()
	if m.cmd.ProcessState != nil {
		return
	}
	if err := m.cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	m.cmd.Wait()
}
