package egress

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/netrule"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/text"
)

// refusal is an answer of the gateway itself.
type refusal struct {
	status int
	rule   string // for the audit
	reason string
	hint   string // the command by which a person allows it
	help   string // what the client can do by itself
	asked  Asked
	began  bool // it was on its way already
}

func refuse(status int, rule, format string, args ...any) *refusal {
	return &refusal{status: status, rule: rule, reason: fmt.Sprintf(format, args...)}
}

// withHint adds what would help whoever is refused.
func (no *refusal) withHint(format string, args ...any) *refusal {
	no.help = fmt.Sprintf(format, args...)
	return no
}

// serve is the handler of every request.
func (g *Gateway) serve(w http.ResponseWriter, r *http.Request) {
	f, ok := r.Context().Value(flowKey{}).(*flow)
	if !ok {
		http.Error(w, "outboard: a connection from nowhere", http.StatusServiceUnavailable)
		return
	}
	f.port.serve(w, r, f)
}

// serve judges a request of a flow, and carries it out.
func (p *port) serve(w http.ResponseWriter, r *http.Request, f *flow) {
	if r.Method == http.MethodConnect {
		p.connect(w, r, f)
		return
	}
	req, no := f.read(r)
	if no != nil {
		p.answer(w, r, req, no)
		return
	}
	e, no := p.begin(r.Context(), w)
	if no != nil {
		p.answer(w, r, req, no)
		return
	}
	defer p.done(e)
	inj, no := p.permit(judgement{p.g.ctx, e}, req, r)
	if no != nil {
		p.answer(w, r, req, no)
		return
	}
	r = r.WithContext(e)
	if req.Host == SelftestHost {
		p.selftest(w, r, req)
		return
	}
	p.forward(w, r, req, inj)
}

// judgement is the context in which a request is judged and recorded. That a client goes away does not end it,
// nor that the request is ended: what was asked for is on record, and no client makes a judgement fail for which
// nobody is to blame.
type judgement struct {
	context.Context // the gateway's
	of              context.Context
}

// Value implements context.Context.
func (j judgement) Value(key any) any { return j.of.Value(key) }

// read finds out what a request is, and everything that it could be taken for.
func (f *flow) read(r *http.Request) (Request, *refusal) {
	req, no := f.target(r)
	if large := bounded(r); large != nil {
		no = large
	}
	if no != nil {
		return req, no
	}
	if req.WebSocket, no = webSocket(r); no != nil {
		return req, no
	}
	req.Also, no = readings(r, req)
	return req, no
}

// bounded refuses a head that is larger than any honest one.
func bounded(r *http.Request) *refusal {
	n := 0
	for name, values := range r.Header {
		n += len(values)
		for _, v := range values {
			if len(name)+len(v) > maxField {
				return refuse(http.StatusRequestHeaderFieldsTooLarge, "form", "its header %s has more than %d bytes",
					clip(name), maxField)
			}
		}
	}
	switch {
	case len(r.Method) > maxMethod:
		return refuse(http.StatusBadRequest, "form", "its method has more than %d bytes", maxMethod)
	case len(r.RequestURI) > maxTarget:
		return refuse(http.StatusRequestURITooLong, "form", "its path and query have more than %d bytes", maxTarget)
	case n > maxFields:
		return refuse(http.StatusRequestHeaderFieldsTooLarge, "form", "it has more than %d headers", maxFields)
	case headSize(r) > maxHead:
		return refuse(http.StatusRequestHeaderFieldsTooLarge, "form", "its head has more than %d bytes", maxHead)
	}
	return nil
}

