package native

import (
	"fmt"
	"os"
	"sync"

	"github.com/outboard-dev/outboard/internal/guest/boot"
)

// void is what boot.Void makes, once. Its zero value is one that is not made yet.
type void struct {
	mu sync.Mutex
	ns *os.File
}

func (v *void) open() (*os.File, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.ns != nil {
		return v.ns, nil
	}
	err := onSpentThread(func() (err error) {
		v.ns, err = boot.Void()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("making the mount namespace that others are copies of: %w", err)
	}
	return v.ns, nil
}

func (v *void) close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.ns != nil {
		v.ns.Close()
		v.ns = nil
	}
}
