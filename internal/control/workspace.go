package control

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/fleet"
	"github.com/outboard-dev/outboard/internal/text"
)

const (
	// deletedEntry begins a delta: its content is the paths that are no more, each ended by a zero byte. See
	// internal/guest.
	deletedEntry = ".outboard/deleted"
	// maxDeletedList bounds that content.
	maxDeletedList = 256 << 20
	// maxWorkspaceEntries bounds the paths that are held in memory while deltas are merged.
	maxWorkspaceEntries = 2_000_000
	// maxHeld bounds the memory of all workspaces that are merged, compared or sent at a time, and maxHeldOrg
	// what one organization has of it: a reader may be as slow as it likes. It is a workspace of two million
	// files of ordinary names.
	maxHeld    = 512 << 20
	maxHeldOrg = maxHeld * 3 / 4
	// maxPath bounds one name of a list of deleted files; no system has longer ones.
	maxPath = 64 << 10
	// maxDeltas bounds a chain, against rows that refer to one another in a circle.
	maxDeltas = 1000
)

// Workspace is a session's saved workspace, ready to be written as one tar. It holds memory until Close.
type Workspace struct {
	c     *Control
	chain []outboard.Checkpoint // oldest first
	final *tree                 // what is there in the end
	// bytes of memory that it was given of Control.held, and used those that it has taken of them
	held int64
	used int64
	org  outboard.OrgID
}

// Close gives back the memory that the workspace holds.
func (w *Workspace) Close() {
	w.c.held.give(w.org, w.held)
	w.held = 0
}

// hold asks for some more memory.
func (w *Workspace) hold(bytes int) error {
	const step = 1 << 20 // so that not every name takes the lock
	w.used += int64(bytes)
	if w.used <= w.held {
		return nil
	}
	if err := w.c.held.take(w.org, step+int64(bytes)); err != nil {
		return err
	}
	w.held += step + int64(bytes)
	return nil
}

// memory is how much all workspaces hold.
type memory struct {
	mu  sync.Mutex
	all int64
	of  map[outboard.OrgID]int64
}

func (m *memory) take(org outboard.OrgID, bytes int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all+bytes > maxHeld || m.of[org]+bytes > maxHeldOrg {
		return outboard.Errorf(outboard.Exhausted, "the workspaces that are read at the moment have too many files "+
			"to be held at a time").
			WithHint("try again when another download is over")
	}
	if m.of == nil {
		m.of = map[outboard.OrgID]int64{}
	}
	m.all += bytes
	m.of[org] += bytes
	return nil
}

func (m *memory) give(org outboard.OrgID, bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all -= bytes
	if m.of[org] -= bytes; m.of[org] <= 0 {
		delete(m.of, org)
	}
}

// source is where an entry's newest version is: which delta, which entry of it. Of a hard link, the entry is its
// target's.
type source struct{ delta, entry int }

// Workspace returns the saved workspace of a session as its next machine would start with it, or NotFound when
// none was saved. It reads only checkpoints, so it works when the session's sandbox is busy, on another host, or
// gone. That somebody takes it is in the audit before any of it leaves.
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
		return nil, outboard.Errorf(outboard.NotFound, "session %q has saved no workspace yet", id).
			WithCode("no_workspace")
	}
	all, err := c.store.Checkpoints(ctx, id)
	if err != nil {
		return nil, wrapLookup("checkpoints of session", string(id), err)
	}
	w, err := c.workspaceAt(ctx, by.In(), all, at)
	if err != nil {
		return nil, err
	}
	if err := c.record(ctx, by, "session.workspace", string(id), map[string]any{"seq": h.Head,
		"checkpoint": at}); err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

// SentWorkspace opens the work that was sent along with a session, as it was uploaded, and tells its kind: tar
// or tar.gz. Uploads are not given back otherwise. Who may read the workspace may read this: its first version
// was made from it. The caller closes it.
func (c *Control) SentWorkspace(ctx context.Context, by outboard.Caller,
	id outboard.SessionID) (outboard.File, string, io.ReadCloser, error) {
	h, err := c.header(ctx, by, id)
	if err != nil {
		return outboard.File{}, "", nil, err
	}
	ref, kind, ok := strings.Cut(h.Metadata[fleet.WorkspaceKey], ":")
	if !ok || kind != "tar" && kind != fleet.WorkspaceGzip {
		return outboard.File{}, "", nil, outboard.Errorf(outboard.NotFound, "session %q was sent no work", id).
			WithCode("no_workspace")
	}
	f, err := c.fileOf(ctx, h.Org, outboard.FileID(ref))
	if err == nil && (f.Session != "" && f.Session != id || c.expired(f)) {
		err = notFound("file", ref) // as for the machine that is made from it
	}
	if err != nil {
		return f, "", nil, err
	}
	body, err := c.blob.Open(ctx, f.Blob)
	if err != nil {
		return f, "", nil, outboard.Errorf(outboard.KindOf(err), "opening what was sent: %w", err)
	}
	if err := c.record(ctx, by, "session.workspace", string(id), map[string]any{"sent": f.ID}); err != nil {
		body.Close()
		return f, "", nil, err
	}
	return f, kind, body, nil
}