// target finds out what a request is for. Every name that the client gave (tunnel, SNI, Host, address) must be
// the same one.
func (f *flow) target(r *http.Request) (Request, *refusal) {
	req := Request{Subject: f.port.subject, Scheme: "http", Method: r.Method, Query: r.URL.RawQuery}
	if f.tls {
		req.Scheme = "https"
	}
	through := f.to == proxyPort && f.tunnel == ""
	switch {
	case through && r.URL.Host == "":
		return req, refuse(http.StatusBadRequest, "form", "this is a proxy, and the request names no server")
	case through && r.URL.Scheme != "http":
		return req, refuse(http.StatusBadRequest, "form", "a request for %s must come through CONNECT",
			clip(r.URL.Scheme))
	case !through && r.URL.Host != "" && !strings.EqualFold(r.URL.Host, r.Host):
		return req, refuse(http.StatusMisdirectedRequest, "one name",
			"the request line names another server than its Host header")
	case r.URL.User != nil || r.URL.Opaque != "" || r.RequestURI == "*":
		return req, refuse(http.StatusBadRequest, "form", "the request's target is of a form that is not forwarded")
	}
	host, port, err := netrule.Host(r.Host)
	if err != nil {
		return req, refuse(http.StatusBadRequest, "form", "the host is not one: %v", err)
	}
	usual := 80
	if f.tls {
		usual = 443
	}
	if port == 0 {
		port = usual
	}
	req.Host, req.Port = host, port
	if !through && port != f.to {
		return req, refuse(http.StatusMisdirectedRequest, "one name",
			"the Host header names port %d, and the connection was to port %d", port, f.to)
	}
	if f.tunnel != "" && f.tunnel != host {
		return req, refuse(http.StatusMisdirectedRequest, "one name",
			"the tunnel is to %s, and the Host header names %s", f.tunnel, host)
	}
	if f.tls && f.name != host {
		return req, refuse(http.StatusMisdirectedRequest, "one name",
			"the TLS name is %s, and the Host header names %s", clip(f.sni), host)
	}
	// RFC 9112, 3.2.1: http://HOST means its root, as Python's urllib writes it
	if r.URL.Path == "" && r.Method != http.MethodOptions {
		r.URL.Path = "/"
	}
	if req.Path, req.Odd, err = netrule.Path(r.URL.EscapedPath()); err != nil {
		return req, refuse(http.StatusBadRequest, "form", "%v", err)
	}
	for i := range len(req.Query) {
		if req.Query[i] <= ' ' || req.Query[i] == 0x7f {
			return req, refuse(http.StatusBadRequest, "form", "the query has a control character")
		}
	}
	return req, nil
}

// connect answers a request for a tunnel. It opens none: what comes through is judged request by request.
func (p *port) connect(w http.ResponseWriter, r *http.Request, f *flow) {
	req := Request{Subject: p.subject, Scheme: "https", Method: http.MethodConnect, Path: "/"}
	if f.to != proxyPort || f.tunnel != "" || f.tls || r.ProtoMajor != 1 {
		p.answer(w, r, req, refuse(http.StatusBadRequest, "form", "CONNECT is for the proxy at its own address"))
		return
	}
	host, port, err := netrule.Host(r.Host)
	// user information is parsed away: what is judged is what was sent
	if err != nil || port == 0 || r.RequestURI != r.Host {
		p.answer(w, r, req, refuse(http.StatusBadRequest, "form", "CONNECT needs a host and a port"))
		return
	}
	req.Host, req.Port = host, port
	if no := p.mayConnect(r.Context(), req); no != nil {
		p.answer(w, r, req, no)
		return
	}
	p.tunnel(w, host, port)
}

// mayConnect reports whether any request through a tunnel could be allowed.
func (p *port) mayConnect(ctx context.Context, req Request) *refusal {
	may, no := p.judged(ctx)
	if no != nil {
		return no
	}
	if netrule.MayConnect(may.rules, req.Host, req.Port) {
		return may.deniesAddress(req.Host) // of a name it is known when it is dialled
	}
	grants, err := p.grants(ctx)
	if err != nil {
		return refuse(http.StatusServiceUnavailable, "store", "the grants of this session cannot be read")
	}
	for _, g := range grants {
		if netrule.MayConnect([]netrule.Rule{netrule.OfGrant(g)}, req.Host, req.Port) {
			return nil
		}
	}
	return p.unlisted(ctx, req,
		netrule.Judge(may.rules, netrule.Target{Method: req.Method, Host: req.Host, Port: req.Port, Path: req.Path}))
}

