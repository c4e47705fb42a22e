package fleet

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/outboard-dev/outboard"
)

// WorkspaceKey is the session metadata that says what the session's first machine starts with: "<file id>:tar"
// names an upload in the form that Save makes, whose entries lie below the workspace's own name, "<file
// id>:tar.gz" a compressed one. A client that sends work along sets it when it creates the session. Every
// machine before the first checkpoint is made from it; from then on the checkpoints hold the work.
const WorkspaceKey = "outboard.workspace"

// WorkspaceGzip is the kind of a compressed upload.
const WorkspaceGzip = "tar.gz"

// maxWorkspace bounds what a compressed upload unpacks to, against one that would fill the host's disk.
const maxWorkspace = 16 << 30

// seed loads the work that was sent along into a fresh machine. It touches nothing when a checkpoint was restored.
func (f *Fleet) seed(ctx context.Context, m *machine, r Request) error {
	if r.Checkpoint != "" {
		return nil
	}
	h, err := f.cfg.Store.Session(ctx, r.Session)
	if err != nil {
		return err
	}
	ref := h.Metadata[WorkspaceKey]
	if ref == "" {
		return nil
	}
	id, kind, _ := strings.Cut(ref, ":")
	if kind != "tar" && kind != WorkspaceGzip {
		return outboard.Errorf(outboard.Invalid,
			"metadata %s must be \"<file id>:tar\" or \"<file id>:tar.gz\", not %q", WorkspaceKey, ref)
	}
	file, err := f.cfg.Store.File(ctx, outboard.FileID(id))
	if err == nil && (file.Org != h.Org || file.Session != "" && file.Session != r.Session) ||
		outboard.KindOf(err) == outboard.NotFound {
		err = outboard.Errorf(outboard.NotFound, "there is no file %q", id) // as good as none, to the byte
	}
	if err != nil {
		return fmt.Errorf("finding the work that was sent: %w", err)
	}
	body, err := f.cfg.Blob.Open(ctx, file.Blob)
	if err != nil {
		return fmt.Errorf("finding the work that was sent: %w", err)
	}
	defer body.Close()
	var tar io.Reader = body
	if kind == WorkspaceGzip {
		z, err := gzip.NewReader(body)
		if err != nil {
			return outboard.Errorf(outboard.Invalid, "unpacking the work that was sent: %w", err)
		}
		tar = &boundedReader{z, maxWorkspace}
	}
	if err := m.Load(ctx, "sent:"+id, tar); err != nil {
		return fmt.Errorf("unpacking the work that was sent: %w", err)
	}
	return nil
}

// boundedReader fails where io.LimitReader would end as if that were all.
type boundedReader struct {
	r    io.Reader
	left int64
}

// Read implements io.Reader.
func (b *boundedReader) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, outboard.Errorf(outboard.TooLarge, "it unpacks to more than %d GB", maxWorkspace>>30)
	}
	return n, err
}
