package outbound

import (
	"net"
	"net/netip"
	"slices"
	"strings"
)

// forbidden are the networks inside the ranges that public allows where nothing of the public internet lives, or
// where a translator could carry a request back inside.
var forbidden = prefixes(
	"0.0.0.0/8",         // "this" network; Linux connects 0.0.0.0 to loopback
	"10.0.0.0/8",        // private
	"100.64.0.0/10",     // carrier-grade NAT, with clouds' metadata at 100.100.100.200 and 100.96.0.96
	"127.0.0.0/8",       // loopback
	"168.63.129.16/32",  // a cloud's wire server, on a public address
	"169.254.0.0/16",    // link-local, with clouds' metadata at 169.254.169.254
	"172.16.0.0/12",     // private
	"192.0.0.0/24",      // protocol assignments, with a cloud's metadata at 192.0.0.192
	"192.0.2.0/24",      // documentation
	"192.88.99.0/24",    // 6to4 relays
	"192.168.0.0/16",    // private
	"198.18.0.0/15",     // benchmarking
	"198.51.100.0/24",   // documentation
	"203.0.113.0/24",    // documentation
	"224.0.0.0/4",       // multicast
	"240.0.0.0/4",       // reserved, with broadcast
	"2001::/23",         // protocol assignments, with Teredo (2001::/32), which embeds an IPv4 address
	"2001:db8::/32",     // documentation
	"2002::/16",         // 6to4, which embeds an IPv4 address
	"2620:4f:8000::/48", // AS112 sinks
	"3fff::/20",         // documentation
)

// globalV6 is what has been given out for the public internet. Everything else is left out by it: loopback,
// link-local, multicast, unique local (with metadata at fd00:ec2::254 and fd20:ce::254), NAT64 (64:ff9b::/96 and
// 64:ff9b:1::/48), mapped and compatible forms, SRv6.
var globalV6 = netip.MustParsePrefix("2000::/3")

func prefixes(list ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(list))
	for i, s := range list {
		out[i] = netip.MustParsePrefix(s)
	}
	return out
}

// metadata are the services that clouds give every machine its credentials by. No setting makes them reachable.
var metadata = prefixes("169.254.0.0/16", "100.100.100.200/32", "100.96.0.96/32", "168.63.129.16/32", "192.0.0.192/32",
	"fe80::/10",
	"fd00:ec2::254/128", "fd20:ce::254/128")

// Metadata reports whether all of a network is such services.
func Metadata(n netip.Prefix) bool {
	return slices.ContainsFunc(metadata,
		func(p netip.Prefix) bool { return p.Bits() <= n.Bits() && p.Contains(n.Addr()) })
}

func contains(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}

// public reports whether a valid, unmapped address is on the public internet.
func public(a netip.Addr) bool {
	if a.Is6() && (!globalV6.Contains(a) || isatap(a)) {
		return false
	}
	return !contains(forbidden, a)
}

// isatap reports whether an IPv6 address embeds an IPv4 one as an ISATAP interface identifier.
func isatap(a netip.Addr) bool {
	b := a.As16()
	return b[8]&^2 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe
}

// ownAddresses are the addresses of this machine: a public one among them still leads inside.
func ownAddresses() map[netip.Addr]bool {
	own := map[netip.Addr]bool{}
	list, err := net.InterfaceAddrs()
	if err != nil {
		return own // the ranges above still hold
	}
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own[p.Addr().Unmap()] = true
		}
	}
	return own
}

// CheckHost says what is wrong with a host, lower-case and without a final dot, or "". A host that passes is a
// plain DNS name, or an IP address in its usual form.
func CheckHost(host string) string {
	if ip, err := netip.ParseAddr(host); err == nil {
		if ip.Is4In6() {
			return "IPv4 addresses must be written as such"
		}
		if ip.Zone() != "" {
			return "an address must not have a zone"
		}
		return ""
	}
	if host == "" || len(host) > 253 {
		return "the address has no host, or one that is too long"
	}
	labels := strings.Split(host, ".")
	for _, l := range labels {
		if l == "" || len(l) > 63 || strings.Trim(l, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return "the host is not a plain name (international names must be in their xn-- form)"
		}
	}
	last := labels[len(labels)-1]
	if last[0] >= '0' && last[0] <= '9' {
		// 2130706433, 0x7f.1, 127.1, 0177.0.0.1
		return "numbers that some resolvers take for an IP address are not hosts"
	}
	if labels[0] == "metadata" || host == "instance-data" {
		return "metadata services are out of reach"
	}
	return ""
}
