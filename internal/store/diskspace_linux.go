package store

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// minDiskSpace is less than any file of SQLite's grows by at once.
const minDiskSpace = 32 << 10

// noDiskSpace reports whether a directory's file system has no room for more, or no inodes. What cannot be asked
// has room.
func noDiskSpace(dir string) bool {
	left, ok := diskSpace(dir)
	return ok && left < minDiskSpace
}

// room returns how many bytes a directory's file system has left for this user: none where there are no inodes.
// It is false where it cannot be asked.
func diskSpace(dir string) (uint64, bool) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, false
	}
	if st.Files > 0 && st.Ffree == 0 {
		return 0, true
	}
	return st.Bavail * uint64(st.Bsize), true
}

// allocate makes a file of nothing that has its room on the disk.
func allocate(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(os.NewSyscallError("fallocate", unix.Fallocate(int(f.Fd()), 0, 0, size)), f.Close())
}
