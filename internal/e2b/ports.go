package e2b

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

const (
	// dialTries and dialPause are for programs that were just started and do not listen yet.
	dialTries = 5
	dialPause = 200 * time.Millisecond
	// portIdle is how long a connection into a box is kept for the next request.
	portIdle = 30 * time.Second
	// portConns bounds the connections to one port of one box.
	portConns = 512
	// portHandshake bounds TLS with a program that was said to speak it.
	portHandshake = 10 * time.Second
	// portAgrees is how long a program is waited for whose client asked (Expect: 100-continue) whether to send a
	// body. Many programs do not know of the question and wait for the body, so then it is sent; that long curl
	// waits as well.
	portAgrees = time.Second
)

// errClosed is a port where nothing listens.
var errClosed = errors.New("the port is closed")

// portTransport makes requests to ports of boxes. The address of a connection is the box's id and the port.
// Certificates are not looked at: who serves a port is in the box already, and nobody else can be at the other
// end of the connection.
func (s *Server) portTransport() *http.Transport {
	return &http.Transport{DialContext: s.dialPort, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		TLSHandshakeTimeout: portHandshake, IdleConnTimeout: portIdle, MaxConnsPerHost: portConns, DisableCompression: true,
		ExpectContinueTimeout: portAgrees, ResponseHeaderTimeout: 0} // a program may take as long as its client waits
}

func (s *Server) dialPort(ctx context.Context, _, addr string) (net.Conn, error) {
	id, number, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(number, 10, 16)
	if err != nil {
		return nil, err
	}
	// port has asked before
	b, err := s.ctl.BoxSecret(ctx, outboard.BoxID(id), func(*outboard.Box) bool { return true })
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		m, err := s.ctl.VisitBox(ctx, b)
		if err != nil {
			return nil, err
		}
		conn, err := m.DialPort(ctx, uint16(port))
		if err == nil {
			return conn, nil
		}
		if r, refused := errors.AsType[*control.Refusal](err); !refused || r.Code == "denied" {
			return nil, err
		}
		if try == dialTries {
			return nil, errClosed
		}
		select {
		case <-time.After(dialPause):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// trafficHeader carries the token of a box whose ports are not open to everybody.
const trafficHeader = "E2b-Traffic-Access-Token"

// port passes a request on to a port of a box.
func (s *Server) port(w http.ResponseWriter, r *http.Request, id outboard.BoxID, port uint16) {
	var visit error
	b, err := s.ctl.BoxSecret(r.Context(), id, func(b *outboard.Box) bool {
		visit = control.MayVisit(b, port, r.Header.Get(trafficHeader))
		return outboard.KindOf(visit) != outboard.Unauthenticated
	})
	s.stranger(r, "port", cmp.Or(err, visit))
	switch outboard.KindOf(err) {
	case outboard.NotFound:
		gone(w, id)
		return
	case outboard.Unauthenticated:
		reply(w, http.StatusForbidden, goneBody{SandboxID: string(id),
			Message: "The traffic access token is missing or wrong", Code: http.StatusForbidden})
		return
	}
	if err == nil {
		err = visit
	}
	var own http.Header
	if err == nil {
		own, err = s.ownCredentials(r.Context(), r.Header, &b)
	}
	if err != nil {
		fail(w, err)
		return
	}
	ctx, end := context.WithCancel(r.Context())
	defer end()
	go s.ctl.WhileHeld(ctx, end, b)
	scheme := "http"
	if slices.Contains(b.TLSPorts, port) {
		scheme = "https"
	}
	var transport http.RoundTripper = s.ports
	if isGRPC(r) {
		transport = hangingUp{s.grpc, http.NewResponseController(w)}
	}
	proxy := httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(&url.URL{Scheme: scheme, Host: net.JoinHostPort(string(id), strconv.Itoa(int(port)))})
			p.SetXForwarded()
			p.Out.Host = p.In.Host
			if b.MaskHost != "" {
				p.Out.Host = strings.ReplaceAll(b.MaskHost, "${PORT}", strconv.Itoa(int(port)))
			}
			for _, name := range credentialHeaders {
				p.Out.Header.Del(name)
			}
			maps.Copy(p.Out.Header, own)
			p.Out.Header.Del(trafficHeader)
			p.Out.Header.Del("E2b-Sandbox-Id")
			p.Out.Header.Del("E2b-Sandbox-Port")
		},
		ModifyResponse: hostCookies,
		ErrorHandler:   func(w http.ResponseWriter, r *http.Request, err error) { unreachable(w, r, id, port, err) },
		ErrorLog:       slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		FlushInterval:  -1,
	}
	w = hinted{w}
	if r.Header.Get("Upgrade") != "" {
		u := &upgrade{ResponseWriter: w}
		w = u
		proxy.ModifyResponse = func(res *http.Response) error { return errors.Join(hostCookies(res), u.watch(res)) }
	}
	if r.Header.Get("Expect") != "" && r.ContentLength != 0 {
		w = asked{w}
	}
	proxy.ServeHTTP(w, r.WithContext(ctx))
}

// hostCookies takes Domain out of the cookies that a program sets: with one, a page of a box would set cookies
// for the names of all boxes, which end alike. Without, they are for its own name.
func hostCookies(res *http.Response) error {
	ownCookies(res.Header)
	return nil
}

func ownCookies(h http.Header) {
	for _, name := range []string{"Set-Cookie", "Set-Cookie2"} {
		for i, line := range h[name] {
			parts := strings.Split(line, ";")
			keep := slices.DeleteFunc(parts[1:], func(attribute string) bool {
				name, _, _ := strings.Cut(attribute, "=")
				return strings.EqualFold(strings.Trim(name, " \t"), "Domain")
			})
			h[name][i] = strings.Join(parts[:1+len(keep)], ";")
		}
	}
}

// hinted is the way to a client of what a program says before its answer (103), which has headers too.
type hinted struct{ http.ResponseWriter }

// Unwrap is for http.ResponseController.
func (h hinted) Unwrap() http.ResponseWriter { return h.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (h hinted) WriteHeader(status int) {
	ownCookies(h.Header())
	h.ResponseWriter.WriteHeader(status)
}

// asked is the way to a client that asked whether to send its body. The server says 100 to it when the body is
// first read, which is once the program has said so, or has been silent for portAgrees: the program's own 100
// would be a second one.
type asked struct{ http.ResponseWriter }

// Unwrap is for http.ResponseController.
func (a asked) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (a asked) WriteHeader(status int) {
	if status != http.StatusContinue {
		a.ResponseWriter.WriteHeader(status)
	}
}

// unreachable answers for a port that did not.
func unreachable(w http.ResponseWriter, r *http.Request, id outboard.BoxID, port uint16, err error) {
	switch kind := outboard.KindOf(err); {
	case r.Context().Err() != nil:
	case errors.Is(err, errClosed):
		reply(w, http.StatusBadGateway, goneBody{string(id), "The sandbox is running but port is not open", port,
			http.StatusBadGateway})
	case kind == outboard.NotFound, kind == outboard.Conflict:
		gone(w, id)
	default:
		reply(w, http.StatusBadGateway, goneBody{string(id), "The program on the port did not answer", port,
			http.StatusBadGateway})
	}
}
