package fleet

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// A host that is gone for good leaves rows that nobody corrects, and that count in quotas. Nobody can tell it
// from one that is away, on which machines may go on: so what a session or a box still has there stays until
// somebody ends it by name, and what nobody has any more goes by itself. Both are safe when the host comes back:
// a machine whose row says destroyed is destroyed by its own server.

// goneFor is how long a row, or the end of a box, must be past before another host's server corrects it: much
// longer than a server takes that is only slow, or has lost its lease for a moment.
const goneFor = time.Hour

// Unserved reports of a host whether no server has registered for it. Never of this one.
func (f *Fleet) Unserved(ctx context.Context) (func(host string) bool, error) {
	workers, err := f.cfg.Store.Workers(ctx)
	if err != nil {
		return nil, err
	}
	served := map[string]bool{f.cfg.Host: true}
	for _, w := range workers {
		host, _, _ := strings.Cut(w.Host, " ")
		served[host] = true
	}
	return func(host string) bool { return !served[host] }, nil
}

// away is what is said of something on another host; how is the command that clears it if nobody is there.
func (f *Fleet) away(ctx context.Context, what, host, how string) error {
	err := outboard.Errorf(outboard.Unavailable, "%s is on another host, %s", what, host)
	unserved, uerr := f.Unserved(ctx)
	if uerr != nil || !unserved(host) {
		return err
	}
	return err.WithHint("no server runs there: start it, or if the host is gone, %s", how)
}

// reapGone corrects the rows of hosts that no server has registered for: machines that no session and no box has
// any more, and boxes whose time is over. What fails for one is logged and tried again the next time.
func (f *Fleet) reapGone(ctx context.Context) error {
	ctx = store.Removing(ctx)
	hosts, err := f.cfg.Store.SandboxHosts(ctx)
	if err != nil {
		return err
	}
	unserved, err := f.Unserved(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, host := range hosts {
		if ctx.Err() == nil && unserved(host) {
			errs = append(errs, f.reapHost(ctx, host))
		}
	}
	return errors.Join(errs...)
}

func (f *Fleet) reapHost(ctx context.Context, host string) error {
	past := f.now().Add(-goneFor)
	due, err := f.cfg.Store.DueBoxes(ctx, host, past)
	if err != nil {
		return err
	}
	for _, b := range due {
		if b.OnTimeout.Pause {
			continue // its machine may be there to be paused
		}
		if err := f.expireBox(ctx, b); err != nil && outboard.KindOf(err) != outboard.NotFound {
			f.log.Warn("ending a box of a host without a server", "box", b.ID, "host", host, "err", err)
		}
	}
	rows, err := f.cfg.Store.Sandboxes(ctx, host, "")
	if err != nil {
		return err
	}
	for _, row := range rows {
		if !row.UpdatedAt.Before(past) {
			continue
		}
		why, _, err := f.garbage(ctx, row, true)
		if err == nil && why != "" {
			f.log.Info("a sandbox of a host without a server is nobody's", "sandbox", row.ID, "host", host, "why", why)
			err = f.destroy(ctx, row)
		}
		if err != nil {
			f.log.Warn("reaping a sandbox of a host without a server", "sandbox", row.ID, "host", host, "err", err)
		}
	}
	return nil
}
