package native

import (
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Control files and the small files of a sandbox are read and written by the dozen for each that is made. An
// os.File makes known to the poller what it opens, which is seven system calls for a file, and for one of the
// kernel's own wakes a thread as well: these functions make three.

// rawSize is more than what readRaw is mostly asked for.
const rawSize = 4 << 10

// readRaw reads a file that nobody waits for. Errors are an *fs.PathError.
func readRaw(path string) ([]byte, error) {
	fd, err := openRaw(path, unix.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	data := make([]byte, 0, rawSize)
	for {
		n, err := uninterrupted(func() (int, error) { return unix.Read(fd, data[len(data):cap(data)]) })
		if err != nil {
			return nil, &fs.PathError{Op: "read", Path: path, Err: err}
		}
		if data = data[:len(data)+n]; n == 0 {
			return data, nil
		}
		if len(data) == cap(data) {
			data = append(data, 0)[:len(data)]
		}
	}
}

// writeRaw writes data over what a file begins with, in one write.
func writeRaw(path string, flags int, data []byte) error {
	fd, err := openRaw(path, unix.O_WRONLY|flags, 0o600)
	if err != nil {
		return err
	}
	n, err := uninterrupted(func() (int, error) { return unix.Write(fd, data) })
	if cerr := unix.Close(fd); err == nil {
		err = cerr
	}
	if err == nil && n < len(data) {
		err = unix.ENOSPC
	}
	if err != nil {
		return &fs.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

// openRaw opens a file. The caller closes it.
func openRaw(path string, flags int, mode uint32) (int, error) {
	fd, err := uninterrupted(func() (int, error) { return unix.Open(path, flags|unix.O_CLOEXEC, mode) })
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// openUnpolled is os.Open for what is locked, entered or handed on, and never read from.
func openUnpolled(path string) (*os.File, error) {
	fd, err := openRaw(path, unix.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// uninterrupted calls f again when a signal of this process's own has cut it short.
func uninterrupted(f func() (int, error)) (int, error) {
	for {
		if n, err := f(); err != unix.EINTR {
			return n, err
		}
	}
}

// writeControl writes one control file. It never tries to create one: what is missing is fs.ErrNotExist.
func writeControl(dir, file, value string) error {
	return writeRaw(filepath.Join(dir, file), 0, []byte(value))
}
