package fleet

import (
	"context"
	"io"
	"path"
	"strings"

	"github.com/outboard-dev/outboard/internal/guest"
)

// habits are who programs of a machine run as and where they begin unless who starts them says so. The zero value leaves it to the guest:
// the tool's user and its home.
type habits struct{ user, dir string }

// process completes what is asked for.
func (h habits) process(p ProcessStart) ProcessStart {
	if p.User == "" {
		p.User = h.user
	}
	p.Cwd = h.path(p.Cwd)
	return p
}

// file completes what is asked for.
func (h habits) file(f FileRef) FileRef {
	if f.User == "" {
		f.User = h.user
	}
	f.Path = Name(h.path(string(f.Path)))
	return f
}

// path makes a relative path begin where programs do.
func (h habits) path(p string) string {
	if h.dir == "" || path.IsAbs(p) || p == "~" || strings.HasPrefix(p, "~/") {
		return p
	}
	return path.Join(h.dir, p)
}

// StartProcess implements sandbox.Processes.
func (m *machine) StartProcess(ctx context.Context, p guest.ProcessStart, f func(guest.ProcessEvent) error) (int, guest.ProcessExit, error) {
	return m.Sandbox.StartProcess(ctx, m.habits.process(p), f)
}

// Stat implements sandbox.Files.
func (m *machine) Stat(ctx context.Context, f guest.FileRef) (guest.Entry, error) {
	return m.Sandbox.Stat(ctx, m.habits.file(f))
}

// ReadDir implements sandbox.Files.
func (m *machine) ReadDir(ctx context.Context, f guest.FileRef, depth int) ([]guest.Entry, error) {
	return m.Sandbox.ReadDir(ctx, m.habits.file(f), depth)
}

// Mkdir implements sandbox.Files.
func (m *machine) Mkdir(ctx context.Context, f guest.FileRef) (guest.Entry, error) {
	return m.Sandbox.Mkdir(ctx, m.habits.file(f))
}

// Move implements sandbox.Files.
func (m *machine) Move(ctx context.Context, f guest.FileRef, to string) (guest.Entry, error) {
	return m.Sandbox.Move(ctx, m.habits.file(f), m.habits.path(to))
}

// Remove implements sandbox.Files.
func (m *machine) Remove(ctx context.Context, f guest.FileRef) error {
	return m.Sandbox.Remove(ctx, m.habits.file(f))
}

// ReadFile implements sandbox.Files.
func (m *machine) ReadFile(ctx context.Context, f guest.FileRef, offset, length int64, w io.Writer) error {
	return m.Sandbox.ReadFile(ctx, m.habits.file(f), offset, length, w)
}

// WriteFile implements sandbox.Files.
func (m *machine) WriteFile(ctx context.Context, f guest.FileRef, attrs map[string]string, r io.Reader) (guest.Entry, error) {
	return m.Sandbox.WriteFile(ctx, m.habits.file(f), attrs, r)
}

// Watch implements sandbox.Files.
func (m *machine) Watch(ctx context.Context, f guest.FileRef, recursive bool, each func(guest.Change) error) error {
	return m.Sandbox.Watch(ctx, m.habits.file(f), recursive, each)
}
