package store

import (
	"unsafe"

	"golang.org/x/sys/unix"
	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// SQLite writes a page to its write-ahead log in two pieces, each with a call of the system, and a usual commit
// is six pages. What it writes to a log that it has synced before is held here instead, and written in one piece
// when it syncs: nobody else reads a commit before that, and whatever else SQLite does with the file writes
// first what is held.

const (
	// maxHeld bounds what is held of one log; a larger commit is written in pieces of this size.
	maxHeld = 1 << 20
	// aheadOfLog is by how much a log that has grown is grown further, with zeros. To overwrite what is there
	// takes the disk about half as long as to make a file longer (270 µs instead of 440 for a commit of 56 KiB
	// on ext4), and blocks that were only reserved are as slow as new ones. SQLite reads a log up to the first
	// frame that is not valid.
	aheadOfLog = 1 << 20
)

var zeros [aheadOfLog]byte

// walWrite writes to a write-ahead log. Only tests replace it.
var walWrite = unix.Pwrite

// walWriteSync writes to a write-ahead log and makes what it wrote durable, in one call: about a tenth less time
// than two take, and a fifth less of the processor's. Only tests replace it.
var walWriteSync = func(fd int, b []byte, off int64) (int, error) {
	return unix.Pwritev2(fd, [][]byte{b}, off, unix.RWF_DSYNC)
}

// heldLog is a write-ahead log that was synced before. SQLite uses a file from one thread at a time.
type heldLog struct {
	m    *walMethods
	fd   int
	held []byte
	at   int64 // where in the file held belongs
	size int64 // of the file at the last sync

	loose bool // something was written and not synced: it is older than what is held
	apart bool // the file system cannot write and sync in one call
}

// heldOf returns what is known of a file whose methods are walMethods.rest.
func heldOf(file uintptr) *heldLog {
	registered.mu.Lock()
	defer registered.mu.Unlock()
	return registered.logs[file]
}

// hold begins to hold the writes of a log.
func hold(m *walMethods, file uintptr) {
	registered.mu.Lock()
	defer registered.mu.Unlock()
	registered.logs[file] = &heldLog{m: m, fd: int(at[sqlite3.TunixFile](file).Fh)}
}

// write puts what is held where it belongs. What cannot be written is forgotten: the commit fails.
func (l *heldLog) write() int32 {
	b, off := l.held, l.at
	l.held = l.held[:0]
	l.loose = l.loose || len(b) > 0
	for len(b) > 0 {
		n, err := walWrite(l.fd, b, off)
		switch {
		case err == unix.EINTR:
		case err == unix.ENOSPC || err == unix.EDQUOT || err == nil && n == 0:
			return sqlite3.SQLITE_FULL
		case err != nil:
			return sqlite3.SQLITE_IOERR_WRITE
		default:
			b, off = b[n:], off+int64(n)
		}
	}
	return sqlite3.SQLITE_OK
}

// growAhead makes a log that has grown since its last sync longer than it need be. Where there is no room
// nothing is lost by it.
func (l *heldLog) growAhead() {
	var st unix.Stat_t
	if unix.Fstat(l.fd, &st) != nil || st.Size == l.size {
		return
	}
	n, _ := unix.Pwrite(l.fd, zeros[:], st.Size)
	l.size = st.Size + int64(max(n, 0))
}

// writeHeld is xWrite.
func writeHeld(_ *libc.TLS, file, data uintptr, n int32, off int64) int32 {
	l := heldOf(file)
	if len(l.held) > 0 && (off != l.at+int64(len(l.held)) || len(l.held)+int(n) > maxHeld) {
		if rc := l.write(); rc != sqlite3.SQLITE_OK {
			return rc
		}
	}
	if len(l.held) == 0 {
		l.at = off
	}
	l.held = append(l.held, unsafe.Slice(at[byte](data), n)...)
	return sqlite3.SQLITE_OK
}

// writeSync writes what is held and makes it durable in one call. false says that this is not the way, or only a
// part went it: what is still held has to be written, and all be synced. A file that grows is left to growAhead.
func (l *heldLog) writeSync() (done bool, rc int32) {
	if l.apart || l.loose || len(l.held) == 0 || l.at+int64(len(l.held)) > l.size {
		return false, sqlite3.SQLITE_OK
	}
	switch n, err := walWriteSync(l.fd, l.held, l.at); {
	case err == nil && n == len(l.held):
		l.held = l.held[:0]
		return true, sqlite3.SQLITE_OK
	case err == unix.EIO: // as after a sync that failed: what was written may be gone
		l.held = l.held[:0]
		return false, sqlite3.SQLITE_IOERR_FSYNC
	case err == unix.EOPNOTSUPP || err == unix.ENOSYS || err == unix.EINVAL:
		l.apart = true
	}
	return false, sqlite3.SQLITE_OK // a short write, or one that is written again from its start
}

// syncHeld is xSync.
func syncHeld(_ *libc.TLS, file uintptr, _ int32) int32 {
	l := heldOf(file)
	switch done, rc := l.writeSync(); {
	case rc != sqlite3.SQLITE_OK:
		return rc
	case done:
		walSyncs.Add(1)
		return sqlite3.SQLITE_OK
	}
	if rc := l.write(); rc != sqlite3.SQLITE_OK {
		return rc
	}
	l.growAhead()
	for {
		switch err := walSync(l.fd); err {
		case nil:
			l.loose = false
			walSyncs.Add(1)
			return sqlite3.SQLITE_OK
		case unix.EINTR:
		case unix.ENOSPC, unix.EDQUOT: // a file system may find room for what was written only now
			return sqlite3.SQLITE_FULL
		default: // what was written since the last sync may be gone: the commit fails
			return sqlite3.SQLITE_IOERR_FSYNC
		}
	}
}

// readHeld is xRead.
func readHeld(tls *libc.TLS, file, data uintptr, n int32, off int64) int32 {
	l := heldOf(file)
	if rc := l.write(); rc != sqlite3.SQLITE_OK {
		return rc
	}
	return getFunc[func(*libc.TLS, uintptr, uintptr, int32, int64) int32](l.base().FxRead)(tls, file, data, n, off)
}

// truncateHeld is xTruncate.
func truncateHeld(tls *libc.TLS, file uintptr, size int64) int32 {
	l := heldOf(file)
	if rc := l.write(); rc != sqlite3.SQLITE_OK {
		return rc
	}
	l.size = min(l.size, size)
	return getFunc[func(*libc.TLS, uintptr, int64) int32](l.base().FxTruncate)(tls, file, size)
}

// sizeHeld is xFileSize.
func sizeHeld(tls *libc.TLS, file, size uintptr) int32 {
	l := heldOf(file)
	if rc := l.write(); rc != sqlite3.SQLITE_OK {
		return rc
	}
	return getFunc[func(*libc.TLS, uintptr, uintptr) int32](l.base().FxFileSize)(tls, file, size)
}

// closeHeld is xClose. What is still held belongs to no commit.
func closeHeld(tls *libc.TLS, file uintptr) int32 {
	l := heldOf(file)
	registered.mu.Lock()
	delete(registered.logs, file)
	registered.mu.Unlock()
	return getFunc[func(*libc.TLS, uintptr) int32](l.base().FxClose)(tls, file)
}

func (l *heldLog) base() *sqlite3.Tsqlite3_io_methods {
	return at[sqlite3.Tsqlite3_io_methods](l.m.base)
}
