package store

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// SQLite calls fsync(2) for every commit, which writes the inode's times to the file system's journal along with
// the data. A commit needs the data, and of the metadata only what leads to it (the size, where the file grew):
// fdatasync(2) promises just that. So the database is opened through a VFS that is SQLite's own but for the
// write-ahead log: how it is synced, and that what was written to it since is written at once.

// syncVFS is the VFS's name.
const syncVFS = "outboard-fdatasync"

// walSyncs counts the syncs of write-ahead logs that this VFS has made, of all databases of the process.
var walSyncs atomic.Int64

// walSync makes the data of a write-ahead log durable. Only tests replace it.
var walSync = unix.Fdatasync

// registered holds what outlives every connection, in memory that is SQLite's and not the collector's.
var registered struct {
	base uintptr // the *sqlite3_vfs this one is made of

	mu      sync.Mutex
	methods map[uintptr]*walMethods // by the *sqlite3_io_methods they are made of
	logs    map[uintptr]*heldLog    // by the *sqlite3_file
}

// walMethods are the methods of a write-ahead log: of a new file, and of one that was synced before.
type walMethods struct{ base, first, rest uintptr }

// vfs returns the name of the VFS to open databases through, "" for SQLite's own.
var vfs = sync.OnceValues(func() (string, error) {
	tls := libc.NewTLS()
	defer tls.Close()
	base := sqlite3.Xsqlite3_vfs_find(tls, 0)
	if base == 0 {
		return "", errors.New("SQLite has no file system")
	}
	name, err := libc.CString(syncVFS)
	if err != nil {
		return "", fmt.Errorf("naming a file system of SQLite: %w", err)
	}
	made, err := clone[sqlite3.Tsqlite3_vfs](tls, base)
	if err != nil {
		return "", err
	}
	v := at[sqlite3.Tsqlite3_vfs](made)
	v.FpNext, v.FzName = 0, name
	setFunc(&v.FxOpen, openSynced)
	registered.base, registered.methods, registered.logs = base, map[uintptr]*walMethods{}, map[uintptr]*heldLog{}
	if rc := sqlite3.Xsqlite3_vfs_register(tls, made, 0); rc != sqlite3.SQLITE_OK {
		return "", fmt.Errorf("registering a file system of SQLite: code %d", rc)
	}
	return syncVFS, nil
})

// openSynced is xOpen: SQLite's own, and then the methods of a write-ahead log are ours.
func openSynced(tls *libc.TLS, vfs, name, file uintptr, flags int32, outFlags uintptr) int32 {
	open := getFunc[func(*libc.TLS, uintptr, uintptr, uintptr, int32,
		uintptr) int32](at[sqlite3.Tsqlite3_vfs](registered.base).FxOpen)
	if rc := open(tls, vfs, name, file, flags, outFlags); rc != sqlite3.SQLITE_OK ||
		flags&sqlite3.SQLITE_OPEN_WAL == 0 {
		return rc
	}
	f := at[sqlite3.Tsqlite3_file](file)
	if m := methodsOver(tls, f.FpMethods); m != nil {
		f.FpMethods = m.first
	}
	return sqlite3.SQLITE_OK
}

// methodsOver returns the methods of a write-ahead log made of a file's own; nil, without memory, leaves it those.
func methodsOver(tls *libc.TLS, base uintptr) *walMethods {
	registered.mu.Lock()
	defer registered.mu.Unlock()
	if m := registered.methods[base]; m != nil {
		return m
	}
	first, err := clone[sqlite3.Tsqlite3_io_methods](tls, base)
	if err != nil {
		return nil
	}
	rest, err := clone[sqlite3.Tsqlite3_io_methods](tls, base)
	if err != nil {
		return nil
	}
	setFunc(&at[sqlite3.Tsqlite3_io_methods](first).FxSync, syncFirst)
	r := at[sqlite3.Tsqlite3_io_methods](rest)
	setFunc(&r.FxSync, syncHeld)
	setFunc(&r.FxWrite, writeHeld)
	setFunc(&r.FxRead, readHeld)
	setFunc(&r.FxTruncate, truncateHeld)
	setFunc(&r.FxFileSize, sizeHeld)
	setFunc(&r.FxClose, closeHeld)
	m := &walMethods{base: base, first: first, rest: rest}
	registered.methods[base], registered.methods[first] = m, m
	return m
}

// syncFirst is xSync of a log that this connection has not synced yet: SQLite's own, which for a new file makes
// its name durable too.
func syncFirst(tls *libc.TLS, file uintptr, flags int32) int32 {
	f := at[sqlite3.Tsqlite3_file](file)
	registered.mu.Lock()
	m := registered.methods[f.FpMethods]
	registered.mu.Unlock()
	sync := getFunc[func(*libc.TLS, uintptr, int32) int32](at[sqlite3.Tsqlite3_io_methods](m.base).FxSync)
	rc := sync(tls, file, flags)
	if rc == sqlite3.SQLITE_OK {
		walSyncs.Add(1)
		hold(m, file)
		f.FpMethods = m.rest
	}
	return rc
}

// clone copies a structure of SQLite's into memory that is never freed.
func clone[T any](tls *libc.TLS, p uintptr) (uintptr, error) {
	c := libc.Xmalloc(tls, libc.Tsize_t(unsafe.Sizeof(*at[T](p))))
	if c == 0 {
		return 0, errors.New("no memory for a file system of SQLite")
	}
	*at[T](c) = *at[T](p)
	return c, nil
}

// at is a pointer of SQLite's as one of Go's. What it points to is not Go memory.
func at[T any](p uintptr) *T { return *(**T)(unsafe.Pointer(&p)) }

// setFunc stores a Go function where SQLite has a function pointer; getFunc is the way back. Only functions
// without a closure.
func setFunc[F any](p *uintptr, f F) { *(*F)(unsafe.Pointer(p)) = f }

func getFunc[F any](p uintptr) F { return *(*F)(unsafe.Pointer(&p)) }
