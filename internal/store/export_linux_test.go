package store

// WALSyncs is how many syncs of write-ahead logs there were.
func WALSyncs() int64 { return walSyncs.Load() }

// SetWALSync replaces how a log is synced until the function it returns is called.
func SetWALSync(f func(fd int) error) (restore func()) {
	was := walSync
	walSync = f
	return func() { walSync = was }
}

// SetWALWrite replaces how a log that was synced before is written until the function it returns is called.
func SetWALWrite(f func(fd int, b []byte, off int64) (int, error)) (restore func()) {
	was := walWrite
	walWrite = f
	return func() { walWrite = was }
}
