package control

import (
	"fmt"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/vault"
)

// Broken if a box's headers could change how a request is sent or break out of it, if a bound on them does not
// hold, or if what is refused is repeated.
func TestBoxHeadersCheck(t *testing.T) {
	const value = "a-value-that-nobody-repeats"
	one := func(host, name, value string) BoxHeaders {
		return BoxHeaders{host: {name: outboard.NewSecret(value)}}
	}
	many, hosts := BoxHeaders{"a.test": {}}, BoxHeaders{}
	for i := range maxHeaders {
		many["a.test"][fmt.Sprintf("X-%d", i)] = outboard.NewSecret(value)
	}
	for i := range maxHeaderHosts {
		hosts[fmt.Sprintf("a%d.test", i)] = map[string]outboard.Secret{"A": outboard.NewSecret(value)}
	}
	for what, good := range map[string]BoxHeaders{"none": nil, "one": one("a.test", "Authorization", "Bearer "+value),
		"a wild host": one("*.a.test", "x-key", value),
		"an address":  one("10.0.0.1", "X-Key", value), "as many as there may be": many, "as many hosts": hosts} {
		if err := good.check(false); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if err := good.check(true); (err == nil) != (len(good) == 0) {
			t.Errorf("%s, without a network: %v", what, err)
		}
	}
	many["a.test"]["X-More"], hosts["more.test"] = outboard.NewSecret(value), map[string]outboard.Secret{"A": outboard.NewSecret(value)}
	bad := map[string]BoxHeaders{"every host": one("*", "A", value), "a network": one("10.0.0.0/8", "A", value),
		"a port":             one("a.test:80", "A", value),
		"an upper-case host": one("A.test", "A", value), "no value": one("a.test", "A",
			""), "a line break": one("a.test", "A", value+"\r\nHost: b.test"),
		"a name with a colon": one("a.test", "A: b", value), "no name": one("a.test", "",
			value), "a long value": one("a.test", "A", strings.Repeat("a", vault.MaxToken+1)),
		"no headers": {"a.test": {}}, "too many": many, "too many hosts": hosts,
		"twice": {"a.test": {"A": outboard.NewSecret(value), "a": outboard.NewSecret(value)}}}
	for _, name := range []string{"Host", "content-length", "Transfer-Encoding", "Connection", "Proxy-Authorization",
		"Sec-WebSocket-Key", "Upgrade", "Outboard-Decision"} {
		bad[name] = one("a.test", name, value)
	}
	for what, h := range bad {
		if err := h.check(false); outboard.KindOf(err) != outboard.Invalid || strings.Contains(err.Error(), value) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
