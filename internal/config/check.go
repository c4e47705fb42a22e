package config

import (
	"net/netip"
	"slices"
	"time"

	"github.com/outboard-dev/outboard"
)

// check refuses values that no server can work with. What they depend on outside the file, such as keys, is
// looked at where it is used.
func (c *Config) check() error {
	if c.Idle < 0 {
		return outboard.Errorf(outboard.Invalid, "configuring idle: %v is negative", c.Idle)
	}
	if c.LogLevel != "" && !slices.Contains(levels, c.LogLevel) {
		return outboard.Errorf(outboard.Invalid, "configuring the log: level %q is not debug, info, warn or error",
			c.LogLevel)
	}
	if err := CheckHosts(c.Hosts); err != nil {
		return err
	}
	for _, part := range []interface{ check() error }{c.Sandbox, c.Limits, c.Egress, c.Vault, c.Login, c.Images} {
		if err := part.check(); err != nil {
			return err
		}
	}
	return nil
}

func (s Sandbox) check() error {
	if n := s.Places(); n < 0 || n > maxAhead {
		return outboard.Errorf(outboard.Invalid, "configuring sandboxes: ahead is %d; it must be from 0 to %d", n,
			maxAhead)
	}
	if n := s.Guests(); n < 0 || n > maxAhead {
		return outboard.Errorf(outboard.Invalid, "configuring sandboxes: warm is %d; it must be from 0 to %d", n,
			maxAhead)
	}
	if l := s.Lifecycle(); l.StopAfterSec > 0 && l.DropAfterSec > 0 && l.DropAfterSec < l.StopAfterSec {
		return outboard.Errorf(outboard.Invalid, "configuring sandboxes: drop_after is before stop_after")
	}
	if d := s.Rests(); d < minRestEvery || d > time.Hour {
		return outboard.Errorf(outboard.Invalid, "configuring sandboxes: rest_every is %v; it must be from %v to 1h", d,
			minRestEvery)
	}
	if s.MaxPerEnvironment < 0 || s.MaxPerOwner < 0 || s.DiskReserveBytes != nil && *s.DiskReserveBytes < 0 {
		return outboard.Errorf(outboard.Invalid, "configuring sandboxes: a limit is negative")
	}
	return nil
}

func (l Limits) check() error {
	if n := l.States(); n != 0 && n < minStates || n > maxStates {
		return outboard.Errorf(outboard.Invalid,
			"configuring limits: checkpoints is %d; it must be 0, to keep all, or from %d to %d", n, minStates, maxStates)
	}
	if l.CheckpointBytes < 0 {
		return outboard.Errorf(outboard.Invalid,
			"configuring limits: checkpoint_bytes is %d; it must be a number of bytes, or 0 for no bound", l.CheckpointBytes)
	}
	if p := l.OrganizationPercent; p < 0 || p > 100 {
		return outboard.Errorf(outboard.Invalid, "configuring limits: organization_percent is %d; it must be from 1 "+
			"to 100, or 0 for the default", p)
	}
	if l.Streams < 0 || l.Files < 0 || l.FileBytes < 0 {
		return outboard.Errorf(outboard.Invalid,
			"configuring limits: streams is %d, files %d and file_bytes %d; each must be at least 1, or 0 for the "+
				"default", l.Streams, l.Files, l.FileBytes)
	}
	if l.Slots < 0 || l.Slots > maxSlots {
		return outboard.Errorf(outboard.Invalid, "configuring limits: slots is %d; it must be from 0 to %d", l.Slots,
			maxSlots)
	}
	if p := l.ModelPatience; p < 0 || p > maxPatience {
		return outboard.Errorf(outboard.Invalid, "configuring limits: model_patience is %v; it must be from 0s to %v",
			p, maxPatience)
	}
	if n := l.ModelCalls; n < 0 || n > maxModelCalls {
		return outboard.Errorf(outboard.Invalid, "configuring limits: model_calls is %d; it must be from 0 to %d", n,
			maxModelCalls)
	}
	return nil
}

func (e Egress) check() error {
	for _, n := range e.PrivateNetworks {
		if _, err := netip.ParsePrefix(n); err != nil {
			return outboard.Errorf(outboard.Invalid, "configuring egress.private_networks: %q is not a network such "+
				"as 10.0.0.0/8", n)
		}
	}
	if d := e.IdleTimeout; d != 0 && (d < minIdle || d > maxIdle) {
		return outboard.Errorf(outboard.Invalid, "configuring egress.idle_timeout: it must be from %v to %v, not %v",
			minIdle, maxIdle, d)
	}
	if d := e.MaxLifetime; d != 0 && (d < minLife || d > maxLife) {
		return outboard.Errorf(outboard.Invalid, "configuring egress.max_lifetime: it must be from %v to %v, not %v",
			minLife, maxLife, d)
	}
	return e.Boxes.check()
}
