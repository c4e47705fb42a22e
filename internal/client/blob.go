package client

import (
	"context"
	"net/http"
	"time"
)

// PrunedBlobs is what PruneBlobs removed, or would have.
type PrunedBlobs struct {
	Removed int   `json:"removed"`
	Bytes   int64 `json:"size_bytes"` // on the disk
	Kept    int   `json:"kept"`
}

// PruneBlobs removes content that nothing names any more and that was last stored longer ago than unused; with
// dry it only counts.
func (c *Client) PruneBlobs(ctx context.Context, unused time.Duration, dry bool) (p PrunedBlobs, err error) {
	in := map[string]any{"unused_seconds": int64(unused.Seconds()), "dry_run": dry}
	return p, c.call(ctx, http.MethodPost, "/v1/outboard/blobs/prune", nil, in, &p)
}
