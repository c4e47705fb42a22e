package control

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/outboard-dev/outboard"
)

const (
	// deletedEntry begins a delta: its content is the paths that are no more, each ended by a zero byte. See internal/guest.
	deletedEntry = ".outboard/deleted"
	// maxDeletedList bounds that content.
	maxDeletedList = 256 << 20
	// maxWorkspaceEntries bounds the paths that are held in memory while deltas are merged.
	maxWorkspaceEntries = 2_000_000
	// maxDeltas bounds a chain, against rows that refer to one another in a circle.
	maxDeltas = 1000
)

// Workspace is a session's saved workspace, ready to be written as one tar.
type Workspace struct {
	c     *Control
	chain []outboard.Checkpoint // oldest first
	final map[string]source     // what is there in the end, by path without a trailing slash
}

// source is where an entry's newest version is: which delta, which entry of it. Of a hard link, the entry is its target's.
type source struct{ delta, entry int }

// Workspace returns the saved workspace of a session as its next machine would start with it, or NotFound when none was saved. It
// reads only checkpoints, so it works when the session's sandbox is busy, on another host, or gone. That somebody takes it is in the audit
// before any of it leaves.
func (c *Control) Workspace(ctx context.Context, by outboard.Caller, id outboard.SessionID) (*Workspace, error) {
	h, err := c.header(ctx, by, id)
	if err != nil {
		return nil, err
	}
	at, err := c.checkpointAt(ctx, id, h.Head)
	if err != nil {
		return nil, err
	}
	if at == "" {
		return nil, outboard.Errorf(outboard.NotFound, "session %q has saved no workspace yet", id).WithCode("no_workspace")
	}
	all, err := c.store.Checkpoints(ctx, id)
	if err != nil {
		return nil, look("checkpoints of session", string(id), err)
	}
	w, err := c.workspaceAt(ctx, all, at)
	if err != nil {
		return nil, err
	}
	return w, c.record(ctx, by, "session.workspace", string(id), map[string]any{"seq": h.Head, "checkpoint": at})
}

// workspaceAt returns the workspace as a checkpoint saved it. all are the checkpoints of its session.
func (c *Control) workspaceAt(ctx context.Context, all []outboard.Checkpoint, at outboard.CheckpointID) (*Workspace, error) {
	w := &Workspace{c: c, final: map[string]source{}}
	var err error
	if w.chain, err = chainOf(all, at); err != nil {
		return nil, err
	}
	if err := c.settle(ctx, w.chain); err != nil {
		return nil, err
	}
	for i := range w.chain {
		if err := w.merge(ctx, i); err != nil {
			return nil, fmt.Errorf("reading checkpoint %s: %w", w.chain[i].ID, err)
		}
	}
	return w, nil
}

// chainOf returns a checkpoint with what it builds on, oldest first.
func chainOf(all []outboard.Checkpoint, at outboard.CheckpointID) ([]outboard.Checkpoint, error) {
	byID := make(map[outboard.CheckpointID]outboard.Checkpoint, len(all))
	for _, k := range all {
		byID[k.ID] = k
	}
	var chain []outboard.Checkpoint
	for next := at; next != ""; {
		k, ok := byID[next]
		if !ok || len(chain) > maxDeltas {
			return nil, outboard.Errorf(outboard.Internal, "the checkpoints behind %s do not form a chain at %s", at, next)
		}
		chain = append(chain, k)
		next = k.Parent
	}
	slices.Reverse(chain)
	return chain, nil
}

