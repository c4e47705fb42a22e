package e2b

import (
	"cmp"
	"encoding/json"
	"net/http"
	"net/netip"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// networkIn is a sandbox's network as the SDKs describe it: when it is made, and whole whenever it is changed.
type networkIn struct {
	AllowPublicTraffic *bool       `json:"allowPublicTraffic"`
	AllowOut           []string    `json:"allowOut"` // addresses, networks, names and *.names
	DenyOut            []string    `json:"denyOut"`  // addresses and networks
	EgressProxy        *proxyIn    `json:"egressProxy"`
	MaskRequestHost    string      `json:"maskRequestHost"`
	Rules              headerRules `json:"rules"`
	HTTPSPorts         []int       `json:"httpsPorts"`
}

// proxyIn is the SOCKS5 proxy that a sandbox's requests are to go through.
type proxyIn struct {
	Address  string `json:"address"`
	Username string `json:"username"`
	Password string `json:"password"` // never shown again
}

// password is that of the proxy.
func (in *networkIn) password() (s outboard.Secret) {
	if in.EgressProxy != nil {
		s = outboard.NewSecret(in.EgressProxy.Password)
	}
	return s
}

// everything are the networks that mean every address.
var everything = map[string]bool{"0.0.0.0/0": true, "::/0": true}

// settings turns what a client wants into what a box has. What a gateway that knows servers by their names
// cannot hold is refused: it must not seem to hold.
func (in *networkIn) settings(internet *bool) (n outboard.BoxNetwork, err error) {
	n.Closed = internet != nil && !*internet
	if p := in.EgressProxy; p != nil {
		if n.Closed {
			return n, outboard.Errorf(outboard.Invalid, "network.egressProxy: with allow_internet_access false "+
				"there is nothing to go through it; say what may be reached with allowOut and denyOut")
		}
		if p.Address == "" {
			return n, outboard.Errorf(outboard.Invalid, "network.egressProxy: the address is missing")
		}
		n.Proxy = outboard.BoxProxy{Address: p.Address, Username: p.Username, Password: p.Password != ""}
	}
	for _, d := range in.DenyOut {
		if everything[d] {
			n.Closed = true
			continue
		}
		p, err := network(d)
		if err != nil {
			return n, outboard.Errorf(outboard.Invalid, "network.denyOut: %q is not an address or a network; names "+
				"cannot be denied", d)
		}
		n.Deny = append(n.Deny, p.String())
	}
	named, all := false, false
	for _, a := range in.AllowOut {
		p, err := network(a)
		switch {
		case everything[a]:
			all = true
			n.Allow = append(n.Allow, "*")
		case err != nil:
			named = true
			n.Allow = append(n.Allow, strings.ToLower(a)) // checked where it is set
		case p.IsSingleIP():
			n.Allow = append(n.Allow, p.Addr().String())
		default:
			n.Allow = append(n.Allow, p.String())
		}
	}
	switch {
	case n.Closed:
		n.Deny = nil // it is all denied, and what is allowed wins
	case named:
		return n, outboard.Errorf(outboard.Invalid, "network.allowOut: names need 0.0.0.0/0 in denyOut, or nothing "+
			"is kept from the others")
	case all: // and that wins
		n.Allow, n.Deny = nil, nil
	case len(n.Deny) == 0:
		n.Allow = nil // of what is reachable anyway
	}
	return n, nil
}

// tlsPorts are the ports that the programs of a sandbox serve with TLS themselves.
func (in *networkIn) tlsPorts() (ports []uint16, err error) {
	for _, p := range in.HTTPSPorts {
		if p < 1 || p > 65535 || p == envdPort || control.ReservedPort(uint16(p)) {
			return nil, outboard.Errorf(outboard.Invalid, "network.httpsPorts: %d is no port, or the agent's or the "+
				"gateway's", p)
		}
		ports = append(ports, uint16(p))
	}
	return ports, nil
}

// network reads an address or a network.
func network(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		a = a.WithZone("").Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err == nil && p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked(), err
}

// setNetwork replaces what a sandbox may reach; what is left out is as if it was never said.
func (s *Server) setNetwork(r *request) (int, any, error) {
	var in networkIn
	var more struct {
		AllowInternet *bool `json:"allow_internet_access"`
	}
	body := json.RawMessage("{}")
	if err := decode(r.w, r.Request, &body); err != nil {
		return 0, nil, err
	}
	if err := cmp.Or(control.DecodeJSON(body, &in), control.DecodeJSON(body, &more)); err != nil {
		return 0, nil, err
	}
	if len(in.HTTPSPorts) > 0 {
		return 0, nil, outboard.Errorf(outboard.Invalid, "network.httpsPorts are said when a sandbox is made")
	}
	n, err := in.settings(more.AllowInternet)
	if err != nil {
		return 0, nil, err
	}
	h, err := in.Rules.headers()
	if err == nil {
		_, err = s.ctl.SetBoxNetwork(r.Context(), r.by, r.id(), n, h, in.password())
	}
	return http.StatusNoContent, nil, err
}

// shownNetwork is a box's network as it was set.
func shownNetwork(b *outboard.Box) networkOut {
	out := networkOut{AllowPublicTraffic: b.Traffic == "", MaskRequestHost: b.MaskHost, DenyOut: b.Net.Deny,
		HTTPSPorts: b.TLSPorts}
	for _, a := range b.Net.Allow {
		if a == "*" {
			a = "0.0.0.0/0"
		}
		out.AllowOut = append(out.AllowOut, a)
	}
	if b.Net.Closed {
		out.DenyOut = []string{"0.0.0.0/0"}
	}
	out.Rules = shownRules(b.Headers)
	if p := b.Net.Proxy; !p.IsZero() {
		out.EgressProxy = &proxyOut{p.Address, p.Username}
	}
	return out
}
