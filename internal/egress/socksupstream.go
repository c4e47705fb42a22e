package egress

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/netrule"
	"github.com/outboard-dev/outboard/internal/outbound"
)

// socksUpstream is the proxy of a client's that the requests of a box go through once they are judged. What is
// sent is decided here all the same: the proxy is told an address that was checked, never a name, and TLS ends
// at the server. There is no other way: whatever goes wrong is an error.
type socksUpstream struct {
	host     string
	port     int
	name     string
	guard    outbound.Guard // of the proxy itself
	may      bool           // the operator lets boxes go through it
	password func(context.Context) (outboard.Secret, error)
}

// anywhere are all networks: of a proxy that the operator has named, whose address may be any but that of a
// metadata service.
var anywhere = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}

// newSocksUpstream returns the way through a box's proxy; nil = it has none. An address that cannot be read is
// one that may not be used.
func (g *Gateway) newSocksUpstream(s Subject, proxy outboard.BoxProxy, sealed outboard.BoxHeaders) *socksUpstream {
	if proxy.IsZero() {
		return nil
	}
	d := &socksUpstream{name: proxy.Username, guard: g.cfg.Guard}
	var err error
	if d.host, d.port, err = netrule.Proxy(proxy.Address); err == nil {
		var listed bool
		if listed, d.may = netrule.MayProxy(g.cfg.Boxes, g.cfg.BoxProxies, d.host, d.port); listed {
			d.guard.Private = anywhere
		}
	}
	d.password = func(ctx context.Context) (secret outboard.Secret, err error) {
		switch {
		case !proxy.Password:
			return secret, nil
		case sealed.Credential == "" || g.cfg.ProxyPassword == nil: // a fork's
			return secret, outboard.Errorf(outboard.NotFound,
				"the password for it is not here; set the sandbox's network again")
		}
		return g.cfg.ProxyPassword(ctx, s, Request{Subject: s, Scheme: "socks5", Method: http.MethodConnect,
			Host: d.host, Port: d.port, Path: "/", Headers: sealed})
	}
	return d
}

// socksUpstreamError is a connection that the proxy of a box did not make. Its text is for the sandbox, and does
// not name the proxy.
type socksUpstreamError struct {
	status int
	why    string
	cause  error // for the log
}

// Error says why.
func (e *socksUpstreamError) Error() string {
	return "the proxy that this sandbox's requests go through: " + e.why
}

// Unwrap returns the cause.
func (e *socksUpstreamError) Unwrap() error { return e.cause }

// dial returns a connection, through the proxy, to the first of the checked addresses that it reaches.
func (d *socksUpstream) dial(ctx context.Context, addrs []netip.Addr, port string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialWait)
	defer cancel()
	if !d.may {
		return nil, &socksUpstreamError{http.StatusForbidden, "this server does not let sandboxes go through it", nil}
	}
	to, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, err
	}
	own, err := d.guard.Lookup(ctx, d.host) // anew each time, and what was checked is what is dialled
	if _, refused := errors.AsType[*outbound.Refusal](err); refused {
		return nil, &socksUpstreamError{http.StatusForbidden, "it is not at an address that may be reached", err}
	}
	if err != nil {
		return nil, &socksUpstreamError{http.StatusBadGateway, "its name could not be resolved", err}
	}
	password, err := d.password(ctx)
	if err != nil {
		return nil, &socksUpstreamError{http.StatusServiceUnavailable, "its password cannot be used: " + err.Error(),
			err}
	}
	for _, addr := range addrs {
		var conn net.Conn
		conn, err = d.through(ctx, own, password, netip.AddrPortFrom(addr, uint16(to)))
		if err == nil {
			return conn, nil
		}
		if reply, ok := errors.AsType[socksReply](err); !ok || !reply.elsewhere() {
			break
		}
	}
	return nil, err
}

// through makes one attempt.
func (d *socksUpstream) through(ctx context.Context, own []netip.Addr, password outboard.Secret,
	to netip.AddrPort) (net.Conn, error) {
	conn, err := outbound.Dial(ctx, own, strconv.Itoa(d.port))
	if err != nil {
		return nil, &socksUpstreamError{http.StatusBadGateway, "it could not be reached", err}
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) }) // also when its time is over
	err = socks(conn, d.name, password.Reveal(), to)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		return conn, nil
	}
	conn.Close()
	why := "it broke off: " + reason(err)
	reply, refused := errors.AsType[socksReply](err)
	switch {
	case refused:
		why = "it did not connect: " + reply.Error()
	case errors.Is(err, errNotSocks), errors.Is(err, errSocksAuth), errors.Is(err, errSocksOpen):
		why = err.Error()
	case ctx.Err() != nil:
		why = "it did not answer in time"
	}
	return nil, &socksUpstreamError{http.StatusBadGateway, why, err}
}
