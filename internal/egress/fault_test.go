package egress_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// Broken if a client that has ended its side too early, or sends a body that is none, is told that the server
// could not be reached.
func TestClientsFaultIsCalledSo(t *testing.T) {
	r := newRig(t, rules(anyPort("a.test")))
	arrived := make(chan struct{}, 1)
	r.mux.HandleFunc("/", func(w http.ResponseWriter, q *http.Request) {
		_, _ = io.Copy(io.Discard, q.Body)
		if q.URL.Path == "/wait" {
			arrived <- struct{}{}
			<-q.Context().Done()
		}
		fmt.Fprint(w, "served")
	})
	port := portOf(r.plain)
	say := func(line, rest string) (int, string) {
		w := r.wire(t, port, false)
		w.say(line, rest)
		if strings.HasSuffix(line, "/wait") {
			<-arrived
			if err := w.Conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
				t.Fatal(err)
			}
		}
		resp, body := w.hear("GET")
		return resp.StatusCode, body
	}
	for _, c := range []struct {
		line, rest string
		status     int
		want       string
	}{
		{"POST /", "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", 200, "served"}, // the control
		{"POST /", "Transfer-Encoding: chunked\r\n\r\n2\r\nabcd\r\n0\r\n\r\n", 400,
			"the request's body broke off, or is not framed as HTTP wants it"},
		{"GET /wait", "\r\n", 400, "the client closed its side of the connection before a.test had answered"},
		{"GET /wait", "Connection: close\r\n\r\n", 400, "the client closed its side of the connection before a.test " +
			"had answered"},
	} {
		if status, body := say(c.line, c.rest); status != c.status || !strings.Contains(body, c.want) {
			t.Errorf("%s %q: %d %q", c.line, c.rest, status, body)
		}
	}
}
