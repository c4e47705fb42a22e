package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"sync"
	"time"

	"github.com/outboard-dev/outboard/internal/outbound"
)

// upstream is how one sandbox's requests reach servers. Sandboxes share no connection: what a server knows by its connection stays
// with the sandbox that made it.
//
// A server that is known to speak HTTP/1.1 is spoken to on lines of our own, by the goroutine that serves the request. The standard
// transport has two goroutines per connection, and each request and each answer changes hands between them.
type upstream struct {
	usual *http.Transport
	h2c   *http.Transport // HTTP/2 without TLS, for clients that speak it
	dial  func(ctx context.Context, network, address string) (net.Conn, error)
	tls   *tls.Config // of lines

	mu     sync.Mutex
	http1  map[string]bool    // servers that have chosen HTTP/1.1 over TLS, by address
	idle   map[string][]*line // the last used at the end
	reaper *time.Timer        // set while there are idle lines
	closed bool
}

// newUpstream returns one that dials by itself, or through a proxy.
func newUpstream(cfg Config, via *detour) *upstream {
	dial := func(ctx context.Context, _, address string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
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
	u := &upstream{usual: base(), h2c: base(), dial: dial, tls: trust, http1: map[string]bool{}, idle: map[string][]*line{}}
	u.usual.ForceAttemptHTTP2 = true
	var only http.Protocols
	only.SetUnencryptedHTTP2(true)
	u.h2c.Protocols = &only
	u.tls.NextProtos = []string{"http/1.1"}
	u.tls.ClientSessionCache = tls.NewLRUClientSessionCache(maxIdle)
	return u
}

func (u *upstream) close() {
	u.usual.CloseIdleConnections()
	u.h2c.CloseIdleConnections()
	u.mu.Lock()
	u.closed = true
	u.mu.Unlock()
	u.reap(0)
}

// interim is told of the answers of 1xx before an answer.
type interim func(status int, header textproto.MIMEHeader) error

// RoundTrip implements http.RoundTripper for everything but h2c.
func (u *upstream) RoundTrip(r *http.Request) (*http.Response, error) {
	address := addressOf(r)
	if !u.plain(r, address) {
		return u.usually(r, address)
	}
	var tell interim
	if t := httptrace.ContextClientTrace(r.Context()); t != nil {
		tell = t.Got1xxResponse
	}
	return u.exchange(r, address, tell)
}

// send is RoundTrip with somebody who is told of interim answers, until it returns.
func (u *upstream) send(r *http.Request, tell interim) (*http.Response, error) {
	address := addressOf(r)
	if u.plain(r, address) {
		return u.exchange(r, address, tell)
	}
	var mu sync.Mutex // the transport may tell from a goroutine of its own, after a request that was given up
	over := false
	trace := &httptrace.ClientTrace{Got1xxResponse: func(status int, header textproto.MIMEHeader) error {
		mu.Lock()
		defer mu.Unlock()
		if over {
			return nil
		}
		return tell(status, header)
	}}
	defer func() {
		mu.Lock()
		over = true
		mu.Unlock()
	}()
	return u.usually(r.WithContext(httptrace.WithClientTrace(r.Context(), trace)), address)
}

// usually sends a request by the standard transport, and learns what the server speaks.
func (u *upstream) usually(r *http.Request, address string) (*http.Response, error) {
	resp, err := u.usual.RoundTrip(r)
	if err == nil && r.URL.Scheme == "https" {
		u.learn(address, resp.ProtoMajor == 1)
	}
	return resp, err
}

// addressOf is where a request goes, with its port.
func addressOf(r *http.Request) string {
	port := r.URL.Port()
	switch {
	case port != "":
	case r.URL.Scheme == "https":
		port = "443"
	default:
		port = "80"
	}
	return net.JoinHostPort(r.URL.Hostname(), port)
}

// plain reports whether a request is one for a line: a body is sent whole before the answer is looked at, so it must be small.
func (u *upstream) plain(r *http.Request, address string) bool {
	small := r.Body == nil || r.Body == http.NoBody || r.ContentLength > 0 && r.ContentLength <= maxHeld
	if !small || r.Trailer != nil || len(r.TransferEncoding) > 0 || r.Header["Upgrade"] != nil || r.Header["Expect"] != nil {
		return false
	}
	if r.URL.Scheme == "http" {
		return true
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.http1[address]
}

// learn remembers what a server speaks.
func (u *upstream) learn(address string, http1 bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case !http1:
		delete(u.http1, address)
	case !u.http1[address]:
		if len(u.http1) >= maxLeaves {
			clear(u.http1)
		}
		u.http1[address] = true
	}
}

// exchange sends a request on a line. A kept line that the server closed meanwhile is replaced by a new one, where nothing can have
// been done twice by that.
func (u *upstream) exchange(r *http.Request, address string, tell interim) (*http.Response, error) {
	body, err := held(r)
	if err != nil {
		return nil, err
	}
	for {
		l, err := u.line(r, address)
		if err != nil {
			return nil, err
		}
		resp, err := l.send(r, body, tell)
		if err == nil {
			return resp, nil
		}
		if ctxErr := r.Context().Err(); ctxErr != nil {
			return nil, ctxErr
		}
		if !l.used || l.heard || !repeatable(r) {
			return nil, err
		}
	}
}

// repeatable reports whether a request may be sent again though the server may have got it.
func repeatable(r *http.Request) bool {
	switch r.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return r.ContentLength == 0
	}
	return false
}

