package netrule

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/outboard-dev/outboard"
)

// Most entries of a box's network settings: each is looked at for every request.
const maxBoxEntries = 200

// CheckBox refuses settings of a box that would not mean what they say.
func CheckBox(n outboard.BoxNetwork) error {
	if len(n.Allow) > maxBoxEntries || len(n.Deny) > maxBoxEntries {
		return fmt.Errorf("a box's network has at most %d entries to allow and %d to deny", maxBoxEntries,
			maxBoxEntries)
	}
	for _, h := range n.Allow {
		if err := Check(outboard.NetRule{Host: h}); err != nil {
			return fmt.Errorf("%q: %w", clip(h), err)
		}
	}
	for _, d := range n.Deny {
		if p, err := Network(d); err != nil {
			return err
		} else if p.String() != d {
			return fmt.Errorf("%q is the network %s", clip(d), p)
		}
	}
	if n.Closed && len(n.Deny) > 0 {
		return errors.New("where only what is allowed can be reached, there is nothing to deny")
	}
	for _, h := range n.Allow {
		if _, ok := exception(h); len(n.Deny) > 0 && !ok {
			return fmt.Errorf("%q is not an address or a network: only those can be exceptions from networks that "+
				"are denied", clip(h))
		}
	}
	return nil
}

// exception is the network of an entry to allow that is an address or a network.
func exception(h string) (netip.Prefix, bool) {
	if a, err := netip.ParseAddr(h); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	return asNetwork(h)
}

// ForBox returns the networking of a box: what it wants, as far as most, the server's bound on boxes, has it.
// beyond are the entries it allows itself that the bound does not cover as a whole; they are not in the result.
func ForBox(most outboard.Networking, want outboard.BoxNetwork) (n outboard.Networking, beyond []string) {
	n = most
	if most.Mode != "limited" && most.Mode != "unrestricted" {
		return outboard.Networking{Mode: "none"}, want.Allow
	}
	n.Ask, n.DenyNetworks = outboard.NetAsk{Approver: outboard.ApproverNone}, want.Deny
	for _, h := range want.Allow {
		if p, ok := exception(h); ok && len(want.Deny) > 0 {
			n.DenyExcept = append(n.DenyExcept, p.String())
		}
	}
	bound := Effective(most, nil)
	var rules []outboard.NetRule
	all := !want.Closed
	for _, r := range bound {
		if r.Deny {
			rules = append(rules, r.NetRule)
		}
	}
	for _, h := range want.Allow {
		if h == "*" { // whatever the bound is, the box has it
			all = true
			continue
		}
		found := false
		for _, r := range bound {
			if !r.Deny && covers(r.Host, h) {
				rule := r.NetRule
				rule.Host, found = h, true
				rules = append(rules, rule)
			}
		}
		if !found {
			beyond = append(beyond, h)
		}
	}
	if all {
		return n, beyond
	}
	return outboard.Networking{Mode: "limited", Rules: rules, Budget: most.Budget, Ask: n.Ask}, beyond
}

// covers reports whether every host of a pattern fits another one.
func covers(wide, narrow string) bool {
	if wide == "*" || wide == narrow {
		return true
	}
	if w, ok := asNetwork(wide); ok {
		n, ok := exception(narrow)
		return ok && w.Bits() <= n.Bits() && w.Contains(n.Addr())
	}
	if strings.Contains(narrow, "/") { // a network is within networks only
		return false
	}
	rest, wild := strings.CutPrefix(wide, "*")
	return wild && !isIP(narrow) && strings.HasSuffix(strings.TrimPrefix(narrow, "*"), rest) &&
		len(strings.TrimPrefix(narrow, "*")) >= len(rest)
}

// Narrow returns what of a networking that names what it allows the bound on boxes has, with the bound's budget.
// beyond are the hosts among its AllowedHosts of which nothing is left.
func Narrow(most, want outboard.Networking) (n outboard.Networking, beyond []string) {
	bound := Effective(most, nil)
	n = outboard.Networking{Mode: "limited", Budget: most.Budget, Ask: want.Ask, DenyNetworks: most.DenyNetworks,
		DenyExcept: most.DenyExcept}
	left := map[string]bool{}
	for _, w := range Effective(want, nil) {
		if w.Deny {
			n.Rules = append(n.Rules, w.NetRule)
			continue
		}
		for _, b := range bound {
			if r, ok := both(b.NetRule, w.NetRule); ok && !b.Deny {
				n.Rules, left[w.Host] = append(n.Rules, r), true
			}
		}
	}
	for _, b := range bound {
		if b.Deny {
			n.Rules = append(n.Rules, b.NetRule)
		}
	}
	for _, h := range want.AllowedHosts {
		if !left[strings.ToLower(h)] {
			beyond = append(beyond, h)
		}
	}
	if len(left) == 0 {
		return outboard.Networking{Mode: "none"}, beyond
	}
	return n, beyond
}

// both is what two rules allow, where that is one rule.
func both(wide, narrow outboard.NetRule) (r outboard.NetRule, ok bool) {
	r = narrow
	switch {
	case covers(wide.Host, narrow.Host):
	case covers(narrow.Host, wide.Host):
		r.Host = wide.Host
	default:
		return r, false
	}
	switch {
	case wide.Port == AnyPort || wide.Port == narrow.Port:
	case narrow.Port == AnyPort, narrow.Port == 0 && (wide.Port == 80 || wide.Port == 443):
		r.Port = wide.Port
	case wide.Port == 0 && (narrow.Port == 80 || narrow.Port == 443):
	default:
		return r, false
	}
	switch {
	case len(wide.Methods) == 0:
	case len(narrow.Methods) == 0:
		r.Methods = wide.Methods
	default:
		r.Methods = slices.DeleteFunc(slices.Clone(narrow.Methods),
			func(m string) bool { return !slices.Contains(wide.Methods, m) })
		if len(r.Methods) == 0 {
			return r, false
		}
	}
	switch {
	case wide.Path == "" || wide.Path == narrow.Path:
	case narrow.Path == "":
		r.Path = wide.Path
	default:
		return r, false
	}
	return r, true
}
