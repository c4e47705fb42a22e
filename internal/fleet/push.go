package fleet

import (
	"context"
	"fmt"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// Where the provider keeps layers, a checkpoint is made in two steps. Push makes what changed a layer on this
// host, which takes as long in a large workspace as in an empty one; the row that is committed with the call's
// outcome says so (Checkpoint.Host). Then the keeper stores what the layer changed, off the turn's path, and
// settles the row: from there any host can restore it.

// layers returns what the provider can do with layers, or nil.
func (f *Fleet) layers() sandbox.Layers {
	if f.cfg.Provider == nil || !f.cfg.Provider.Capabilities().Layers {
		return nil
	}
	l, _ := f.cfg.Provider.(sandbox.Layers)
	return l
}

// push makes a checkpoint of layers. ok is false where the machine has none. m.saving is held.
func (f *Fleet) push(ctx context.Context, m *machine, c *outboard.Checkpoint,
	parent outboard.CheckpointID) (saved *outboard.Checkpoint, ok bool, err error) {
	l, can := m.Sandbox.(sandbox.Layered)
	layers := f.layers()
	if !can || layers == nil {
		return nil, false, nil
	}
	var pushed sandbox.Pushed
	err = m.timed(ctx, "push", CallTimeout, func(ctx context.Context) error {
		var err error
		pushed, err = l.Push(ctx, c.ID, parent)
		return err
	})
	switch {
	case outboard.KindOf(err) == outboard.Unimplemented:
		return nil, false, nil
	case err != nil && (ctx.Err() != nil || sandbox.Gone(err) || outboard.KindOf(err) == outboard.Exhausted):
		return nil, true, fmt.Errorf("saving the workspace: %w", err)
	case err != nil: // the layers are damaged, not the files: they are read through the guest
		f.log.Error("layers could not be pushed; the workspace is saved whole", "sandbox", m.ID(), "err", err)
		m.top = ""
		return nil, false, nil
	case !pushed.Changed:
		return nil, true, nil
	}
	if pushed.Copied {
		f.log.Info("checkpoint copied: a process holds the workspace", "sandbox", m.ID(), "checkpoint", c.ID)
	}
	c.Host, c.Prior = f.cfg.Host, parent
	if c.Parent, c.Depth, err = f.base(ctx, m, layers, c.ID, parent); err != nil {
		return nil, true, err
	}
	m.parent, m.depth, m.top = c.ID, c.Depth, ""
	if !pushed.Copied {
		m.top = c.ID
	}
	f.keeper.expect(c.ID)
	return c, true, nil
}

// base finds the newest state before id that id's layers lie on, for the delta to be small. "": the delta is the
// whole workspace, because there is none or the chain is long.
func (f *Fleet) base(ctx context.Context, m *machine, layers sandbox.Layers, id,
	prior outboard.CheckpointID) (outboard.CheckpointID, int, error) {
	for range MaxChain {
		if prior == "" {
			break
		}
		if prior == m.top { // pushed on this connection, just before
			return chained(prior, m.depth)
		}
		k, err := f.cfg.Store.Checkpoint(ctx, prior)
		if outboard.KindOf(err) == outboard.NotFound {
			break
		}
		if err != nil {
			return "", 0, err
		}
		if layers.Above(id, prior) {
			return chained(prior, k.Depth)
		}
		prior = k.Prior
	}
	return "", 0, nil
}

func chained(base outboard.CheckpointID, depth int) (outboard.CheckpointID, int, error) {
	if depth+1 >= MaxChain {
		return "", 0, nil
	}
	return base, depth + 1, nil
}

// origin is what a machine starts from.
type origin struct {
	checkpoint outboard.CheckpointID
	local      bool // its layers are on this host
	lost       string
}

// origin finds out what can be restored of a checkpoint. Where neither its layers are here nor its delta is
// stored, it is the newest state before it that is, and lost says so.
func (f *Fleet) origin(ctx context.Context, id outboard.CheckpointID) (origin, error) {
	wanted, layers := id, f.layers()
	for skipped := 0; id != ""; skipped++ {
		o := origin{checkpoint: id}
		if skipped > 0 {
			o.lost = fmt.Sprintf("the files as of checkpoint %s were only on the host that is lost; %d calls that "+
				"changed files are undone", wanted, skipped)
		}
		if layers != nil && layers.Keeps(id) {
			o.local = true
			return o, nil
		}
		k, err := f.cfg.Store.Checkpoint(ctx, id)
		if err != nil {
			return o, fmt.Errorf("restoring checkpoint %s: %w", id, err)
		}
		if k.Durable() {
			return o, nil
		}
		if skipped == 0 && k.Host != "" && k.Host != f.cfg.Host { // that host may be well, and about to store it
			wait, cancel := context.WithTimeout(ctx, DurableWait)
			k, err = f.cfg.Store.AwaitDurable(wait, id)
			cancel()
			if err == nil {
				return o, nil
			}
			if ctx.Err() != nil {
				return o, outboard.Errorf(outboard.Canceled, "restoring checkpoint %s: %w", id, context.Cause(ctx))
			}
		}
		id = k.Prior
	}
	if wanted == "" {
		return origin{}, nil
	}
	return origin{lost: "the files were only on the host that is lost, and nothing was saved elsewhere"}, nil
}

// relayer makes the layers of what was just restored, where the machine has layers: what comes next is then a
// small delta of it.
func (f *Fleet) relayer(ctx context.Context, m *machine, id outboard.CheckpointID) error {
	l, can := m.Sandbox.(sandbox.Layered)
	layers := f.layers()
	if !can || layers == nil {
		return nil
	}
	if err := layers.Forget(ctx, id); err != nil { // some of its layers may be here
		return err
	}
	err := m.timed(ctx, "push", CallTimeout, func(ctx context.Context) error {
		_, err := l.Push(ctx, id, "")
		return err
	})
	if err == nil || outboard.KindOf(err) == outboard.Unimplemented {
		return nil
	}
	if ctx.Err() != nil || sandbox.Gone(err) {
		return err
	}
	// the next delta is the whole workspace
	f.log.Warn("what was restored has no layers of its own", "sandbox", m.ID(), "err", err)
	return nil
}