// merge lays one delta over what the older ones left. Everything in it was written by the guest, from names a tool chose.
func (w *Workspace) merge(ctx context.Context, delta int) error {
	own := map[string]int{} // entries of this delta by path but for directories, for its hard links
	return w.entries(ctx, delta, func(n int, h *tar.Header, r io.Reader) error {
		if h.Name == deletedEntry {
			return w.remove(h, r)
		}
		name := strings.Clone(path.Clean(h.Name)) // a part of a header of up to 1 MiB, which would stay
		if name == "." || path.IsAbs(name) || strings.HasPrefix(name, "../") {
			return outboard.Errorf(outboard.Internal, "an entry is named %q", clipped(h.Name))
		}
		if h.Typeflag != tar.TypeDir {
			w.removeTree(name) // a file where a directory was
		}
		entry := n
		switch h.Typeflag {
		case tar.TypeReg, tar.TypeSymlink, tar.TypeFifo:
			own[name] = n
		case tar.TypeLink:
			target, ok := own[path.Clean(h.Linkname)]
			if !ok {
				return outboard.Errorf(outboard.Internal, "%q is a link to what is not there", clipped(h.Name))
			}
			entry, own[name] = target, target
		}
		w.final[name] = source{delta, entry}
		if len(w.final) > maxWorkspaceEntries {
			return outboard.Errorf(outboard.TooLarge, "the workspace has more than %d entries", maxWorkspaceEntries)
		}
		return nil
	})
}

func clipped(s string) string { return s[:min(len(s), shownID)] }

// remove applies the list of deleted paths.
func (w *Workspace) remove(h *tar.Header, r io.Reader) error {
	if h.Size > maxDeletedList {
		return outboard.Errorf(outboard.TooLarge, "a list of deleted files has %d bytes", h.Size)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	gone := map[string]bool{}
	for p := range strings.SplitSeq(strings.TrimSuffix(string(b), "\x00"), "\x00") {
		gone[p] = true
		delete(w.final, p)
	}
	for name := range w.final {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if gone[dir] {
				delete(w.final, name)
				break
			}
		}
	}
	return nil
}

// removeTree drops what is below name, which was a directory. Most names were not, so the map is searched only then.
func (w *Workspace) removeTree(name string) {
	if _, ok := w.final[name]; !ok {
		return
	}
	prefix := name + "/"
	for other := range w.final {
		if strings.HasPrefix(other, prefix) {
			delete(w.final, other)
		}
	}
}

// entries reads the tars of one delta.
func (w *Workspace) entries(ctx context.Context, delta int, visit func(n int, h *tar.Header, r io.Reader) error) error {
	body, err := w.c.blob.Open(ctx, w.chain[delta].Delta)
	if err != nil {
		return err
	}
	defer body.Close()
	tr := tar.NewReader(body)
	for n := 0; ; n++ {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return outboard.Errorf(outboard.Internal, "the tar is broken: %w", err)
		}
		if h.Size > outboard.MaxSavedFile { // which a few bytes can claim to be all holes
			return outboard.Errorf(outboard.TooLarge, "%q has %d bytes", h.Name, h.Size)
		}
		if err := visit(n, h, tr); err != nil {
			return err
		}
	}
}

// Write writes the workspace as one tar, oldest parts first. A file with several names comes once, and as hard links after that.
func (w *Workspace) Write(ctx context.Context, dst io.Writer) error {
	tw := tar.NewWriter(dst)
	for i := range w.chain {
		names := map[int][]string{}
		for name, s := range w.final {
			if s.delta == i {
				names[s.entry] = append(names[s.entry], name)
			}
		}
		if len(names) == 0 {
			continue
		}
		err := w.entries(ctx, i, func(n int, h *tar.Header, r io.Reader) error { return writeEntry(tw, names[n], h, r) })
		if err != nil {
			return fmt.Errorf("reading checkpoint %s: %w", w.chain[i].ID, err)
		}
	}
	return tw.Close()
}

// writeEntry writes an entry under the names that still mean it.
func writeEntry(tw *tar.Writer, names []string, h *tar.Header, r io.Reader) error {
	slices.Sort(names)
	for i, name := range names {
		out := *h
		out.Name = name
		switch {
		case h.Typeflag == tar.TypeDir:
			out.Name += "/"
		case i > 0:
			out.Typeflag, out.Linkname, out.Size = tar.TypeLink, names[0], 0
		}
		if err := tw.WriteHeader(&out); err != nil {
			return err
		}
		if i == 0 && h.Typeflag == tar.TypeReg {
			if _, err := io.Copy(tw, r); err != nil {
				return err
			}
		}
	}
	return nil
}
