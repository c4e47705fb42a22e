package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/spf13/cobra"
)

// allowing is how approve and approval allow let something pass.
type allowing struct {
	digest  string // of the request that was read; 12 characters of it will do
	yes     bool   // allow what is printed now
	scope   string // "" = once, "session", or scopeRule for always
	session bool
	always  bool
}

func (o *allowing) flags(cmd *cobra.Command, always string) {
	f := cmd.Flags()
	f.StringVar(&o.digest, "digest", "", "allow the request with this digest, which show prints")
	f.BoolVar(&o.yes, "yes", false, "allow what waits without being asked; the requests are printed")
	f.BoolVar(&o.session, "session", false, "also the same command, path, address or host later in this session")
	f.BoolVar(&o.always, always, false, "also in later sessions: a grant for the agent, or for a host a rule of the "+
		"environment")
}

// check reads the flags.
func (o *allowing) check() error {
	switch {
	case o.session && o.always:
		return usagef("--once, --session and --always (or --rule) exclude each other")
	case o.yes && o.digest != "":
		return usagef("--yes and --digest exclude each other")
	case o.digest != "" && len(o.digest) < shortDigest:
		return usagef("--digest needs at least the first %d characters", shortDigest)
	case o.session:
		o.scope = "session"
	case o.always:
		o.scope = scopeRule
	}
	return nil
}

// shortDigest is how much of a digest names a request: 48 bits, of requests that one session waits with.
const shortDigest = 12

func newApprove(a *app) *cobra.Command {
	var o allowing
	cmd := &cobra.Command{Use: "approve SESSION [CALL]", Short: "Let the calls and hosts a session waits with pass",
		Args: rangeArgs(1, 2, "a session"),
		Long: "Show each request that a session waits with, whole, and ask: once, for this session, always (the " +
			"rule is shown first), deny with\n" +
			"a note, or not now. Without a terminal the request that was read is named by its --digest, or everything is allowed with --yes.\n" +
			"CALL is the id of a call or approval, or the beginning of one.",
		Example:           "  outboard approve calm-otter-7f2\n  outboard approve calm-otter-7f2 --digest 3f2a91bb04c7",
		ValidArgsFunction: a.completeSessions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return runApprove(cmd.Context(), a, args[0], strings.Join(args[1:], ""), o)
		}}
	o.flags(cmd, "always")
	return cmd
}

