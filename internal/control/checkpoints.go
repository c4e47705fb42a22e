package control

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/blob"
	"github.com/outboard-dev/outboard/internal/fleet"
)

// Limits of a comparison of two checkpoints.
const (
	// maxChanges bounds the changes one comparison lists.
	maxChanges = 10_000
	// maxPatchFile bounds a file that is shown line by line.
	maxPatchFile = 1 << 20
	// maxPatchHeld bounds the content held in memory for all of them.
	maxPatchHeld = 64 << 20
)

// Checkpoint is a saved state of a session's workspace.
type Checkpoint struct {
	outboard.Checkpoint
	Current bool // what the session's next machine would start from
	Durable bool // kept apart from the machine it was made on
}

// Checkpoints returns the checkpoints of a session, oldest first; of a fork also those it shares.
func (c *Control) Checkpoints(ctx context.Context, by outboard.Caller, id outboard.SessionID) ([]Checkpoint, error) {
	h, err := c.header(ctx, by, id)
	if err != nil {
		return nil, err
	}
	at, err := c.checkpointAt(ctx, id, h.Head)
	if err != nil {
		return nil, err
	}
	all, err := c.store.Checkpoints(ctx, id)
	if err != nil {
		return nil, wrapLookup("session", string(id), err)
	}
	out := make([]Checkpoint, len(all))
	for i, k := range all {
		out[i] = Checkpoint{k, k.ID == at, k.Durable() && !k.Thinned()}
	}
	return out, nil
}

// Retention returns how many saved states a session keeps.
func (c *Control) Retention() fleet.Retention {
	if c.fleet == nil {
		return fleet.Retention{}
	}
	return c.fleet.Retention()
}

// StoredBytes returns what checkpoints take together, before compression: what several share counts once.
func (c *Control) StoredBytes(ctx context.Context, list []Checkpoint) (int64, error) {
	var refs []outboard.BlobRef
	for _, k := range list {
		if k.Delta.Digest != "" {
			refs = append(refs, k.Delta)
		}
	}
	return blob.Stored(ctx, c.blob, refs)
}

// FileChange is a path that differs between two checkpoints. Before or After is nil where it is not there.
type FileChange struct {
	Path          string
	Before, After *FileState
	Patch         string // line by line, when asked for and both sides are text; or why there is none
}

// FileState is what a workspace has at a path.
type FileState struct {
	Type string // file, dir, symlink, fifo
	Mode int64
	Size int64
	Link string // of a symlink

	sum  [sha256.Size]byte
	text []byte // kept for a patch
	skip string // why it is not
}

// Comparison is what changed from one checkpoint to another.
type Comparison struct {
	From, To outboard.CheckpointID // "" = the empty workspace
	Changes  []FileChange          // by path
	More     int                   // changes that were left out
}

// CompareCheckpoints tells what changed between two states of a session's workspace. Each is named by a
// checkpoint's id, or by a position of the log, for the state it had then.
func (c *Control) CompareCheckpoints(ctx context.Context, by outboard.Caller, id outboard.SessionID, from, to string,
	patch bool) (*Comparison, error) {
	h, err := c.header(ctx, by, id)
	if err != nil {
		return nil, err
	}
	all, err := c.store.Checkpoints(ctx, id)
	if err != nil {
		return nil, wrapLookup("session", string(id), err)
	}
	out := &Comparison{}
	if out.From, err = c.checkpointNamed(ctx, &h, all, from); err != nil {
		return nil, err
	}
	if out.To, err = c.checkpointNamed(ctx, &h, all, to); err != nil {
		return nil, err
	}
	a, err := c.workspaceAt(ctx, by.In(), all, out.From)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	b, err := c.workspaceAt(ctx, by.In(), all, out.To)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	return out, out.compare(ctx, a, b, patch)
}

// checkpointNamed finds the checkpoint that a client means.
func (c *Control) checkpointNamed(ctx context.Context, h *outboard.Header, all []outboard.Checkpoint,
	name string) (outboard.CheckpointID, error) {
	if outboard.ValidID(outboard.PrefixCheckpoint, name) {
		i := slices.IndexFunc(all, func(k outboard.Checkpoint) bool { return string(k.ID) == name })
		if i < 0 {
			return "", notFound("checkpoint", name)
		}
		return outboard.CheckpointID(name), thinned(all, i)
	}
	seq, err := strconv.ParseInt(name, 10, 64)
	if err != nil {
		return "", invalid("%s is neither a checkpoint's id nor a position", quote(name))
	}
	if seq < 1 || seq > h.Head {
		return "", invalid("a position must be 1 to %d, the session's last event, not %d", h.Head, seq)
	}
	at, err := c.checkpointAt(ctx, h.ID, seq)
	if err != nil {
		return "", err
	}
	return c.restorable(ctx, h.ID, at)
}

