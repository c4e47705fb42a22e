package netrule

import (
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
)

func limited(f func(*outboard.Networking)) []Rule {
	n := outboard.Networking{Mode: "limited"}
	f(&n)
	return Effective(n, []outboard.MCPServer{{Name: "gh", URL: "https://mcp.test/v1"},
		{Name: "odd", URL: "https://mcp.test:8443/"}})
}

// Broken if a request passes that no rule names, or one that a rule names does not.
func TestJudge(t *testing.T) {
	rules := limited(func(n *outboard.Networking) {
		n.AllowedHosts = []string{"a.test", "*.wild.test", "10.1.2.3"}
		n.AllowMCPServers, n.AllowPackageManagers = true, true
		n.Rules = []outboard.NetRule{
			{Host: "api.test", Methods: []string{"GET"}, Path: "/v1/**"},
			{Host: "api.test", Methods: []string{"POST"}, Path: "/v1/*/items"},
			{Host: "api.test", Path: "/v1/secret/**", Deny: true},
			{Host: "db.test", Port: 8443},
		}
	})
	for _, tc := range []struct {
		method, host string
		port         int
		path         string
		allow        bool
	}{
		{"GET", "a.test", 443, "/", true},
		{"POST", "a.test", 80, "/x", true},
		{"GET", "a.test", 8443, "/", false},
		{"GET", "b.a.test", 443, "/", false},
		{"GET", "xa.test", 443, "/", false},
		{"GET", "a.test.evil", 443, "/", false},
		{"GET", "x.wild.test", 443, "/", true},
		{"GET", "x.y.wild.test", 443, "/", true},
		{"GET", "wild.test", 443, "/", false},
		{"GET", "xwild.test", 443, "/", false},
		{"GET", ".wild.test", 443, "/", false},
		{"GET", "10.1.2.3", 443, "/", true},
		{"GET", "10.1.2.4", 443, "/", false},
		{"GET", "api.test", 443, "/v1/x", true},
		{"GET", "api.test", 443, "/v1/", true},
		{"GET", "api.test", 443, "/v1", false},
		{"GET", "api.test", 443, "/v1x", false},
		{"GET", "api.test", 443, "/v2/x", false},
		{"POST", "api.test", 443, "/v1/a/items", true},
		{"POST", "api.test", 443, "/v1/a/b/items", false},
		{"POST", "api.test", 443, "/v1/a", false},
		{"GET", "api.test", 443, "/v1/secret/x", false},
		{"POST", "api.test", 443, "/v1/secret/items", false},
		{"GET", "db.test", 8443, "/", true},
		{"GET", "db.test", 443, "/", false},
		{"GET", "pypi.org", 443, "/simple/", true},
		{"POST", "pypi.org", 443, "/legacy/", false},
		{"POST", "mcp.test", 443, "/v1", true},
		{"POST", "mcp.test", 8443, "/v1", true},
		{"POST", "mcp.test", 9443, "/v1", false},
	} {
		if v := Judge(rules, Target{Method: tc.method, Host: tc.host, Port: tc.port,
			Path: tc.path}); v.Allow != tc.allow || !v.Allow && v.Reason == "" {
			t.Errorf("%s %s:%d%s: %+v", tc.method, tc.host, tc.port, tc.path, v)
		}
	}
	if v := Judge(rules, Target{Method: "GET", Host: "api.test", Port: 443, Path: "/v1/a;b", Odd: "odd"}); v.Allow ||
		!v.Firm {
		t.Errorf("an odd path under a rule of paths: %+v", v)
	}
	if v := Judge(rules, Target{Method: "GET", Host: "a.test", Port: 443, Path: "/@a/b", Odd: "odd"}); !v.Allow {
		t.Errorf("an odd path where no rule speaks of paths: %+v", v)
	}
}

// Broken if a mode reaches more than it says: nothing by default, nothing at all with none.
func TestModes(t *testing.T) {
	any := Target{Method: "GET", Host: "x.test", Port: 9999, Path: "/"}
	for mode, want := range map[string]bool{"unrestricted": true, "limited": false, "none": false, "": false} {
		if got := Judge(Effective(outboard.Networking{Mode: mode}, nil), any); got.Allow != want {
			t.Errorf("%q: %+v", mode, got)
		}
	}
	n := outboard.Networking{Mode: "unrestricted",
		Rules: []outboard.NetRule{{Host: "x.test", Port: AnyPort, Deny: true}}}
	if got := Judge(Effective(n, nil), any); got.Allow || !got.Firm {
		t.Errorf("denied by name: %+v", got)
	}
	if got := Effective(outboard.Networking{Mode: "limited"},
		[]outboard.MCPServer{{Name: "a", URL: "https://a.test"}}); len(got) != 0 {
		t.Errorf("a new environment reaches %v", got)
	}
}

