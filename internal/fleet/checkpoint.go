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

// Checkpoint saves what changed since parent, for the call just finished. It returns nil when nothing changed. The row is to be
// committed together with the call's outcome (store.Commit.Checkpoint).
//
// The guest labels each saved state with its checkpoint's id and is asked for what changed since the newest committed one. Where
// it no longer knows that state, because a checkpoint was saved and never committed, it sends everything: more bytes, never a
// gap.
func (f *Fleet) Checkpoint(ctx context.Context, b *Box, session outboard.SessionID, epoch int64, parent outboard.CheckpointID, call outboard.CallID) (*outboard.Checkpoint, error) {
	m := b.use.machine
	m.saving.Lock()
	defer m.saving.Unlock()
	c := outboard.Checkpoint{
		ID:        outboard.NewID[outboard.CheckpointID](outboard.PrefixCheckpoint),
		Session:   session,
		Call:      call,
		CreatedAt: f.now(),
	}
	save := guest.Save{Epoch: epoch, Next: string(c.ID)}
	if parent != "" {
		p, err := f.cfg.Store.Checkpoint(ctx, parent)
		if err != nil && outboard.KindOf(err) != outboard.NotFound {
			return nil, err
		}
		if err == nil && p.Depth+1 < MaxChain {
			save.Base, c.Parent, c.Depth = string(parent), parent, p.Depth+1
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

// errUnchanged ends a blob that nothing was written to.
var errUnchanged = errors.New("unchanged")

// save streams a workspace from the guest into a blob.
func (f *Fleet) save(ctx context.Context, m *machine, s guest.Save) (saved guest.Saved, ref outboard.BlobRef, err error) {
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
	return saved, ref, err
}

// receive streams what send writes into a blob. Where it cannot be stored, for instance on a full disk, it is read to its end all
// the same: giving up in the middle would cost the connection to the guest, and with it the calls that use it too.
func (f *Fleet) receive(ctx context.Context, limit int64, send func(io.Writer) error) (outboard.BlobRef, error) {
	pr, pw := io.Pipe()
	var sendErr error
	var wg sync.WaitGroup
	wg.Go(func() {
		sendErr = send(pw)
		pw.CloseWithError(sendErr) // nil is the end
	})
	ref, err := f.cfg.Blob.Put(ctx, pr, limit)
	if err != nil {
		_, _ = io.Copy(io.Discard, pr) // its error is sendErr
	}
	wg.Wait()
	if sendErr != nil && (err == nil || errors.Is(err, sendErr)) {
		return outboard.BlobRef{}, sendErr
	}
	return ref, err
}
