// Package netrule owns the rules on what a sandbox can reach: which rules an environment amounts
// to, and what they say about one request. It also brings hosts and paths into the one form in
// which they are judged and forwarded.
//
// Invariants: it is pure. The same rules and the same request always give the same answer.
//
// It never dials and never looks up a name. Start reading at Effective and Judge.
package netrule

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/text"
)

// Rule is one line of the effective list.
type Rule struct {
	outboard.NetRule
	Source string `json:"source"` // what put it there, e.g. "allowed_hosts" or "mcp_servers: github"
}

// PackageHosts are where the package managers of the wire fetch from. They are reachable for reading only.
var PackageHosts = []string{
	"registry.npmjs.org", "registry.yarnpkg.com", "nodejs.org", // npm
	"pypi.org", "files.pythonhosted.org", // pip
	"index.crates.io", "static.crates.io", "crates.io", "static.rust-lang.org", // cargo
	"proxy.golang.org", "sum.golang.org", "go.dev", "dl.google.com", // go
	"rubygems.org", "index.rubygems.org", // gem
	"deb.debian.org", "security.debian.org", "archive.ubuntu.com", "security.ubuntu.com", "ports.ubuntu.com", // apt
}

// AnyPort in a rule is every port.
const AnyPort = -1

// Effective returns everything that a session's networking lets it reach: nothing is reachable that is not in it.
func Effective(n outboard.Networking, mcp []outboard.MCPServer) []Rule {
	var out []Rule
	for i, r := range n.Rules {
		if r.Deny || n.Mode == "limited" || n.Mode == "unrestricted" && r.Trusted {
			out = append(out, Rule{r, fmt.Sprintf("rules[%d]", i)})
		}
	}
	switch n.Mode {
	case "unrestricted":
		return append(out, Rule{outboard.NetRule{Host: "*", Port: AnyPort, WebSocket: true}, "unrestricted"})
	case "limited":
	default:
		return nil
	}
	for _, h := range n.AllowedHosts {
		out = append(out, Rule{outboard.NetRule{Host: strings.ToLower(h)}, "allowed_hosts"})
	}
	if n.AllowPackageManagers {
		for _, h := range PackageHosts {
			out = append(out, Rule{outboard.NetRule{Host: h, Methods: []string{"GET", "HEAD"}, Trusted: true},
				"allow_package_managers"})
		}
	}
	if n.AllowMCPServers {
		for _, s := range mcp {
			if r, ok := ofURL(s.URL); ok {
				out = append(out, Rule{r, "allow_mcp_servers: " + s.Name})
			}
		}
	}
	return out
}

// ofURL is the rule for the server of a URL.
func ofURL(text string) (outboard.NetRule, bool) {
	u, err := url.Parse(text)
	if err != nil {
		return outboard.NetRule{}, false
	}
	host, port, err := Host(u.Host)
	if err != nil {
		return outboard.NetRule{}, false
	}
	if port == 443 && u.Scheme == "https" || port == 80 && u.Scheme == "http" {
		port = 0
	}
	return outboard.NetRule{Host: host, Port: port}, true
}

// OfGrant is the rule that a grant amounts to.
func OfGrant(g outboard.NetGrant) Rule {
	return Rule{outboard.NetRule{Host: g.Host, Port: g.Port, WebSocket: g.WebSocket}, "grant " + string(g.ID)}
}

// Target is what a request is for, in canonical form.
type Target struct {
	Method string
	Host   string
	Port   int
	Path   string
	Odd    string // why the path is not in a form that every server reads the same way; "" = it is
	// WebSocket says that the request opens one.
	WebSocket bool
}

// Verdict is what rules say.
type Verdict struct {
	Allow  bool
	Rule   string // the deciding rule's source
	Reason string // for a refusal
	Firm   bool   // a rule refuses it by name: nothing but a change of the rules lets it pass
}

