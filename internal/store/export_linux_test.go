package store

// WALSyncs is how many syncs of write-ahead logs there were.
func WALSyncs() int64 { return walSyncs.Load() }

// SetWALSync replaces how a log is synced until the function it returns is called.
func SetWALSync(f func(fd int) error) (restore func()) {
	was := walSync
	walSync = f
	return func() { walSync = was }
}
