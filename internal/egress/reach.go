package egress

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"reflect"
	"slices"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/netrule"
)

// reach is what a sandbox may reach, and by which connections. It is never changed, only replaced: a request
// keeps the one it was judged by.
type reach struct {
	net   outboard.Networking // as it was read
	rules []netrule.Rule
	out   *upstream

	denied, except []netip.Prefix // of net
	headers        outboard.BoxHeaders
	proxy          outboard.BoxProxy
}

// newReach makes one, for a subject with what its box's row says besides. Networks that cannot be read deny
// everything: they were checked when they were set.
func (g *Gateway) newReach(s Subject, n outboard.Networking, b *outboard.Box) *reach {
	cfg, rules := g.cfg, netrule.Effective(n, s.Config.Agent.MCPServers)
	denied, err := networks(n.DenyNetworks)
	except, wrong := networks(n.DenyExcept)
	if err = errors.Join(err, wrong); err != nil {
		g.log.Error("a box's network settings cannot be read; it reaches nothing", "err", err)
		rules = nil
	}
	cfg.Guard.Denied, cfg.Guard.Except = denied, except
	via := g.newSocksUpstream(s, b.Net.Proxy, b.Headers)
	if via != nil {
		cfg.Guard.Private = nil // the networks that the operator has opened are not those of the proxy
	}
	return &reach{net: n, rules: rules, denied: denied, except: except, headers: b.Headers, proxy: b.Net.Proxy,
		out: newUpstream(cfg, via)}
}

// networks reads a list of them.
func networks(list []string) (out []netip.Prefix, err error) {
	for _, text := range list {
		p, wrong := netrule.Network(text)
		if wrong != nil {
			err = errors.Join(err, wrong)
			continue
		}
		out = append(out, p)
	}
	return out, err
}

// is reports whether r is what a box's row amounts to. What is sealed once has an id of its own.
func (r *reach) is(n outboard.Networking, b *outboard.Box) bool {
	return r.headers.Credential == b.Headers.Credential && r.proxy == b.Net.Proxy && reflect.DeepEqual(n, r.net)
}

// deniesAddress refuses a host that is an address in one of the networks that are denied.
func (r *reach) deniesAddress(host string) *refusal {
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return nil
	}
	addr = addr.Unmap()
	holds := func(p netip.Prefix) bool { return p.Contains(addr) }
	i := slices.IndexFunc(r.denied, holds)
	if i < 0 || slices.ContainsFunc(r.except, holds) {
		return nil
	}
	return refuse(http.StatusForbidden, "address", "the address is in %s, which this sandbox's settings deny",
		r.denied[i])
}

var (
	errRules = errors.New("what this sandbox may reach was changed")
	errNoBox = outboard.Errorf(outboard.NotFound, "the sandbox was removed")
)

// may returns what the sandbox may reach now. A session's is fixed. A box's is read anew for every request, so
// that a change holds at once, whichever server of the host it was made at.
func (p *port) may(ctx context.Context) (*reach, error) {
	now := p.reach.Load()
	if p.subject.Box == "" {
		return now, nil
	}
	b, n, err := p.row(ctx)
	if err != nil {
		return nil, err
	}
	if now.is(n, b) {
		return now, nil
	}
	// What was read may be older than what another has made of the row since. So who replaces it reads again,
	// and nobody else does meanwhile.
	p.changing.Lock()
	defer p.changing.Unlock()
	if b, n, err = p.row(ctx); err != nil {
		return nil, err
	}
	if now = p.reach.Load(); now.is(n, b) {
		return now, nil
	}
	next := p.g.newReach(p.subject, n, b)
	p.reach.Store(next)
	now.out.close() // connections to what is denied now must not be used again
	return next, nil
}

// row reads the row of a port's box, and what it amounts to.
func (p *port) row(ctx context.Context) (*outboard.Box, outboard.Networking, error) {
	b, err := p.g.cfg.Store.Box(ctx, p.subject.Box)
	if outboard.KindOf(err) == outboard.NotFound {
		err = errNoBox
	}
	if err != nil {
		return nil, outboard.Networking{}, err
	}
	return &b, p.g.ofBox(&b), nil
}

// ofBox is the networking of a box: nothing for one that asked for none.
func (g *Gateway) ofBox(b *outboard.Box) outboard.Networking {
	if b.NoNetwork {
		return outboard.Networking{Mode: "none"}
	}
	n, _ := netrule.ForBox(g.cfg.Boxes, b.Net)
	return n
}

// judged returns what a request is judged by, and remembers it with the request.
func (p *port) judged(ctx context.Context) (*reach, *refusal) {
	r, err := p.may(ctx)
	if errors.Is(err, errNoBox) {
		return nil, refuse(http.StatusForbidden, "box", "%v", err)
	}
	if err != nil {
		return nil, refuse(http.StatusServiceUnavailable, "store", "what this sandbox may reach cannot be read")
	}
	if e := effectOf(ctx); e != nil {
		e.reach.Store(r)
	}
	return r, nil
}

// endOutdated ends the requests of a box that were judged by what holds no longer, and returns how many there
// were. While that cannot be read, what was allowed goes on.
func (p *port) endOutdated(ctx context.Context) (ended int) {
	if p.subject.Box == "" {
		return 0
	}
	_, err := p.may(ctx)
	if errors.Is(err, errNoBox) {
		return p.end(err)
	}
	if err != nil {
		p.g.log.Warn("what a box may reach cannot be read", "box", p.subject.Box, "err", err)
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.reach.Load() // perhaps a newer one, by which a request that has begun meanwhile was judged
	for e := range p.active {
		if r := e.reach.Load(); r != nil && r != now {
			e.end(errRules)
			ended++
		}
	}
	return ended
}
