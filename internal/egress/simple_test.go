package egress

import (
	"strings"
	"testing"
)

// Broken if a head that servers may read in two ways is taken for a plain one, or an ordinary one is not.
func TestSimple(t *testing.T) {
	for _, head := range []string{
		"GET / HTTP/1.1\r\nHost: a\r\n",
		"GET /a?b=%20 HTTP/1.1\r\nHost: a:1\r\nX-Y_Z1: \tv\xc3\xa9\r\nConnection: Keep-Alive\r\nCookie: a=b; c\r\n",
		"POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 12\r\n",
		"PROPFIND / HTTP/1.1\r\nHost: a\r\nContent-Length:0\r\n",
	} {
		if !simple([]byte(head)) {
			t.Errorf("not plain: %q", head)
		}
	}
	for _, head := range []string{
		"", "\r\n", "GET / HTTP/1.1\r\n",
		"GET / HTTP/1.0\r\nHost: a\r\n", "GET / HTTP/2.0\r\nHost: a\r\n", "PRI * HTTP/2.0\r\n", "GET /\r\nHost: a\r\n", "get / HTTP/1.1\r\nHost: a\r\n",
		"GET  / HTTP/1.1\r\nHost: a\r\n", "GET / / HTTP/1.1\r\nHost: a\r\n", "GET http://a/ HTTP/1.1\r\nHost: a\r\n", "OPTIONS * HTTP/1.1\r\nHost: a\r\n",
		"CONNECT /a HTTP/1.1\r\nHost: a\r\n", "GET /\x00 HTTP/1.1\r\nHost: a\r\n", "GET /\t HTTP/1.1\r\nHost: a\r\n", "GET /\xc3 HTTP/1.1\r\nHost: a\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n", "GET / HTTP/1.1\r\nHost : a\r\n", "GET / HTTP/1.1\r\nHost: a\r\n b\r\n", "GET / HTTP/1.1\r\n Host: a\r\n",
		"GET / HTTP/1.1\nHost: a\r\n", "GET / HTTP/1.1\r\nHost: a\nX: y\r\n", "GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n", "GET / HTTP/1.1\r\nHost: a\r\nX\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\n: x\r\n", "GET / HTTP/1.1\r\nHost: a\r\nX\x00: x\r\n", "GET / HTTP/1.1\r\nHost: a\r\nX: \x00\r\n",
	} {
		if simple([]byte(head)) {
			t.Errorf("plain: %q", head)
		}
	}
	for _, line := range []string{
		"Transfer-Encoding: chunked", "transfer-encoding: identity", "Connection: close", "Connection: keep-alive, X", "Connection: Upgrade", "Upgrade: websocket",
		"Expect: 100-continue", "TE: trailers", "Trailer: X", "Proxy-Connection: keep-alive", "HTTP2-Settings: x", "Content-Length: -1", "Content-Length: +1",
		"Content-Length: 1, 1", "Content-Length: 0x1", "Content-Length: ", "Content-Length: 32769", "Content-Length: 99999999999999999999",
		"Content-Length: 1\r\nContent-Length: 1",
	} {
		if simple([]byte("POST / HTTP/1.1\r\nHost: a\r\n" + line + "\r\n")) {
			t.Errorf("plain: %q", line)
		}
	}
	if !simple([]byte("POST / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("a", 4000) + "\r\n")) {
		t.Error("a long value is not plain")
	}
}
