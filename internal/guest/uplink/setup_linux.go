package uplink

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// Sockets are what a sandbox's programs talk to. They belong to the guest.
type Sockets struct {
	TCP []*net.TCPListener // the proxy's, and where nothing redirects, those of the usual ports
	DNS *net.UDPConn
}

// Close closes them.
func (s *Sockets) Close() {
	for _, l := range s.TCP {
		l.Close()
	}
	if s.DNS != nil {
		s.DNS.Close()
	}
}

// Prepare gives the calling thread's network namespace, whose loopback interface is up, the address of all
// names, and reports whether every connection to it is redirected. It needs CAP_NET_ADMIN there.
func Prepare() (redirected bool, err error) {
	ip := netip.MustParseAddr(Synthetic).As4()
	if err := addAddress(loopbackIndex, ip); err != nil {
		return false, fmt.Errorf("adding address %s: %w", Synthetic, err)
	}
	// A kernel without nftables still serves the usual ports.
	return redirect(ip, netip.MustParseAddrPort(ProxyAddr).Port()) == nil, nil
}

// Open listens in a namespace that Prepare has been called in.
func Open(redirected bool) (_ *Sockets, err error) {
	s := new(Sockets)
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	listen := []netip.AddrPort{netip.MustParseAddrPort(ProxyAddr)}
	if !redirected {
		ip := netip.MustParseAddr(Synthetic)
		listen = append(listen, netip.AddrPortFrom(ip, 80), netip.AddrPortFrom(ip, 443))
	}
	for _, addr := range listen {
		l, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(addr))
		if err != nil {
			return nil, fmt.Errorf("listening inside: %w", err)
		}
		s.TCP = append(s.TCP, l)
	}
	if s.DNS, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(DNSAddr))); err != nil {
		return nil, fmt.Errorf("listening inside: %w", err)
	}
	return s, nil
}

var errNoSockets = errors.New("the guest handed over no socket")