// Judge applies rules to a request. A rule that denies wins; without one that allows, the answer is no.
func Judge(rules []Rule, t Target) Verdict {
	verdict := Verdict{Rule: "default", Reason: fmt.Sprintf("no rule lets this sandbox reach %s",
		where(t.Host, t.Port))}
	for _, r := range rules {
		if !r.host(t.Host, t.Port) {
			continue
		}
		if r.Path != "" && t.Odd != "" {
			return Verdict{Rule: r.Source, Firm: true, Reason: "a rule speaks of paths of this host, and " + t.Odd}
		}
		switch matches := r.method(t.Method) && (r.Path == "" || Match(r.Path, t.Path)); {
		case matches && r.Deny:
			return Verdict{Rule: r.Source, Firm: true, Reason: "a rule denies it"}
		case matches && t.WebSocket && !r.WebSocket && !verdict.Allow:
			verdict.Reason = t.Host + " may be reached, but no rule lets this sandbox open a WebSocket there"
		case matches && !verdict.Allow:
			verdict = Verdict{Allow: true, Rule: r.Source}
		case !r.Deny && !verdict.Allow:
			verdict.Reason = fmt.Sprintf("%s may be reached, but not with %s %s", t.Host, t.Method, clip(t.Path))
		}
	}
	return verdict
}

// Trusts reports whether a rule that lets a request pass says that private data may go there.
func Trusts(rules []Rule, t Target) bool {
	return slices.ContainsFunc(rules, func(r Rule) bool {
		return r.Trusted && !r.Deny && r.host(t.Host, t.Port) && r.method(t.Method) &&
			(r.Path == "" || t.Odd == "" && Match(r.Path, t.Path))
	})
}

// NamesMethods reports whether a rule that speaks of a host and port names methods: what is of another method is
// something else there.
func NamesMethods(rules []Rule, host string, port int) bool {
	return slices.ContainsFunc(rules, func(r Rule) bool { return len(r.Methods) > 0 && r.host(host, port) })
}

// MayConnect reports whether any request to a host and port could be allowed.
func MayConnect(rules []Rule, host string, port int) bool {
	return slices.ContainsFunc(rules, func(r Rule) bool { return !r.Deny && r.host(host, port) })
}

func (r *Rule) host(host string, port int) bool {
	switch r.Port {
	case 0:
		if port != 80 && port != 443 {
			return false
		}
	case AnyPort:
	default:
		if port != r.Port {
			return false
		}
	}
	if n, ok := asNetwork(r.Host); ok {
		return within(n, host)
	}
	if rest, ok := strings.CutPrefix(r.Host, "*"); ok {
		return strings.HasSuffix(host, rest) && len(host) > len(rest) && (rest == "" || !isIP(host))
	}
	return r.Host == host
}

func (r *Rule) method(m string) bool { return len(r.Methods) == 0 || slices.Contains(r.Methods, m) }

func isIP(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil
}

func where(host string, port int) string {
	if port == 80 || port == 443 {
		return host
	}
	return host + " port " + strconv.Itoa(port)
}

// Match reports whether a clean path fits a pattern, in which * stands for any part of one segment and ** at the
// end for any rest.
func Match(pattern, path string) bool {
	pattern, rest := strings.CutSuffix(pattern, "**")
	ps, ss := strings.Split(pattern, "/"), strings.Split(path, "/")
	if len(ss) < len(ps) || !rest && len(ss) != len(ps) {
		return false
	}
	for i, p := range ps {
		if rest && i == len(ps)-1 {
			return segment(p+"*", ss[i])
		}
		if !segment(p, ss[i]) {
			return false
		}
	}
	return true
}

// segment matches one segment, in which each * stands for any text.
func segment(pattern, s string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == s
	}
	last := len(parts) - 1
	if !strings.HasPrefix(s, parts[0]) {
		return false
	}
	s = s[len(parts[0]):]
	for _, p := range parts[1:last] {
		i := strings.Index(s, p)
		if i < 0 {
			return false
		}
		s = s[i+len(p):]
	}
	return strings.HasSuffix(s, parts[last])
}

// clip shortens foreign text for an error.
func clip(s string) string { return text.Clip(s, 200) }