func (p *port) grants(ctx context.Context) ([]outboard.NetGrant, error) {
	if p.subject.Session == "" {
		return nil, nil
	}
	return p.g.cfg.Store.NetGrants(ctx, p.subject.Session)
}

// permit asks everybody who has a say, in the order of the package comment, and writes the audit. Nil means that
// the request goes out.
func (p *port) permit(ctx context.Context, req Request, r *http.Request) (*Injection, *refusal) {
	if p.g.cfg.Gate != nil {
		if err := p.g.cfg.Gate.May(ctx, p.subject); err != nil {
			return nil, refuse(http.StatusForbidden, "gate", "%v", err)
		}
	}
	rule, no := p.judge(ctx, req)
	if no != nil {
		return nil, no
	}
	var v Verdict
	if p.g.cfg.Policy != nil {
		for _, other := range req.Also {
			if _, no = p.allowed(ctx, other, p.g.cfg.Policy.Decide); no != nil {
				return nil, no
			}
		}
		v, no = p.allowed(ctx, req, p.g.cfg.Policy.Decide)
		if no != nil {
			return nil, no
		}
	}
	if no := p.usage.admit(req.Host, headSize(r)); no != nil {
		return nil, no
	}
	inj := &Injection{}
	if e := effectOf(ctx); e != nil {
		if by := e.reach.Load(); by != nil {
			req.Headers = by.headers
		}
	}
	if p.g.cfg.Credentials != nil {
		got, err := p.g.cfg.Credentials.For(ctx, req)
		if err != nil {
			status := http.StatusServiceUnavailable
			if outboard.KindOf(err) == outboard.Denied {
				status = http.StatusForbidden
			}
			return nil, refuse(status, "credentials", "%v", err)
		}
		inj = &got
	}
	if len(inj.Names) > 0 && !inj.AnyPath && req.Odd != "" {
		return nil, refuse(http.StatusBadRequest, "credentials", "a credential goes to clean paths only, and %s",
			req.Odd)
	}
	if carries(r, inj.Refuse) {
		return nil, refuse(http.StatusForbidden, "credentials",
			"the request carries a placeholder that belongs to another place").
			withHint("the value of the variable stands for a secret, and is replaced at the hosts, paths and " +
				"methods of its credential only")
	}
	if no := misplaced(r, inj.Replace); no != nil {
		return nil, no
	}
	p.watchOver(ctx, inj, v)
	p.checkBody(ctx, r, req, inj)
	if no := p.early(effectOf(ctx), r, inj); no != nil { // a request that is ended waits for no body, nor for its turn
		return nil, no
	}
	if no := p.commit(ctx, req, rule, inj, v); no != nil {
		return nil, no
	}
	return inj, nil
}

// watchOver has a request that may go asked about for as long as it lasts: whether it may still, and with its
// credentials.
func (p *port) watchOver(ctx context.Context, inj *Injection, v Verdict) {
	still := inj.Still
	if v.Still != nil {
		still = func(ctx context.Context) error {
			if err := v.Still(ctx); err != nil || inj.Still == nil {
				return err
			}
			return inj.Still(ctx)
		}
	}
	if e := effectOf(ctx); e != nil && still != nil {
		e.still.Store(&still)
	}
}

// allowed asks for a verdict, and returns what a refusal says.
func (p *port) allowed(ctx context.Context, req Request,
	decide func(context.Context, Request) (Verdict, error)) (Verdict, *refusal) {
	v, err := decide(ctx, req)
	if outboard.KindOf(err) == outboard.Unavailable {
		return v, refuse(http.StatusServiceUnavailable, "policy",
			"what the policies say of it cannot be read at the moment")
	}
	if err != nil {
		return v, refuse(http.StatusForbidden, "policy", "the policy could not be evaluated")
	}
	if v.Allow {
		return v, nil
	}
	no := &refusal{status: http.StatusForbidden, rule: v.Rule, reason: v.Reason, hint: v.Hint}
	if v.Ask != nil {
		p.ask(ctx, req, no, *v.Ask)
	}
	return v, no
}

