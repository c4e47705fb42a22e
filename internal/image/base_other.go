//go:build !linux

package image

import (
	"context"
	"io"
)

func aptMirror(context.Context, string) (string, error) { return "", noOverlay() }

func debootstrap(context.Context, Base, string, string) error { return noOverlay() }

func archive(context.Context, string, func(io.Reader) error) error { return noOverlay() }