// workspaceAt returns the workspace as a checkpoint saved it. all are the checkpoints of its session.
func (c *Control) workspaceAt(ctx context.Context, org outboard.OrgID, all []outboard.Checkpoint,
	at outboard.CheckpointID) (_ *Workspace, err error) {
	w := &Workspace{c: c, org: org}
	w.final = newTree(w.hold)
	defer func() {
		if err != nil {
			w.Close()
		}
	}()
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
			return nil, outboard.Errorf(outboard.Internal, "the checkpoints behind %s do not form a chain at %s", at,
				next)
		}
		chain = append(chain, k)
		next = k.Parent
	}
	slices.Reverse(chain)
	return chain, nil
}

// merge lays one delta over what the older ones left. Everything in it was written by the guest, from names a
// tool chose.
func (w *Workspace) merge(ctx context.Context, delta int) error {
	own := map[int32]int{} // entries of this delta by node but for directories, for its hard links
	return w.entries(ctx, delta, func(n int, h *tar.Header, r io.Reader) error {
		if h.Name == deletedEntry {
			return w.remove(h, r)
		}
		name := path.Clean(h.Name)
		if name == "." || name == ".." || path.IsAbs(name) || strings.HasPrefix(name, "../") {
			return outboard.Errorf(outboard.Internal, "an entry is named %q", text.Clip(h.Name, shownID))
		}
		entry := n
		if h.Typeflag == tar.TypeLink {
			target, ok := own[w.final.find(path.Clean(h.Linkname))]
			if !ok {
				return outboard.Errorf(outboard.Internal, "%q is a link to what is not there",
					text.Clip(h.Name, shownID))
			}
			entry = target
		}
		at, err := w.final.put(name, source{delta, entry})
		if err != nil {
			return err
		}
		if h.Typeflag != tar.TypeDir {
			w.final.clear(at) // a file where a directory was
		}
		switch h.Typeflag {
		case tar.TypeReg, tar.TypeSymlink, tar.TypeFifo, tar.TypeLink:
			own[at] = entry
		}
		if w.final.count > maxWorkspaceEntries {
			return outboard.Errorf(outboard.TooLarge, "the workspace has more than %d entries", maxWorkspaceEntries)
		}
		return nil
	})
}

// remove applies the list of deleted paths.
func (w *Workspace) remove(h *tar.Header, r io.Reader) error {
	if h.Size > maxDeletedList {
		return outboard.Errorf(outboard.TooLarge, "a list of deleted files has %d bytes", h.Size)
	}
	list := bufio.NewScanner(r)
	list.Buffer(nil, maxPath)
	list.Split(func(data []byte, end bool) (int, []byte, error) {
		if i := bytes.IndexByte(data, 0); i >= 0 {
			return i + 1, data[:i], nil
		}
		if end && len(data) > 0 {
			return len(data), data, nil
		}
		return 0, nil, nil
	})
	for list.Scan() {
		if at := w.final.find(list.Text()); at != 0 {
			w.final.drop(at)
			w.final.clear(at)
		}
	}
	return list.Err()
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

// Write writes the workspace as one tar, oldest parts first. A file with several names comes once, and as hard
// links after that.
func (w *Workspace) Write(ctx context.Context, dst io.Writer) error {
	tw := tar.NewWriter(dst)
	for i := range w.chain {
		nodes := map[int][]int32{}
		w.final.all(func(at int32, n *node) {
			if n.delta == i {
				nodes[n.entry] = append(nodes[n.entry], at)
			}
		})
		if len(nodes) == 0 {
			continue
		}
		err := w.entries(ctx, i,
			func(n int, h *tar.Header, r io.Reader) error { return writeEntry(tw, w.final.paths(nodes[n]), h, r) })
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
