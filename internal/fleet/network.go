package fleet

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// Network is the egress gateway, as the fleet sees it. Its methods do not block on a sandbox, and may be called
// again for the same one.
type Network interface {
	// Prepare returns the certificate that a sandbox which is about to be made must trust.
	Prepare(id outboard.SandboxID) ([]byte, error)
	// Attach serves the connections of a living sandbox by the rules of a session; a raw sandbox has none, and
	// cfg its environment.
	Attach(id outboard.SandboxID, session outboard.SessionID, cfg outboard.SessionConfig)
	// AttachBox is Attach for the sandbox of a box: whatever its row allows, within the server's bound on boxes.
	AttachBox(id outboard.SandboxID, b outboard.Box)
	// Detach ends that for a sandbox that is gone.
	Detach(id outboard.SandboxID)
}

// network is what a new sandbox needs to reach the gateway: nil where there is none, where the provider cannot,
// and for an air gap.
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

// maxGitHosts bounds the hosts of gitByHTTPS, each of which is six variables.
const maxGitHosts = 16

// gitByHTTPS are variables by which git asks hosts over HTTPS that a lock file names by SSH, which nothing
// leaves by: those that the networking allows by name. The best known are in the system's configuration of git,
// which these are added to.
func gitByHTTPS(n outboard.Networking) map[string]string {
	bases := map[string]string{} // by host
	add := func(host string, port int) {
		if _, err := netip.ParseAddr(host); err == nil || host == "" || strings.ContainsAny(host, "*/:[") {
			return
		}
		if _, ok := bases[host]; ok || len(bases) == maxGitHosts {
			return
		}
		if base := "https://" + host; port > 0 && port != 443 && port != 80 {
			bases[host] = base + ":" + strconv.Itoa(port) + "/"
		} else {
			bases[host] = base + "/"
		}
	}
	if n.Mode == "limited" {
		for _, host := range n.AllowedHosts {
			add(host, 0)
		}
	}
	for _, r := range n.Rules {
		if !r.Deny {
			add(r.Host, r.Port)
		}
	}
	vars := map[string]string{}
	i := 0
	for _, host := range slices.Sorted(maps.Keys(bases)) {
		for _, form := range []string{"git@%s:", "ssh://git@%s/", "git+ssh://git@%s/"} {
			vars["GIT_CONFIG_KEY_"+strconv.Itoa(i)] = "url." + bases[host] + ".insteadOf"
			vars["GIT_CONFIG_VALUE_"+strconv.Itoa(i)] = fmt.Sprintf(form, host)
			i++
		}
	}
	if i > 0 {
		vars["GIT_CONFIG_COUNT"] = strconv.Itoa(i)
	}
	return vars
}

func (f *Fleet) networked(n outboard.Networking) bool {
	_, able := f.cfg.Provider.(sandbox.Networked)
	return able && f.cfg.Network != nil && (n.Mode == "limited" || n.Mode == "unrestricted")
}

// reconnect serves the sandboxes that an earlier process of this host left alive: what runs in them does not
// wait for a turn.
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

// boxNetworking is how a box's machine is made: with a way to the gateway, which knows what the box may reach,
// or with none.
func (f *Fleet) boxNetworking(b *outboard.Box) outboard.Networking {
	if b.NoNetwork || f.cfg.BoxesOffline {
		return outboard.Networking{Mode: "none"}
	}
	return outboard.Networking{Mode: "limited"}
}
