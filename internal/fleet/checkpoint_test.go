//go:build linux

package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// Broken if files of any call are missing after a restore, deleted ones come back, or a restored machine cannot
// go on with deltas.
func TestCheckpointRestoreChain(t *testing.T) {
	r := newRig(t)
	f := r.fleet()
	id := r.session(t)
	b := r.acquire(t, f, id)
	var parents []outboard.CheckpointID
	for i, cmd := range []string{
		"mkdir d && echo 1 > d/a && echo x > gone",
		"echo 2 > d/b && rm gone",
		"echo 3 > ../outputs/c",
	} {
		r.bash(t, b, cmd)
		c := r.checkpoint(t, f, b, id)
		if c == nil || c.Depth != i || c.Session != id || c.Call != "sevt_call" || c.Delta.Size == 0 {
			t.Fatalf("checkpoint %d: %+v", i, c)
		}
		if i > 0 && c.Parent != parents[i-1] || i == 0 && c.Parent != "" {
			t.Errorf("checkpoint %d has parent %q of %v", i, c.Parent, parents)
		}
		parents = append(parents, c.ID)
	}
	r.bash(t, b, "true")
	if c := r.checkpoint(t, f, b, id); c != nil {
		t.Errorf("checkpoint of nothing: %+v", c)
	}
	release(t, f, b)
	if err := r.provider.Destroy(t.Context(), b.ID()); err != nil {
		t.Fatal(err)
	}
	b = r.acquire(t, r.fleet(), id)
	out := r.bash(t, b, "cat d/a d/b ../outputs/c; ls")
	if out != "1\n2\n3\nd\n" {
		t.Errorf("restored %q", out)
	}
	if c := r.checkpoint(t, f, b, id); c != nil {
		t.Errorf("checkpoint right after a restore: %+v", c)
	}
	r.bash(t, b, "echo 4 > e")
	if c := r.checkpoint(t, f, b, id); c == nil || c.Parent != parents[2] || c.Depth != 3 {
		t.Errorf("checkpoint after a restore: %+v", c)
	}
}

