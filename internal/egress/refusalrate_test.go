package egress_test

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
)

// Broken if a loop inside a sandbox fills the audit by what it is refused, if refusals at an ordinary pace are
// not on record one by one, or if the record does not say how many were left out.
func TestRefusalsDoNotFillTheAudit(t *testing.T) {
	const burst, over = 1000, 300
	var c clock
	r := newRig(t, moving(&c))
	client := r.client(false)
	refused := func(n int) {
		t.Helper()
		for range n {
			if code, body := get(t, client, r.http("no.test", "/")); code != http.StatusForbidden {
				t.Fatalf("%d %s", code, body)
			}
		}
	}
	records := func() (n int, out []int64) {
		for _, a := range r.audit(t) {
			var d struct {
				Out int64 `json:"left_out"`
			}
			if err := json.Unmarshal(a.Detail, &d); err != nil {
				t.Fatal(err)
			}
			if a.Decision == outboard.Refused {
				n, out = n+1, append(out, d.Out)
			}
		}
		return n, out // oldest first
	}
	refused(burst)
	if n, _ := records(); n != burst {
		t.Fatalf("%d of %d refusals are on record", n, burst)
	}
	refused(over)
	if n, _ := records(); n != burst {
		t.Errorf("%d refusals are on record after %d more at once", n-burst, over)
	}
	c.advance(time.Second)
	refused(1)
	if n, out := records(); n != burst+1 || out[len(out)-1] != over {
		t.Errorf("a second later %d are on record, and the newest counts %d left out of %d", n-burst, out[len(out)-1],
			over)
	}
	c.advance(time.Hour)
	refused(2)
	if n, out := records(); n != burst+3 || out[len(out)-1] != 0 {
		t.Errorf("after a rest %d of 2 are on record, the newest counts %d left out", n-burst-1, out[len(out)-1])
	}
	c.advance(-time.Hour) // a clock that goes back silences nobody
	refused(1)
	if n, _ := records(); n != burst+4 {
		t.Error("after the clock went back a refusal is not on record")
	}
	refused(burst)
	r.gateway.Stop()
	if n, out := records(); n != 2*burst+4 || out[len(out)-1] != 1 {
		t.Errorf("at the end %d are on record, and the last counts %d left out", n, out[len(out)-1])
	}
}
