package native

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard/internal/guest/boot"
)

// network is the network namespace of one sandbox, made before it. It belongs to the host's user namespace: root
// inside has no right to its interfaces, routes and filters, whatever it becomes. The zero value stands for a
// namespace that the sandbox's own clone makes, which is all that an ordinary user can have; the guest furnishes
// that one while it still may.
//
// A namespace is used once. A used one has counters and sockets in their last wait that would tell the next
// sandbox about this one.
type network struct {
	ns         *os.File
	redirected bool // see boot.Network
}

// newNetwork makes a namespace with a loopback interface that is up and nothing else, ready to be connected to a
// gateway or not.
func newNetwork(connected bool) (n network, err error) {
	err = onSpentThread(func() error { // nothing of the server may ever run in a sandbox's network
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		if n.redirected, err = boot.Network(connected); err != nil {
			return err
		}
		n.ns, err = openUnpolled("/proc/thread-self/ns/net")
		return err
	})
	if err != nil {
		return network{}, fmt.Errorf("making a network namespace: %w", err)
	}
	return n, nil
}

func (n network) made() bool { return n.ns != nil }

func (n network) close() {
	if n.ns != nil {
		n.ns.Close()
	}
}
