package control

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/outboard-dev/outboard"
)

// NewKill is a kill to throw.
type NewKill struct {
	outboard.Kill
	Ahead bool // of KillHost: the host may be one that no server has named so far
}

// maxHostsTold bounds how many hosts an error names.
const maxHostsTold = 10

// checkKillHost refuses a name that no host is known by, which is a typing error: whoever made it would believe
// the host killed. Where the database cannot tell, the kill is thrown: it must not depend on one.
func (c *Control) checkKillHost(ctx context.Context, k NewKill) error {
	if err := length("target", k.Target, 0, maxTitle); err != nil || k.Ahead || k.Target == c.kill.Host() {
		return err
	}
	hosts, err := c.hosts(ctx)
	if err != nil {
		c.log.Warn("a host is killed that nobody could look for", "host", k.Target, "err", err)
		return nil
	}
	if hosts[k.Target] {
		return nil
	}
	known := slices.Sorted(maps.Keys(hosts))
	if len(known) > maxHostsTold {
		known = append(known[:maxHostsTold], "and others")
	}
	hint := "outboard kill host NAME --ahead is for one that comes later"
	if len(known) > 0 {
		hint = "there are " + strings.Join(known, ", ") + "; " + hint
	}
	return outboard.Errorf(outboard.NotFound, "there is no host %s", quote(k.Target)).WithHint("%s", hint)
}

// hosts are those that servers run on, or have machines on.
func (c *Control) hosts(ctx context.Context) (map[string]bool, error) {
	workers, err := c.store.Workers(ctx)
	if err != nil {
		return nil, err
	}
	machines, err := c.store.SandboxHosts(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for _, w := range workers {
		host, _, _ := strings.Cut(w.Host, " ") // the rest is about its process
		out[host] = true
	}
	for _, h := range append(machines, c.kill.Host()) {
		if h != "" {
			out[h] = true
		}
	}
	return out, nil
}
