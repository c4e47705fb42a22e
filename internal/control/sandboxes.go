package control

import (
	"context"

	"github.com/outboard-dev/outboard"
)

// Sandboxes lists the sandboxes of an organization's sessions and boxes on all hosts that are not destroyed,
// oldest first.
func (c *Control) Sandboxes(ctx context.Context, by outboard.Caller) ([]outboard.Sandbox, error) {
	if err := requireReader(by); err != nil {
		return nil, err
	}
	all, err := c.store.Sandboxes(ctx, "", "")
	if err != nil {
		return nil, err
	}
	unserved := func(string) bool { return false }
	if c.fleet != nil {
		if unserved, err = c.fleet.Unserved(ctx); err != nil {
			return nil, err
		}
	}
	var own []outboard.Sandbox
	for _, row := range all {
		org, err := c.orgOf(ctx, row)
		if outboard.KindOf(err) == outboard.NotFound {
			continue // about to be removed
		}
		if err != nil {
			return nil, err
		}
		if org == by.In() {
			if row.Why == "" && unserved(row.Host) {
				row.Why = "no server runs on its host: if that is gone, outboard sandbox kill " + string(row.ID)
				if b, err := c.store.BoxOf(ctx, row.ID); err == nil {
					row.Why = "no server runs on its host: if that is gone, outboard box rm " + string(b.ID)
				}
			}
			own = append(own, row)
		}
	}
	return own, nil
}

// orgOf is the organization of a sandbox: that of its session, or of its box.
func (c *Control) orgOf(ctx context.Context, row outboard.Sandbox) (outboard.OrgID, error) {
	if row.Session == "" {
		b, err := c.store.BoxOf(ctx, row.ID)
		return b.Org, err
	}
	h, err := c.store.Session(ctx, row.Session)
	return h.Org, err
}

// StopSandbox ends the processes of a session's sandbox and keeps its files, as rest does. Conflict while a turn
// uses it.
func (c *Control) StopSandbox(ctx context.Context, by outboard.Caller,
	id outboard.SandboxID) (outboard.Sandbox, error) {
	if err := c.sandbox(ctx, by, id); err != nil {
		return outboard.Sandbox{}, err
	}
	if err := c.record(ctx, by, "sandbox.stop", string(id), nil); err != nil {
		return outboard.Sandbox{}, err
	}
	return c.fleet.StopSandbox(ctx, id, by.Name)
}

// KillSandbox removes a session's sandbox with what it has not saved, also under a turn. The session goes on in
// another one.
func (c *Control) KillSandbox(ctx context.Context, by outboard.Caller, id outboard.SandboxID) error {
	if err := c.sandbox(ctx, by, id); err != nil {
		return err
	}
	if err := c.record(ctx, by, "sandbox.kill", string(id), nil); err != nil {
		// ending one must work when nothing else does
		c.log.Error("the end of a sandbox was not recorded", "sandbox", id, "err", err)
	}
	return c.fleet.KillSandbox(ctx, id, by.Name)
}

// sandbox refuses what is none, or is not the caller's to end.
func (c *Control) sandbox(ctx context.Context, by outboard.Caller, id outboard.SandboxID) error {
	if err := c.boxes(by); err != nil {
		return err
	}
	if !outboard.ValidID(outboard.PrefixSandbox, string(id)) {
		return notFound("sandbox", string(id))
	}
	row, err := c.store.Sandbox(ctx, id)
	var org outboard.OrgID
	if err == nil {
		org, err = c.orgOf(ctx, row)
	}
	return ownedBy(by, org, "sandbox", string(id), err)
}
