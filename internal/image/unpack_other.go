//go:build !linux

package image

import (
	"os"

	"github.com/outboard-dev/outboard"
)

func makeWhiteout(*os.File, string) error { return noOverlay() }

func makeOpaque(*os.File, bool) error { return noOverlay() }

func syncTree(string) error { return nil }

func noOverlay() error {
	return outboard.Errorf(outboard.Unavailable, "layers are unpacked on Linux only")
}
