package control

import (
	"errors"
	"io"

	"github.com/outboard-dev/outboard/internal/blob"
)

// Hold keeps what comes from r in a file that nobody else knows while check reads it, and returns it from its
// beginning: for a body of which nothing may be used before all of it has been seen. check must read to the end
// that it wants. Its error is returned, unless reading r or writing the file failed before; what a disk is to
// blame for is a blob.SpoolError. The caller closes what is returned.
func (c *Control) Hold(r io.Reader, check func(io.Reader) error) (io.ReadCloser, error) {
	f, err := c.spool.New()
	if err != nil {
		return nil, err
	}
	from := &spooling{r: r, w: f}
	err = check(from)
	if from.err != nil {
		err = blob.SpoolError(from.err)
	}
	if err == nil {
		if _, err = f.Seek(0, io.SeekStart); err == nil {
			return f, nil
		}
		err = blob.SpoolError(err)
	}
	return nil, errors.Join(err, f.Close())
}
