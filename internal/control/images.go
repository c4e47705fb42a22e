package control

import (
	"context"
	"io"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/fleet"
)

// Image is what the name of an image means on this host.
type Image = fleet.Image

// PrunedImages is what PruneImages removed.
type PrunedImages = fleet.PrunedImages

// MaxImageUpload bounds the archive of an image.
const MaxImageUpload = 17 << 30

// hostImages is for who runs the server: what a name means holds for every organization, so whoever changes it
// changes what the sandboxes of all of them begin with.
func (c *Control) hostImages(by outboard.Caller) error {
	if err := operator(by); err != nil {
		return err
	}
	return c.boxes(by)
}

// Images lists what names of images mean here.
func (c *Control) Images(_ context.Context, by outboard.Caller) ([]Image, error) {
	if err := c.hostImages(by); err != nil {
		return nil, err
	}
	return c.fleet.Images()
}

// PullImage makes a name mean what its registry says now, for sandboxes that are made from here on.
func (c *Control) PullImage(ctx context.Context, by outboard.Caller, ref string) (Image, error) {
	if err := c.hostImages(by); err != nil {
		return Image{}, err
	}
	if err := c.record(ctx, by, "image.pull", ref, nil); err != nil {
		return Image{}, err
	}
	return c.fleet.PullImage(ctx, ref)
}

// ImportImage makes a name mean the image of an archive.
func (c *Control) ImportImage(ctx context.Context, by outboard.Caller, ref string, r io.Reader) (Image, error) {
	if err := c.hostImages(by); err != nil {
		return Image{}, err
	}
	if err := c.record(ctx, by, "image.import", ref, nil); err != nil {
		return Image{}, err
	}
	return c.fleet.ImportImage(ctx, ref, r)
}

// RemoveImage forgets what a name means.
func (c *Control) RemoveImage(ctx context.Context, by outboard.Caller, ref string) error {
	if err := c.hostImages(by); err != nil {
		return err
	}
	if err := c.record(ctx, by, "image.rm", ref, nil); err != nil {
		return err
	}
	return c.fleet.RemoveImage(ctx, ref)
}

// PruneImages removes layers that no sandbox uses and that nobody has begun with for a while.
func (c *Control) PruneImages(ctx context.Context, by outboard.Caller, unused time.Duration) (PrunedImages, error) {
	if err := c.hostImages(by); err != nil {
		return PrunedImages{}, err
	}
	if unused < 0 {
		return PrunedImages{}, invalid("unused_seconds must not be negative")
	}
	before := c.clock().Add(-unused)
	if err := c.record(ctx, by, "image.prune", "", map[string]any{"before": before}); err != nil {
		return PrunedImages{}, err
	}
	return c.fleet.PruneImages(ctx, before)
}
