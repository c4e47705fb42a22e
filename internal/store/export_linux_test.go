package store

// WALSyncs is how many syncs of write-ahead logs there were.
func WALSyncs() int64 { return walSyncs.Load() }

// SetWALSync replaces how a log is synced until the function it returns is called. What is written and synced in
// one call is written as ever and synced by f.
func SetWALSync(f func(fd int) error) (restore func()) {
	was, wasBoth := walSync, walWriteSync
	walSync = f
	walWriteSync = func(fd int, b []byte, off int64) (int, error) {
		n, err := walWrite(fd, b, off)
		if err == nil {
			err = f(fd)
		}
		return n, err
	}
	return func() { walSync, walWriteSync = was, wasBoth }
}

// SetWALWrite replaces how a log that was synced before is written until the function it returns is called.
func SetWALWrite(f func(fd int, b []byte, off int64) (int, error)) (restore func()) {
	was, wasBoth := walWrite, walWriteSync
	walWrite, walWriteSync = f, f
	return func() { walWrite, walWriteSync = was, wasBoth }
}

// SetWALWriteSync replaces the call that writes and syncs, and tells of each sync by itself, until the function
// it returns is called.
func SetWALWriteSync(both func(fd int, b []byte, off int64) (int, error), synced func()) (restore func()) {
	was, wasBoth := walSync, walWriteSync
	walWriteSync = both
	walSync = func(fd int) error {
		synced()
		return was(fd)
	}
	return func() { walSync, walWriteSync = was, wasBoth }
}
