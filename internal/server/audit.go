package server

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"

	"github.com/outboard-dev/outboard/internal/audit"
)

// AuditDir is where a data directory keeps what the database cannot reach of the audit.
func AuditDir(data string) string { return filepath.Join(data, "audit") }

// openAudit begins to witness the audit log. One that was changed since it was last seen is served, for people
// to look at, and nothing that has to be recorded is done.
func (s *Server) openAudit(ctx context.Context) (err error) {
	if s.Witness, err = audit.OpenWitness(AuditDir(s.cfg.Data), s.log, nil); err != nil {
		return DataError(s.cfg.Data, err)
	}
	seal := func(err error) {
		s.log.Error("the audit log is not the one that was written; nothing that has to be recorded is done", "err",
			err)
		s.Store.SealAudit(err)
	}
	_, err = s.Witness.Update(ctx, s.Store)
	if _, bad := errors.AsType[*audit.Tampered](err); bad {
		seal(err)
		return nil
	}
	if err != nil {
		return err
	}
	s.Witness.Start(s.Store, seal)
	s.later(s.Witness.Stop)
	return nil
}

// Local reports whether an address to listen on, host:port, is of this machine only.
func Local(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// lowered names the settings of this server that protect less than the usual ones, with their values.
func (c *Config) lowered() map[string]string {
	out := map[string]string{}
	if c.Serve && c.TLS == nil && c.Listen != "" && !Local(c.Listen) {
		out["insecure-listen"] = c.Listen
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
