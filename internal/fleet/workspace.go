package fleet

import (
	"context"
	"fmt"
	"strings"

	"github.com/outboard-dev/outboard"
)

// WorkspaceKey is the session metadata that says what the session's first machine starts with: "<file id>:tar" names an upload
// in the form that Save makes, whose entries lie below the workspace's own name. A client that sends work along sets it when it
// creates the session. Every machine before the first checkpoint is made from it; from then on the checkpoints hold the work.
const WorkspaceKey = "outboard.workspace"

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
	if kind != "tar" {
		return outboard.Errorf(outboard.Invalid, "metadata %s must be \"<file id>:tar\", not %q", WorkspaceKey, ref)
	}
	file, err := f.cfg.Store.File(ctx, outboard.FileID(id))
	if err == nil && (file.Org != h.Org || file.Session != "" && file.Session != r.Session) || outboard.KindOf(err) == outboard.NotFound {
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
	if err := m.Load(ctx, "sent:"+id, body); err != nil {
		return fmt.Errorf("unpacking the work that was sent: %w", err)
	}
	return nil
}
