package main

import (
	"context"
	"errors"
	"path/filepath"
	"strings"

	"github.com/outboard-dev/outboard/internal/audit"
)

// auditDir is where a data directory keeps what the database cannot reach of the audit.
func auditDir(data string) string { return filepath.Join(data, "audit") }

// openAudit begins to witness the audit log. One that was changed since it was last seen is served, for people to look at, and nothing
// that has to be recorded is done.
func (s *server) openAudit(ctx context.Context) (err error) {
	if s.witness, err = audit.OpenWitness(auditDir(s.cfg.Data), s.log, nil); err != nil {
		return dataError(s.cfg.Data, err)
	}
	seal := func(err error) {
		s.log.Error("the audit log is not the one that was written; nothing that has to be recorded is done", "err", err)
		s.store.SealAudit(err)
	}
	_, err = s.witness.Update(ctx, s.store)
	if _, bad := errors.AsType[*audit.Tampered](err); bad {
		seal(err)
		return nil
	}
	if err != nil {
		return err
	}
	s.witness.Start(s.store, seal)
	return nil
}

// lowered names the settings of this server that protect less than the usual ones, with their values.
func (c *serverConfig) lowered() map[string]string {
	out := map[string]string{}
	if c.Serve && c.TLS == nil && c.Listen != "" {
		if _, loopback, err := splitListen(c.Listen); err == nil && !loopback {
			out["insecure-listen"] = c.Listen
		}
	}
	if c.TrustClock {
		out["trust-clock"] = "true"
	}
	if n := c.Config.Egress.PrivateNetworks; len(n) > 0 {
		out["egress.private_networks"] = strings.Join(n, ", ")
	}
	if f := c.Config.Egress.CAFiles; len(f) > 0 {
		out["egress.ca_files"] = strings.Join(f, ", ")
	}
	if c.Config.Egress.Boxes.Networking == "unrestricted" {
		out["egress.boxes.networking"] = "unrestricted"
	}
	if c.Config.Policy.Taint == "off" {
		out["policy.taint"] = "off"
	}
	if c.Config.Policy.Webhook.AllowPrivate {
		out["policy.webhook.allow_private"] = "true"
	}
	return out
}
