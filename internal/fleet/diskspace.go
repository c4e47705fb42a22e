package fleet

import (
	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
)

// noDiskSpace is an error of putting files into a sandbox whose disk may hold limit bytes, 0 without one. That
// they do not fit is said to whoever can change it: with a limit who chose that, else the operator, whose disk
// it is.
func noDiskSpace(err error, limit int64) error {
	switch {
	case !is(err, guest.Full):
		return err
	case limit == 0:
		return outboard.FullDisk("putting files into the sandbox", err)
	}
	const hint = "give its environment, or its template, a larger disk_bytes, or none; or begin with fewer files"
	public := "its files do not fit on the sandbox's disk, for which disk_bytes allows %d bytes"
	return outboard.Errorf(outboard.TooLarge, public+": %w", limit, err).WithPublic(public, limit).WithHint(hint)
}
