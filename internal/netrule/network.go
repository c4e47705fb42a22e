package netrule

import (
	"fmt"
	"net/netip"
	"strings"
)

// Network reads a network such as 10.0.0.0/8 and brings it into the one form in which addresses are looked for
// in it: bits beyond its length are zero, and a network of IPv4 addresses that is written as one of IPv6 is one
// of IPv4. One that would have to be both is refused: half of it would never match.
func Network(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is not a network such as 10.0.0.0/8", clip(s))
	}
	if p.Addr().Is4In6() {
		if p.Bits() < 96 {
			return netip.Prefix{}, fmt.Errorf("%q is a network of IPv4 and IPv6 addresses; name two", clip(s))
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked(), nil
}

// asNetwork is the network that a rule's host is, if it is one.
func asNetwork(host string) (netip.Prefix, bool) {
	if !strings.Contains(host, "/") { // most are names
		return netip.Prefix{}, false
	}
	n, err := Network(host)
	return n, err == nil
}

// within reports whether a host is an address of a network. A name is not, wherever it leads: that would have to
// be looked up first, and what is looked up has left the sandbox.
func within(n netip.Prefix, host string) bool {
	a, err := netip.ParseAddr(host)
	return err == nil && a.Zone() == "" && n.Contains(a.Unmap())
}
