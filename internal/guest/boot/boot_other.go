//go:build !linux

package boot

import "errors"

// Init builds what the host asks for. Namespaces exist on Linux only.
func Init() (*Env, error) {
	return nil, errors.New("outboard-guest init needs Linux namespaces")
}