// line returns a connection to a server: one that was kept and is alive, or a new one.
func (u *upstream) line(r *http.Request, address string) (*line, error) {
	key := r.URL.Scheme + "://" + address
	for {
		l := u.take(key)
		if l == nil {
			return u.connect(r, key, address)
		}
		if time.Since(l.since) < idleTimeout && l.silent() {
			return l, nil
		}
		l.conn.Close()
	}
}

func (u *upstream) take(key string) *line {
	u.mu.Lock()
	defer u.mu.Unlock()
	list := u.idle[key]
	if len(list) == 0 {
		return nil
	}
	l := list[len(list)-1]
	list[len(list)-1] = nil
	u.idle[key] = list[:len(list)-1]
	return l
}

func (u *upstream) connect(r *http.Request, key, address string) (*line, error) {
	ctx, cancel := context.WithTimeout(r.Context(), helloTimeout+dialWait)
	defer cancel()
	under, err := u.dial(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	l := &line{up: u, key: key, under: under, conn: under, silent: silent(under)}
	if r.URL.Scheme == "https" {
		cfg := u.tls.Clone()
		cfg.ServerName = r.URL.Hostname()
		l.wire = &wire{Conn: under}
		t := tls.Client(l.wire, cfg)
		if err := t.HandshakeContext(ctx); err != nil {
			under.Close()
			u.learn(address, false) // perhaps it has stopped to speak HTTP/1.1
			return nil, err
		}
		l.conn = &secured{t, l.wire}
	}
	l.in = bufio.NewReaderSize(l, lineBuffer)
	l.out = bufio.NewWriterSize(l.conn, lineBuffer)
	return l, nil
}

// keep takes back a line that is ready for another request.
func (u *upstream) keep(l *line) {
	l.since, l.used = time.Now(), true
	u.mu.Lock()
	list := u.idle[l.key]
	full := u.closed || len(list) >= maxIdle
	if !full {
		u.idle[l.key] = append(list, l)
		if u.reaper == nil {
			u.reaper = time.AfterFunc(idleTimeout, func() { u.reap(idleTimeout) })
		}
	}
	u.mu.Unlock()
	if full {
		l.conn.Close()
	}
}

// reap closes the lines that have been idle for long.
func (u *upstream) reap(long time.Duration) {
	u.mu.Lock()
	var old []*line
	left := 0
	for key, list := range u.idle {
		n := 0
		for n < len(list) && time.Since(list[n].since) >= long {
			n++
		}
		old = append(old, list[:n]...)
		if u.idle[key] = append([]*line(nil), list[n:]...); len(list) == n {
			delete(u.idle, key)
		}
		left += len(list) - n
	}
	if u.reaper != nil {
		u.reaper.Stop()
		u.reaper = nil
	}
	if left > 0 {
		u.reaper = time.AfterFunc(idleTimeout/2, func() { u.reap(idleTimeout) })
	}
	u.mu.Unlock()
	for _, l := range old {
		l.conn.Close()
	}
}

var errTooLong = errors.New("the head of the answer is too long")
