package netrule

import (
	"slices"
	"testing"

	"github.com/outboard-dev/outboard"
)

// Broken if a box reaches more than the server lets boxes reach, or less than both let it, or if what is beyond
// the bound is not said.
func TestForBox(t *testing.T) {
	limited := outboard.Networking{Mode: "limited", AllowedHosts: []string{"a.test", "*.b.test"},
		AllowPackageManagers: true}
	open := outboard.Networking{Mode: "unrestricted"}
	bound := outboard.Networking{Mode: "limited", AllowedHosts: []string{"10.1.0.0/16"}}
	closed := func(allow ...string) outboard.BoxNetwork { return outboard.BoxNetwork{Closed: true, Allow: allow} }
	for what, c := range map[string]struct {
		most   outboard.Networking
		want   outboard.BoxNetwork
		yes    []string
		no     []string
		beyond []string
	}{
		"no bound is nothing": {outboard.Networking{}, closed("a.test"), nil, []string{"a.test"},
			[]string{"a.test"}},
		"none is nothing": {outboard.Networking{Mode: "none"}, outboard.BoxNetwork{}, nil,
			[]string{"a.test"}, nil},
		"limited to nothing": {outboard.Networking{Mode: "limited"}, outboard.BoxNetwork{}, nil,
			[]string{"a.test"}, nil},
		"a wish for all": {limited, outboard.BoxNetwork{}, []string{"a.test", "x.b.test", "pypi.org"},
			[]string{"b.test", "c.test"}, nil},
		"all, by name": {limited, closed("*"), []string{"a.test"}, []string{"c.test"}, nil},
		"closed":       {limited, closed(), nil, []string{"a.test", "x.b.test", "pypi.org"}, nil},
		"one of them": {limited, closed("x.b.test"), []string{"x.b.test"},
			[]string{"a.test", "y.b.test"}, nil},
		"a part of a wild one": {limited, closed("*.x.b.test"), []string{"y.x.b.test"},
			[]string{"x.b.test", "y.b.test"}, nil},
		"beyond it": {limited, closed("a.test", "c.test", "b.test"), []string{"a.test"},
			[]string{"c.test", "b.test"}, []string{"c.test", "b.test"}},
		"a wild one around it": {limited, closed("*.test"), nil, []string{"a.test", "x.b.test"},
			[]string{"*.test"}},
		"an address under a wild name": {limited, closed("10.0.0.1"), nil, []string{"10.0.0.1"}, []string{"10.0.0.1"}},
		"open":                         {open, outboard.BoxNetwork{}, []string{"a.test", "10.0.0.1"}, nil, nil},
		"open, closed by the box": {open, closed("a.test", "10.0.0.1"), []string{"a.test", "10.0.0.1"},
			[]string{"b.test", "10.0.0.2"}, nil},
		"a network": {open, closed("10.1.0.0/16", "2001:db8::/32"),
			[]string{"10.1.2.3", "2001:db8::1"}, []string{"10.2.0.1", "2001:db9::1", "a.test", "10.1.2.3.test"}, nil},
		"a network beyond the bound": {limited, closed("10.1.0.0/16"), nil, []string{"10.1.2.3"},
			[]string{"10.1.0.0/16"}},
		"a network under a wild name": {outboard.Networking{Mode: "limited", AllowedHosts: []string{"*.0/16"}},
			closed("10.1.0.0/16"), nil, []string{"10.1.2.3"}, []string{"10.1.0.0/16"}},
		"in a network of the bound": {bound, closed("10.1.2.0/24", "10.1.3.4"), []string{"10.1.2.3", "10.1.3.4"},
			[]string{"10.1.3.5"}, nil},
		"around a network of it": {bound, closed("10.0.0.0/8", "10.2.0.1", "a.test"), nil,
			[]string{"10.1.2.3", "10.2.0.1", "a.test"}, []string{"10.0.0.0/8", "10.2.0.1", "a.test"}},
		"an exception": {open, outboard.BoxNetwork{Deny: []string{"10.0.0.0/8"},
			Allow: []string{"10.1.0.0/16"}}, []string{"10.1.2.3", "a.test"}, nil, nil},
		"an exception beyond it": {limited, outboard.BoxNetwork{Deny: []string{"10.0.0.0/8"},
			Allow: []string{"10.1.0.0/16"}}, []string{"a.test"}, []string{"10.1.2.3"}, []string{"10.1.0.0/16"}},
	} {
		n, beyond := ForBox(c.most, c.want)
		if !slices.Equal(beyond, c.beyond) {
			t.Errorf("%s: beyond the bound are %q, want %q", what, beyond, c.beyond)
		}
		reaches := func(h string) bool {
			return Judge(Effective(n, nil), Target{Method: "GET", Host: h, Port: 443, Path: "/"}).Allow
		}
		for _, h := range c.yes {
			if !reaches(h) {
				t.Errorf("%s: %s cannot be reached", what, h)
			}
		}
		for _, h := range c.no {
			if reaches(h) {
				t.Errorf("%s: %s can be reached", what, h)
			}
		}
	}
	n, _ := ForBox(limited, closed("pypi.org"))
	if Judge(Effective(n, nil), Target{Method: "POST", Host: "pypi.org", Port: 443, Path: "/"}).Allow {
		t.Error("a box may do more at a host than the bound says")
	}
	for what, bad := range map[string]outboard.BoxNetwork{"a port": closed("a.test:80"),
		"an upper-case name": closed("A.test"), "a URL": closed("https://a.test"),
		"a network with a port": closed("10.0.0.0/8:80"), "a wild network": closed("*.10.0.0.0/8"), "bits beyond the mask, to allow": closed("10.1.2.3/8"),
		"a network of both kinds": closed("::ffff:0.0.0.0/95"), "IPv4 as IPv6": closed("::ffff:10.0.0.0/104"), "a zone": closed("fe80::1%lo/64"),
		"IPv4 as IPv6, denied": {Deny: []string{"::ffff:10.0.0.0/104"}}, "both kinds, denied": {Deny: []string{"::/0",
			"::ffff:0.0.0.0/90"}},
		"a name as an exception": {Deny: []string{"10.0.0.0/8"},
			Allow: []string{"a.test"}}, "all as an exception": {Deny: []string{"10.0.0.0/8"}, Allow: []string{"*"}},
		"no network": {Deny: []string{"a.test"}}, "bits beyond the mask": {Deny: []string{"10.1.2.3/8"}},
		"too many": closed(make([]string, maxBoxEntries+1)...), "denied what is closed": {Closed: true,
			Deny: []string{"10.0.0.0/8"}}} {
		if CheckBox(bad) == nil {
			t.Errorf("%s passes", what)
		}
	}
	if Check(outboard.NetRule{Host: "10.0.0.0/8", Deny: true}) == nil {
		t.Error("a rule may deny a network, which names that lead there pass")
	}
	for _, good := range []outboard.BoxNetwork{{Deny: []string{"10.0.0.0/8", "1.1.1.1/32", "2001:db8::/32"}},
		closed("10.0.0.0/8", "2001:db8::/32", "a.test"),
		{Deny: []string{"10.0.0.0/8"}, Allow: []string{"10.1.0.0/16", "10.2.0.1"}}} {
		if err := CheckBox(good); err != nil {
			t.Errorf("good networks: %v", err)
		}
	}
	n, _ = ForBox(open, outboard.BoxNetwork{Deny: []string{"10.0.0.0/8"}, Allow: []string{"10.1.0.0/16", "10.2.0.1"}})
	if !slices.Equal(n.DenyNetworks, []string{"10.0.0.0/8"}) || !slices.Equal(n.DenyExcept,
		[]string{"10.1.0.0/16", "10.2.0.1/32"}) {
		t.Errorf("exceptions: %+v", n)
	}
}

