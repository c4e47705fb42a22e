package egress

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/outboard-dev/outboard/internal/netrule"
)

// answerOf is what became of a question, for a moment.
type answerOf struct {
	Asked
	until time.Time
}

// own reports whether a host is the sandbox itself: an address of its own machine, or a name that every machine
// has for itself.
func own(host string) bool {
	if addr, err := netip.ParseAddr(host); err == nil {
		addr = addr.Unmap()
		return addr.IsLoopback() || addr.IsUnspecified()
	}
	switch host {
	case "localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback", hostname:
		return true
	}
	return strings.HasSuffix(host, ".localhost")
}

// hostname is what a sandbox calls itself.
const hostname = "outboard"

// itself refuses a request of a sandbox to itself, about which nobody needs to be asked: the gateway is not
// inside, and could not reach it.
func itself(host, rule, why string) *refusal {
	return refuse(http.StatusForbidden, rule, "%s; %s is your own machine, which is not reached through the gateway",
		why, host).
		withHint("connect directly: set no_proxy=%s (curl: --noproxy %s)", host, host)
}

// unlisted refuses a request to what is on no list, and asks a person about it unless a rule denies it by name:
// then nothing but another rule would help.
func (p *port) unlisted(ctx context.Context, req Request, v netrule.Verdict) *refusal {
	if own(req.Host) {
		return itself(req.Host, v.Rule, v.Reason)
	}
	if _, err := netip.ParseAddr(req.Host); err == nil {
		// nobody needs to be asked about what an allow would not change
		if _, err := p.g.cfg.Guard.Lookup(ctx, req.Host); err != nil {
			return refuse(http.StatusForbidden, v.Rule, "%s, and none could: it is not an address that this server "+
				"lets sandboxes reach", v.Reason)
		}
	}
	if req.WebSocket { // a question is about requests; an allow of it lets no WebSocket in
		no := refuse(http.StatusForbidden, v.Rule, "%s", v.Reason)
		if p.subject.Session == "" {
			return no.withHint("it takes a rule with websocket: true in egress.boxes.rules of the server")
		}
		return no.withHint("a person can let it in: outboard net allow %s %s --websocket", p.subject.Session,
			net.JoinHostPort(req.Host, strconv.Itoa(req.Port)))
	}
	no := p.teach(req, &refusal{status: http.StatusForbidden, rule: v.Rule, reason: v.Reason})
	if p.subject.Box != "" && !v.Firm {
		no.reason += "; what boxes may reach at most says egress.boxes of the server's configuration, and this " +
			"one's own settings may say less"
	}
	if n := &p.subject.Config.Env.Networking; !v.Firm && n.Mode == "limited" {
		p.ask(ctx, req, no, Question{Why: v.Reason, Rules: []string{v.Rule}, Approver: n.Ask.Approver,
			Timeout: time.Duration(n.Ask.TimeoutSec) * time.Second})
	}
	return no
}

// ask puts a question about a refused request, and notes in the refusal what became of it. It is refused either
// way, so an error is only logged.
func (p *port) ask(ctx context.Context, req Request, no *refusal, q Question) {
	if p.g.cfg.Asker == nil || p.subject.Session == "" || own(req.Host) {
		return
	}
	key := net.JoinHostPort(req.Host, strconv.Itoa(req.Port))
	if q.Policy {
		key += req.Path
	}
	now := p.g.now()
	p.mu.Lock()
	a, ok := p.asked[key]
	p.mu.Unlock()
	if !ok || !now.Before(a.until) {
		got, err := p.g.cfg.Asker.Ask(ctx, req, q)
		if err != nil {
			p.log(slog.LevelWarn, "nobody was asked about a refused request", "host", req.Host, "err", err)
		}
		a = answerOf{got, now.Add(askAgain)}
		p.mu.Lock()
		if len(p.asked) >= maxAsked {
			clear(p.asked)
		}
		p.asked[key] = a
		p.mu.Unlock()
	}
	no.asked = a.Asked
}
