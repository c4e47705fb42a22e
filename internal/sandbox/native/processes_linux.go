package native

import (
	"context"
	"io"
	"net"

	"github.com/outboard-dev/outboard/internal/guest"
)

// StartProcess starts a process.
func (m *machine) StartProcess(ctx context.Context, p guest.ProcessStart,
	f func(guest.ProcessEvent) error) (int, guest.ProcessExit, error) {
	pid, exit, err := m.client.StartProcess(ctx, p, f)
	return pid, exit, m.explain(err)
}

// AttachProcess shows what a process does.
func (m *machine) AttachProcess(ctx context.Context, ref guest.ProcessRef, from int64,
	f func(guest.ProcessEvent) error) (guest.ProcessExit, error) {
	exit, err := m.client.AttachProcess(ctx, ref, from, f)
	return exit, m.explain(err)
}

// InputProcess writes to a process's input.
func (m *machine) InputProcess(ctx context.Context, ref guest.ProcessRef, r io.Reader) error {
	return m.explain(m.client.InputProcess(ctx, ref, r))
}

// CloseInput closes a process's input.
func (m *machine) CloseInput(ctx context.Context, ref guest.ProcessRef) error {
	return m.explain(m.client.CloseInput(ctx, ref))
}

// ResizeProcess changes a terminal's size.
func (m *machine) ResizeProcess(ctx context.Context, ref guest.ProcessRef, size guest.Size) error {
	return m.explain(m.client.ResizeProcess(ctx, ref, size))
}

// SignalProcess signals a process.
func (m *machine) SignalProcess(ctx context.Context, ref guest.ProcessRef, signal int) error {
	return m.explain(m.client.SignalProcess(ctx, ref, signal))
}

// Processes lists them.
func (m *machine) Processes(ctx context.Context) ([]guest.ProcessInfo, error) {
	l, err := m.client.Processes(ctx)
	return l, m.explain(err)
}

// DialPort connects to a port inside.
func (m *machine) DialPort(ctx context.Context, port uint16) (net.Conn, error) {
	conn, err := m.client.DialPort(ctx, port)
	return conn, m.explain(err)
}

// Stat describes a name.
func (m *machine) Stat(ctx context.Context, f guest.FileRef) (guest.Entry, error) {
	e, err := m.client.Stat(ctx, f)
	return e, m.explain(err)
}

// Real names what a path leads to.
func (m *machine) Real(ctx context.Context, path string) (string, error) {
	p, err := m.client.Real(ctx, path)
	return p, m.explain(err)
}

// ReadDir lists a directory.
func (m *machine) ReadDir(ctx context.Context, f guest.FileRef, depth int) ([]guest.Entry, error) {
	l, err := m.client.ReadDir(ctx, f, depth)
	return l, m.explain(err)
}

// Mkdir makes a directory.
func (m *machine) Mkdir(ctx context.Context, f guest.FileRef) (guest.Entry, error) {
	e, err := m.client.Mkdir(ctx, f)
	return e, m.explain(err)
}

// Move renames.
func (m *machine) Move(ctx context.Context, f guest.FileRef, to string) (guest.Entry, error) {
	e, err := m.client.Move(ctx, f, to)
	return e, m.explain(err)
}

// Remove removes a tree.
func (m *machine) Remove(ctx context.Context, f guest.FileRef) error {
	return m.explain(m.client.Remove(ctx, f))
}

// ReadFile reads a part of a file.
func (m *machine) ReadFile(ctx context.Context, f guest.FileRef, offset, length int64, w io.Writer) error {
	return m.explain(m.client.ReadFile(ctx, f, offset, length, w))
}

// WriteFile replaces a file's content.
func (m *machine) WriteFile(ctx context.Context, f guest.FileRef, attrs map[string]string,
	r io.Reader) (guest.Entry, error) {
	e, err := m.client.WriteFile(ctx, f, attrs, r)
	return e, m.explain(err)
}

// Watch tells what changes.
func (m *machine) Watch(ctx context.Context, f guest.FileRef, recursive bool, each func(guest.Change) error) error {
	return m.explain(m.client.Watch(ctx, f, recursive, each))
}
