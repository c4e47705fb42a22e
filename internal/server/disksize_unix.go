//go:build unix

package server

import (
	"math"

	"golang.org/x/sys/unix"
)

// diskSize is the size of the disk that a directory is on; 0 = not known.
func diskSize(dir string) int64 {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0
	}
	return int64(min(uint64(st.Blocks)*uint64(st.Bsize), math.MaxInt64))
}
