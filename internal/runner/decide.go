package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest"
	"github.com/outboard-dev/outboard/internal/policy"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/tool"
)

// Decide implements harness.Turn.
func (t *turn) Decide(ctx context.Context, name string, input outboard.Raw,
	used outboard.Usage) (outboard.CallRequested, outboard.Outcome, *outboard.CallJudged, error) {
	call := policy.Resolve(t.durable.Config.Agent.Tools, name, input)
	name = call.Name // of the tool, however the model spelt it
	if call.Decision == outboard.Deny {
		return call, outboard.OutcomeDenied, nil, nil
	}
	if err := t.validate(&call, input); err != nil {
		call.Decision, call.Policy, call.Reason = outboard.Deny, "", err.Error()
		return call, outboard.OutcomeError, nil, nil
	}
	if call.Kind == "builtin" {
		opens, err := policy.Opens(call.Name, input, t.workdir())
		if err != nil {
			call.Decision, call.Policy, call.Reason = outboard.Deny, "", err.Error()
			return call, outboard.OutcomeError, nil, nil
		}
		call.Opens = opens
	}
	r := t.request(ctx)
	r.ForCall(&call, input)
	v, grant := t.cfg.Policy.Decide(ctx, r)
	var judged *outboard.CallJudged
	if v.Decision == outboard.Ask && slices.Contains(v.Rules, policy.RuleAutoAsk) {
		if judged = t.judge(ctx, name, input, used); judged != nil {
			call.Verdict, r.Context.Verdict = judged.Verdict, judged.Verdict
			v, grant = t.cfg.Policy.Decide(ctx, r)
		}
	}
	if v.Away != nil {
		return call, "", judged, v.Away
	}
	call.Decision, call.Rules, call.Reason, call.Grant = v.Decision, v.Rules, v.Reason, grant
	if v.Decision == outboard.Ask {
		if _, err := policy.Canonical(name, input); err != nil {
			call.Decision, call.Reason = outboard.Deny, "a person would have to decide ("+v.Reason+"), but "+err.Error()
		}
	}
	switch call.Decision {
	case outboard.Deny:
		t.audit(ctx, r, &call, outboard.Refused)
		return call, outboard.OutcomeDenied, judged, nil
	case outboard.Ask:
		t.audit(ctx, r, &call, "ask")
		call.Digest, call.Approver, call.Needs, call.ExpiresAt = tool.Digest(name, input), v.Approver, v.Needs, t.now().
			Add(v.Timeout)
	}
	return call, "", judged, nil
}

// audit writes to the audit that a call was refused or will be asked about. What passes is in the log before it
// runs; what does not pass has no effect, so a record that cannot be written changes nothing.
func (t *turn) audit(ctx context.Context, r *policy.Request, call *outboard.CallRequested, decision string) {
	detail, err := json.Marshal(map[string]any{"rules": call.Rules, "reason": call.Reason})
	if err == nil {
		err = t.cfg.Store.Audit(ctx, outboard.AuditRecord{At: t.now(), Org: string(r.Owner.Org),
			Actor: string(r.Session), Action: "policy." + call.Name,
			Resource: r.Resource, Decision: decision, Rule: strings.Join(call.Rules, ", "), Detail: detail})
	}
	if err != nil {
		t.log.Error("a decision was not recorded", "session", r.Session, "err", err)
	}
}

// validate holds the input of a built-in or a custom tool to its schema.
func (t *turn) validate(call *outboard.CallRequested, input outboard.Raw) error {
	if err := isObject(input); err != nil {
		return outboard.Errorf(outboard.Invalid, "invalid input for %s: %w", call.Name, err)
	}
	switch call.Kind {
	case "builtin":
	case "custom":
		return t.fits(call.Name, input)
	default:
		return nil // its server's
	}
	def, ok := t.tool(call.Name)
	if !ok {
		return errors.New("the tool " + call.Name + " is not available")
	}
	return def.Validate(input)
}

