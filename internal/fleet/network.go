package fleet

import (
	"context"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// Network is the egress gateway, as the fleet sees it. Its methods do not block on a sandbox, and may be called again for the same one.
type Network interface {
	// Prepare returns the certificate that a sandbox which is about to be made must trust.
	Prepare(id outboard.SandboxID) ([]byte, error)
	// Attach serves the connections of a living sandbox by the rules of a session; a raw sandbox has none, and cfg its environment.
	Attach(id outboard.SandboxID, session outboard.SessionID, cfg outboard.SessionConfig)
	// Detach ends that for a sandbox that is gone.
	Detach(id outboard.SandboxID)
}

// network is what a new sandbox needs to reach the gateway: nil where there is none, where the provider cannot, and for an air gap.
func (f *Fleet) network(id outboard.SandboxID, n outboard.Networking) (*sandbox.Network, error) {
	if !f.networked(n) {
		return nil, nil
	}
	ca, err := f.cfg.Network.Prepare(id)
	if err != nil {
		return nil, err
	}
	return &sandbox.Network{CA: ca}, nil
}

func (f *Fleet) networked(n outboard.Networking) bool {
	_, able := f.cfg.Provider.(sandbox.Networked)
	return able && f.cfg.Network != nil && (n.Mode == "limited" || n.Mode == "unrestricted")
}

// reconnect serves the sandboxes that an earlier process of this host left alive: what runs in them does not wait for a turn.
func (f *Fleet) reconnect(ctx context.Context) error {
	if f.cfg.Network == nil || f.cfg.Provider == nil {
		return nil
	}
	rows, err := f.cfg.Store.Sandboxes(ctx, f.cfg.Host, "")
	if err != nil {
		return err
	}
	for _, row := range rows {
		if row.State != stateLive || row.Session == "" || !f.made(row) {
			continue
		}
		cfg, err := f.cfg.Store.SessionConfig(ctx, row.Session)
		if err != nil {
			f.log.Warn("a sandbox stays without network until its next turn", "sandbox", row.ID, "err", err)
			continue
		}
		if f.networked(cfg.Env.Networking) {
			f.cfg.Network.Attach(row.ID, row.Session, cfg)
		}
	}
	return nil
}