// Broken if two spellings of a host are judged differently, or one that is not a plain name is judged at all.
func TestHost(t *testing.T) {
	for in, want := range map[string]string{"A.Test": "a.test", "a.test.": "a.test", "a.test:443": "a.test",
		"[::1]:80": "::1", "[2001:db8::1]": "2001:db8::1",
		"1.2.3.4:1": "1.2.3.4", "xn--bcher-kva.test": "xn--bcher-kva.test", "a_b.test": "a_b.test"} {
		if got, _, err := Host(in); err != nil || got != want {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
	for _, in := range []string{"", ".", "a..test", "a.test..", " a.test", "a.test ", "a\x00.test", "a.test\r\nx",
		"a\t.test", "a%00.test", "a%2etest", "user@a.test",
		"user:pw@a.test", "a.test/", "a.test?x", "a.test#x", `a\.test`, "b\u00fccher.test", "\u212a.test", "a\u3002test", "2130706433", "0x7f.1", "127.1", "0177.0.0.1",
		"::ffff:127.0.0.1", "[::ffff:127.0.0.1]:80", "[fe80::1%lo]", "a.test:", "a.test:0", "a.test:080", "a.test:+80", "a.test:65536", "a.test:80:80", "a.test:http",
		strings.Repeat("a", 300), strings.Repeat("a.", 150) + "test", "metadata.google.internal", "[a.test", "a]"} {
		if got, _, err := Host(in); err == nil {
			t.Errorf("%q passes as %q", in, got)
		}
	}
}

// Broken if a path that servers read in different ways passes as clean.
func TestPath(t *testing.T) {
	for _, in := range []string{"/", "/v1/x", "/v1/a%20b", "/caf%C3%A9", "/a.b/..c/...", "/a+b"} {
		if _, odd, err := Path(in); err != nil || odd != "" {
			t.Errorf("%q: %s, %v", in, odd, err)
		}
	}
	for _, in := range []string{"//admin", "/v1%2fadmin", "/a;b", "/v1%5Cadmin", `/v1\admin`, "/%252e%252e/admin",
		"/a%25b", "/@s%2Fname", "/a%2eb", "/%c0%ae%c0%ae/a"} {
		if _, odd, err := Path(in); err != nil || odd == "" {
			t.Errorf("%q passes as clean: %v", in, err)
		}
	}
	for _, in := range []string{"", "v1", "*", "/v1/../admin", "/v1/%2e%2e/admin", "/v1/%2E./admin", "/v1/..;/admin",
		"/v1/.;x/a", "/./a", "/a/..", "/v1%00", "/a%0d%0ab",
		"/a%7f", "/%", "/%zz", `/a\..\b`, "/a%5c..%5cb", "/" + strings.Repeat("a", MaxPath)} {
		if got, _, err := Path(in); err == nil {
			t.Errorf("%q passes as %q", in, got)
		}
	}
}

// Broken if a rule that means something else than it says is saved.
func TestCheck(t *testing.T) {
	for _, r := range []outboard.NetRule{{Host: "*"}, {Host: "a.test", Port: -1},
		{Host: "*.a.test", Path: "/v1/**", Methods: []string{"GET"}}, {Host: "::1"},
		{Host: "169.254.169.254", Deny: true}, {Host: "168.0.0.0/8"}, {Host: "169.253.1.1"}} {
		if err := Check(r); err != nil {
			t.Errorf("%+v: %v", r, err)
		}
	}
	for _, r := range []outboard.NetRule{{}, {Host: "A.test"}, {Host: "a.test."}, {Host: "a.test:80"}, {Host: "a.*"},
		{Host: "*a.test"}, {Host: "*.1.2.3.4"},
		{Host: "a.test", Port: -2}, {Host: "a.test", Port: 70000}, {Host: "a.test",
			Methods: []string{"get"}}, {Host: "a.test", Path: "v1"},
		{Host: "a.test", Path: "/a/../b"}, {Host: "a.test", Path: "/**/b"}, {Host: "a.test", Path: "/a//b"},
		{Host: "169.254.169.254"}, {Host: "169.254.0.0/17"}, {Host: "fd00:ec2::254"}, {Host: "metadata.google.internal"}} {
		if Check(r) == nil {
			t.Errorf("%+v passes", r)
		}
	}
}

// Broken if some spelling of a host or path comes out in a form that is spelled differently when judged again.
func FuzzCanonical(f *testing.F) {
	for _, s := range []string{"a.test:443", "/v1/%2e%2e/x", "[::1]:80", "/a;b//c", "A.B.", "/%c0%ae/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if h, _, err := Host(s); err == nil {
			if again, _, err := Host(h); err != nil || again != h {
				t.Fatalf("%q is %q, and that %q, %v", s, h, again, err)
			}
		}
		if p, odd, err := Path(s); err == nil {
			if strings.Contains(p, "/../") || strings.HasSuffix(p, "/..") || strings.ContainsAny(p, "\x00\r\n") {
				t.Fatalf("%q is %q", s, p)
			}
			if odd == "" && (strings.Contains(p, "//") || strings.ContainsAny(p, `;\%`)) {
				t.Fatalf("%q is clean as %q", s, p)
			}
		}
	})
}