// isObject refuses an input that is no JSON object, or names something twice. Arguments that were no JSON at all
// are in the log as a JSON string of their text: the error says where the model went wrong in it.
func isObject(input outboard.Raw) error {
	var v any
	if err := json.Unmarshal(input, &v); err != nil {
		return fmt.Errorf("the arguments are not JSON: %w", err)
	}
	switch v := v.(type) {
	case map[string]any:
		if name := policy.Repeated(input); name != "" {
			return fmt.Errorf("the arguments name %q twice; write it once", clip(name))
		}
		return nil
	case string:
		if err := json.Unmarshal([]byte(v), new(any)); err != nil {
			return fmt.Errorf("the arguments are not JSON (%w); write them as one JSON object", err)
		}
	}
	return errors.New("expected a JSON object with the arguments")
}

// fits holds the input of a custom tool to the schema that its author gave. Where the schema is none that can be
// checked by, the input passes with a note in the server's log: such an agent was saved before schemas were
// checked, or came in with an import, and its client has always had to look for itself.
func (t *turn) fits(name string, input outboard.Raw) error {
	i := slices.IndexFunc(t.durable.Config.Agent.Tools,
		func(s outboard.Toolset) bool { return s.Kind == "custom" && s.Name == name })
	if i < 0 {
		return errors.New("the tool " + name + " is not available")
	}
	s, fresh, err := t.schemas.Compile(t.durable.Config.Agent.Tools[i].InputSchema)
	if err != nil {
		if fresh {
			t.log.Warn("a custom tool's inputs are not checked: its input_schema cannot be used", "tool", name, "err",
				err)
		}
		return nil
	}
	if err := s.Validate(input); err != nil {
		return outboard.Errorf(outboard.Invalid, "invalid input for %s: %w", name, err)
	}
	return nil
}

// request is what every request of this session says of it.
func (t *turn) request(ctx context.Context) *policy.Request {
	cfg := &t.view.Config
	return &policy.Request{Session: t.id, Owner: cfg.Owner, Agent: cfg.Agent.ID, Environment: cfg.Environment,
		Context: policy.Context{Networking: cfg.Env.Networking.Mode, Taint: t.view.Taint, Now: t.now(),
			Left: t.left(ctx)}}
}

// mayCreate asks whether a sandbox may be made for the session. Nobody can be asked about it, so an ask is a refusal.
func (t *turn) mayCreate(ctx context.Context) error {
	r := t.request(ctx)
	r.Action, r.Resource = policy.ActionSandbox, string(r.Environment)
	if v, _ := t.cfg.Policy.Decide(ctx, r); v.Away != nil {
		return v.Away
	} else if v.Decision != outboard.Allow {
		return outboard.Errorf(outboard.Denied, "%s", v.Reason)
	}
	return t.cfg.Policy.Admit(ctx, r, string(t.id), "")
}

// permit is the one place where it is asked whether a call's effect may happen now: after every answer and wait,
// and before its intent. It returns why not, as the model reads it. A call that was started is not asked about
// again.
func (t *turn) permit(ctx context.Context, j *job) error {
	if err := t.paid(j); err != nil {
		return err
	}
	if err := t.alive(ctx); err != nil {
		return outboard.Errorf(outboard.Unavailable, "%w", err) // the turn ends: this call is not refused for good
	}
	if j.call.Requested.Decision == outboard.Ask {
		if err := t.approved(ctx, j, j.call.Requested.Approver, j.call.Requested.Needs); err != nil {
			return err
		}
	}
	r, err := t.leadsTo(ctx, j)
	if err != nil {
		return err
	}
	v, grant := t.cfg.Policy.Decide(ctx, r)
	if v.Away != nil {
		return v.Away // Unavailable, as above
	}
	j.request, j.allowed = *r, j.allowed || grant != ""
	switch v.Decision {
	case outboard.Allow:
	case outboard.Ask: // such as by the last use of a grant
		if j.moved() {
			return outboard.Errorf(outboard.Denied, "%s leads to %s, which a person must allow: %s"+askThere,
				j.call.Requested.Opens, j.opens, v.Reason)
		}
		return outboard.Errorf(outboard.Denied, "a person must allow this call by now: %s"+askAgain, v.Reason)
	default:
		return outboard.Errorf(outboard.Denied, "the policies no longer allow this call: %s", v.Reason)
	}
	if v.Met && grant == "" {
		if err := t.approvedByNow(ctx, j, v); err != nil {
			return err
		}
	}
	return t.cfg.Policy.Admit(ctx, r, outboard.CallKey(t.id, j.call.ID), grant)
}

