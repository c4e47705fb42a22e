// Package outbound dials addresses that somebody else chose: a model, a tool inside a sandbox, a
// remote server's answer.
//
// Invariants:
//   - A name is resolved once, every address it has is checked, and a checked address is dialled.
//     So a name cannot change its meaning in between.
//   - What is not on the public internet is refused, unless the operator has named its network. The
//     metadata services of clouds are refused even then.
//
// It holds no state but its configuration and knows no policy: its callers say who can reach which
// host.
//
// Start reading at Guard.
package outbound

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"
)

const (
	// maxAddresses bounds the addresses of one name that are tried.
	maxAddresses = 4
	// dialTimeout leaves time for another address within a caller's patience.
	dialTimeout = 7 * time.Second
)

// Guard says what may be dialled. The zero value reaches the public internet only.
type Guard struct {
	// Resolve looks a rooted name ("a.b.") up. nil = the system's resolver.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	// Private are networks that count as reachable though they are not public.
	Private []netip.Prefix
	// Denied are networks that count as unreachable, whatever else is said of them, but for the addresses that
	// are also in Except.
	Denied []netip.Prefix
	// Except takes addresses out of Denied. It makes nothing reachable that would not be without Denied.
	Except []netip.Prefix
}

// Loopback are the prefixes of this machine itself, for a Guard of tests and development.
var Loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

// Refusal is an address that may not be dialled. Detail is for a log: what a name resolves to inside is not the
// business of whoever chose the name.
type Refusal struct{ Why, Detail string }

// Error says why.
func (r *Refusal) Error() string { return r.Why }

// Lookup returns the addresses of a host, which has passed CheckHost. One bad address condemns the name, with a
// *Refusal.
func (g *Guard) Lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	addrs := []netip.Addr{}
	if ip, err := netip.ParseAddr(host); err == nil {
		addrs = append(addrs, ip)
	} else if addrs, err = g.resolve(ctx, host+"."); err != nil { // rooted: no search domain of this host may apply
		return nil, fmt.Errorf("resolving %s: %w", host, err)
	}
	own := ownAddresses()
	for i, a := range addrs {
		addrs[i] = a.Unmap()
		if !g.reachable(addrs[i], own) {
			return nil, &Refusal{Why: "host " + host + " is not on the public internet", Detail: a.String()}
		}
		if contains(g.Denied, addrs[i]) && !contains(g.Except, addrs[i]) {
			return nil, &Refusal{Why: "host " + host + " has an address in a network that is denied",
				Detail: a.String()}
		}
	}
	if len(addrs) == 0 {
		return nil, fmt.Errorf("%s has no address", host)
	}
	return addrs[:min(len(addrs), maxAddresses)], nil
}

func (g *Guard) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if g.Resolve != nil {
		return g.Resolve(ctx, host)
	}
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}

// reachable reports whether an unmapped address may be dialled.
func (g *Guard) reachable(a netip.Addr, own map[netip.Addr]bool) bool {
	if !a.IsValid() || a.Zone() != "" || contains(metadata, a) {
		return false
	}
	return contains(g.Private, a) || public(a) && !own[a]
}

// Dial connects to the first of the checked addresses that answers.
func Dial(ctx context.Context, addrs []netip.Addr, port string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTimeout}
	var errs []error
	for _, a := range addrs {
		conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(a.String(), port))
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}
