package egress_test

import (
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"testing"
)

// Broken if a request is sent on, or answered, with headers that are about a connection, about who else it came
// through, or about the gateway. A connection that ends with the request makes no difference.
func TestHopByHopHeadersStay(t *testing.T) {
	r := newRig(t, rules(anyPort("a.test")))
	port, _, _ := r.oldServer(t)
	seen := make(chan http.Header, 1)
	r.mux.HandleFunc("/", func(w http.ResponseWriter, q *http.Request) {
		_, _ = io.Copy(io.Discard, q.Body)
		seen <- q.Header.Clone()
		h := w.Header()
		for name, value := range map[string]string{"X-Kept": "1", "X-Gone": "2", "Keep-Alive": "timeout=5",
			"Proxy-Authenticate": "Basic", "Proxy-Connection": "x",
			"Connection": "X-Gone, keep-alive", "Upgrade": "h9", "Trailer": "X-Sum, X-None"} {
			h.Set(name, value)
		}
		_, _ = io.WriteString(w, "hello")
		h.Set("X-Sum", "7")
		h.Set(http.TrailerPrefix+"X-Late", "8")
	})
	const head = "X-Kept: 1\r\nX-Kept: 2\r\nKeep-Alive: timeout=5\r\nProxy-Authorization: Basic " +
		"eA==\r\nProxy-Authenticate: x\r\nProxy-Other: x\r\n" +
		"Outboard-Decision: allow\r\nVia: me\r\nForwarded: for=x\r\nX-Forwarded-For: 10.0.0.1\r\nX-Forwarded-Host: x\r\nX-Forwarded-Proto: x\r\nAccept: a\r\n"
	type exchange struct{ sent, head, trailer http.Header }
	ask := func(method, more string) (e exchange) {
		w := r.wire(t, port, true)
		for range 2 {
			e = exchange{}
			w.say(method+" /", head+more)
			resp, body := w.hear(method)
			if resp.StatusCode != 200 || body != "hello" {
				t.Fatalf("%s %q", resp.Status, body)
			}
			e.sent, e.head, e.trailer = <-seen, resp.Header, resp.Trailer
			delete(e.head, "Date")
			if delete(e.head, "Connection"); resp.Close {
				w = r.wire(t, port, true)
			}
		}
		return e
	}
	for method, body := range map[string]string{"GET": "", "POST": "Content-Length: 2\r\n",
		"DELETE": "Content-Length: 2\r\n"} {
		end := "\r\n"
		if body != "" {
			end += "ok"
		}
		kept, closed := ask(method, body+"Connection: keep-alive\r\n"+end), ask(method,
			body+"Connection: close\r\n"+end)
		if !reflect.DeepEqual(kept, closed) {
			t.Errorf("%s on a connection that is kept: %v\nclosed: %v", method, kept, closed)
		}
		want := []string{"Accept", "X-Kept"}
		if body != "" {
			want = []string{"Accept", "Content-Length", "X-Kept"}
		}
		if got := slices.Sorted(maps.Keys(kept.sent)); !slices.Equal(got, want) {
			t.Errorf("%s: %v were sent, want %v", method, got, want)
		}
		if got := slices.Sorted(maps.Keys(kept.head)); !slices.Equal(got, []string{"Content-Type", "X-Kept"}) {
			t.Errorf("%s: %v came back", method, got)
		}
		if kept.trailer.Get("X-Sum") != "7" || kept.trailer.Get("X-Late") != "8" {
			t.Errorf("%s: the trailer is %v", method, kept.trailer)
		}
	}
}

// Broken if an answer in chunks that breaks off reaches a client inside as if it were whole, or if what has come
// of it is kept back, be it like an end of chunks.
func TestTornAnswer(t *testing.T) {
	r := newRig(t, rules(anyPort("a.test")))
	port, _, _ := r.oldServer(t)
	arrived := make(chan struct{})
	const part = "a part 0\r\n\r\n"
	r.mux.HandleFunc("/", func(w http.ResponseWriter, q *http.Request) {
		_, _ = io.WriteString(w, part)
		_ = http.NewResponseController(w).Flush()
		select {
		case <-arrived:
		case <-q.Context().Done():
		}
		if q.URL.Path == "/torn" {
			panic(http.ErrAbortHandler)
		}
	})
	for _, c := range []struct {
		path string
		err  error
	}{{"/whole", nil}, {"/torn", io.ErrUnexpectedEOF}, {"/torn", io.ErrUnexpectedEOF}, {"/whole", nil}} {
		w := r.wire(t, port, true)
		w.say("GET "+c.path, "\r\n")
		resp, err := http.ReadResponse(w.in, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(part))
		if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != part {
			t.Fatalf("%s: %q, %v", c.path, got, err)
		}
		arrived <- struct{}{}
		if rest, err := io.ReadAll(resp.Body); len(rest) > 0 || err != c.err {
			t.Errorf("%s: %q and %v came after it, want %v", c.path, rest, err, c.err)
		}
	}
}