// askThere tells the model how a person comes to be asked about what a link leads to.
const askThere = "; make the call again with that path"

// requestOf is the request that a call comes to, as it is known by now: with what it opens, and with the answer
// of a person who allowed it.
func (t *turn) requestOf(ctx context.Context, j *job) *policy.Request {
	call := j.call.Requested
	if j.opens != "" {
		call.Opens = j.opens
	}
	r := t.request(ctx)
	r.ForCall(&call, j.input)
	if call.Decision == outboard.Ask {
		r.Context.Approved, r.Context.Digest = true, call.Digest
	}
	return r
}

// leadsTo is requestOf for a call that is to be permitted. Where links lead to another path than the call names,
// that one is what is judged; the rules about the named one can only take away, and what a person was asked
// about was the named one.
func (t *turn) leadsTo(ctx context.Context, j *job) (*policy.Request, error) {
	r := t.requestOf(ctx, j)
	if !j.moved() {
		return r, nil
	}
	named := j.call.Requested.Opens
	if j.call.Requested.Decision == outboard.Ask {
		return nil, outboard.Errorf(outboard.Denied, "%s leads to %s, and a person was asked about the former"+askThere,
			named, j.opens)
	}
	by := t.request(ctx)
	by.ForCall(&j.call.Requested, j.input)
	switch v, _ := t.cfg.Policy.Decide(ctx, by); {
	case v.Away != nil:
		return nil, v.Away
	case v.Decision == outboard.Deny:
		return nil, outboard.Errorf(outboard.Denied, "the policies no longer allow this call: %s", v.Reason)
	}
	return r, nil
}

// workdir is where relative paths of tools begin; "" = the workspace, as far as is known.
func (t *turn) workdir() string {
	if t.view.Sandbox == nil {
		return ""
	}
	return t.view.Sandbox.Workdir
}

// locate finds what a call of a file tool opens: its path in the sandbox with every link followed. That is what
// is judged, and the guest opens nothing else. A path that leads nowhere ends the call.
func (t *turn) locate(ctx context.Context, j *job) error {
	if !j.def.Opens() || t.lease == nil {
		return nil
	}
	named := j.call.Requested.Opens
	if named == "" { // of a log that is older than the record
		named, _ = policy.Opens(j.def.Name, j.input, t.workdir())
	}
	real, err := t.lease.Real(ctx, named)
	if e, ok := errors.AsType[*guest.Error](err); ok {
		j.failed = j.def.Name + ": " + e.Message
		return nil
	}
	j.opens = real
	return err
}

// askAgain tells the model how a person comes to be asked.
const askAgain = "; make the call again to ask by the rules of now"

// approvedByNow holds the answer to the rules of now, where they have become stricter about who may give it
// since it was asked for. They never make it easier: whoever answered was told whom it takes.
func (t *turn) approvedByNow(ctx context.Context, j *job, v policy.Verdict) error {
	asked, answer := &j.call.Requested, j.call.Answer
	who, needs := asked.Approver.And(v.Approver), max(asked.Needs, v.Needs)
	if who == asked.Approver.And("") && needs <= max(asked.Needs, 1) {
		return nil
	}
	if answer.Key == "" && len(answer.Votes) == 0 {
		return outboard.Errorf(outboard.Denied, "the policies have come to say who may allow this call, and who did "+
			"is not known"+askAgain)
	}
	if needs > max(asked.Needs, 1) && len(answer.Votes) < needs {
		return outboard.Errorf(outboard.Denied, "the policies want %d people to allow this call by now, and it was "+
			"asked of fewer"+askAgain, needs)
	}
	if err := t.approved(ctx, j, who, needs); err != nil {
		if outboard.KindOf(err) != outboard.Denied {
			return err
		}
		return outboard.Errorf(outboard.Denied,
			"the policies have become stricter since this call was allowed: %w"+askAgain, err)
	}
	return nil
}

