package fleet

import (
	"context"
	"errors"
	"maps"
	"sync"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// maxKills bounds the machines that are killed at the same time: each takes the host some milliseconds of work.
const maxKills = 32

// own notes whose a machine is, for Owned.
func (f *Fleet) own(id outboard.SandboxID, who outboard.KillSubject) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.owners[id] = who
}

// Held returns the machines that this process has used or made, by whose they are. It asks nobody.
func (f *Fleet) Held() map[outboard.SandboxID]outboard.KillSubject {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.owners)
}

// Owned returns the machines of this host that may have processes, by whose they are: those that this process
// has used or made, and with the database also those of its rows. Without an answer of the database it returns
// what it knows, and the error.
func (f *Fleet) Owned(ctx context.Context) (map[outboard.SandboxID]outboard.KillSubject, error) {
	out := f.Held()
	if f.cfg.Provider == nil {
		return out, nil
	}
	rows, err := f.cfg.Store.Sandboxes(ctx, f.cfg.Host, "")
	if err != nil {
		return out, err
	}
	for _, row := range rows {
		if _, ok := out[row.ID]; ok {
			continue
		}
		who := outboard.KillSubject{Session: row.Session}
		if row.Session != "" {
			cfg, err := f.cfg.Store.SessionConfig(ctx, row.Session)
			if err != nil && outboard.KindOf(err) != outboard.NotFound {
				return out, err
			}
			who = cfg.Subject(row.Session)
		} else if b, err := f.cfg.Store.BoxOf(ctx, row.ID); err == nil {
			who = b.Subject()
		} else {
			who.Owner, who.Person = row.Owner, row.Person // it builds a layer for them
		}
		out[row.ID] = who
	}
	return out, nil
}

// KillMachine kills every process of a machine, now, and removes it, whoever uses it and whatever the database
// says. The row, if there is one, is the reaper's to correct; who uses the machine finds it gone.
func (f *Fleet) KillMachine(ctx context.Context, id outboard.SandboxID) error {
	return f.destroyMachine(ctx, id)
}

// KillMachines kills several at the same time.
func (f *Fleet) KillMachines(ctx context.Context, ids []outboard.SandboxID) error {
	var mu sync.Mutex
	var errs []error
	var all sync.WaitGroup
	slots := make(chan struct{}, maxKills)
	for _, id := range ids {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			if err := f.KillMachine(ctx, id); err != nil {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// FreezeMachine stops all processes of a machine until ThawMachine. Unavailable where the provider cannot.
func (f *Fleet) FreezeMachine(ctx context.Context, id outboard.SandboxID) error {
	return f.with(ctx, func(ctx context.Context) error { return sandbox.Halt(ctx, f.cfg.Provider, id) })
}

// ThawMachine lets them go on. A session's machine that nobody uses is thawed by the next use.
func (f *Fleet) ThawMachine(ctx context.Context, id outboard.SandboxID) error {
	return f.with(ctx, func(ctx context.Context) error {
		sb, err := f.cfg.Provider.Open(ctx, id)
		if err != nil {
			return err
		}
		return errors.Join(sb.Thaw(ctx), sb.Close())
	})
}

func (f *Fleet) with(ctx context.Context, do func(context.Context) error) error {
	if f.cfg.Provider == nil {
		return f.noProvider()
	}
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	return do(ctx)
}

// Present reports which machines the provider finds on this host.
func (f *Fleet) Present(ctx context.Context) (map[outboard.SandboxID]bool, error) {
	if f.cfg.Provider == nil {
		return nil, nil
	}
	ids, err := f.cfg.Provider.List(ctx)
	out := make(map[outboard.SandboxID]bool, len(ids))
	for _, id := range ids {
		out[id] = true
	}
	return out, err
}
