package e2b

import (
	"crypto/tls"
	"io"
	"net/http"
	"strings"
	"time"
)

// Ports of boxes are reached over HTTP/2 as well, and programs that serve gRPC, which is made of it, are spoken
// to in it: from the first byte where the port is plain, by ALPN where it has TLS. Every other request is passed
// on in HTTP/1.1, whichever a client speaks, since that is what programs understand. The API and the agent of
// boxes stay with HTTP/1.1: who asks for them over HTTP/2 is sent to another connection (421), as a browser may
// that has one to the port of a box under the same certificate.

// pingAfter is how long a client on HTTP/2 may say nothing before it is asked whether it is there: its streams
// may be silent for as long as they like.
const pingAfter = time.Minute

// Speak has an HTTP server take HTTP/2 from clients that begin with it, and over TLS from those that TLSConfig
// offers it to.
func Speak(srv *http.Server) {
	srv.Protocols = new(http.Protocols)
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetHTTP2(true)
	srv.Protocols.SetUnencryptedHTTP2(true)
	srv.HTTP2 = &http.HTTP2Config{SendPingTimeout: pingAfter}
}

// TLSConfig is a configuration that offers HTTP/2 under the names of ports of boxes, and nothing else otherwise
// than base.
func TLSConfig(base *tls.Config) *tls.Config {
	plain, ports := base.Clone(), base.Clone()
	plain.NextProtos, ports.NextProtos = []string{"http/1.1"}, []string{"h2", "http/1.1"}
	plain.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if _, _, ok := portName(hello.ServerName); ok {
			return ports, nil
		}
		return nil, nil
	}
	return plain
}

// Conversation reports whether a request is a call of gRPC to a program in a box, in which either side may be
// silent for as long as it likes.
func Conversation(r *http.Request) bool { return isGRPC(r) && ForProgram(r) }

// isGRPC reports whether a request is one of gRPC itself. gRPC-Web, and Connect in its own protocol, go over
// HTTP/1.1 as well.
func isGRPC(r *http.Request) bool {
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	kind = strings.ToLower(strings.TrimSpace(kind))
	return r.ProtoMajor == 2 && (kind == "application/grpc" || strings.HasPrefix(kind, "application/grpc+"))
}

// misdirected refuses what is not for a program and comes over HTTP/2.
func misdirected(w http.ResponseWriter) {
	reply(w, http.StatusMisdirectedRequest, errorBody{http.StatusMisdirectedRequest,
		"over HTTP/2 there are only the ports of sandboxes: ask on a connection of HTTP/1.1"})
}

// grpcTransport is portTransport in HTTP/2. A program's streams share connections.
func (s *Server) grpcTransport() *http.Transport {
	t := s.portTransport()
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP2(true)
	t.Protocols.SetUnencryptedHTTP2(true)
	return t
}

// hangingUp passes a call on and, when the program has ended it, waits no longer for what its client may still
// say: the proxy would, since it closes no client's body.
type hangingUp struct {
	http.RoundTripper
	client *http.ResponseController
}

// RoundTrip implements http.RoundTripper.
func (h hangingUp) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body == nil {
		return h.RoundTripper.RoundTrip(r)
	}
	r = r.WithContext(r.Context()) // a copy
	r.Body = said{r.Body, h.client}
	return h.RoundTripper.RoundTrip(r)
}

// said is a body whose Close ends a Read that is under way.
type said struct {
	io.Reader
	client *http.ResponseController
}

// Close implements io.Closer.
func (s said) Close() error { return s.client.SetReadDeadline(time.Unix(1, 0)) }
