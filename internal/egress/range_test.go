package egress_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/egress"
)

// Broken if a client reads a secret in an answer by asking for pieces of it, none of which has all of it, or if
// what has no secret cannot be had in pieces any more.
func TestRangesAndSecrets(t *testing.T) {
	const secret = "s3cret-value-of-the-vault"
	r := newRig(t, rules(anyPort("a.test"), anyPort("b.test")),
		credentials(fixed{host: "a.test", inj: egress.Injection{Names: []string{"n"}, AnyPath: true,
			Set: map[string]string{"Authorization": "Bearer " + secret}, Scrub: []string{secret}}}))
	page := "an echo: " + secret + " and more of it"
	var mu sync.Mutex
	var asked []string
	r.mux.HandleFunc("/file", func(w http.ResponseWriter, q *http.Request) {
		mu.Lock()
		for _, name := range []string{"Range", "If-Range", "X-Ms-Range"} {
			asked = append(asked, q.Header.Values(name)...)
		}
		mu.Unlock()
		w.Header().Set("Content-Type", "text/plain")
		http.ServeContent(w, q, "file", time.Unix(1e9, 0), strings.NewReader(page))
	})
	r.mux.HandleFunc("/unasked", func(w http.ResponseWriter, _ *http.Request) { // pieces that nobody has asked for
		w.Header().Set("Content-Type", "multipart/byteranges; boundary=b")
		w.WriteHeader(http.StatusPartialContent)
		fmt.Fprintf(w, "--b\r\n\r\n%s\r\n--b\r\n\r\n%s\r\n--b--\r\n", secret[:12], secret[12:])
	})
	ranges := []string{"bytes=0-14", "bytes=15-", "bytes=-20", "bytes=9-20,21-33", "bytes=9-9,10-10,11-11",
		"bytes=0-,0-,0-", "BYTES=9-20", "bytes=15-20, 9-14"}
	for proto, address := range map[string]func(host, path string) string{"HTTP/1.1": r.http, "HTTP/2": r.https} {
		for _, said := range ranges {
			for _, h := range []http.Header{{"Range": {said}}, {"Range": {said, said}}, {"range": {said}},
				{"X-Ms-Range": {said}},
				{"Range": {said}, "If-Range": {time.Unix(1e9, 0).UTC().Format(http.TimeFormat)}}, {"Range": {said},
					"Connection": {"Range"}}} {
				if proto == "HTTP/2" && h["Connection"] != nil {
					continue // it has no such header
				}
				status, body := do(t, r.client(true), "GET", address("a.test", "/file"), h)
				if status != 200 || len(body) != len(page) || strings.Contains(body, "s3cret") ||
					strings.Contains(body, "vault") || !strings.HasSuffix(body, " and more of it") {
					t.Errorf("%s, %v: %d %q", proto, h, status, body)
				}
			}
			if status, body := do(t, r.client(true), "HEAD", address("a.test", "/file"),
				http.Header{"Range": {said}}); status != 200 {
				t.Errorf("HEAD, %s: %d %q", said, status, body)
			}
		}
		if status, body := get(t, r.client(true), address("a.test", "/unasked")); status != 502 ||
			strings.Contains(body, "s3cret") || !strings.Contains(body, "may have done") {
			t.Errorf("unasked: %d %q", status, body) // and not "was not sent", which it was
		}
	}
	if len(asked) != 0 {
		t.Errorf("the server was asked for %q", asked)
	}
	// The control: a host without a credential gives pieces, of which each is as it was sent.
	for said, want := range map[string]string{"bytes=9-20": secret[:12], "bytes=9-20,21-33": "\r\n\r\n" + secret[:12] +
		"\r\n"} {
		if status, body := do(t, r.client(true), "GET", r.https("b.test", "/file"),
			http.Header{"Range": {said}}); status != 206 || !strings.Contains(body, want) {
			t.Errorf("the control, %s: %d %q", said, status, body)
		}
	}
	if status, body := get(t, r.client(true), r.https("b.test", "/unasked")); status != 206 ||
		!strings.Contains(body, "s3cret") {
		t.Errorf("the control: %d %q", status, body)
	}
}

// Broken if a client sends more than its budget of bytes in the headers of requests that ask for pieces, or in
// bodies that come in pieces (Content-Range), or makes more requests than it may by asking for one answer in
// many.
func TestRangesAndBudget(t *testing.T) {
	long := "bytes=0-0" + strings.Repeat(",0-0", 2000) // 8 KiB
	r := newRig(t, budgeted(outboard.NetBudget{Bytes: 64 << 10}))
	var arrived atomic.Int64
	r.mux.HandleFunc("/", func(w http.ResponseWriter, q *http.Request) {
		b, _ := io.Copy(io.Discard, q.Body)
		arrived.Add(int64(len(q.Header.Get("Range"))) + b)
		http.ServeContent(w, q, "file", time.Unix(1e9, 0), strings.NewReader("0123456789"))
	})
	last := 0
	for n := range 20 {
		q, err := http.NewRequestWithContext(t.Context(), "PUT", r.http("a.test", "/"),
			bytes.NewReader(make([]byte, 1000)))
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Range", long)
		q.Header.Set("Content-Range", fmt.Sprintf("bytes %d-%d/20000", n*1000, n*1000+999))
		resp, err := r.client(true).Do(q)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if last = resp.StatusCode; last == 429 {
			break
		}
	}
	if got := arrived.Load(); last != 429 || got > 64<<10 || got < 48<<10 {
		t.Errorf("bytes: the last answer is %d, %d bytes have arrived", last, got)
	}
	few := newRig(t, budgeted(outboard.NetBudget{Requests: 5}))
	few.mux.HandleFunc("/", func(w http.ResponseWriter, q *http.Request) {
		http.ServeContent(w, q, "file", time.Unix(1e9, 0), strings.NewReader("0123456789"))
	})
	for n := range 6 {
		want := map[bool]int{true: 206, false: 429}[n < 5]
		if status, body := do(t, few.client(true), "GET", few.http("a.test", "/"),
			http.Header{"Range": {fmt.Sprintf("bytes=%d-%[1]d", n)}}); status != want {
			t.Errorf("piece %d: %d %q, want %d", n, status, body, want)
		}
	}
}
