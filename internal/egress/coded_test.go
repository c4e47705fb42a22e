package egress_test

import (
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/egress"
)

// packed compresses a text.
func packed(t *testing.T, coding, text string) string {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser
	var err error
	switch coding {
	case "gzip":
		w = gzip.NewWriter(&b)
	case "deflate":
		w = zlib.NewWriter(&b)
	case "raw":
		w, err = flate.NewWriter(&b, 9)
	case "zstd":
		w, err = zstd.NewWriter(&b)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(w, text)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// Broken if a key of the client's own reaches a host that has a placeholder inside a compressed body, if a bomb
// is unpacked, or if an honest compressed body does not arrive as it was sent.
func TestForeignKeyInACompressedBody(t *testing.T) {
	const ph, foreign = "sk-outboard0123456789abcdef0123456789abcdef01234567", "sk-attackers-own-key-0123456789"
	r := newRig(t, rules(anyPort("a.test"), anyPort("b.test")),
		credentials(fixed{host: "a.test", inj: egress.Injection{Names: []string{"n"}, AnyPath: true,
			RefuseBody: []string{"api_key"}, Replace: []egress.Placeholder{{Placeholder: ph, Value: "the-real-key",
				Header: true}}}}))
	var mu sync.Mutex
	arrived := "nothing"
	r.mux.HandleFunc("/", func(_ http.ResponseWriter, q *http.Request) {
		b, _ := io.ReadAll(q.Body)
		mu.Lock()
		arrived = q.Header.Get("Content-Encoding") + " " + string(b)
		mu.Unlock()
	})
	bad, good, long := `{"api_key":"`+foreign+`"}`, `{"api_key":"`+ph+`","x":"`+foreign+`"}`, `{"x":"`+strings.Repeat("x", 200_000)+`"}`
	parts := "--b\r\nContent-Disposition: form-data; name=\"api_key\"\r\n\r\n" + foreign + "\r\n--b--\r\n"
	for name, c := range map[string]struct {
		host, coding, kind, body string
		status                   int
	}{
		"gzip":            {"a.test", "gzip", "application/json", packed(t, "gzip", bad), 403},
		"x-gzip":          {"a.test", "x-GZIP", "application/json", packed(t, "gzip", bad), 403},
		"deflate":         {"a.test", "deflate", "application/json", packed(t, "deflate", bad), 403},
		"zstd":            {"a.test", "zstd", "application/json", packed(t, "zstd", bad), 403},
		"a second member": {"a.test", "gzip", "", packed(t, "gzip", "{") + packed(t, "gzip", bad[1:]), 403},
		"a form": {"a.test", "gzip", "application/x-www-form-urlencoded; charset=",
			packed(t, "gzip", "api_key="+foreign), 403},
		"parts":            {"a.test", "zstd", "multipart/form-data; boundary=b", packed(t, "zstd", parts), 403},
		"no boundary":      {"a.test", "", "multipart/form-data", parts, 415},
		"twice":            {"a.test", "gzip, gzip", "", packed(t, "gzip", packed(t, "gzip", bad)), 415},
		"unknown":          {"a.test", "br", "", "x", 415},
		"not what it says": {"a.test", "gzip", "", bad, 415},
		"cut":              {"a.test", "gzip", "", packed(t, "gzip", good)[:20], 415},
		"deflate, raw":     {"a.test", "deflate", "", packed(t, "raw", bad), 415},
		"with more behind": {"a.test", "deflate", "", packed(t, "deflate", good) + bad, 415},
		"a bomb":           {"a.test", "gzip", "", packed(t, "gzip", strings.Repeat("\x00", 65<<20)), 415},
		"a bomb of zstd":   {"a.test", "zstd", "", packed(t, "zstd", strings.Repeat("\x00", 65<<20)), 415},
		"too long":         {"a.test", "gzip", "", strings.Repeat("x", 4<<20+1), 413},
		"honest gzip":      {"a.test", "gzip", "application/json", packed(t, "gzip", good), 200},
		"honest deflate":   {"a.test", "deflate", "", packed(t, "deflate", long), 200},
		"honest zstd":      {"a.test", "zstd", "", packed(t, "zstd", long), 200},
		"honest parts": {"a.test", "gzip", "multipart/form-data; boundary=b",
			packed(t, "gzip", strings.Replace(parts, foreign, ph, 1)), 200},
		"identity":      {"a.test", "identity", "", good, 200},
		"elsewhere":     {"b.test", "gzip", "", packed(t, "gzip", bad), 200},
		"elsewhere, br": {"b.test", "br", "", bad, 200},
	} {
		for _, streamed := range []bool{false, true} {
			mu.Lock()
			arrived = "nothing"
			mu.Unlock()
			var body io.Reader = strings.NewReader(c.body)
			if streamed {
				body = io.MultiReader(body) // of no known length
			}
			q, err := http.NewRequestWithContext(t.Context(), "POST", r.https(c.host, "/"), body)
			if err != nil {
				t.Fatal(err)
			}
			q.Header.Set("Content-Encoding", c.coding)
			q.Header.Set("Content-Type", c.kind)
			resp, err := r.client(true).Do(q)
			if err != nil {
				t.Fatal(name, err)
			}
			text, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			mu.Lock()
			got := arrived
			mu.Unlock()
			want := "nothing"
			if c.status == 200 {
				want = c.coding + " " + c.body
			}
			if resp.StatusCode != c.status || got != want {
				t.Errorf("%s, streamed %v: %d %.300s; %.100q arrived", name, streamed, resp.StatusCode, text, got)
			}
		}
	}
}

// Broken if a client can use a key of its own over a WebSocket at a host that has a placeholder, if that leaves
// no record, or if an honest conversation does not go on.
func TestForeignKeyInAWebSocket(t *testing.T) {
	const ph, foreign = "sk-outboard0123456789abcdef0123456789abcdef01234567", "sk-attackers-own-key-0123456789"
	r := newRig(t, rules(anyPort("a.test"), anyPort("b.test")),
		credentials(fixed{host: "a.test", inj: egress.Injection{Names: []string{"n"}, AnyPath: true,
			RefuseBody: []string{"api_key"}, Replace: []egress.Placeholder{{Placeholder: ph, Value: "the-real-key",
				Header: true}}}}))
	const beforeIt = "whole frames that came before, if they came by themselves"
	heard := make(chan string, 1)
	r.mux.HandleFunc("/ws", func(w http.ResponseWriter, q *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		fmt.Fprintf(c, "%sX-Asked: %s\r\n\r\n", strings.TrimSuffix(opened, "\r\n"),
			q.Header.Get("Sec-WebSocket-Extensions"))
		all, _ := io.ReadAll(rw)
		heard <- string(all)
	})
	bad, good := masks(`{"api_key":"`+foreign+`"}`), masks(`{"api_key":"`+ph+`"}`)
	for name, c := range map[string]struct{ host, say, arrives string }{
		"a foreign key":   {"a.test", good + bad, beforeIt},
		"our placeholder": {"a.test", good, good},
		"another host":    {"b.test", bad, bad},
	} {
		conn, err := r.dial(portOf(r.plain))
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(15 * time.Second))
		fmt.Fprintf(conn, "GET /ws HTTP/1.1\r\nHost: %s:%d\r\nSec-WebSocket-Extensions: permessage-deflate\r\n"+opening,
			c.host, portOf(r.plain))
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(name, err)
		}
		if got := resp.Header.Get("X-Asked"); resp.StatusCode != 101 || got != "" {
			t.Errorf("%s: %d, extensions %q", name, resp.StatusCode, got)
		}
		_, _ = io.WriteString(conn, c.say)
		if c.say == c.arrives {
			conn.Close()
		}
		if got := <-heard; got != c.arrives && (c.arrives != beforeIt || got != good && got != "") {
			t.Errorf("%s: the server heard %q, want %q", name, got, c.arrives)
		}
		conn.Close()
	}
	refused := 0
	for _, rec := range r.audit(t) {
		if rec.Decision == outboard.Refused && rec.Rule == "credentials" &&
			strings.Contains(string(rec.Detail), "a key of its own") {
			refused++
		}
	}
	if refused != 1 {
		t.Errorf("%d refusals are in the audit", refused)
	}
}
