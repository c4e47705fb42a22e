package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/outboard-dev/outboard/internal/control"
)

// keyPath is where the admin key of a data directory is.
func keyPath(data string) string { return filepath.Join(data, "admin.key") }

// readKey returns the admin key of a data directory, "" when there is none.
func readKey(data string) (string, error) {
	b, err := os.ReadFile(keyPath(data))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(b)), nil
}

// writePrivate writes a small file that only the user may read, durably and at once: a reader sees the old one
// or the new one.
func writePrivate(path, text string) error {
	return placePrivate(path, text, os.Rename)
}

// createPrivate is writePrivate for a file that must not exist: fs.ErrExist when it does, and the file stays as it is.
func createPrivate(path, text string) error {
	return placePrivate(path, text,
		func(from, to string) error { return errors.Join(os.Link(from, to), os.Remove(from)) })
}

func placePrivate(path, text string, place func(from, to string) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*") // made with mode 0600
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		if err = place(f.Name(), path); err == nil {
			return nil
		}
	}
	if gone := os.Remove(f.Name()); !errors.Is(gone, os.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	return err
}

// ensureKey sees to it that a new database has an operator's key, in admin.key of the data directory. A file
// that is there is never overwritten: its key is taken over when the database is new and the directory's own.
func ensureKey(ctx context.Context, c *control.Control, data string) (made bool, err error) {
	secret, err := readKey(data)
	if err != nil {
		return false, dataError(data, err)
	}
	if secret != "" {
		return c.AdoptAdminKey(ctx, secret)
	}
	made, err = c.EnsureAdminKey(ctx, func(secret string) error { return createPrivate(keyPath(data), secret+"\n") })
	if errors.Is(err, fs.ErrExist) { // another server of the directory starts as well, and was faster
		if secret, err = readKey(data); err == nil {
			return c.AdoptAdminKey(ctx, secret)
		}
	}
	return made, err
}
