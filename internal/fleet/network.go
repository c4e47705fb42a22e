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
	// AttachBox is Attach for the sandbox of a box: whatever its row allows, within the server's bound on boxes.
	AttachBox(id outboard.SandboxID, b outboard.Box)
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
		if row.State != stateLive || !f.made(row) {
			continue
		}
		if row.Session == "" {
			f.reconnectBox(ctx, row.ID)
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

// reconnectBox serves the sandbox of a box, if it is one's.
func (f *Fleet) reconnectBox(ctx context.Context, id outboard.SandboxID) {
	b, err := f.cfg.Store.BoxOf(ctx, id)
	switch {
	case outboard.KindOf(err) == outboard.NotFound: // garbage
	case err != nil:
		f.log.Warn("a box stays without network until it is used", "sandbox", id, "err", err)
	case f.networked(f.boxNetworking(&b)):
		f.cfg.Network.AttachBox(id, b)
	}
}

// boxNetworking is how a box's machine is made: with a way to the gateway, which knows what the box may reach, or with none.
func (f *Fleet) boxNetworking(b *outboard.Box) outboard.Networking {
	if b.NoNetwork || f.cfg.BoxesOffline {
		return outboard.Networking{Mode: "none"}
	}
	return outboard.Networking{Mode: "limited"}
}
