package llm

import (
	"context"
	"strings"

	"github.com/outboard-dev/outboard"
)

// loadBlob returns the bytes of a reference, or an error fit for the user.
func loadBlob(ctx context.Context, req Request, ref outboard.BlobRef) ([]byte, error) {
	if req.Load == nil {
		return nil, outboard.Errorf(outboard.Internal, "loading content %s: the request has no loader", ref.Digest)
	}
	b, err := req.Load(ctx, ref)
	if err != nil {
		return nil, outboard.Errorf(outboard.KindOf(err), "loading content %s: %w", ref.Digest, err)
	}
	return b, nil
}

// contentText returns the text of one text block, wherever it is kept.
func contentText(ctx context.Context, req Request, c outboard.Content) (string, error) {
	if c.Blob == nil {
		return c.Text, nil
	}
	b, err := loadBlob(ctx, req, *c.Blob)
	return string(b), err
}

// plainText joins the text blocks of content, newline separated, loading what is kept as blobs.
func plainText(ctx context.Context, req Request, content []outboard.Content) (string, error) {
	var parts []string
	for _, c := range content {
		if c.Type != "text" {
			continue
		}
		text, err := contentText(ctx, req, c)
		if err != nil {
			return "", err
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "\n"), nil
}