// commit writes the record of a request that may go. A verdict that was reached by a log which has grown since
// is reached again.
func (p *port) commit(ctx context.Context, req Request, rule string, inj *Injection, v Verdict) *refusal {
	for range maxMoved {
		err := p.auditWhile(ctx, ActionRequest, req, outboard.Allowed, rule, detail{Credentials: inj.Names}, v.While)
		if err == nil {
			return nil
		}
		if !errors.Is(err, store.ErrMoved) || v.Again == nil {
			break
		}
		var no *refusal
		if v, no = p.allowed(ctx, req, v.Again); no != nil {
			return no
		}
	}
	return refuse(http.StatusServiceUnavailable, "audit", "the request could not be recorded, so it was not sent")
}

// rule is the request as rules see it.
func (r *Request) rule() netrule.Target {
	return netrule.Target{Method: r.Method, Host: r.Host, Port: r.Port, Path: r.Path, Odd: r.Odd,
		WebSocket: r.WebSocket}
}

// judge applies the rules, then the grants. A grant widens what no rule mentions; it does not overrule one that denies.
func (p *port) judge(ctx context.Context, req Request) (rule string, no *refusal) {
	may, no := p.judged(ctx)
	if no != nil {
		return "", no
	}
	also := func(granted func(Request) bool) *refusal {
		for _, other := range req.Also {
			if v := netrule.Judge(may.rules, other.rule()); !v.Allow && (v.Firm || !granted(other)) {
				return refuse(http.StatusForbidden, v.Rule, "its server could take it for %s %s, and %s", other.Method,
					clip(other.Path), v.Reason)
			}
		}
		return nil
	}
	v := netrule.Judge(may.rules, req.rule())
	if v.Allow {
		return v.Rule, also(func(Request) bool { return false })
	}
	if !v.Firm {
		grants, err := p.grants(ctx)
		if err != nil {
			return "", refuse(http.StatusServiceUnavailable, "store", "the grants of this session cannot be read")
		}
		for _, g := range grants {
			if !covers(g, req) {
				continue
			}
			if no := also(func(other Request) bool { return covers(g, other) }); no != nil {
				return "", no
			}
			if g.Uses > 0 {
				if ok, err := p.g.cfg.Store.UseNetGrant(ctx, g.ID); err != nil || !ok {
					continue
				}
			}
			if e := effectOf(ctx); e != nil {
				e.grant.Store(&granted{g.ID, req})
			}
			return "grant " + string(g.ID), nil
		}
	}
	return "", p.unlisted(ctx, req, v)
}

// covers reports whether a grant allows a request.
func covers(g outboard.NetGrant, req Request) bool {
	return netrule.Judge([]netrule.Rule{netrule.OfGrant(g)}, req.rule()).Allow
}

// teach adds the command that would let a request pass.
func (p *port) teach(req Request, no *refusal) *refusal {
	if p.subject.Session != "" && no.hint == "" {
		host := req.Host
		if req.Port != 80 && req.Port != 443 {
			host = net.JoinHostPort(req.Host, strconv.Itoa(req.Port))
		}
		no.hint = fmt.Sprintf("outboard net allow %s %s --once   (or --session, or --rule)", p.subject.Session, host)
	}
	return no
}

// detail is what an audit record says besides its columns.
type detail struct {
	Sandbox     outboard.SandboxID  `json:"sandbox"`
	Box         outboard.BoxID      `json:"box,omitempty"`
	Status      int                 `json:"status,omitempty"` // of a refusal
	Reason      string              `json:"reason,omitempty"`
	Credentials []string            `json:"credentials,omitempty"`
	QueryBytes  int                 `json:"query_bytes,omitempty"`
	Approval    outboard.ApprovalID `json:"approval,omitempty"` // that a person was asked for
	Proxy       string              `json:"proxy,omitempty"`    // of the box, which the request goes through
	WebSocket   bool                `json:"websocket,omitempty"`
	AlsoAs      string              `json:"also_as,omitempty"` // what else its server could take the request for
	// refusals since the last one on record; see refusalRate
	LeftOut int64 `json:"left_out,omitempty"`
}

// ActionRequest is the action of the gateway's audit records.
const ActionRequest = "http.request"

