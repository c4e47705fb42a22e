//go:build !unix

package image

import "github.com/outboard-dev/outboard"

func (s *Store) makeHeld(string) (string, func(), error) {
	return "", nil, outboard.Errorf(outboard.Unavailable, "images are not kept on this system")
}

func (s *Store) sweepHeld() {}
