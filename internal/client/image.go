package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"time"
)

// Image is what the name of an image means on the server's host.
type Image struct {
	Name     string    `json:"name"`
	Digest   string    `json:"digest"`
	Layers   int       `json:"layers"`
	Bytes    int64     `json:"size_bytes"`
	Present  bool      `json:"present"`
	Imported bool      `json:"imported"`
	PulledAt time.Time `json:"pulled_at"`
	UsedAt   time.Time `json:"used_at"`
}

// PrunedImages is what PruneImages removed.
type PrunedImages struct {
	Layers int   `json:"layers"`
	Bytes  int64 `json:"size_bytes"`
}

const imagesPath = "/v1/outboard/images"

// Images lists the images of the server's host.
func (c *Client) Images(ctx context.Context) ([]Image, error) {
	var out struct {
		Data []Image `json:"data"`
	}
	return out.Data, c.call(ctx, http.MethodGet, imagesPath, nil, nil, &out)
}

// PullImage makes a name mean what its registry says now. It takes as long as the download.
func (c *Client) PullImage(ctx context.Context, name string) (i Image, err error) {
	return i, c.call(ctx, http.MethodPost, imagesPath+"/pull", nil, map[string]string{"name": name}, &i)
}

// ImportImage makes a name mean the image of an archive. It is streamed, and not repeated.
func (c *Client) ImportImage(ctx context.Context, name string, r io.Reader) (i Image, err error) {
	resp, err := c.once(ctx, http.MethodPost, imagesPath+"/import", url.Values{"name": {name}}, io.NopCloser(r),
		"application/x-tar")
	if err != nil {
		return i, err
	}
	return i, decode(resp, &i)
}

// RemoveImage forgets what a name means.
func (c *Client) RemoveImage(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, imagesPath, url.Values{"name": {name}}, nil, nil)
}

// PruneImages removes layers that no sandbox uses and nobody has begun with for a while.
func (c *Client) PruneImages(ctx context.Context, unused time.Duration) (p PrunedImages, err error) {
	return p, c.call(ctx, http.MethodPost, imagesPath+"/prune", nil,
		map[string]int64{"unused_seconds": int64(unused.Seconds())}, &p)
}
