package outbound

import (
	"context"
	"errors"
	"net/netip"
	"testing"
)

func answering(addrs ...string) func(context.Context, string) ([]netip.Addr, error) {
	return func(context.Context, string) ([]netip.Addr, error) {
		var out []netip.Addr
		for _, a := range addrs {
			out = append(out, netip.MustParseAddr(a))
		}
		return out, nil
	}
}

// Broken if a network the operator opened reaches more than that network, or ever a metadata service.
func TestPrivateNetworks(t *testing.T) {
	all := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	ten := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
	for _, tc := range []struct {
		private []netip.Prefix
		addrs   []string
		ok      bool
	}{
		{nil, []string{"93.184.216.34"}, true},
		{nil, []string{"10.1.2.3"}, false},
		{ten, []string{"10.1.2.3"}, true},
		{ten, []string{"10.2.2.3"}, false},
		{ten, []string{"10.1.2.3", "10.2.2.3"}, false},
		{ten, []string{"::ffff:10.1.2.3"}, true},
		{all, []string{"192.168.1.1"}, true},
		{all, []string{"169.254.169.254"}, false},
		{all, []string{"::ffff:169.254.169.254"}, false},
		{all, []string{"100.100.100.200"}, false},
		{all, []string{"168.63.129.16"}, false},
		{all, []string{"192.0.0.192"}, false},
		{all, []string{"fd00:ec2::254"}, false},
		{all, []string{"fd20:ce::254"}, false},
		{all, []string{"93.184.216.34", "169.254.169.254"}, false},
	} {
		g := Guard{Resolve: answering(tc.addrs...), Private: tc.private}
		_, err := g.Lookup(t.Context(), "a.test")
		if _, refused := errors.AsType[*Refusal](err); refused == tc.ok || tc.ok && err != nil {
			t.Errorf("%v with %v: %v", tc.addrs, tc.private, err)
		}
	}
}

// Broken if a host that some resolver or parser reads differently passes as a plain name.
func FuzzCheckHost(f *testing.F) {
	for _, s := range []string{"a.test", "127.0.0.1", "0x7f.1", "a..b", "::1", "fe80::1%lo /x", "metadata.x",
		"a_b.test", "xn--a.test", "a.test."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, host string) {
		if CheckHost(host) != "" {
			return
		}
		for _, c := range []byte(host) {
			plain := c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.' || c == ':' ||
				c >= 'A' && c <= 'F'
			if !plain {
				t.Fatalf("%q passes with %q", host, c)
			}
		}
	})
}
