package store

import "golang.org/x/sys/unix"

// leastRoom is less than any file of SQLite's grows by at once.
const leastRoom = 32 << 10

// noRoom reports whether a directory's file system has no room for more, or no inodes. What cannot be asked has room.
func noRoom(dir string) bool {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return false
	}
	return st.Bavail*uint64(st.Bsize) < leastRoom || st.Files > 0 && st.Ffree == 0
}
