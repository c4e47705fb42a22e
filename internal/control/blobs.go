package control

import (
	"context"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/blob"
)

// PrunedBlobs is what PruneBlobs removed, or would have.
type PrunedBlobs = blob.Pruned

// minUnused is the least age of a blob that may go: one that was stored just now may be about to be named by a row.
const minUnused = 24 * time.Hour

// PruneBlobs removes the content of files, checkpoints and long outputs that nothing in the database names any
// more and that was last stored longer ago than unused. With dry it only counts. It reads the whole database.
func (c *Control) PruneBlobs(ctx context.Context, by outboard.Caller, unused time.Duration,
	dry bool) (PrunedBlobs, error) {
	if err := operator(by); err != nil {
		return PrunedBlobs{}, err
	}
	if unused < minUnused {
		return PrunedBlobs{}, invalid("unused_seconds must be at least %d: what was stored just now may not be "+
			"named yet", int64(minUnused.Seconds()))
	}
	p, ok := c.blob.(blob.Pruner)
	if !ok {
		return PrunedBlobs{}, outboard.Errorf(outboard.Unimplemented,
			"content in a bucket is not removed: a bucket cannot make sure that nobody stores the same again meanwhile").
			WithHint("only what lies in blobs of the data directory can be pruned; a rule of the bucket that " +
				"removes old objects would remove what is in use")
	}
	before := c.clock().Add(-unused)
	if !dry {
		if err := c.record(ctx, by, "blobs.prune", "", map[string]any{"before": before}); err != nil {
			return PrunedBlobs{}, err
		}
	}
	named, err := c.store.BlobsNamed(ctx)
	if err != nil {
		return PrunedBlobs{}, err
	}
	return p.Prune(ctx, before, named.Has, dry)
}
