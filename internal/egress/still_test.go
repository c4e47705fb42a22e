package egress_test

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboard-dev/outboard/internal/egress"
)

// Broken if what was opened with a credential goes on after that was withdrawn, or is cut while the credential is as it was.
func TestStreamsEndWithTheirCredential(t *testing.T) {
	var withdrawn atomic.Bool
	still := func(context.Context) error {
		if withdrawn.Load() {
			return errors.New("the credential was withdrawn")
		}
		return nil
	}
	r := newRig(t, rules(anyPort("a.test")), credentials(fixed{host: "a.test", inj: egress.Injection{Names: []string{"n"}, AnyPath: true, Still: still}}))
	list := openStreams(t, r)
	if n := r.gateway.Recheck(); n != 0 {
		t.Fatalf("the control: %d of %d ended", n, len(list))
	}
	withdrawn.Store(true)
	if n := r.gateway.Recheck(); n != len(list) {
		t.Fatalf("%d of %d ended", n, len(list))
	}
	for _, s := range list {
		_, _ = io.Copy(io.Discard, s.in) // waits for the end
		select {
		case <-s.gone:
		case <-time.After(10 * time.Second):
			t.Errorf("%s: its server has it still", s.name)
		}
	}
}
