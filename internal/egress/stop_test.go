package egress_test

import (
	"io"
	"net/http"
	"testing"
	"time"
)

// A server that is told to stop must not wait for what sandboxes have open: connections that say nothing, that
// stop in the middle of a handshake or a head, that are kept alive, or whose answer never ends.
func TestStopDoesNotWaitForOpenConnections(t *testing.T) {
	r := newRig(t, rules(anyPort("web.test")))
	r.mux.HandleFunc("/", func(w http.ResponseWriter, q *http.Request) {
		io.WriteString(w, "ok")
		if q.URL.Path == "/endless" {
			http.NewResponseController(w).Flush()
			<-q.Context().Done()
		}
	})
	for port, said := range map[int]string{80: "", 443: "", 3128: "", 81: "GET / HTT", 444: "\x16\x03\x01\x02",
		3129: "CONNECT web.test:443 HTTP/1.1\r\n"} {
		c, err := r.dial(port)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, said); err != nil {
			t.Fatal(err)
		}
	}
	// What is accepted later is answered, so the connections above are being served by now.
	for _, proxy := range []bool{false, true} {
		c := r.client(proxy)
		if status, body := get(t, c, r.http("web.test", "/")); status != http.StatusOK || body != "ok" {
			t.Fatalf("the control: %d %q", status, body)
		}
		resp, err := c.Get(r.https("web.test", "/endless"))
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("the control: %v, %v", resp, err)
		}
		defer resp.Body.Close()
	}
	begun := time.Now()
	r.gateway.Stop()
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("stopping took %v", took)
	}
}
