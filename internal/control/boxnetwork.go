package control

import (
	"context"
	"errors"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/netrule"
	"github.com/outboard-dev/outboard/internal/store"
)

// checkBoxNetwork refuses settings that cannot be held: a box must not seem to have what the server does not let
// it have.
func (c *Control) checkBoxNetwork(none bool, n outboard.BoxNetwork) error {
	if err := netrule.CheckBox(n); err != nil {
		return invalid("network: %w", err)
	}
	if none && len(n.Allow)+len(n.Deny) > 0 {
		return invalid("network: a sandbox without a network has nothing to allow or deny")
	}
	if err := c.checkProxy(none, n.Proxy); err != nil {
		return err
	}
	if _, beyond := netrule.ForBox(c.boxNet, n); len(beyond) > 0 {
		return outboard.Errorf(outboard.Denied, "network: this server does not let sandboxes reach %s",
			quote(strings.Join(beyond, ", "))).
			WithHint("the operator says what they may reach at most, in egress.boxes of the server's configuration")
	}
	return nil
}

// maxProxyWord bounds the name and the password for a proxy: RFC 1929.
const maxProxyWord = 255

// checkProxy refuses a proxy that a box cannot go through.
func (c *Control) checkProxy(none bool, p outboard.BoxProxy) error {
	if p.IsZero() {
		return nil
	}
	host, port, err := netrule.Proxy(p.Address)
	switch {
	case none:
		return invalid("network: a sandbox without a network has no proxy to go through")
	case err != nil:
		return invalid("network: the proxy's address must be host:port, such as proxy.example.com:1080: %w", err)
	case len(p.Username) > maxProxyWord || strings.ContainsRune(p.Username, 0):
		return invalid("network: the proxy's user name must have at most %d bytes, and no NUL", maxProxyWord)
	case p.Password && p.Username == "":
		return invalid("network: the proxy's password needs a user name")
	}
	if _, may := netrule.MayProxy(c.boxNet, c.boxProxies, host, port); !may {
		return outboard.Errorf(outboard.Denied, "network: this server does not let sandboxes go through the proxy %s",
			quote(p.Address)).
			WithHint("the operator lists those that they may go through in egress.boxes.proxies of the server's " +
				"configuration")
	}
	return nil
}

// checkProxyPassword refuses what RFC 1929 cannot say. No message repeats it.
func checkProxyPassword(p outboard.BoxProxy, password outboard.Secret) error {
	if p.Password == password.IsZero() {
		return invalid("network: the proxy's password must not be empty, and needs a proxy")
	}
	if len(password.Reveal()) > maxProxyWord {
		return invalid("network: the proxy's password must have at most %d bytes", maxProxyWord)
	}
	return nil
}

// SetBoxNetwork replaces what a box may reach, at once: requests under way that were judged by the old rules are
// ended within a second. Conflict for a box that was made without any network, which no setting gives it.
// password is that of the proxy; it is sealed.
func (c *Control) SetBoxNetwork(ctx context.Context, by outboard.Caller, id outboard.BoxID, n outboard.BoxNetwork,
	headers BoxHeaders, password outboard.Secret) (outboard.Box, error) {
	b, err := c.boxFor(ctx, by, id)
	if err != nil {
		return b, err
	}
	if err := errors.Join(c.checkBoxNetwork(false, n), headers.check(b.NoNetwork),
		checkProxyPassword(n.Proxy, password)); err != nil {
		return b, err
	}
	if b.NoNetwork && (!n.Closed || len(n.Allow) > 0 || !n.Proxy.IsZero()) {
		return b, outboard.Errorf(outboard.Conflict, "sandbox %s was made without a network, and gets none while it "+
			"lives", id).
			WithHint("make one that is closed instead (denyOut 0.0.0.0/0), and open that")
	}
	if err := c.record(ctx, by, "box.network", string(id), struct {
		outboard.BoxNetwork
		Headers map[string][]string `json:"headers,omitempty"`
	}{n, headers.names()}); err != nil {
		return b, err
	}
	sealed, err := c.sealHeaders(ctx, by, id, headers, password)
	if err != nil {
		return b, err
	}
	old := b
	b, err = c.store.ChangeBox(ctx, id, func(b *outboard.Box) error {
		old.Headers = b.Headers
		b.Net, b.Headers = n, sealed
		return nil
	})
	if err != nil {
		old.Headers = sealed // they are of no use
	}
	c.forgetHeaders(ctx, &old)
	return b, wrapLookup("sandbox", string(id), err)
}

// BoxNetwork returns what a box may reach: nothing else is reachable.
func (c *Control) BoxNetwork(ctx context.Context, by outboard.Caller, id outboard.BoxID) (Network, error) {
	b, err := c.Box(ctx, by, id)
	if err != nil {
		return Network{}, err
	}
	n := outboard.Networking{Mode: "none"}
	if !b.NoNetwork {
		n, _ = netrule.ForBox(c.boxNet, b.Net)
	}
	used, err := c.store.NetUsage(ctx, string(id))
	return Network{Mode: n.Mode, Rules: netrule.Effective(n, nil), Budget: n.Budget, Used: used, Denied: n.DenyNetworks,
		Except: n.DenyExcept, Headers: b.Headers.Names, Proxy: b.Net.Proxy.Address}, err
}

// BoxNetworkLog returns the requests that a box has made, newest first, and what decided each.
func (c *Control) BoxNetworkLog(ctx context.Context, by outboard.Caller, id outboard.BoxID, before int64,
	limit int) ([]AuditRecord, error) {
	if _, err := c.Box(ctx, by, id); err != nil {
		return nil, err
	}
	list, err := c.store.AuditRecords(ctx, store.AuditQuery{Actor: string(id), Action: "http.request", Before: before,
		Newest: true, Limit: limit})
	return list, wrapLookup("sandbox", string(id), err)
}
