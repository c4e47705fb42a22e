package native

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/outboard-dev/outboard"
)

// Destroy kills and removes everything of a sandbox, whatever state it is in.
func (p *Provider) Destroy(ctx context.Context, id outboard.SandboxID) error {
	b, err := p.box(id)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, destroyTimeout)
	defer cancel()
	unlock, err := b.lock(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		// Destroyed, perhaps by another process, which could not collect our child.
		if err := p.reap(ctx, id); err != nil {
			return outboard.Errorf(outboard.Unavailable, "destroying sandbox %s: waiting for its init: %w", id, err)
		}
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	if err := p.remove(ctx, b); err != nil {
		return outboard.Errorf(outboard.Unavailable, "destroying sandbox %s: %w", id, err)
	}
	return nil
}

// remove undoes a sandbox in the order that a crash at any point leaves the rest findable: the state file goes last but for the
// directory itself.
func (p *Provider) remove(ctx context.Context, b box) error {
	s, err := b.load()
	if err != nil {
		// Written before anything else is made, in one step: without it there is nothing but the directory.
		s = &state{ID: b.id, Cgroups: p.cgroups.plan(b.id).dirs}
	}
	if err := p.end(ctx, s); err != nil {
		return err
	}
	if err := p.reap(ctx, b.id); err != nil {
		return fmt.Errorf("waiting for init to end: %w", err)
	}
	if err := p.cgroups.groupOf(s).remove(ctx); err != nil {
		return err
	}
	if err := p.endWork(b); err != nil {
		return fmt.Errorf("removing the sandbox's layers: %w", err)
	}
	if err := b.unmountDisk(); err != nil {
		return err
	}
	if err := removeContents(b.dir, stateFile); err != nil {
		return fmt.Errorf("removing the sandbox's files: %w", err)
	}
	if p.uids != nil && s.UIDBase != 0 {
		if err := p.uids.release(s.UIDBase, b.dir); err != nil {
			return fmt.Errorf("releasing the uid range: %w", err)
		}
	}
	return removeTree(b.dir)
}

// end kills every process and waits until they are gone.
func (p *Provider) end(ctx context.Context, s *state) error {
	g := p.cgroups.groupOf(s)
	pr, err := findProcess(s)
	if err != nil {
		return err
	}
	if pr == nil {
		return g.kill() // a guest that was never recorded ends by itself, but may be slow
	}
	defer pr.close()
	if err := pr.kill(); err != nil {
		return fmt.Errorf("killing init: %w", err)
	}
	// A frozen process of version 1 takes even SIGKILL only when it thaws, and somebody may be freezing the sandbox all the while.
	err = waitFor(ctx, func() (bool, error) {
		if err := g.thaw(); err != nil {
			return false, err
		}
		return pr.ended()
	})
	if err != nil {
		return fmt.Errorf("waiting for init to end: %w", err)
	}
	return nil
}

// removeContents removes what is in dir but for one name.
func removeContents(dir, keep string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == keep {
			continue
		}
		if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}
