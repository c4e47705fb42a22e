package runner

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/policy"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/store"
)

// addApprovals adds to a commit the rows that follow from its events: an approval for each call that asks, and
// the end of those whose call ended without an answer. They are made from the events, so that a row is there
// exactly when its event is.
func (t *turn) addApprovals(c *store.Commit) error {
	for i := range c.Events {
		e := &c.Events[i]
		switch e.Type {
		case outboard.TypeCallRequested:
			if !bytes.Contains(e.Data, []byte(`"decision":"ask"`)) { // most are not: nothing is decoded for them
				continue
			}
			if err := t.addApproval(c, e); err != nil {
				return err
			}
		case outboard.TypeCallFinished:
			state := outboard.ApprovalClosed
			switch call := t.durable.Call(e.Ref); {
			case slices.ContainsFunc(c.Approvals, func(a outboard.Approval) bool { return a.Call == e.Ref }):
				// Asked and ended in one commit: the interrupt came before the response was in the log.
			case call == nil || call.Requested.Decision != outboard.Ask || call.Answer != nil:
				continue
			case call.Expired(t.now()):
				state = outboard.ApprovalExpired
			}
			c.Closed = append(c.Closed, store.Closing{Call: e.Ref, State: state, Why: t.closed})
		}
	}
	return nil
}

func (t *turn) addApproval(c *store.Commit, e *outboard.Event) error {
	p, err := e.Decode()
	if err != nil {
		return err
	}
	req, ok := p.(*outboard.CallRequested)
	if !ok || req.Decision != outboard.Ask {
		return nil
	}
	input := req.Input
	if req.InputBlob != nil {
		if input, err = t.Load(t.ctx, *req.InputBlob); err != nil {
			return err
		}
	}
	text, err := policy.Canonical(req.Name, input)
	if err != nil {
		return err
	}
	why := req.Reason
	// what the approval says beside the request, which is shown as it is
	if def, _ := t.tool(req.Name); def.Shell && req.Kind == "builtin" {
		why = strings.TrimPrefix(why+"; ", "; ") + "once allowed it runs in a fresh shell, in " +
			cmp.Or(t.workdir(), sandbox.Workspace)
	}
	r := t.request(t.ctx)
	r.ForCall(req, input)
	c.Approvals = append(c.Approvals, outboard.Approval{ID: outboard.ApprovalOf(t.id, e.ID),
		Session: t.id, Call: e.ID, Action: r.Action, Resource: r.Target(), Digest: req.Digest, Request: text, Why: why,
		Rules: req.Rules, Approver: req.Approver, Needs: req.Needs, Owner: t.view.Config.Owner.Key, State: outboard.ApprovalPending,
		CreatedAt: t.now(), ExpiresAt: req.ExpiresAt})
	return nil
}