// Broken if who has a session whose stored files were damaged is told of nothing but an internal error, is given
// what is left of them, or finds the session lost once they are as they were.
func TestCheckpointDamaged(t *testing.T) {
	r := newRig(t)
	f := r.fleet()
	id := r.session(t)
	b := r.acquire(t, f, id)
	r.bash(t, b, "seq 100000 > numbers")
	c := r.checkpoint(t, f, b, id)
	release(t, f, b)
	if err := r.provider.Destroy(t.Context(), b.ID()); err != nil {
		t.Fatal(err)
	}
	objects, err := filepath.Glob(filepath.Join(r.blobs, "*", "*", c.Delta.Digest+"*"))
	if err != nil || len(objects) != 1 {
		t.Fatalf("the checkpoint is stored as %v, %v", objects, err)
	}
	whole, err := os.ReadFile(objects[0])
	if err != nil {
		t.Fatal(err)
	}
	write := func(content []byte) {
		t.Helper()
		if err := os.WriteFile(objects[0], content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for what, content := range map[string][]byte{"cut": whole[:len(whole)/2], "another": []byte("<html>sign in</html>"),
		"changed": append(append(bytes.Clone(whole[:len(whole)/2]), whole[len(whole)/2]^1),
			whole[len(whole)/2+1:]...)} {
		write(content)
		_, err := r.fleet().Acquire(t.Context(), r.request(t, id))
		if outboard.KindOf(err) != outboard.Unavailable || !strings.Contains(err.Error(), "is not what was saved") ||
			outboard.HintOf(err) == "" {
			t.Errorf("%s: %v", what, err)
		}
		if left := r.present(t); len(left) != 0 {
			t.Errorf("%s: sandboxes left: %v", what, left)
		}
	}
	write(whole)
	if out := r.bash(t, r.acquire(t, r.fleet(), id), "tail -n 1 numbers; wc -l < numbers"); out != "100000\n100000\n" {
		t.Errorf("once it was put back: %q", out)
	}
}

// Broken if a chain grows for ever, or a restore at its longest loses a file.
func TestCheckpointFlatten(t *testing.T) {
	r := newRig(t)
	f := r.fleet()
	id := r.session(t)
	b := r.acquire(t, f, id)
	for i := range MaxChain + 2 {
		r.bash(t, b, fmt.Sprintf("echo %d > %d", i, i))
		c := r.checkpoint(t, f, b, id)
		if c == nil || c.Depth != i%MaxChain || (c.Parent == "") != (c.Depth == 0) {
			t.Fatalf("checkpoint %d: %+v", i, c)
		}
		if i != MaxChain-1 && i != MaxChain+1 {
			continue
		}
		release(t, f, b)
		if err := r.provider.Destroy(t.Context(), b.ID()); err != nil {
			t.Fatal(err)
		}
		b = r.acquire(t, f, id)
		if out := r.bash(t, b, "ls | wc -l"); strings.TrimSpace(out) != fmt.Sprint(i+1) {
			t.Errorf("after %d: %q files", i+1, out)
		}
	}
}

// Broken if a checkpoint that was taken but never committed leaves a gap in the chain.
func TestCheckpointNotCommitted(t *testing.T) {
	r := newRig(t)
	f := r.fleet()
	id := r.session(t)
	b := r.acquire(t, f, id)
	r.bash(t, b, "echo 1 > a")
	r.checkpoint(t, f, b, id)
	r.bash(t, b, "echo 2 > b")
	if c, err := f.Checkpoint(t.Context(), b, id, 1, r.state(t, id).Checkpoint, ""); err != nil || c == nil {
		t.Fatal(c, err) // the process dies here
	}
	r.bash(t, b, "echo 3 > c")
	if c := r.checkpoint(t, f, b, id); c == nil {
		t.Error("no checkpoint")
	}
	release(t, f, b)
	if err := r.provider.Destroy(t.Context(), b.ID()); err != nil {
		t.Fatal(err)
	}
	b = r.acquire(t, f, id)
	if out := r.bash(t, b, "cat *"); out != "1\n2\n3\n" {
		t.Errorf("restored %q", out)
	}
	req := Request{Session: id, Checkpoint: "ckpt_01unknown"}
	if err := f.restore(t.Context(), b.use.machine,
		origin{checkpoint: req.Checkpoint}); outboard.KindOf(err) != outboard.NotFound {
		t.Errorf("unknown checkpoint: %v", err)
	}
}

// full is a blob store on a full disk.
type full struct{ err error }

func (s full) Put(_ context.Context, r io.Reader, _ int64) (outboard.BlobRef, error) {
	io.CopyN(io.Discard, r, 10)
	return outboard.BlobRef{}, s.err
}

func (s full) Open(context.Context, outboard.BlobRef) (io.ReadCloser, error) { return nil, s.err }

// Broken if a full disk makes a checkpoint hang, succeed, or spoil the one after it.
func TestCheckpointFullDisk(t *testing.T) {
	r := newRig(t)
	f := r.fleet()
	id := r.session(t)
	b := r.acquire(t, f, id)
	cause := outboard.Errorf(outboard.Unavailable, "no space left")
	r.bash(t, b, "head -c 3000000 /dev/urandom > a; echo 1 > ../outputs/o")
	good := f.cfg.Blob
	f.cfg.Blob = full{cause}
	if c, err := f.Checkpoint(t.Context(), b, id, 1, "", ""); !errors.Is(err, cause) || c != nil {
		t.Errorf("checkpoint: %+v, %v", c, err)
	}
	if files, err := f.Harvest(t.Context(), b, id); !errors.Is(err, cause) || files != nil {
		t.Errorf("harvest: %+v, %v", files, err)
	}
	f.cfg.Blob = good
	if c := r.checkpoint(t, f, b, id); c == nil || c.Delta.Size < 3000000 {
		t.Errorf("checkpoint after it: %+v", c)
	}
	if files, err := f.Harvest(t.Context(), b, id); err != nil || len(files) != 1 {
		t.Errorf("harvest after it: %+v, %v", files, err)
	}
}

// Broken if an output does not become a file of its session once, or becomes one again without having changed.
func TestHarvest(t *testing.T) {
	r := newRig(t)
	f := r.fleet()
	id := r.session(t)
	b := r.acquire(t, f, id)
	harvest := func(f *Fleet, commit bool) map[string]string {
		t.Helper()
		files, err := f.Harvest(t.Context(), b, id)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		var found []outboard.Payload
		for _, file := range files {
			if !file.Downloadable || file.Session != id || file.CreatedAt.IsZero() {
				t.Errorf("file %+v", file)
			}
			got[file.Path+" "+file.Filename+" "+file.MediaType] = r.content(t, file.Blob)
			found = append(found, &outboard.FileHarvested{File: file.ID, Path: file.Path})
		}
		if commit && len(files) > 0 {
			r.append(t, store.Commit{Session: id, Files: files}, found...)
		}
		return got
	}
	want := func(got map[string]string, want ...string) {
		t.Helper()
		for i := 0; i < len(want); i += 2 {
			if got[want[i]] != want[i+1] {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		if len(got) != len(want)/2 {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	want(harvest(f, true))
	r.bash(t, b, "cd ../outputs; mkdir d; echo '# hi' > d/report.MD; printf 'x\\0\\1' > raw; ln -s /etc/passwd link")
	first := []string{"d/report.MD report.MD text/markdown", "# hi\n", "raw raw application/octet-stream", "x\x00\x01"}
	want(harvest(f, false), first...)
	want(harvest(f, true), first...) // the first were never committed
	want(harvest(f, true))
	want(harvest(r.fleet(), true)) // another process compares by digest
	r.bash(t, b, "touch raw; echo '# ho' > d/report.MD; touch -r raw d/report.MD")
	want(harvest(f, true), "d/report.MD report.MD text/markdown", "# ho\n")
	r.bash(t, b, "rm raw; truncate -s 600M big; touch \"$(printf 'a\\nb')\"; : > empty.txt")
	want(harvest(f, true), "empty.txt empty.txt text/plain", "")
	r.bash(t, b, "rm big; printf 'x\\0\\1' > raw")
	want(harvest(f, true)) // as it was when it was harvested
	files, err := r.store.Files(t.Context(), id, nil, store.Page{})
	if err != nil || len(files) != 4 {
		t.Errorf("%d file rows, %v", len(files), err)
	}
}
