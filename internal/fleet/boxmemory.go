package fleet

import (
	"context"
	"errors"

	"github.com/outboard-dev/outboard"
)

// forgetMemory makes a paused box one of which only files are kept. Its machine is awake for as long as it takes
// to save them.
func (f *Fleet) forgetMemory(ctx context.Context, l *liveBox, b *outboard.Box) error {
	old := b.Machine
	if old == "" {
		return nil
	}
	m, err := f.connect(ctx, l, b)
	if err != nil {
		return err
	}
	defer f.cut(l)
	saved, err := f.saveFiles(ctx, m)
	row := *b
	if err == nil {
		row, err = f.cfg.Store.ChangeBox(ctx, b.ID, func(b *outboard.Box) error {
			b.Saved, b.Machine = saved, ""
			return nil
		})
	}
	if err != nil { // it stays paused, as its row says
		return errors.Join(err, m.Freeze(context.WithoutCancel(ctx)))
	}
	*b = row
	return f.dropMachine(ctx, old)
}
