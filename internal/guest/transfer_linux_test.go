package guest

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
)

// Broken if what the caller's paths are to blame for counts as the guest's fault, or a fault of the guest as the
// caller's.
func TestFileErrorCodes(t *testing.T) {
	for errno, want := range map[syscall.Errno]string{
		syscall.EBUSY: Invalid, syscall.EXDEV: Invalid, syscall.EEXIST: Invalid, syscall.ENOTEMPTY: Invalid, syscall.ENOENT: NotFound,
		syscall.ENOSPC: Full, syscall.EIO: Internal, syscall.EMFILE: Internal,
	} {
		err := fileError("f", fmt.Errorf("moving: %w", &os.PathError{Op: "rename", Path: "f", Err: errno}))
		if e, ok := errors.AsType[*Error](err); !ok || e.Code != want {
			t.Errorf("%v: %v, want the code %s", errno, err, want)
		}
	}
}
