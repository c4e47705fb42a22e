//go:build unix

package vault

import (
	"io/fs"
	"syscall"
)

// openNow keeps an open from waiting for whoever writes to a pipe.
const openNow = syscall.O_NONBLOCK

// ownerOf is the uid that a file belongs to.
func ownerOf(info fs.FileInfo) (uid int, ok bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Uid), true
}
