package egress

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/outbound"
)

// buffers are for copying bodies.
type buffers struct{ pool sync.Pool }

// Get implements httputil.BufferPool.
func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, copyBuffer)
}

// Put implements httputil.BufferPool.
func (b *buffers) Put(p []byte) { b.pool.Put(&p) }

var (
	copies  buffers
	discard = log.New(io.Discard, "", 0)
)

// forward sends a permitted request and copies the answer back.
func (p *port) forward(w http.ResponseWriter, r *http.Request, req Request, inj *Injection) {
	effect := effectOf(r.Context())
	if r.Body != nil && r.Body != http.NoBody {
		f, _ := p.formatOf(r, inj) // it was asked before: no refusal
		r.Body = guard(&counted{r.Body, p.usage, effect}, inj, f)
	}
	scrub := newScrubber(inj.Scrub)
	out := p.reach.Load().out
	transport := out.usual
	if req.Scheme == "http" && r.ProtoMajor == 2 {
		transport = out.h2c
	}
	proxy := httputil.ReverseProxy{
		Rewrite: func(pr *httputil.ProxyRequest) { p.rewrite(pr.Out, req, inj, scrub) },
		Transport: roundTripper(func(out *http.Request) (*http.Response, error) {
			if err := sign(out, inj); err != nil {
				return nil, err
			}
			resp, err := transport.RoundTrip(scrub.interims(out))
			if err != nil {
				return nil, err
			}
			effect.answered(resp)
			inj.refused(resp.StatusCode)
			return resp, p.switched(resp, req, out.Header, inj)
		}),
		ModifyResponse: scrub.response,
		BufferPool:     &copies,
		ErrorLog:       discard, // what went wrong is told by ErrorHandler
		ErrorHandler:   func(w http.ResponseWriter, r *http.Request, err error) { p.failed(w, r, req, err) },
	}
	proxy.ServeHTTP(w, r)
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// rewrite makes the request that is sent: to what was judged, with what belongs to it. Hop-by-hop headers are
// gone already, so that no Connection header can name one that is set here.
func (p *port) rewrite(out *http.Request, req Request, inj *Injection, scrub *scrubber) {
	out.URL.Scheme = req.Scheme
	out.URL.Host = req.Host
	if req.Scheme == "https" && req.Port != 443 || req.Scheme == "http" && req.Port != 80 {
		out.URL.Host = net.JoinHostPort(req.Host, strconv.Itoa(req.Port))
	} else if strings.Contains(req.Host, ":") {
		out.URL.Host = "[" + req.Host + "]"
	}
	out.Host = out.URL.Host
	out.URL.RawQuery = req.Query
	out.Trailer = nil // what comes behind a body was not judged
	for name := range out.Header {
		if strings.HasPrefix(name, "Proxy-") || strings.HasPrefix(name, "Outboard-") || name == "Via" || hidden(name) {
			delete(out.Header, name)
		}
	}
	if !req.WebSocket { // nothing else was let through, and a Connection header could have come back
		out.Header.Del("Upgrade")
	}
	out.Header.Del("Sec-Websocket-Extensions") // in compressed frames nothing could be looked at
	if _, ok := out.Header["User-Agent"]; !ok {
		out.Header["User-Agent"] = nil // else the transport would speak for the client
	}
	inject(out, inj, scrub)
}

// failed answers a request that was permitted and could not be carried out.
func (p *port) failed(w http.ResponseWriter, r *http.Request, req Request, err error) {
	if broken, ok := errors.AsType[*socksUpstreamError](err); ok && r.Context().Err() == nil {
		p.log(slog.LevelWarn, "the proxy of a box did not connect", "box", p.subject.Box, "proxy",
			p.reach.Load().proxy.Address, "host", req.Host, "why", broken.why, "err", broken.cause)
		p.answer(w, r, req, refuse(broken.status, "proxy", "%s", broken.Error()))
		return
	}
	if refused, ok := errors.AsType[*outbound.Refusal](err); ok {
		p.log(slog.LevelInfo, "address refused", "host", req.Host, "address", refused.Detail)
		no := refuse(http.StatusForbidden, "address", "%s", refused.Why)
		if own(req.Host) {
			no = itself(req.Host, "address", refused.Why)
		}
		p.answer(w, r, req, no)
		return
	}
	cause := context.Cause(r.Context())
	if no := ended(cause, err); no != nil {
		no.began = true
		p.answer(w, r, req, no)
		return
	}
	if outboard.KindOf(err) == outboard.Denied {
		p.answer(w, r, req, refuse(http.StatusBadGateway, "credentials", "%v", err))
		return
	}
	p.g.log.LogAttrs(r.Context(), slog.LevelDebug, "request failed", slog.String("host", req.Host),
		slog.Any("err", err))
	status, text := http.StatusBadGateway, req.Host+" could not be reached: "+reason(err)
	switch {
	case cause != nil: // who has closed one direction only still reads this
		status, text = http.StatusBadRequest, "the client closed its side of the connection before "+req.Host+" had answered"
	case errors.Is(err, errBody):
		status, text = http.StatusBadRequest, errBody.Error()
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, "outboard: "+text+"\n")
}

// ended is the refusal of a request that was under way and was not let to its end here; nil = it failed by itself.
func ended(cause, err error) *refusal {
	switch {
	case errors.Is(cause, errIdle):
		return refuse(http.StatusGatewayTimeout, "idle", "%v", errIdle)
	case errors.Is(cause, errInterim):
		return refuse(http.StatusBadGateway, "form", "%v", errInterim)
	case cause != nil && !errors.Is(cause, context.Canceled):
		return refuse(http.StatusForbidden, "gate", "%v", cause)
	case errors.Is(err, errOverBudget):
		return refuse(http.StatusTooManyRequests, "budget", "%v", errOverBudget)
	case errors.Is(err, errScrub), errors.Is(err, errRanges):
		return refuse(http.StatusBadGateway, "credentials", "%v", err)
	case errors.Is(err, errSwitched), errors.Is(err, errHandshake):
		return refuse(http.StatusBadGateway, "upgrade", "%v", err)
	}
	return unsent(err)
}

// reason explains a failure without telling what names resolve to here.
func reason(err error) string {
	if e, ok := errors.AsType[*net.DNSError](err); ok {
		if e.IsNotFound {
			return "there is no such host"
		}
		return "its name could not be resolved"
	}
	if e, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "its certificate is not valid: " + e.Err.Error()
	}
	if e, ok := errors.AsType[*net.OpError](err); ok && e.Op == "dial" {
		return "the connection failed"
	}
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		return "it did not answer in time"
	}
	return "the exchange broke off"
}
