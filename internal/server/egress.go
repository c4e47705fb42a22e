package server

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/egress"
	"github.com/outboard-dev/outboard/internal/fleet"
	"github.com/outboard-dev/outboard/internal/outbound"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/vault"
)

// openEgress makes the gateway, for a provider whose sandboxes can use one. A gateway that cannot be made as
// configured is an error: sandboxes must not come up with less than what was asked for.
func (s *Server) openEgress(provider sandbox.Provider) (fleet.Network, error) {
	networked, ok := provider.(sandbox.Networked)
	if !ok {
		return nil, nil
	}
	cfg := egress.Config{Store: s.Store, Provider: networked, Dir: filepath.Join(s.cfg.Data, "egress"), Logger: s.log,
		Idle: s.cfg.Config.Egress.IdleTimeout, Life: s.cfg.Config.Egress.MaxLifetime,
		Boxes: s.cfg.Config.Egress.Boxes.Bound(), BoxProxies: s.cfg.Config.Egress.Boxes.Proxies, ProxyPassword: vaultCredentials{s.Vault}.proxyPassword,
		Gate: s.killer, Credentials: vaultCredentials{s.Vault}, Policy: NewGatePolicy(s.policy, s.Store, s.Vault),
		Asker: &netAsker{store: s.Store, timeout: s.cfg.Config.Policy.ApprovalTimeout}}
	var err error
	if cfg.Guard, err = s.guard(); err != nil {
		return nil, err
	}
	if cfg.Roots, err = roots(s.cfg.Config.Egress.CAFiles); err != nil {
		return nil, err
	}
	if s.egress, err = egress.New(cfg); err != nil {
		return nil, err
	}
	s.later(s.egress.Stop)
	return s.egress, nil
}

// guard is what the server may dial for others.
func (s *Server) guard() (g outbound.Guard, err error) {
	g.Resolve = s.cfg.Resolve
	for _, n := range s.cfg.Config.Egress.PrivateNetworks {
		p, err := netip.ParsePrefix(n)
		if err != nil {
			return g, outboard.Errorf(outboard.Invalid, "configuring egress.private_networks: %w", err)
		}
		g.Private = append(g.Private, p.Masked())
	}
	return g, nil
}

// roots are the system's certificates and those of some files; nil without files.
func roots(files []string) (*x509.CertPool, error) {
	if len(files) == 0 {
		return nil, nil
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("reading the system's certificates: %w", err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			return nil, outboard.Errorf(outboard.Invalid, "reading egress.ca_files: %w", err)
		}
		if !pool.AppendCertsFromPEM(data) {
			return nil, outboard.Errorf(outboard.Invalid, "egress.ca_files: %s holds no certificate in PEM", f)
		}
	}
	return pool, nil
}

// vaultCredentials lets the gateway use the vault.
type vaultCredentials struct{ keeper *vault.Keeper }

// NewCredentials returns what a gateway sends requests with.
func NewCredentials(keeper *vault.Keeper) egress.Credentials { return vaultCredentials{keeper} }

// proxyPassword opens the password for the proxy of a box.
func (v vaultCredentials) proxyPassword(ctx context.Context, s egress.Subject,
	r egress.Request) (outboard.Secret, error) {
	vr := vault.Request{Sandbox: s.Sandbox, Scheme: r.Scheme, Method: r.Method, Host: r.Host, Port: r.Port,
		Path: r.Path}
	return v.keeper.UseBoxProxy(ctx, vr, s.Box, s.Config.Owner.Org, r.Headers)
}

// For asks the vault what a request is to be sent with.
func (v vaultCredentials) For(ctx context.Context, r egress.Request) (egress.Injection, error) {
	vr := vaultRequest(r)
	use := v.keeper.Use
	if box := r.Subject.Box; box != "" {
		use = func(ctx context.Context, vr vault.Request) (vault.Injection, error) {
			return v.keeper.UseBox(ctx, vr, box, r.Subject.Config.Owner.Org, r.Headers)
		}
	}
	got, err := use(ctx, vr)
	if err != nil {
		return egress.Injection{}, err
	}
	out := egress.Injection{Names: got.Names, AnyPath: true, Refuse: got.Refuse, Strip: got.Strip,
		StripQuery: got.StripQuery, RefuseBody: got.RefuseBody, RefuseShapes: got.RefuseShapes,
		Scrub: reveal(got.Scrub), Still: got.Still, Refused: got.Refused}
	for name, value := range got.Set {
		if out.Set == nil {
			out.Set = map[string]string{}
		}
		out.Set[name] = value.Reveal()
	}
	for _, p := range got.Replace {
		out.Replace = append(out.Replace, egress.Placeholder{Placeholder: p.Text, Value: p.Value.Reveal(), Name: p.Name,
			Header: p.Header,
			Body:   p.Body, Path: p.Path, Query: p.Query})
	}
	if got.Sign != nil {
		out.Sign = func(_ context.Context, s *egress.SignRequest) error {
			r := &vault.SignRequest{Method: s.Method, URL: s.URL, Header: s.Header, Body: s.Body, Held: s.Held}
			err := got.Sign(r)
			s.URL = r.URL
			return err
		}
	}
	return out, nil
}

// vaultRequest is a request as the vault sees it.
func vaultRequest(r egress.Request) vault.Request {
	vr := vault.Request{Session: r.Subject.Session, Sandbox: r.Subject.Sandbox, Scheme: r.Scheme, Method: r.Method,
		Host: r.Host, Port: r.Port,
		Path: r.Path, Query: r.Query}
	if r.Odd != "" {
		vr.Path = "//" + r.Path // what is spelled in two ways is no path that a rule about paths covers
	}
	for _, other := range r.Also {
		vr.Also = append(vr.Also, vaultRequest(other))
	}
	return vr
}

func reveal(secrets []outboard.Secret) []string {
	var out []string
	for _, s := range secrets {
		out = append(out, s.Reveal())
	}
	return out
}
