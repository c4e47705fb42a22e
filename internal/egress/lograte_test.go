package egress_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/egress"
)

// Broken if a sandbox fills the server's log by what it is refused, or the log does not say that lines were left out.
func TestRefusalsDoNotFillTheLog(t *testing.T) {
	var c clock
	var log bytes.Buffer
	r := newRig(t, moving(&c), func(cfg *egress.Config, _ *outboard.SessionConfig) {
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	client := r.client(false)
	refused := func(n int) {
		for range n {
			if code, body := get(t, client, r.http("no.test", "/")); code != http.StatusForbidden {
				t.Fatalf("%d %s", code, body)
			}
		}
	}
	refused(100)
	c.advance(time.Second)
	refused(1)
	r.gateway.Stop()
	if n := strings.Count(log.String(), "request refused"); n != 11 || !strings.Contains(log.String(), "left_out=90") {
		t.Errorf("%d lines, not 10 and 1 that counts those left out:\n%s", n, &log)
	}
	n := 0
	for _, a := range r.audit(t) {
		if a.Decision == outboard.Refused {
			n++
		}
	}
	if n != 101 {
		t.Errorf("%d of 101 refusals are on record", n)
	}
}
