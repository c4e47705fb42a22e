package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
)

// Checkpoint saves what changed since parent, for the call just finished. It returns nil when nothing changed.
// The row is to be committed together with the call's outcome (store.Commit.Checkpoint).
//
// Where the machine has layers the row says that they are on this host, and the delta is stored later. Elsewhere
// it is stored here. The guest labels each saved state with its checkpoint's id and is asked for what changed
// since the newest committed one. Where it no longer knows that state, because a checkpoint was saved and never
// committed, it sends everything: more bytes, never a gap.
func (f *Fleet) Checkpoint(ctx context.Context, b *Lease, session outboard.SessionID, epoch int64,
	parent outboard.CheckpointID, call outboard.CallID) (*outboard.Checkpoint, error) {
	m := b.use.machine
	m.saving.Lock()
	defer m.saving.Unlock()
	c := outboard.Checkpoint{
		ID:        outboard.NewID[outboard.CheckpointID](outboard.PrefixCheckpoint),
		Session:   session,
		Call:      call,
		CreatedAt: f.now(),
	}
	if saved, ok, err := f.push(ctx, m, &c, parent); ok || err != nil {
		return saved, err
	}
	c.Prior, c.DurableAt = parent, c.CreatedAt
	save := guest.Save{Epoch: epoch, Next: string(c.ID)}
	if parent != "" {
		depth, known, err := f.depth(ctx, m, parent)
		if err != nil {
			return nil, err
		}
		if known && depth+1 < MaxChain {
			save.Base, c.Parent, c.Depth = string(parent), parent, depth+1
		}
	}
	saved, delta, err := f.save(ctx, m, save)
	if err != nil {
		return nil, fmt.Errorf("saving the workspace: %w", err)
	}
	if !saved.Changed || parent == "" && saved.Entries == 0 {
		return nil, nil
	}
	if saved.Full {
		c.Parent, c.Depth = "", 0
	}
	c.Delta = delta
	return &c, nil
}

// depth returns how deep in its chain a committed checkpoint is; it is not known when there is no such row. Most
// calls change nothing, so the same one is asked for again and again. m.saving is held.
func (f *Fleet) depth(ctx context.Context, m *machine, id outboard.CheckpointID) (depth int, known bool, err error) {
	if m.parent == id {
		return m.depth, true, nil
	}
	c, err := f.cfg.Store.Checkpoint(ctx, id)
	if outboard.KindOf(err) == outboard.NotFound {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	m.parent, m.depth = id, c.Depth
	return c.Depth, true, nil
}

// errUnchanged ends a blob that nothing was written to.
var errUnchanged = errors.New("unchanged")

// save streams a workspace from the guest into a blob.
func (f *Fleet) save(ctx context.Context, m *machine,
	s guest.Save) (saved guest.Saved, ref outboard.BlobRef, err error) {
	ref, err = f.receive(ctx, MaxCheckpoint, func(w io.Writer) error {
		var err error
		saved, err = m.Save(ctx, s, w)
		if err == nil && !saved.Changed {
			return errUnchanged
		}
		return err
	})
	if errors.Is(err, errUnchanged) {
		return saved, outboard.BlobRef{}, nil
	}
	if is(err, guest.TooLarge) {
		err = outboard.Errorf(outboard.TooLarge, "%w", err)
	}
	return saved, ref, err
}

// receive streams what a guest sends into a blob. Where it cannot be stored, for instance on a full disk, it is
// read to its end all the same: giving up in the middle would cost the connection to the guest, and with it the
// calls that use it too.
func (f *Fleet) receive(ctx context.Context, limit int64, send func(io.Writer) error) (outboard.BlobRef, error) {
	return f.stream(ctx, limit, send, func(pr *io.PipeReader, _ error) {
		_, _ = io.Copy(io.Discard, pr) // its error is that of send
	})
}

// unread is what a packer's writes fail with once what it packs cannot be stored.
type unread struct{ error }

// Unwrap returns why not.
func (e unread) Unwrap() error { return e.error }

// pack streams what is packed on this host into a blob. It ends as soon as it cannot be stored, or with ctx: the
// holes of one file may be zeros for hours.
func (f *Fleet) pack(ctx context.Context, limit int64, pack func(io.Writer) error) (outboard.BlobRef, error) {
	bounded := func(w io.Writer) error {
		return pack(writer(func(p []byte) (int, error) {
			if ctx.Err() != nil {
				return 0, context.Cause(ctx)
			}
			return w.Write(p)
		}))
	}
	return f.stream(ctx, limit, bounded, func(pr *io.PipeReader, err error) { pr.CloseWithError(unread{err}) })
}

// stream streams what send writes into a blob. failed is told of a reader whose bytes cannot be stored.
func (f *Fleet) stream(ctx context.Context, limit int64, send func(io.Writer) error,
	failed func(*io.PipeReader, error)) (outboard.BlobRef, error) {
	pr, pw := io.Pipe()
	var ref outboard.BlobRef
	var err error
	var wg sync.WaitGroup
	begin := sync.OnceFunc(func() { // with the first byte: often there is none, and then no blob
		wg.Go(func() {
			if ref, err = f.cfg.Blob.Put(ctx, pr, limit); err != nil {
				failed(pr, err)
			}
		})
	})
	sendErr := send(writer(func(p []byte) (int, error) {
		begin()
		return pw.Write(p)
	}))
	if sendErr == nil {
		begin()
	}
	pw.CloseWithError(sendErr) // nil is the end
	wg.Wait()
	if sendErr != nil && (err == nil || errors.Is(err, sendErr)) {
		return outboard.BlobRef{}, sendErr
	}
	return ref, err
}

// writer is a function as an io.Writer.
type writer func([]byte) (int, error)

// Write calls w.
func (w writer) Write(p []byte) (int, error) { return w(p) }
