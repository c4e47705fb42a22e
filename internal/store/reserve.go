package store

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/outboard-dev/outboard"
)

// A full disk cannot be made room on without writing: to delete a session is to write to the database. A SQLite
// database therefore has a reserve beside it, a file of nothing. Who removes something and meets a full disk
// drops it, by emptying the file, and tries once more. While the file is empty nothing but removals is written,
// by whichever process, until the disk has room for a reserve again.

const (
	// reserveSuffix follows the name of the database.
	reserveSuffix = "-ballast"
	// reserveRoom is how many times its size there must be for a reserve to be made.
	reserveRoom = 4
	// reserveEvery is how often it is looked after.
	reserveEvery = 2 * time.Second
)

// reserve is that of one database. A nil reserve is none, and refuses nothing. It is safe for concurrent use,
// also by several processes.
type reserve struct {
	path  string
	size  int64
	log   *slog.Logger
	tight atomic.Bool // it was dropped, and is not there again
}

func newReserve(db string, size int64, log *slog.Logger) *reserve {
	if db == "" || size <= 0 {
		return nil
	}
	return &reserve{path: db + reserveSuffix, size: size, log: log}
}

type removingKey struct{}

// Removing marks what is written with ctx as part of a removal, or of a start: it may use the reserve.
func Removing(ctx context.Context) context.Context {
	return context.WithValue(ctx, removingKey{}, true)
}

func removing(ctx context.Context) bool { return ctx.Value(removingKey{}) != nil }

// refuses returns an error for what is no removal while there is room for removals only.
func (b *reserve) refuses(ctx context.Context) error {
	if b == nil || !b.tight.Load() || removing(ctx) {
		return nil
	}
	return outboard.Errorf(outboard.Unavailable, "the disk that holds %s is full, but for what is kept for removals",
		strings.TrimSuffix(b.path, reserveSuffix)).
		WithCode(outboard.CodeDiskFull).WithHint(outboard.HintFullDisk).
		WithPublic("the disk that holds the database is full")
}

// drops reports whether a write that ended with err is worth another try, because the reserve was dropped for it.
func (b *reserve) drops(ctx context.Context, err error) bool {
	if b == nil || err == nil || !removing(ctx) || !outboard.DiskFull(err) {
		return false
	}
	fi, err := os.Lstat(b.path)
	if err != nil || !fi.Mode().IsRegular() || fi.Size() == 0 && b.tight.Load() {
		return false
	}
	if fi.Size() > 0 { // else another process has dropped it, a moment ago
		if err := os.Truncate(b.path, 0); err != nil {
			b.log.Warn("the disk is full, and its reserve cannot be dropped", "file", b.path, "err", err)
			return false
		}
		b.log.Warn("the disk is full; its reserve is dropped for a removal", "file", b.path, "bytes", fi.Size())
	}
	b.tight.Store(true)
	return true
}

// keep looks after the reserve until closing is closed: it makes one whenever there is none, and sees that
// another process has dropped it.
func (b *reserve) keep(closing <-chan struct{}) {
	tick := time.NewTicker(reserveEvery)
	defer tick.Stop()
	for had := true; ; {
		err := b.make()
		if has := err == nil; has != had {
			had = has
			b.log.Warn("room for removals on a full disk", "kept", has, "file", b.path, "bytes", b.size, "err", err)
		}
		if errors.Is(err, errors.ErrUnsupported) { // this file system keeps no room
			return
		}
		select {
		case <-closing:
			return
		case <-tick.C:
		}
	}
}

// make makes the reserve where there is room for it. One that was begun, or dropped, is an empty or a smaller file.
func (b *reserve) make() error {
	fi, err := os.Lstat(b.path)
	if err == nil && fi.Size() >= b.size {
		b.tight.Store(false)
		return nil
	}
	begun := err == nil
	b.tight.Store(begun)
	if left, ok := diskSpace(filepath.Dir(b.path)); ok && left < reserveRoom*uint64(b.size) {
		return outboard.Errorf(outboard.Unavailable, "%d bytes are too few for a reserve of %d", left, b.size)
	}
	if err := allocate(b.path, b.size); err != nil {
		if begun {
			return errors.Join(err, os.Truncate(b.path, 0))
		}
		return errors.Join(err, os.Remove(b.path))
	}
	b.tight.Store(false)
	return nil
}
