package egress_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
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
		fmt.Fprint(c, opened)
		for in := bufio.NewReader(texts{buf}); ; {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			fmt.Fprint(c, frame(strings.TrimSpace(line)+"|"+q.Header.Get("Authorization")+"\n"))
		}
	})
	c, err := r.dial(portOf(r.plain))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(15 * time.Second))
	fmt.Fprintf(c, "GET /ws HTTP/1.1\r\nHost: a.test:%d\r\n"+opening, portOf(r.plain))
	in := bufio.NewReader(c)
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v, %v", resp, err)
	}
	messages := bufio.NewReader(texts{in})
	for _, say := range []string{"one", "two"} {
		fmt.Fprint(c, masks(say+"\n"))
		line, err := messages.ReadString('\n')
		if want := say + "|Bearer " + strings.Repeat("*", len(streamSecret)) + "\n"; err != nil || line != want {
			t.Errorf("%q, %v, want %q", line, err, want)
		}
	}
}

// Broken if a stream of events waits in the gateway, also while it is searched for secrets, or trailers (gRPC)
// do not arrive.
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
	if rest, err := io.ReadAll(in); err != nil || len(rest) != 0 || resp.ProtoMajor != 2 ||
		resp.Trailer.Get("Grpc-Status") != "0" {
		t.Errorf("the end: %q, %v, %s, trailers %v", rest, err, resp.Proto, resp.Trailer)
	}
}

// clock is a time that a test moves.
type clock struct{ at atomic.Int64 }

func (c *clock) now() time.Time          { return time.Unix(0, c.at.Load()) }
func (c *clock) advance(d time.Duration) { c.at.Add(int64(d)) }

func moving(c *clock) option {
	c.at.Store(time.Now().UnixNano())
	return func(cfg *egress.Config, _ *outboard.SessionConfig) { cfg.Now, cfg.Idle = c.now, time.Minute }
}

// Broken if a stream that carries nothing is kept for ever, or one that carries something is ended: an answer
// that is still to begin (a long poll), a stream of events, a connection that has switched protocols.
func TestIdleStreamsEnd(t *testing.T) {
	var c clock
	r := newRig(t, rules(anyPort("a.test")), moving(&c))
	say, held := make(chan string), make(chan struct{}, 8)
	gone := make(chan string, 8)
	hold := func(w http.ResponseWriter, q *http.Request, begin bool) {
		if begin {
			w.Header().Set("Content-Type", "text/event-stream")
			_ = http.NewResponseController(w).Flush()
		}
		held <- struct{}{}
		<-q.Context().Done()
		gone <- q.URL.Path
	}
	r.mux.HandleFunc("/poll", func(w http.ResponseWriter, q *http.Request) { hold(w, q, false) })
	r.mux.HandleFunc("/silent", func(w http.ResponseWriter, q *http.Request) { hold(w, q, true) })
	r.mux.HandleFunc("/events", func(w http.ResponseWriter, _ *http.Request) {
		for line := range say {
			fmt.Fprintln(w, line)
			_ = http.NewResponseController(w).Flush()
		}
	})
	r.mux.HandleFunc("/ws", func(w http.ResponseWriter, q *http.Request) {
		conn, buf, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprint(conn, opened)
		for in := bufio.NewReader(texts{buf}); ; {
			line, err := in.ReadString('\n')
			if err != nil {
				gone <- q.URL.Path + q.URL.RawQuery
				return
			}
			fmt.Fprint(conn, frame(line))
		}
	})
	client := r.client(true)
	type answer struct {
		code int
		body string
	}
	polled := make(chan answer, 1)
	go func() {
		code, body := get(t, client, r.https("a.test", "/poll"))
		polled <- answer{code, body}
	}()
	<-held
	silent, err := client.Get(r.https("a.test", "/silent"))
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Body.Close()
	go func() { say <- "0" }() // with which the answer's head comes
	events, err := r.client(true).Get(r.https("a.test", "/events"))
	if err != nil {
		t.Fatal(err)
	}
	defer events.Body.Close()
	lines := bufio.NewReader(events.Body)
	heard(t, lines, "0\n")
	quiet, _ := upgrade(t, r, "?quiet")
	busy, in := upgrade(t, r, "?busy")

	c.advance(40 * time.Second)
	if n := r.gateway.Recheck(); n != 0 {
		t.Errorf("%d requests ended before their time", n)
	}
	say <- "1"
	heard(t, lines, "1\n")
	fmt.Fprint(busy, masks("1\n"))
	heard(t, in, "1\n")
	c.advance(40 * time.Second) // 80 seconds of silence for some, 40 for the others
	if n := r.gateway.Recheck(); n != 3 {
		t.Errorf("%d requests ended, not the three that are idle", n)
	}
	if a := <-polled; a.code != http.StatusGatewayTimeout || !strings.Contains(a.body, "too long") {
		t.Errorf("the long poll: %+v", a)
	}
	if b, err := io.ReadAll(silent.Body); err == nil {
		t.Errorf("the silent stream ended as if it were whole: %q", b)
	}
	if _, err := quiet.Read(make([]byte, 1)); err == nil {
		t.Error("the silent WebSocket goes on")
	}
	for range 3 {
		<-gone // each server has been told
	}
	say <- "2"
	heard(t, lines, "2\n")
	fmt.Fprint(busy, masks("2\n"))
	heard(t, in, "2\n")
	close(say)
}

func heard(t *testing.T, r *bufio.Reader, want string) {
	t.Helper()
	if line, err := r.ReadString('\n'); err != nil || line != want {
		t.Fatalf("%q, %v, want %q", line, err, want)
	}
}

// upgrade opens a connection to /ws that has switched protocols.
func upgrade(t *testing.T, r *rig, query string) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, err := r.dial(portOf(r.plain))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(15 * time.Second))
	fmt.Fprintf(c, "GET /ws%s HTTP/1.1\r\nHost: a.test:%d\r\n"+opening, query, portOf(r.plain))
	in := bufio.NewReader(c)
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v, %v", resp, err)
	}
	return c, bufio.NewReader(texts{in})
}

// Broken if one sandbox can have any number of requests under way, or a refused one takes a place for good.
func TestStreamsAreBounded(t *testing.T) {
	r := newRig(t, rules(anyPort("a.test")), func(cfg *egress.Config, _ *outboard.SessionConfig) { cfg.Streams = 3 })
	held, free := make(chan struct{}, 8), make(chan struct{})
	r.mux.HandleFunc("/hold", func(http.ResponseWriter, *http.Request) { held <- struct{}{}; <-free })
	r.mux.HandleFunc("/now", func(http.ResponseWriter, *http.Request) {})
	client := r.client(true)
	done := make(chan int, 3)
	for range 3 {
		go func() {
			code, _ := get(t, client, r.https("a.test", "/hold"))
			done <- code
		}()
		<-held
	}
	for range 5 {
		if code, body := get(t, client, r.https("a.test", "/now")); code != http.StatusTooManyRequests ||
			!strings.Contains(body, "under way") {
			t.Fatalf("a fourth request: %d %s", code, body)
		}
	}
	close(free)
	for range 3 {
		if code := <-done; code != 200 {
			t.Errorf("a request within the limit: %d", code)
		}
	}
	for range 4 { // one after the other: each has given its place back
		if code, body := get(t, client, r.https("a.test", "/now")); code != 200 {
			t.Errorf("a request when there is room: %d %s", code, body)
		}
	}
}
