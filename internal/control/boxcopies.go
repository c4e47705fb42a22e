package control

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
)

// SnapshotBox saves the files of a box. A snapshot of the same name is replaced.
func (c *Control) SnapshotBox(ctx context.Context, by outboard.Caller, id outboard.BoxID,
	name string) (outboard.BoxSnapshot, error) {
	var n outboard.BoxSnapshot
	if _, err := c.boxFor(ctx, by, id); err != nil {
		return n, err
	}
	if name != "" {
		if err := checkTemplateName("snapshot", name); err != nil {
			return n, err
		}
		if _, err := c.store.Template(ctx, by.In(), name); err == nil {
			return n, outboard.Errorf(outboard.Conflict, "there is a template called %s", quote(name))
		} else if outboard.KindOf(err) != outboard.NotFound {
			return n, err
		}
	}
	if err := c.record(ctx, by, "box.save", string(id), map[string]string{"name": name}); err != nil {
		return n, err
	}
	b, files, err := c.fleet.SaveBox(ctx, id)
	if err != nil {
		return n, wrapLookup("sandbox", string(id), err)
	}
	n = outboard.BoxSnapshot{ID: outboard.NewSnapshotID(), Name: name, Box: id, Org: by.In(), Owner: by.Key, Env: b.Env,
		Files: files, CreatedAt: c.clock()}
	return n, c.store.PutSnapshot(ctx, n)
}

// Snapshots returns all snapshots, newest first.
func (c *Control) Snapshots(ctx context.Context, by outboard.Caller) ([]outboard.BoxSnapshot, error) {
	if err := requireReader(by); err != nil {
		return nil, err
	}
	return c.store.Snapshots(ctx, by.In())
}

// Snapshot returns one by its id or name.
func (c *Control) Snapshot(ctx context.Context, by outboard.Caller, ref string) (outboard.BoxSnapshot, error) {
	if err := requireReader(by); err != nil {
		return outboard.BoxSnapshot{}, err
	}
	if len(ref) > maxTemplateName || strings.ContainsRune(ref, 0) {
		return outboard.BoxSnapshot{}, notFound("template", ref)
	}
	n, err := c.store.Snapshot(ctx, by.In(), ref)
	return n, wrapLookup("template", ref, err)
}

// DeleteSnapshot removes a snapshot. Boxes made from it stay.
func (c *Control) DeleteSnapshot(ctx context.Context, by outboard.Caller, ref string) error {
	if err := requireDeveloper(by, scopeSandboxes); err != nil {
		return err
	}
	n, err := c.Snapshot(ctx, by, ref)
	if err != nil {
		return err
	}
	if err := c.record(ctx, by, "box.delete_snapshot", string(n.ID), nil); err != nil {
		return err
	}
	return wrapLookup("template", ref, c.store.DeleteSnapshot(ctx, n.ID))
}

// Fork is one result of ForkBox.
type Fork struct {
	Box outboard.Box
	Err error
}

// ForkBox makes copies of a box: its files, variables and policy, with secrets of their own and without its
// processes. The box stays as it is.
func (c *Control) ForkBox(ctx context.Context, by outboard.Caller, id outboard.BoxID, count int,
	ttl time.Duration) ([]Fork, error) {
	if _, err := c.boxFor(ctx, by, id); err != nil {
		return nil, err
	}
	if count < 1 || count > maxForks {
		return nil, invalid("count must be 1 to %d, not %d", maxForks, count)
	}
	if err := checkTTL(ttl, 1); err != nil {
		return nil, err
	}
	if err := c.record(ctx, by, "box.fork", string(id), map[string]int{"count": count}); err != nil {
		return nil, err
	}
	b, files, err := c.fleet.SaveBox(ctx, id)
	if err != nil {
		return nil, wrapLookup("sandbox", string(id), err)
	}
	out := make([]Fork, count)
	slots := make(chan struct{}, forksAtOnce)
	var wg sync.WaitGroup
	for i := range out {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			f := b
			f.ID, f.Owner, f.Person, f.Secret, f.EndAt, f.Version = outboard.NewBoxID(), by.Key, by.User, newSecret(), c.clock().Add(ttl), 0
			f.Saved = outboard.BlobRef{}
			f.OpenPorts = nil                 // who opened them meant this box
			f.Headers = outboard.BoxHeaders{} // secrets are not copied
			if f.Traffic != "" {
				f.Traffic = newSecret()
			}
			out[i].Box, out[i].Err = c.makeBox(ctx, by, f, files)
		})
	}
	wg.Wait()
	return out, nil
}
