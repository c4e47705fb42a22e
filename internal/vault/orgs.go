package vault

import (
	"context"
	"path/filepath"
	"sync"

	"github.com/outboard-dev/outboard"
)

// family is the keepers of all organizations: each has its own data key, its own state and its own mark, so that nothing of one
// opens with what another has.
type family struct {
	mu       sync.Mutex
	keepers  map[outboard.OrgID]*Keeper
	sessions map[outboard.SessionID]outboard.OrgID // an organization keeps its sessions for good, so this only saves a read

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
