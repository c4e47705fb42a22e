package vault

import (
	"context"
	"path/filepath"
	"sync"

	"github.com/outboard-dev/outboard"
)

// family is the keepers of all organizations: each has its own data key, its own state and its own mark, so that
// nothing of one opens with what another has.
type family struct {
	mu      sync.Mutex
	keepers map[outboard.OrgID]*Keeper
	// an organization keeps its sessions for good, so this only saves a read
	sessions map[outboard.SessionID]outboard.OrgID

	withdrawals *withdrawals
}

// For returns the keeper of an organization.
func (k *Keeper) For(org outboard.OrgID) *Keeper {
	k.family.mu.Lock()
	defer k.family.mu.Unlock()
	if own := k.family.keepers[org]; own != nil {
		return own
	}
	cfg := k.family.keepers[outboard.DefaultOrg].cfg
	cfg.Wrappers = append([]Wrapper(nil), cfg.Wrappers...)
	for i, w := range cfg.Wrappers {
		if d, ok := w.(KeyDir); ok { // a rotation sweeps its directory
			cfg.Wrappers[i] = KeyDir{Dir: filepath.Join(d.Dir, filepath.Base(string(org)))}
		}
	}
	if cfg.Mark != "" {
		cfg.Mark += "." + filepath.Base(string(org))
	}
	own := newKeeper(cfg, org)
	own.family = k.family
	k.family.keepers[org] = own
	return own
}

// Check opens the keys of all organizations, and returns why the first that cannot be is locked. What ctx leaves
// no time for is not looked at; nor is the rest of the vault kept from being used.
func (k *Keeper) Check(ctx context.Context) error {
	orgs, err := k.cfg.Store.Orgs(ctx)
	if err != nil {
		return locked(err)
	}
	for _, o := range orgs {
		if ctx.Err() != nil {
			return nil
		}
		if !o.ArchivedAt.IsZero() {
			continue
		}
		if _, err := k.For(o.ID).current(ctx); err != nil {
			if o.ID != outboard.DefaultOrg {
				err = outboard.Errorf(outboard.KindOf(err), "organization %s: %w", o.ID, err)
			}
			return err
		}
	}
	return nil
}

// of returns the keeper of a session's organization.
func (k *Keeper) of(ctx context.Context, id outboard.SessionID) (*Keeper, error) {
	k.family.mu.Lock()
	org, ok := k.family.sessions[id]
	k.family.mu.Unlock()
	if !ok {
		h, err := k.cfg.Store.Session(ctx, id)
		switch {
		case err == nil:
			org = h.Org
		case outboard.KindOf(err) == outboard.NotFound: // it has no credentials either
			return k, nil
		default:
			return nil, locked(err)
		}
		k.family.mu.Lock()
		if len(k.family.sessions) >= maxSessions {
			clear(k.family.sessions)
		}
		k.family.sessions[id] = org
		k.family.mu.Unlock()
	}
	return k.For(org), nil
}