// If this fails, a build of a template reaches more than boxes may, or a host that it names more than it wished for.
func TestNarrow(t *testing.T) {
	build := outboard.Networking{Mode: "limited", AllowPackageManagers: true, AllowedHosts: []string{"git.test"}}
	may := func(most, want outboard.Networking, method, host string) bool {
		n, _ := Narrow(most, want)
		return Judge(Effective(n, nil), Target{Method: method, Host: host, Port: 443, Path: "/"}).Allow
	}
	for what, c := range map[string]struct {
		most                           outboard.Networking
		git, post, pypi, write, others bool
	}{
		"nothing": {outboard.Networking{Mode: "limited"}, false, false, false, false, false},
		"none":    {outboard.Networking{Mode: "none"}, false, false, false, false, false},
		"all":     {outboard.Networking{Mode: "unrestricted"}, true, true, true, false, false},
		"that host": {outboard.Networking{Mode: "limited", AllowedHosts: []string{"*.test", "git.test"}}, true, true,
			false, false, false},
		"reading": {outboard.Networking{Mode: "limited",
			Rules: []outboard.NetRule{{Host: "git.test", Methods: []string{"GET"}}}}, true, false, false, false, false},
		"other hosts": {outboard.Networking{Mode: "limited", AllowedHosts: []string{"other.test"}}, false, false,
			false, false, false},
		"packages": {outboard.Networking{Mode: "limited", AllowPackageManagers: true}, false, false, true, false,
			false},
		"pypi by name": {outboard.Networking{Mode: "limited", AllowedHosts: []string{"pypi.org"}}, false, false, true,
			false, false},
	} {
		got := []bool{may(c.most, build, "GET", "git.test"), may(c.most, build, "POST", "git.test"),
			may(c.most, build, "GET", "pypi.org"),
			may(c.most, build, "POST", "pypi.org"), may(c.most, build, "GET", "other.test")}
		if want := []bool{c.git, c.post, c.pypi, c.write, c.others}; !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
		if _, beyond := Narrow(c.most, build); (len(beyond) > 0) == c.git {
			t.Errorf("%s: beyond the bound are %v", what, beyond)
		}
	}
}