// approved checks the answer that lets a call run: it must be about this very request, and whoever gave it must
// still be somebody who may. needs people of who must have, from 2; 0 = one.
func (t *turn) approved(ctx context.Context, j *job, who outboard.Approver, needs int) error {
	answer, asked := j.call.Answer, &j.call.Requested
	digest := tool.Digest(asked.Name, j.input)
	if asked.Digest != "" && asked.Digest != digest || answer.Digest != "" && answer.Digest != digest {
		return outboard.Errorf(outboard.Denied, "the approval was given for another request")
	}
	if needs > 1 {
		n, err := policy.Count(ctx, t.cfg.Store, answer.Votes, who, t.view.Config.Owner)
		if err == nil && n < needs {
			err = outboard.Errorf(outboard.Denied, "the approval is void: it needs %d people, and of those who "+
				"allowed it %d still may", needs, n)
		}
		return err
	}
	if answer.Key == "" {
		return nil // the answer is older than the record of who gave it
	}
	key, err := t.cfg.Store.Key(ctx, answer.Key)
	var user outboard.User
	if err == nil && key.User != "" {
		if user, err = t.cfg.Store.User(ctx, key.User); err == nil && key.Kind == outboard.KeyLogin &&
			user.RemovedAt.IsZero() {
			key.RevokedAt = time.Time{} // signing out takes back no answer; who lost rights is told by the role
		}
	}
	by := key.Caller(user)
	switch {
	case err == nil && !user.RemovedAt.IsZero():
		return outboard.Errorf(outboard.Denied, "the approval is void: who gave it was removed")
	case outboard.KindOf(err) == outboard.NotFound && err != nil, err == nil && !key.RevokedAt.IsZero():
		return outboard.Errorf(outboard.Denied, "the approval is void: the key that gave it was revoked")
	case err != nil:
		return err
	case !who.May(by, t.view.Config.Owner):
		return outboard.Errorf(outboard.Denied, "the approval is void: %s may not answer it any more", key.Name)
	}
	return nil
}

// taint is what a finished call adds to the session's.
func (t *turn) taint(j *job) outboard.Taint {
	cfg, out := &t.view.Config, j.def.Taint
	switch {
	case j.def.Shell:
		net := cfg.Env.Networking.Mode
		out.Exfil = out.Exfil || net == "unrestricted" || net == "limited"
		out.Untrusted = out.Untrusted || net == "unrestricted" || net == "limited" && t.reachedOut()
		out.Private = out.Private || len(cfg.VaultIDs) > 0 || len(cfg.Resources) > 0
	case j.def.Opens():
		opened := ""
		if j.sent != nil {
			opened = j.sent.Opens
		}
		if opened == "" {
			opened, _ = policy.Opens(j.def.Name, j.input, t.workdir())
		}
		for _, r := range cfg.Resources {
			out.Private = out.Private || touches(opened, t.mounted(mountPath(r)))
		}
	}
	return out
}

// reachedOut reports whether the session's sandbox has sent a request to anybody: what came back is a stranger's
// text. What cannot be read counts as one.
func (t *turn) reachedOut() bool {
	used, err := t.cfg.Store.NetUsage(t.ctx, string(t.id))
	return err != nil || used.Hosts > 0
}

// mounted is where a mount is in the sandbox, with the links on the way to it followed, as in the paths it is
// compared with.
func (t *turn) mounted(mount string) string {
	if t.lease == nil || mount == "" {
		return mount
	}
	if t.mounts == nil {
		t.mounts = map[string]string{}
	}
	key := t.lease.Generation() + " " + mount
	real, known := t.mounts[key]
	if !known {
		var err error
		if real, err = t.lease.Real(t.ctx, mount); err != nil {
			return "/" // nobody can tell, so that everything touches it
		}
		t.mounts[key] = real
	}
	return real
}

// touches reports whether a path of a file tool, whose links are followed, is at, under or above a mount.
func touches(p, mount string) bool {
	if mount == "" {
		return false
	}
	if !path.IsAbs(p) {
		p = path.Join(sandbox.Workspace, p)
	}
	p = path.Clean(p)
	under := func(a, b string) bool { return a == b || b == "/" || strings.HasPrefix(a, b+"/") }
	return under(p, mount) || under(mount, p)
}
