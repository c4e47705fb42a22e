package egress_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard/internal/egress"
)

const streamSecret = "s3cret-value-of-the-vault"

func scrubbing() option {
	return credentials(fixed{host: "a.test", inj: egress.Injection{Names: []string{"n"}, AnyPath: true,
		Set: map[string]string{"Authorization": "Bearer " + streamSecret}, Scrub: []string{streamSecret}}})
}

// Broken if a connection that switches protocols (WebSocket) does not work both ways, or brings the secret back.
func TestUpgrade(t *testing.T) {
	r := newRig(t, rules(anyPort("a.test")), scrubbing())
	r.mux.HandleFunc("/ws", func(w http.ResponseWriter, q *http.Request) {
		c, buf, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
		for {
			line, err := buf.ReadString('\n')
			if err != nil {
				return
			}
			fmt.Fprintf(c, "%s|%s\n", strings.TrimSpace(line), q.Header.Get("Authorization"))
		}
	})
	c, err := r.dial(portOf(r.plain))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(15 * time.Second))
	fmt.Fprintf(c, "GET /ws HTTP/1.1\r\nHost: a.test:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", portOf(r.plain))
	in := bufio.NewReader(c)
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v, %v", resp, err)
	}
	for _, say := range []string{"one", "two"} {
		fmt.Fprintln(c, say)
		line, err := in.ReadString('\n')
		if want := say + "|Bearer " + strings.Repeat("*", len(streamSecret)) + "\n"; err != nil || line != want {
			t.Errorf("%q, %v, want %q", line, err, want)
		}
	}
}

// Broken if a stream of events waits in the gateway, also while it is searched for secrets, or trailers (gRPC) do not arrive.
func TestStreams(t *testing.T) {
	r := newRig(t, rules(anyPort("a.test")), scrubbing())
	seen := make(chan struct{})
	r.mux.HandleFunc("/events", func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Trailer", "Grpc-Status")
		for range 3 {
			fmt.Fprintf(w, "data: %s\n\n", q.Header.Get("Authorization"))
			_ = http.NewResponseController(w).Flush()
			select {
			case <-seen: // only when it has arrived is there more
			case <-q.Context().Done():
				return
			}
		}
		w.Header().Set("Grpc-Status", "0")
	})
	resp, err := r.client(true).Get(r.https("a.test", "/events"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	in := bufio.NewReader(resp.Body)
	for range 3 {
		line, err := in.ReadString('\n')
		if want := "data: Bearer " + strings.Repeat("*", len(streamSecret)) + "\n"; err != nil || line != want {
			t.Fatalf("%q, %v", line, err)
		}
		if _, err := in.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		seen <- struct{}{}
	}
	if rest, err := io.ReadAll(in); err != nil || len(rest) != 0 || resp.ProtoMajor != 2 || resp.Trailer.Get("Grpc-Status") != "0" {
		t.Errorf("the end: %q, %v, %s, trailers %v", rest, err, resp.Proto, resp.Trailer)
	}
}
