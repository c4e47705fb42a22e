package api

import (
	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// boxNetworkIn is what a sandbox of a client's own may reach, within what the server lets any of them reach.
type boxNetworkIn struct {
	Closed bool `json:"closed"` // nothing but allow
	// names, *.name, IP addresses, networks, or *; addresses and networks that are exceptions from deny
	Allow []string `json:"allow"`
	Deny  []string `json:"deny"` // networks

	Headers map[string]map[string]string `json:"headers"` // to set, by host and name; never shown again

	Proxy *struct {
		Address  string `json:"address"` // host:port, of a SOCKS5 proxy
		Username string `json:"username"`
		Password string `json:"password"` // never shown again
	} `json:"proxy"`
}

func (in *boxNetworkIn) headers() control.BoxHeaders {
	out := control.BoxHeaders{}
	for host, list := range in.Headers {
		out[host] = map[string]outboard.Secret{}
		for name, value := range list {
			out[host][name] = outboard.NewSecret(value)
		}
	}
	return out
}

func (in *boxNetworkIn) settings() outboard.BoxNetwork {
	n := outboard.BoxNetwork{Closed: in.Closed, Allow: in.Allow, Deny: in.Deny}
	if p := in.Proxy; p != nil {
		n.Proxy = outboard.BoxProxy{Address: p.Address, Username: p.Username, Password: p.Password != ""}
	}
	return n
}

func (in *boxNetworkIn) password() (s outboard.Secret) {
	if in.Proxy != nil {
		s = outboard.NewSecret(in.Proxy.Password)
	}
	return s
}

// setBoxNetwork replaces the whole of it.
func (s *server) setBoxNetwork(r *request) (any, error) {
	var in boxNetworkIn
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	if _, err := s.ctl.SetBoxNetwork(r.Context(), r.by, boxID(r), in.settings(), in.headers(),
		in.password()); err != nil {
		return nil, err
	}
	return s.boxNetwork(r)
}

func (s *server) boxNetwork(r *request) (any, error) {
	n, err := s.ctl.BoxNetwork(r.Context(), r.by, boxID(r))
	if err != nil {
		return nil, err
	}
	return showNetwork(n), nil
}

// sandboxNetworkLog lists the requests of a sandbox, newest first.
func (s *server) boxNetworkLog(r *request) (any, error) {
	return r.networkLog(func(before int64, limit int) ([]control.AuditRecord, error) {
		return s.ctl.BoxNetworkLog(r.Context(), r.by, boxID(r), before, limit)
	})
}
