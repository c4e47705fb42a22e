package netrule

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/outboard-dev/outboard"
)

// Most entries of a box's network settings: each is looked at for every request.
const maxBoxEntries = 200

// CheckBox refuses settings of a box that would not mean what they say.
func CheckBox(n outboard.BoxNetwork) error {
	if len(n.Allow) > maxBoxEntries || len(n.Deny) > maxBoxEntries {
		return fmt.Errorf("a box's network has at most %d entries to allow and %d to deny", maxBoxEntries, maxBoxEntries)
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
			return fmt.Errorf("%q is not an address or a network: only those can be exceptions from networks that are denied", clip(h))
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

// ForBox returns the networking of a box: what it wants, as far as most, the server's bound on boxes, has it. beyond are the entries it
// allows itself that the bound does not cover as a whole; they are not in the result.
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
	return wild && !isIP(narrow) && strings.HasSuffix(strings.TrimPrefix(narrow, "*"), rest) && len(strings.TrimPrefix(narrow, "*")) >= len(rest)
}
