package control

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/netrule"
	"github.com/outboard-dev/outboard/internal/vault"
)

// BoxHeaders are headers to set on a box's requests: values by the header's name, by host, which is a name,
// *.name or an address.
type BoxHeaders map[string]map[string]outboard.Secret

// Limits of the headers of a box, as E2B has them.
const (
	maxHeaderHosts = 10
	maxHeaders     = 20 // of a host
)

// framing are headers that say how a request is sent, or between whom: not for anybody but the gateway to say.
var framing = []string{"accept-encoding", "connection", "content-encoding", "content-length", "expect", "host",
	"keep-alive", "range", "te", "trailer",
	"transfer-encoding", "upgrade", "via"}

// check refuses headers that could not be set as they are, or would break out of a request. No message repeats a value.
func (h BoxHeaders) check(none bool) error {
	if none && len(h) > 0 {
		return invalid("network: a sandbox without a network sends no headers")
	}
	if len(h) > maxHeaderHosts {
		return invalid("network: headers for at most %d hosts, not %d", maxHeaderHosts, len(h))
	}
	for host, list := range h {
		if err := netrule.Check(outboard.NetRule{Host: host}); err != nil || host == "*" ||
			strings.Contains(host, "/") {
			return invalid("network: headers are for a lower-case name, *.name or an IP address, not for %s",
				quote(host))
		}
		if len(list) == 0 || len(list) > maxHeaders {
			return invalid("network: 1 to %d headers for %s, not %d", maxHeaders, quote(host), len(list))
		}
		seen := map[string]bool{}
		for name, value := range list {
			low := strings.ToLower(name)
			if !headerRE.MatchString(name) || seen[low] || slices.Contains(framing, low) ||
				strings.HasPrefix(low, "proxy-") ||
				strings.HasPrefix(low, "sec-websocket-") || strings.HasPrefix(low, "outboard-") {
				return invalid("network: %s is no header that can be set for %s", quote(name), quote(host))
			}
			seen[low] = true
			if err := checkSecret("network: the header "+quote(name), value, vault.MaxToken); err != nil {
				return err
			}
		}
	}
	return nil
}

// names are what may be shown.
func (h BoxHeaders) names() map[string][]string {
	out := map[string][]string{}
	for host, list := range h {
		out[host] = slices.Sorted(maps.Keys(list))
	}
	return out
}

// sealHeaders seals what was checked, for a row that is about to be written.
func (c *Control) sealHeaders(ctx context.Context, by outboard.Caller, id outboard.BoxID, h BoxHeaders,
	password outboard.Secret) (outboard.BoxHeaders, error) {
	if len(h) == 0 && password.IsZero() {
		return outboard.BoxHeaders{}, nil
	}
	if c.vault == nil {
		return outboard.BoxHeaders{}, outboard.Errorf(outboard.Unavailable,
			"this server keeps no secrets, so it sets no headers, and no password of a proxy")
	}
	return c.vault.For(by.In()).SealBox(ctx, id, h, password)
}

// forgetHeaders removes sealed headers that no row names any more. What stays is looked for when a server starts.
func (c *Control) forgetHeaders(ctx context.Context, b *outboard.Box) {
	if b.Headers.Credential == "" || c.vault == nil {
		return
	}
	if err := c.vault.For(b.Org).ForgetBox(context.WithoutCancel(ctx), b.Headers); err != nil {
		c.log.Warn("sealed headers that are not used any more stay", "box", b.ID, "err", err)
	}
}
