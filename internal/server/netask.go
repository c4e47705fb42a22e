package server

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/egress"
	"github.com/outboard-dev/outboard/internal/policy"
	"github.com/outboard-dev/outboard/internal/store"
)

// netAsks is how many hosts are asked about. A person reads some twenty lines; an honest session needs a handful
// in its life.
var netAsks = store.NetAsks{Pending: 20, Session: 200, Org: 500}

const (
	// maxAskedPath bounds the path of a request that is asked about by itself, which is shown whole.
	maxAskedPath = 1000
	// maxFirst bounds the first request's address where it is only an example.
	maxFirst = 300
)

// netAsker makes approvals of what the gateway refused. It is safe for concurrent use.
type netAsker struct {
	store   *store.Store
	timeout time.Duration // of an approval where nothing else is said; 0 = policy.DefaultTimeout
}

// Ask implements egress.Asker.
func (n *netAsker) Ask(ctx context.Context, r egress.Request, q egress.Question) (egress.Asked, error) {
	target := &outboard.NetTarget{Host: r.Host, Policy: q.Policy}
	if r.Port != 80 && r.Port != 443 {
		target.Port = r.Port
	}
	resource := netResource(r, target)
	if q.Approver == outboard.ApproverNone || q.Policy && (len(r.Path) > maxAskedPath ||
		strings.HasSuffix(resource, "*")) {
		return egress.Asked{}, nil // a star would stand for more in a grant
	}
	text, err := netText(r, target)
	if err != nil {
		return egress.Asked{}, err
	}
	digest, now := sha256.Sum256([]byte(text)), n.store.Now().UTC().Truncate(time.Microsecond)
	a, err := n.store.AskNet(ctx, outboard.Approval{ID: outboard.NewID[outboard.ApprovalID](outboard.PrefixApproval),
		Session: r.Subject.Session,
		Action:  policy.ActionHTTP, Resource: resource, Digest: hex.EncodeToString(digest[:]), Request: text, Why: q.Why, Rules: q.Rules,
		Approver: cmp.Or(q.Approver,
			outboard.ApproverAny), Needs: q.Needs, Owner: r.Subject.Config.Owner.Key, State: outboard.ApprovalPending, CreatedAt: now,
		ExpiresAt: now.Add(cmp.Or(q.Timeout, n.timeout, policy.DefaultTimeout)), Net: target}, netAsks)
	if outboard.KindOf(err) == outboard.Exhausted {
		return egress.Asked{}, nil // the refusal is on record like every other
	}
	if err != nil {
		return egress.Asked{}, err
	}
	return egress.Asked{Approval: a.ID, Denied: a.State == outboard.ApprovalDenied}, nil
}

// netResource is what is asked about: of a host on no list all of it, of a rule's question what a grant is
// compared with.
func netResource(r egress.Request, t *outboard.NetTarget) string {
	switch {
	case t.Policy:
		return r.Host + r.Path
	case t.Port != 0:
		return net.JoinHostPort(r.Host, strconv.Itoa(r.Port))
	}
	return r.Host
}

// netText is what a person is shown: what an allow covers, and the request that made the question. Hosts are in
// the form in which they are compared, so that no letter passes for another.
func netText(r egress.Request, t *outboard.NetTarget) (string, error) {
	address := r.Scheme + "://" + net.JoinHostPort(r.Host, strconv.Itoa(r.Port)) + r.Path
	ports, covers := "80 and 443", "every request to this host at these ports"
	if t.Port != 0 {
		ports = strconv.Itoa(t.Port)
	}
	if t.Policy {
		covers = "requests to this path, of every method and query"
	} else if len(address) > maxFirst {
		address = strings.ToValidUTF8(address[:maxFirst], "") + "..."
	}
	input, err := json.Marshal(map[string]string{"host": r.Host, "ports": ports, "an allow covers": covers,
		"first request": r.Method + " " + address})
	if err != nil {
		return "", err
	}
	return policy.Canonical(policy.ActionHTTP, input)
}
