package netrule

import (
	"errors"
	"slices"

	"github.com/outboard-dev/outboard"
)

// Proxy reads the address of a proxy, host:port.
func Proxy(address string) (host string, port int, err error) {
	if host, port, err = Host(address); err == nil && port == 0 {
		err = errors.New("the port is missing")
	}
	return host, port, err
}

// MayProxy reports whether boxes may go through a proxy: one that the operator has listed, else one that the
// bound on boxes lets them reach. What is listed is in the form that Proxy returns it in, or another one of the
// same.
func MayProxy(most outboard.Networking, list []string, host string, port int) (listed, may bool) {
	listed = slices.ContainsFunc(list, func(s string) bool {
		h, p, err := Proxy(s)
		return err == nil && h == host && p == port
	})
	return listed, listed || MayConnect(Effective(most, nil), host, port)
}
