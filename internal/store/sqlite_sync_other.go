//go:build !linux

package store

// vfs returns the name of the VFS to open databases through: SQLite's own, which knows how files are synced here.
func vfs() (string, error) { return "", nil }
