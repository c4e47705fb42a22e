//go:build !unix

package image

import (
	"context"

	"github.com/outboard-dev/outboard"
)

func (s *Store) lock(context.Context, string, bool) (func(), error) {
	return nil, outboard.Errorf(outboard.Unavailable, "images are not kept on this system")
}
