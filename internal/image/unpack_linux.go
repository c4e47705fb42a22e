package image

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// makeWhiteout makes what an overlay takes for a deletion: a character device 0, 0, which anybody may make since
// it is none.
func makeWhiteout(dir *os.File, name string) error {
	if err := unix.Mknodat(int(dir.Fd()), name, unix.S_IFCHR, 0); err != nil {
		return fmt.Errorf("marking a deletion: %w", err)
	}
	return nil
}

// makeOpaque marks a directory as hiding what lies below. Overlays read one of two attributes, by how they are
// mounted; the first takes root to write.
func makeOpaque(dir *os.File, root bool) error {
	if root {
		if err := unix.Fsetxattr(int(dir.Fd()), "trusted.overlay.opaque", []byte("y"), 0); err != nil {
			return fmt.Errorf("marking a directory: %w", err)
		}
	}
	if err := unix.Fsetxattr(int(dir.Fd()), "user.overlay.opaque", []byte("y"), 0); err != nil {
		return fmt.Errorf("marking a directory: %w", err)
	}
	return nil
}

// syncTree makes sure that a layer is on the disk before it has its name: a name that survives a crash with less
// behind it would be taken for the whole.
func syncTree(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return os.NewSyscallError("syncfs", unix.Syncfs(int(f.Fd())))
}
