// Package client speaks the public API for the command line: the Managed Agents wire, Outboard's
// own event types, and the download of workspaces. It is small on purpose; programs use an official
// SDK.
//
// Invariants: a client keeps no state but its address. Follow survives a lost connection and a
// restarted server, and yields every event once, in order.
//
// It never prints and never decides. Start reading at Client and Follow.
package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
)

const (
	// maxResponse bounds one JSON answer: a page of 1000 events with inline content fits.
	maxResponse = 64 << 20
	// maxError bounds the body of an error answer, which is only shown.
	maxError = 64 << 10
	// attempts is how often a request that changes nothing is tried on a dead or busy server.
	attempts = 4
	// firstWait doubles after each attempt: 0.2 + 0.4 + 0.8 s in all, enough for a server that restarts.
	firstWait = 200 * time.Millisecond
	// headerTimeout is how long a server may think before it answers anything.
	headerTimeout = time.Minute
)

// Config says which server.
type Config struct {
	URL       string // http(s)://host:port
	Key       string // API key
	Org       string // organization to act in, for who runs the server; "" = the key's
	Insecure  bool   // accept http beyond this machine, where the key travels in clear text
	UserAgent string
	Transport http.RoundTripper // nil = a new one
	// Certificate is the one certificate that the server may show, in DER, whatever its name and issuer; nil =
	// one that the system trusts. It comes from a place that only the server's own user writes. Transport must
	// be nil.
	Certificate []byte
}

// Client is safe for concurrent use.
type Client struct {
	base *url.URL
	key  string
	org  string
	ua   string
	http *http.Client
}

// TransportError means that the server could not be reached or the connection broke: nothing is known about the
// request.
type TransportError struct {
	URL string
	Err error
}

// Error names the server and the cause.
func (e *TransportError) Error() string { return fmt.Sprintf("reaching %s: %v", e.URL, e.Err) }

// Unwrap returns the cause.
func (e *TransportError) Unwrap() error { return e.Err }

// New returns a client, or Invalid for an address that is none or that would send the key in clear text over a network.
func New(cfg Config) (*Client, error) {
	u, err := Address(cfg.URL)
	if err != nil {
		return nil, err
	}
	if u.Scheme == "http" && !loopback(u.Hostname()) && !cfg.Insecure {
		return nil, outboard.Errorf(outboard.Invalid, "%s is not https: the key would travel in clear text", cfg.URL).
			WithHint("use https, or set OUTBOARD_INSECURE=1 on a network you trust")
	}
	tr := cfg.Transport
	if tr == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.ResponseHeaderTimeout = headerTimeout
		t.MaxIdleConnsPerHost = 16 // callers that ask for several things at a time do not connect for each
		if cfg.Certificate != nil {
			t.TLSClientConfig = pinned(cfg.Certificate)
		}
		tr = t
	}
	// No overall timeout: streams last as long as a session. No redirects: the key would travel along.
	hc := &http.Client{Transport: tr, CheckRedirect: func(*http.Request,
		[]*http.Request) error {
		return http.ErrUseLastResponse
	}}
	return &Client{base: u, key: cfg.Key, org: cfg.Org, ua: cfg.UserAgent, http: hc}, nil
}

// pinned trusts one certificate and no other. The chain is not looked at: the bytes of the certificate are
// compared instead.
func pinned(certificate []byte) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 || !bytes.Equal(s.PeerCertificates[0].Raw, certificate) {
				return errors.New("the server shows another certificate than the one it was started with")
			}
			return nil
		}}
}

// Address reads the address of a server, which is Invalid if it is none.
func Address(addr string) (*url.URL, error) {
	u, err := url.Parse(strings.TrimSuffix(addr, "/"))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return nil, outboard.Errorf(outboard.Invalid, "%q is not a server address", addr).
			WithHint("use http://127.0.0.1:7070 or https://host")
	}
	return u, nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// URL returns the server's address.
