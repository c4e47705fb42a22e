package egress

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"time"

	"github.com/outboard-dev/outboard/internal/outbound"
)

// upstream is how one sandbox's requests reach servers. Sandboxes share no connection: what a server knows by
// its connection stays with the sandbox that made it.
type upstream struct {
	usual *http.Transport
	h2c   *http.Transport // HTTP/2 without TLS, for clients that speak it
}

// newUpstream returns one that dials by itself, or through a proxy.
func newUpstream(cfg Config, via *socksUpstream) *upstream {
	dial := func(ctx context.Context, _, address string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, dialWait)
		defer cancel()
		addrs, err := cfg.Guard.Lookup(ctx, host)
		if err != nil {
			return nil, err
		}
		if via != nil {
			return via.dial(ctx, addrs, port)
		}
		return outbound.Dial(ctx, addrs, port)
	}
	trust := &tls.Config{RootCAs: cfg.Roots, MinVersion: tls.VersionTLS12, DynamicRecordSizingDisabled: true}
	base := func() *http.Transport {
		return &http.Transport{
			DialContext:            dial,
			Proxy:                  nil, // it would resolve and dial by itself
			TLSClientConfig:        trust.Clone(),
			TLSHandshakeTimeout:    helloTimeout,
			ResponseHeaderTimeout:  answerTimeout,
			ExpectContinueTimeout:  time.Second,
			IdleConnTimeout:        idleTimeout,
			MaxIdleConnsPerHost:    maxIdle,
			MaxResponseHeaderBytes: maxHeader,
			DisableCompression:     true, // what the server sends is what the client gets
			ReadBufferSize:         32 << 10,
			WriteBufferSize:        32 << 10,
		}
	}
	u := &upstream{usual: base(), h2c: base()}
	u.usual.ForceAttemptHTTP2 = true
	var only http.Protocols
	only.SetUnencryptedHTTP2(true)
	u.h2c.Protocols = &only
	return u
}

func (u *upstream) close() {
	u.usual.CloseIdleConnections()
	u.h2c.CloseIdleConnections()
}