// compare fills in what changed from a to b.
func (out *Comparison) compare(ctx context.Context, a, b *Workspace, patch bool) error {
	before, after := map[string]source{}, map[string]source{}
	if err := errors.Join(a.unlike(b, before), b.unlike(a, after)); err != nil {
		return err
	}
	held := int64(0)
	old, err := a.look(ctx, before, patch, &held)
	if err != nil {
		return err
	}
	now, err := b.look(ctx, after, patch, &held)
	if err != nil {
		return err
	}
	names := maps.Clone(old)
	maps.Copy(names, now)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		ch := FileChange{Path: name, Before: old[name], After: now[name]}
		if ch.Before != nil && ch.After != nil && ch.Before.same(ch.After) {
			continue
		}
		if len(out.Changes) == maxChanges {
			out.More++
			continue
		}
		if patch {
			ch.Patch = ch.patch()
		}
		out.Changes = append(out.Changes, ch)
	}
	return nil
}

// changeBytes is what one change takes in memory besides its path.
const changeBytes = 600

// unlike collects the entries that another workspace of the session does not have from the same place of the
// same checkpoint.
func (w *Workspace) unlike(other *Workspace, out map[string]source) (err error) {
	w.final.all(func(at int32, n *node) {
		if err != nil {
			return
		}
		name := w.final.path(at)
		if o := &other.final.nodes[other.final.find(name)]; o.there && w.chain[n.delta].ID == other.chain[o.delta].ID &&
			n.entry == o.entry {
			return
		}
		err = w.hold(changeBytes + 2*len(name))
		out[name] = n.source
	})
	return err
}

// same reports whether two entries look alike; when they were touched does not count.
func (e *FileState) same(f *FileState) bool {
	return e.Type == f.Type && e.Mode == f.Mode && e.Size == f.Size && e.Link == f.Link && e.sum == f.sum
}

// look reads the entries of some paths. held counts the content that is kept, over both sides.
func (w *Workspace) look(ctx context.Context, want map[string]source, patch bool,
	held *int64) (map[string]*FileState, error) {
	out := make(map[string]*FileState, len(want))
	byDelta := map[int]map[int][]string{}
	for name, s := range want {
		if byDelta[s.delta] == nil {
			byDelta[s.delta] = map[int][]string{}
		}
		byDelta[s.delta][s.entry] = append(byDelta[s.delta][s.entry], name)
	}
	for delta, entries := range byDelta {
		err := w.entries(ctx, delta, func(n int, h *tar.Header, r io.Reader) error {
			names := entries[n]
			if len(names) == 0 {
				return nil
			}
			e, err := readEntry(h, r, patch, held)
			for _, name := range names {
				out[name] = e
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("reading checkpoint %s: %w", w.chain[delta].ID, err)
		}
	}
	return out, nil
}

// readEntry reads one entry of a tar.
func readEntry(h *tar.Header, r io.Reader, patch bool, held *int64) (*FileState, error) {
	e := &FileState{Mode: h.Mode & 0o7777, Size: h.Size}
	switch h.Typeflag {
	case tar.TypeDir:
		e.Type = "dir"
	case tar.TypeSymlink:
		e.Type, e.Link = "symlink", h.Linkname
	case tar.TypeFifo:
		e.Type = "fifo"
	default:
		e.Type = "file"
	}
	if e.Type != "file" {
		return e, nil
	}
	sum := sha256.New()
	var keep bytes.Buffer
	dst := io.Writer(sum)
	switch {
	case !patch:
	case h.Size > maxPatchFile || *held+h.Size > maxPatchHeld:
		e.skip = "too large to show"
	default:
		*held += h.Size
		dst = io.MultiWriter(sum, &keep)
	}
	if _, err := io.Copy(dst, r); err != nil {
		return nil, err
	}
	sum.Sum(e.sum[:0])
	e.text = keep.Bytes()
	if bytes.IndexByte(e.text, 0) >= 0 || !utf8.Valid(e.text) {
		e.text, e.skip = nil, "not text"
	}
	return e, nil
}