func runApprove(ctx context.Context, a *app, ref, call string, o allowing) error {
	if err := o.check(); err != nil {
		return err
	}
	c, err := a.connect(ctx, needWork|needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := findSession(ctx, c.Client, ref)
	if err != nil {
		return err
	}
	calls, err := waitingCalls(ctx, c.Client, s.ID)
	if err != nil {
		return err
	}
	qs, err := questionsOf(ctx, c.Client, s.ID, calls)
	if err != nil {
		return err
	}
	qs = slices.DeleteFunc(qs, func(q *question) bool {
		named := call != "" && (strings.HasPrefix(q.id(), call) || q.call != nil && strings.HasPrefix(q.call.id, call))
		// a host that nobody named does not pass unread
		return q.custom() || call != "" && !named || o.yes && q.host() && !named
	})
	if len(qs) == 0 {
		return runAnswerAgain(ctx, a, c, s.ID, call, true, "")
	}
	return a.allow(ctx, c, s, qs, o)
}

// allow lets questions pass: those a person says yes to, or without one those of the digest, or all with --yes.
func (a *app) allow(ctx context.Context, c *conn, s client.Session, qs []*question, o allowing) error {
	switch {
	case o.digest != "":
		all := len(qs)
		qs = slices.DeleteFunc(qs,
			func(q *question) bool { return !strings.HasPrefix(q.approval.Digest, strings.ToLower(o.digest)) })
		if len(qs) == 0 {
			return outboard.Errorf(outboard.Conflict, "none of %s that %s waits with has the digest %s",
				count(all, "request"), sessionName(s.ID),
				term.Line(o.digest, 64)).WithHint("look at them again: outboard show %s", sessionName(s.ID))
		}
	case !o.yes && !a.interactive():
		return unread(s, qs)
	}
	if o.yes || o.digest != "" {
		return a.allowAll(ctx, c, s, qs, o)
	}
	a.useScreen()
	in, left := term.NewInput(a.in), 0
	for _, q := range qs {
		scope := o.scope
		if scope == scopeRule {
			scope = q.widest()
		}
		done, err := a.decide(ctx, c.Client, in, s, q, scope)
		if err != nil {
			return err
		}
		if !done {
			left++
		}
	}
	if left > 0 {
		return &exitError{exitApproval, outboard.Errorf(outboard.Denied, "%s undecided", count(left, "request")).
			WithCode("approval").
			WithHint("outboard approve %s", sessionName(s.ID))}
	}
	return a.waitsForServer(c, sessionName(s.ID))
}

// allowAll allows without asking, and prints what.
func (a *app) allowAll(ctx context.Context, c *conn, s client.Session, qs []*question, o allowing) error {
	line := sentLine{Type: "sent", Session: s.ID, Name: sessionName(s.ID), What: answerWord(true)}
	for _, q := range qs {
		if !a.json {
			if err := printRequest(a.errs, nil, requestLines(q.request()), 0); err != nil {
				return err
			}
		}
		scope := o.scope
		if scope == scopeRule {
			scope = q.widest()
		}
		d := q.allow(scope)
		grant, err := d.put(ctx, c.Client, s.ID, q)
		if err != nil {
			return err
		}
		a.sayDecided(q, d, grant)
		line.Events = append(line.Events, q.id())
	}
	if a.json {
		return a.object(line)
	}
	a.say("%s: %s", line.Name, line.What)
	return a.waitsForServer(c, line.Name)
}

// waitsForServer says so where nobody runs sessions.
func (a *app) waitsForServer(c *conn, name string) error {
	if c.private != nil {
		a.say("no server runs on %s, so it waits until one does: outboard attach %s, or outboard serve", c.data, name)
	}
	return nil
}

// unread is the refusal to allow, where nobody can be asked, what the caller does not say they have read. It shows it.
func unread(s client.Session, qs []*question) error {
	var text strings.Builder
	for _, q := range qs {
		if err := printRequest(&text, facts(q.approval), requestLines(q.request()), 0); err != nil {
			return err
		}
	}
	return usagef("nobody can be asked here: name the digest of what you have read, or allow all with --yes\n%s",
		strings.TrimRight(text.String(), "\n")).
		WithHint("outboard approve %s --digest %s", sessionName(s.ID), qs[0].approval.Digest)
}

func newDeny(a *app) *cobra.Command {
	return &cobra.Command{Use: "deny SESSION [CALL] [WHY]", Short: "Refuse the calls a session waits with",
		Args:              rangeArgs(1, 3, "a session"),
		ValidArgsFunction: a.completeSessions,
		Long: "Refuse the calls a session waits with, or one of them. The model is told why, if you " +
			"say so.",
		RunE: func(cmd *cobra.Command, args []string) error {
			call, why := "", ""
			for _, arg := range args[1:] {
				if call == "" && strings.HasPrefix(arg, outboard.PrefixEvent+"_") {
					call = arg
				} else {
					why = strings.TrimSpace(why + " " + arg)
				}
			}
			return runDeny(cmd.Context(), a, args[0], call, why)
		}}
}

// runDeny denies the asks a session is parked at: all of them, or the one that call (or the beginning of its id) names.
func runDeny(ctx context.Context, a *app, ref, call, why string) error {
	c, err := a.connect(ctx, needWork|needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := findSession(ctx, c.Client, ref)
	if err != nil {
		return err
	}
	calls, err := waitingCalls(ctx, c.Client, s.ID)
	if err != nil {
		return err
	}
	var events []any
	for _, w := range calls {
		if !w.custom && strings.HasPrefix(w.id, call) {
			events = append(events, client.Confirmation(w.id, false, why))
		}
	}
	if len(events) == 0 {
		return runAnswerAgain(ctx, a, c, s.ID, call, false, why)
	}
	return deliverTo(ctx, a, c, s.ID, answerWord(false), events...)
}

func answerWord(allow bool) string {
	if allow {
		return "approved"
	}
	return "denied"
}

// runAnswerAgain answers what has an answer already: the newest one of the session, or the one that call names.
// The server takes the same answer for a repeated one, and refuses another.
func runAnswerAgain(ctx context.Context, a *app, c *conn, id, call string, allow bool, why string) error {
	name := sessionName(id)
	var last wireEvent
	for ev, err := range c.Events(ctx, id, client.EventQuery{Desc: true, Types: []string{"user.tool_confirmation"}}) {
		if err != nil {
			return err
		}
		var w wireEvent
		if err := ev.Decode(&w); err != nil {
			return fmt.Errorf("reading event %s: %w", ev.ID, err)
		}
		if strings.HasPrefix(w.ToolUseID, call) {
			last = w
			break
		}
	}
	switch {
	case last.ToolUseID == "" && call != "":
		return outboard.Errorf(outboard.NotFound, "%s does not wait with a call %s", name, call).
			WithHint("outboard show %s", name)
	case last.ToolUseID == "":
		return outboard.Errorf(outboard.Conflict, "%s does not wait for an approval", name).
			WithHint("outboard show %s", name)
	}
	if why == "" && !allow {
		why = last.Deny // to deny again without a reason takes nothing back
	}
	done, err := c.Send(ctx, id, client.Confirmation(last.ToolUseID, allow, why))
	if e, ok := errors.AsType[*outboard.Error](err); ok && e.Code == outboard.CodeAnswered {
		return outboard.Errorf(outboard.Conflict, "%s does not wait for an approval: its last one, of %s, was %s, "+
			"and that stands", name,
			last.ToolUseID, answerWord(last.Result == "allow")).WithHint("outboard logs %s", name)
	}
	if err != nil {
		return err
	}
	if a.json {
		line := sentLine{Type: "sent", Session: id, Name: name, What: answerWord(allow)}
		for _, ev := range done {
			line.Events = append(line.Events, ev.ID)
		}
		return a.object(line)
	}
	a.say("%s: %s already", name, answerWord(allow))
	return nil
}