// audit writes one record. The query is not in it: it may hold what a client should not have put there.
func (p *port) audit(ctx context.Context, req Request, decision, rule string, d detail) error {
	return p.record(ctx, ActionRequest, req, decision, rule, d)
}

func (p *port) record(ctx context.Context, action string, req Request, decision, rule string, d detail) error {
	return p.auditWhile(ctx, action, req, decision, rule, d, store.Mark{})
}

// auditWhile is record while a log is as it was.
func (p *port) auditWhile(ctx context.Context, action string, req Request, decision, rule string, d detail,
	while store.Mark) error {
	d.Sandbox, d.Box, d.QueryBytes, d.WebSocket = p.subject.Sandbox, p.subject.Box, len(req.Query), req.WebSocket
	for _, other := range req.Also {
		d.AlsoAs = other.Method + " " + text.Clip(other.Path, maxAuditPath)
	}
	if e := effectOf(ctx); e != nil {
		if by := e.reach.Load(); by != nil {
			d.Proxy = by.proxy.Address
		}
	}
	encoded, err := json.Marshal(d)
	if err != nil {
		return err
	}
	actor := cmp.Or(string(p.subject.Session), string(p.subject.Box), string(p.subject.Sandbox))
	return p.g.cfg.Store.AuditWhile(ctx,
		outboard.AuditRecord{Org: cmp.Or(p.subject.Org, string(p.subject.Config.Owner.Org)), Actor: actor,
			Action: action,
			Resource: text.Clip(req.Method, maxMethod) + " " +
				req.url(), Decision: decision, Rule: rule, Detail: encoded}, while)
}

// url is the request's address without its query.
func (r Request) url() string {
	if r.Host == "" {
		return "(no host)"
	}
	host := r.Host
	switch {
	case r.Scheme == "https" && r.Port != 443 || r.Scheme == "http" && r.Port != 80:
		host = net.JoinHostPort(host, strconv.Itoa(r.Port))
	case strings.Contains(host, ":"):
		host = "[" + host + "]"
	}
	return r.Scheme + "://" + host + text.Clip(r.Path, maxAuditPath)
}

// answer refuses a request, says so in the audit, and tells whoever reads the answer what would help.
func (p *port) answer(w http.ResponseWriter, r *http.Request, req Request, no *refusal) {
	p.refused(judgement{p.g.ctx, r.Context()}, req, no.rule, detail{Status: no.status, Reason: no.reason,
		Approval: no.asked.Approval})
	p.log(slog.LevelInfo, "request refused", "host", req.Host, "rule", no.rule, "why", no.reason)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Outboard-Decision", "deny")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(no.status)
	became := "was not sent"
	if no.began { // whoever asked for an effect must not take it for one that did not come about
		became = "was ended, and its server may have done what it asks for"
	}
	fmt.Fprintf(w, "outboard: %s %s %s: %s\n", text.Clip(r.Method, maxMethod), req.url(), became, no.reason)
	switch {
	case no.asked.Denied:
		fmt.Fprintf(w, "outboard: a person was asked (%s) and has denied it; asking again does not help\n",
			no.asked.Approval)
	case no.asked.Approval != "":
		fmt.Fprintf(w, "outboard: a person was asked: %s. Once it is allowed the request passes; go on with "+
			"something else\n", no.asked.Approval)
	}
	if no.help != "" {
		fmt.Fprintf(w, "outboard: %s\n", no.help)
	}
	if no.hint != "" {
		fmt.Fprintf(w, "outboard: to allow it, a person runs: %s\n", no.hint)
	}
}

// headSize is how many bytes the head of a request has.
func headSize(r *http.Request) int64 {
	n := int64(len(r.Method) + len(r.RequestURI) + len(r.Host) + len("  HTTP/1.1\r\nHost: \r\n\r\n"))
	for k, vs := range r.Header {
		for _, v := range vs {
			n += int64(len(k) + len(v) + 4)
		}
	}
	return n
}

// clip bounds what of a request is repeated in an answer.
func clip(s string) string { return text.Clip(s, 100) }