func (c *Client) URL() string { return c.base.String() }

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// call makes one JSON request. in and out may be nil.
func (c *Client) call(ctx context.Context, method, path string, query url.Values, in, out any) error {
	var body []byte
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("encoding a request: %w", err)
		}
		body = b
	}
	resp, err := c.send(ctx, method, path, query, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse+1))
	if err != nil {
		return &TransportError{c.URL(), err}
	}
	if len(b) > maxResponse {
		return outboard.Errorf(outboard.TooLarge, "the answer of %s is over %d MB", path, maxResponse>>20)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return &TransportError{c.URL(), fmt.Errorf("the answer of %s is not what was expected: %w", path, err)}
	}
	return nil
}

// send makes a request and returns a successful response. GET is repeated when the server is away or busy;
// anything else is sent once, because a lost answer says nothing about its effect.
func (c *Client) send(ctx context.Context, method, path string, query url.Values, body []byte) (*http.Response, error) {
	wait := firstWait
	for n := 1; ; n++ {
		var r io.Reader
		if body != nil {
			r = bytes.NewReader(body)
		}
		resp, err := c.once(ctx, method, path, query, r, "application/json")
		if err == nil || n == attempts || method != http.MethodGet || !retryable(err) || ctx.Err() != nil {
			return resp, err
		}
		if err := sleep(ctx, wait); err != nil {
			return nil, err
		}
		wait *= 2
	}
}

func (c *Client) once(ctx context.Context, method, path string, query url.Values, body io.Reader,
	contentType string) (*http.Response, error) {
	u := *c.base
	u.Path += path
	u.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, fmt.Errorf("making a request: %w", err)
	}
	if body != nil {
		req.Header.Set("Content-Type", contentType)
	}
	if c.key != "" { // who signs in has none yet
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	req.Header.Set("Anthropic-Version", "2026-10-21")
	req.Header.Set("User-Agent", c.ua)
	if c.org != "" {
		req.Header.Set("Outboard-Organization", c.org)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err
		}
		return nil, &TransportError{c.URL(), err}
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, c.failure(resp)
}

// failure turns an error answer into an outboard.Error.
func (c *Client) failure(resp *http.Response) error {
	b, _ := io.ReadAll(io.LimitReader(resp.Body, maxError))
	var body struct {
		Error struct {
			Type    string `json:"type"`
			Message string `json:"message"`
			Details struct {
				Code string `json:"error_code"`
				Hint string `json:"hint"`
			} `json:"details"`
		} `json:"error"`
	}
	if json.Unmarshal(b, &body) != nil || body.Error.Message == "" {
		return &TransportError{c.URL(), fmt.Errorf("the server answered %s, not like an Outboard server", resp.Status)}
	}
	e := outboard.Errorf(kindOf(resp.StatusCode), "%s", body.Error.Message).WithCode(body.Error.Details.Code)
	e.Hint = body.Error.Details.Hint
	if e.Code == "" {
		e.Code = body.Error.Type
	}
	return e
}

// kindOf is the table from status to kind.
func kindOf(status int) outboard.Kind {
	switch status {
	case http.StatusUnauthorized:
		return outboard.Unauthenticated
	case http.StatusForbidden:
		return outboard.Denied
	case http.StatusNotFound:
		return outboard.NotFound
	case http.StatusConflict, http.StatusPreconditionFailed:
		return outboard.Conflict
	case http.StatusRequestEntityTooLarge:
		return outboard.TooLarge
	case http.StatusTooManyRequests, http.StatusPaymentRequired:
		return outboard.Exhausted
	case http.StatusNotImplemented:
		return outboard.Unimplemented
	case http.StatusServiceUnavailable, http.StatusBadGateway, http.StatusGatewayTimeout, 529:
		return outboard.Unavailable
	}
	if status >= 500 {
		return outboard.Internal
	}
	return outboard.Invalid
}

func retryable(err error) bool {
	if _, ok := errors.AsType[*TransportError](err); ok {
		return true
	}
	return outboard.KindOf(err) == outboard.Unavailable || outboard.KindOf(err) == outboard.Exhausted
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
