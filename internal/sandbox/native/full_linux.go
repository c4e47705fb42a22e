package native

import (
	"errors"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
)

// minDiskSpace is about what the small files of a sandbox take, in bytes, and leastInodes what the kernel may
// have made and removed again for a mount that failed.
const minDiskSpace, leastInodes = 1 << 20, 16

// full makes an error of a creation that of a full disk, where it is one. ENOSPC by itself is not: the kernel
// answers so at its limits of namespaces and mounts as well. It has to be about a file of the provider's, or the
// disk has to be full.
func (p *Provider) full(err error) error {
	if e, ok := errors.AsType[*outboard.Error](err); ok && e.Code == outboard.CodeDiskFull {
		return err
	}
	if !outboard.DiskFull(err) || !p.about(err) && !p.noDiskSpace() {
		return err
	}
	return outboard.FullDisk("preparing its files", err)
}

// about reports whether an error names a file below the provider's directory.
func (p *Provider) about(err error) bool {
	var paths []string
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		paths = append(paths, e.Path)
	}
	if e, ok := errors.AsType[*os.LinkError](err); ok {
		paths = append(paths, e.Old, e.New)
	}
	for _, path := range paths {
		if strings.HasPrefix(path, p.dir+"/") {
			return true
		}
	}
	return false
}

// noDiskSpace reports whether the disk that the provider uses has no room for a sandbox. A disk that cannot be
// asked has.
func (p *Provider) noDiskSpace() bool {
	var st unix.Statfs_t
	if err := unix.Statfs(p.dir, &st); err != nil {
		return false
	}
	return st.Bavail*uint64(st.Bsize) < minDiskSpace || st.Files > 0 && st.Ffree < leastInodes
}
