package vault

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/outbound"
)

// answer is what an issuer or an MCP server said.
type answer struct {
	status int
	kind   string // media type
	body   []byte
	cut    bool // there was more
}

// ask sends a request through the guarded client.
func (k *Keeper) ask(req *http.Request) (answer, error) {
	return askWith(k.cfg.HTTP, req)
}

func askWith(client *http.Client, req *http.Request) (answer, error) {
	if client == nil {
		return answer{}, outboard.Errorf(outboard.Unavailable, "this server has no client for token issuers")
	}
	resp, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxIssued+1))
	a := answer{status: resp.StatusCode, kind: resp.Header.Get("Content-Type"), body: body}
	if len(a.body) > maxIssued {
		a.body, a.cut = a.body[:maxIssued], true
	}
	return a, err
}

// flights lets one of several callers do what all of them want, and the others share its result.
type flights[T any] struct {
	mu  sync.Mutex
	now map[string]*flight[T]
}

type flight[T any] struct {
	done chan struct{}
	out  T
	err  error
}

// do runs fn, unless it is being run for key: then it waits for that. The work goes on when the caller that
// began it leaves: others may wait for it, and what an issuer has changed must be stored.
func (f *flights[T]) do(ctx context.Context, key string, fn func(context.Context) (T, error)) (out T, err error) {
	f.mu.Lock()
	if f.now == nil {
		f.now = map[string]*flight[T]{}
	}
	fl := f.now[key]
	if fl == nil {
		fl = &flight[T]{done: make(chan struct{})}
		f.now[key] = fl
		work, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*issuerTimeout)
		go func() {
			defer cancel()
			fl.out, fl.err = fn(work)
			f.mu.Lock()
			delete(f.now, key)
			f.mu.Unlock()
			close(fl.done)
		}()
	}
	f.mu.Unlock()
	select {
	case <-fl.done:
		return fl.out, fl.err
	case <-ctx.Done():
		return out, outboard.Errorf(outboard.Canceled, "waiting for a token: %w", context.Cause(ctx))
	}
}

// plainError says why a request to an issuer failed without its URL, which may hold more than a host.
func plainError(err error) string {
	if e, ok := errors.AsType[*outboard.Error](err); ok {
		return e.Message
	}
	s := err.Error()
	if i := strings.LastIndex(s, ": "); i >= 0 {
		s = s[i+2:]
	}
	return s
}

// Client returns an HTTP client for Config: it dials what the guard allows, and follows no redirect, so that a
// token cannot travel to another place. roots are whom it trusts, nil = the system's.
func Client(g *outbound.Guard, roots *x509.CertPool) *http.Client {
	dial := func(ctx context.Context, _, addr string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		host = strings.TrimSuffix(strings.ToLower(host), ".")
		if why := outbound.CheckHost(host); why != "" {
			return nil, &outbound.Refusal{Why: why}
		}
		addrs, err := g.Lookup(ctx, host)
		if err != nil {
			return nil, err
		}
		return outbound.Dial(ctx, addrs, port)
	}
	return &http.Client{
		Transport: &http.Transport{DialContext: dial, TLSClientConfig: &tls.Config{RootCAs: roots},
			ForceAttemptHTTP2: true, TLSHandshakeTimeout: issuerTimeout, MaxIdleConns: 16, IdleConnTimeout: time.Minute},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
