package fleet

import (
	"context"
	"io"
	"path"
	"strings"

	"github.com/outboard-dev/outboard/internal/guest"
)

// defaults holds the user and the working directory of a process whose caller names none. The zero value leaves
// it to the guest: the tool's user and its home.
type defaults struct{ user, dir string }

// process completes what is asked for.
func (h defaults) process(p ProcessStart) ProcessStart {
	if p.User == "" {
		p.User = h.user
	}
	p.Cwd = h.path(p.Cwd)
	return p
}

// file completes what is asked for.
func (h defaults) file(f FileRef) FileRef {
	if f.User == "" {
		f.User = h.user
	}
	f.Path = Name(h.path(string(f.Path)))
	return f
}

// path makes a relative path begin where programs do.
func (h defaults) path(p string) string {
	if h.dir == "" || path.IsAbs(p) || p == "~" || strings.HasPrefix(p, "~/") {
		return p
	}
	return path.Join(h.dir, p)
}

// StartProcess implements sandbox.Processes.
func (m *machine) StartProcess(ctx context.Context, p guest.ProcessStart,
	f func(guest.ProcessEvent) error) (int, guest.ProcessExit, error) {
	return m.Sandbox.StartProcess(ctx, m.defaults.process(p), f)
}

// Stat implements sandbox.Files.
func (m *machine) Stat(ctx context.Context, f guest.FileRef) (guest.Entry, error) {
	return m.Sandbox.Stat(ctx, m.defaults.file(f))
}

// ReadDir implements sandbox.Files.
func (m *machine) ReadDir(ctx context.Context, f guest.FileRef, depth int) ([]guest.Entry, error) {
	return m.Sandbox.ReadDir(ctx, m.defaults.file(f), depth)
}

// Mkdir implements sandbox.Files.
func (m *machine) Mkdir(ctx context.Context, f guest.FileRef) (guest.Entry, error) {
	return m.Sandbox.Mkdir(ctx, m.defaults.file(f))
}

// Move implements sandbox.Files.
func (m *machine) Move(ctx context.Context, f guest.FileRef, to string) (guest.Entry, error) {
	return m.Sandbox.Move(ctx, m.defaults.file(f), m.defaults.path(to))
}

// Remove implements sandbox.Files.
func (m *machine) Remove(ctx context.Context, f guest.FileRef) error {
	return m.Sandbox.Remove(ctx, m.defaults.file(f))
}

// ReadFile implements sandbox.Files.
func (m *machine) ReadFile(ctx context.Context, f guest.FileRef, offset, length int64, w io.Writer) error {
	return m.Sandbox.ReadFile(ctx, m.defaults.file(f), offset, length, w)
}

// WriteFile implements sandbox.Files.
func (m *machine) WriteFile(ctx context.Context, f guest.FileRef, attrs map[string]string,
	r io.Reader) (guest.Entry, error) {
	return m.Sandbox.WriteFile(ctx, m.defaults.file(f), attrs, r)
}

// Watch implements sandbox.Files.
func (m *machine) Watch(ctx context.Context, f guest.FileRef, recursive bool, each func(guest.Change) error) error {
	return m.Sandbox.Watch(ctx, m.defaults.file(f), recursive, each)
}
