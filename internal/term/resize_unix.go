//go:build unix

package term

import (
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// OnResize calls f whenever the terminal changes its size, until stop.
func OnResize(f func()) (stop func()) {
	changes := make(chan os.Signal, 1)
	signal.Notify(changes, syscall.SIGWINCH)
	var wg sync.WaitGroup
	wg.Go(func() {
		for range changes {
			f()
		}
	})
	return func() {
		signal.Stop(changes)
		close(changes)
		wg.Wait()
	}
}
