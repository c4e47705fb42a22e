package guest

import (
	"bufio"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// TestSettle: a sandbox would be handed out while its shell still starts, which then takes its time from the
// first command; or a shell that hangs would keep the guest from ever waiting for an identity.
func TestSettle(t *testing.T) {
	for name, answers := range map[string]bool{"answers": true, "hangs": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked, ctl, err := os.Pipe()
				if err != nil {
					t.Fatal(err)
				}
				defer asked.Close()
				defer ctl.Close()
				ss := &shells{warmShell: &shell{ctl: ctl, lines: make(chan string)}}
				begin, over := time.Now(), make(chan struct{})
				go func() {
					ss.settle(t.Context())
					close(over)
				}()
				if line, err := bufio.NewReader(asked).ReadString('\n'); err != nil ||
					line != "__outboard_end settled\n" {
					t.Fatalf("the shell is told %q: %v", line, err)
				}
				synctest.Wait()
				select {
				case <-over:
					t.Fatal("it did not wait")
				default:
				}
				if answers {
					ss.warmShell.lines <- "settled 0"
				}
				<-over
				if took := time.Since(begin); answers != (took == 0) || took > settleTimeout {
					t.Errorf("it waited for %v", took)
				}
			})
		})
	}
}
