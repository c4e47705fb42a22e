package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/spf13/cobra"
)

// watchEvery is how often watch looks for new approvals. A person reads slower than that.
const watchEvery = 2 * time.Second

func newApproval(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "approval", Short: "Calls and hosts that wait for a person, over all sessions",
		Args: cobra.ArbitraryArgs, RunE: groupRun}
	var all bool
	ls := &cobra.Command{Use: "ls", Short: "List what waits", Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runApprovals(cmd.Context(), a, all) }}
	ls.Flags().BoolVarP(&all, "all", "a", false, "answered and expired ones too")
	var o allowing
	var once bool
	allow := &cobra.Command{Use: "allow ID|SESSION", Short: "Let a call run, or a host be reached",
		Args: exactArgs("an approval or a session"),
		Long: "Show the whole request and ask; without a terminal it is named by its --digest, or allowed with " +
			"--yes. It passes once. With\n" +
			"--session the same action on the same resource (a command, a path whatever is written there, an address) passes for the\n" +
			"rest of the session, with --rule for all sessions of the agent: both for 30 days, as a grant that outboard grant rm ends. A\n" +
			"custom tool's call is allowed once only.\n\n" +
			"A host may be reached by the next request, with --session until the session ends, with --rule also by the next sessions of its\n" +
			"environment, which gets a rule.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if once && (o.session || o.always) {
				return usagef("--once, --session and --rule exclude each other")
			}
			return runApprovalAllow(cmd.Context(), a, args[0], o)
		}}
	allow.Flags().BoolVar(&once, "once", false, "this call, or one request to the host, only (the default)")
	o.flags(allow, "rule")
	cmd.AddCommand(ls,
		&cobra.Command{Use: "show ID|SESSION", Short: "Show the whole request and why it was stopped",
			Args: exactArgs("an approval or a session"),
			RunE: func(cmd *cobra.Command, args []string) error { return runApprovalShow(cmd.Context(), a, args[0]) }},
		allow,
		&cobra.Command{Use: "deny ID|SESSION [WHY]", Short: "Refuse a call; the model is told why, if you say so",
			Args: rangeArgs(1, -1, "an approval or a session"),
			RunE: func(cmd *cobra.Command, args []string) error {
				return runApprovalDeny(cmd.Context(), a, args[0], strings.Join(args[1:], " "))
			}},
		&cobra.Command{Use: "watch", Short: "Show what waits, and what comes to wait, until stopped", Args: exactArgs(),
			RunE: func(cmd *cobra.Command, _ []string) error { return runApprovalWatch(cmd.Context(), a) }})
	return cmd
}

// approvalLine is an approval in machine output.
type approvalLine struct {
	Type string `json:"type"`
	Name string `json:"name"`
	client.Approval
}

func showApprovalLine(p client.Approval) approvalLine {
	return approvalLine{"approval", sessionName(p.SessionID), p}
}

// scopeRule is the widest scope, which means one thing of a call and another of a host.
const scopeRule = "rule"

// approvalSummary is an approval on one line, and not all of it: nobody is asked about it in this form.
func approvalSummary(p client.Approval) string {
	return term.Line(oneLine(p.Action+" "+p.Resource), 60)
}

// printPending prints a request that waits, whole.
func printPending(a *app, p client.Approval) error {
	if _, err := fmt.Fprintf(a.out, "%s  %s  %s  %s, %s old\n", p.ID, a.style().Bold(sessionName(p.SessionID)),
		term.Line(p.Action, 40), approvalState(p),
		formatAge(time.Since(p.CreatedAt))); err != nil {
		return err
	}
	return printRequest(a.out, facts(p), requestLines(p.Request), term.Width(a.out, 0))
}

// approvalState is where an approval stands, and who brought it there.
func approvalState(p client.Approval) string {
	if p.Answer == nil {
		return p.State
	}
	text := p.State + " by " + p.Answer.By
	if p.Answer.Message != "" {
		text += ": " + p.Answer.Message
	}
	return term.Line(text, 80)
}

func runApprovals(ctx context.Context, a *app, all bool) error {
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	var table [][]string
	waits := 0
	for p, err := range c.Approvals(ctx, "", all) {
		if err != nil {
			return err
		}
		if a.json {
			if err := a.object(showApprovalLine(p)); err != nil {
				return err
			}
			continue
		}
		if p.State == string(outboard.ApprovalPending) {
			if err := printPending(a, p); err != nil {
				return err
			}
			waits++
			continue
		}
		table = append(table, []string{p.ID, sessionName(p.SessionID), approvalSummary(p), term.Line(p.Why, 50),
			formatAge(time.Since(p.CreatedAt)), approvalState(p)})
	}
	if a.json {
		return nil
	}
	if waits > 0 {
		a.say("hint: outboard approve SESSION, or outboard approval allow ID, shows a request again and asks")
	}
	if len(table) == 0 {
		if waits == 0 {
			a.say("nothing waits for an approval")
		}
		return nil
	}
	return term.Table(a.out, []string{"APPROVAL", "SESSION", "REQUEST", "WHY", "AGE", "STATE"}, table)
}

// findApproval resolves an id, an unambiguous beginning of one, or a session that waits with one call.
func findApproval(ctx context.Context, c *client.Client, ref string) (client.Approval, error) {
	if outboard.ValidID(outboard.PrefixApproval, ref) {
		p, err := c.Approval(ctx, ref)
		if err == nil || outboard.KindOf(err) != outboard.NotFound {
			return p, err
		}
	}
	var found []client.Approval
	for p, err := range c.Approvals(ctx, "", false) {
		if err != nil {
			return p, err
		}
		if ref != "" && (strings.HasPrefix(p.ID, ref) || strings.HasPrefix(sessionName(p.SessionID), ref) ||
			p.SessionID == ref) {
			found = append(found, p)
		}
	}
	switch len(found) {
	case 0:
		return client.Approval{}, outboard.Errorf(outboard.NotFound, "nothing waits for an approval as %q", ref).
			WithHint("outboard approval ls lists what waits")
	case 1:
		return found[0], nil
	}
	var ids []string
	for _, p := range found[:min(len(found), 5)] {
		ids = append(ids, p.ID)
	}
	return client.Approval{}, outboard.Errorf(outboard.Invalid, "%q means %d approvals: %s", ref, len(found),
		strings.Join(ids, ", ")).
		WithHint("name one of them; outboard approval ls shows what they are")
}

func runApprovalShow(ctx context.Context, a *app, ref string) error {
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	p, err := findApproval(ctx, c.Client, ref)
	if err != nil {
		return err
	}
	if a.json {
		return a.object(showApprovalLine(p))
	}
	lines := []string{fmt.Sprintf("approval  %s  %s", p.ID, approvalState(p)), "session   " + sessionName(p.SessionID) +
		"  " + p.SessionID}
	if p.EventID != "" {
		lines = append(lines, "call      "+term.Line(p.EventID, 0))
	}
	lines = append(lines, "why       "+term.Line(p.Why, 0), "rules     "+term.Line(strings.Join(p.Rules, ", "), 0),
		"answer    by "+mayAnswer[p.Approver]+", until "+p.ExpiresAt.Local().Format(time.RFC3339))
	if votes := approvalVotes(p); votes != "" {
		lines = append(lines, strings.TrimRight(votes, "\n"))
	}
	lines = append(lines, "digest    "+term.Line(p.Digest, 0), "")
	lines = append(lines, barred(requestLines(p.Request), term.Width(a.out, 0))...)
	if _, err = fmt.Fprintln(a.out, strings.Join(lines, "\n")); err == nil &&
		p.State == string(outboard.ApprovalPending) {
		a.say("hint: outboard approval allow %s, or outboard approval deny %s \"why\"", p.ID, p.ID)
	}
	return err
}

// mayAnswer is who an approver is.
var mayAnswer = map[string]string{"any": "anybody", "other": "somebody else than the session's owner",
	"admin":       "an administrator",
	"other_admin": "an administrator who is not the session's owner"}

// approvalVotes are the lines that say who has allowed what several people must allow.
func approvalVotes(p client.Approval) string {
	if p.Needs < 2 {
		return ""
	}
	var text strings.Builder
	fmt.Fprintf(&text, "people    %d must allow it, and %d did\n", p.Needs, len(p.Votes))
	for _, v := range p.Votes {
		fmt.Fprintf(&text, "allowed   %s, at %s\n", term.Line(v.By, 80), v.At.Local().Format(time.RFC3339))
	}
	return text.String()
}

// runApprovalAllow allows with the digest of the request it has read, so that nothing can change in between.
func runApprovalAllow(ctx context.Context, a *app, ref string, o allowing) error {
	if err := o.check(); err != nil {
		return err
	}
	c, p, err := approvalOf(ctx, a, ref)
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := c.Session(ctx, p.SessionID)
	if err != nil {
		return err
	}
	q := &question{approval: p}
	if p.Network == nil {
		q.call = &openCall{id: p.EventID, name: p.Action}
	}
	if a.json && (o.yes || o.digest != "" && strings.HasPrefix(p.Digest, o.digest)) {
		scope := o.scope
		if scope == scopeRule {
			scope = q.widest()
		}
		if _, err := q.allow(scope).put(ctx, c.Client, s.ID, q); err != nil {
			return err
		}
		return a.object(showApprovalLine(q.approval))
	}
	return a.allow(ctx, c, s, []*question{q}, o)
}

func approvalOf(ctx context.Context, a *app, ref string) (*conn, client.Approval, error) {
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return nil, client.Approval{}, err
	}
	p, err := findApproval(ctx, c.Client, ref)
	if err != nil {
		c.Close()
	}
	return c, p, err
}

func runApprovalDeny(ctx context.Context, a *app, ref, why string) error {
	c, p, err := approvalOf(ctx, a, ref)
	if err != nil {
		return err
	}
	defer c.Close()
	p, _, err = c.AnswerApproval(ctx, p.ID, client.ApprovalAnswer{Result: string(outboard.Deny), Message: why,
		Digest: p.Digest})
	if err != nil {
		return err
	}
	if a.json {
		return a.object(showApprovalLine(p))
	}
	a.say("%s: %s: %s", sessionName(p.SessionID), p.State, approvalSummary(p))
	return nil
}

func runApprovalWatch(ctx context.Context, a *app) error {
	c, err := a.connect(ctx, needWork|needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	seen := map[string]bool{}
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		var fresh []client.Approval
		now := map[string]bool{}
		for p, err := range c.Approvals(ctx, "", false) {
			if err != nil && ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return err
			}
			if now[p.ID] = true; !seen[p.ID] {
				fresh = append(fresh, p)
			}
		}
		seen = now
		slices.Reverse(fresh)
		for _, p := range fresh {
			if err := a.announce(p); err != nil {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
				return context.Cause(ctx)
			}
			return nil
		}
	}
}

func (a *app) announce(p client.Approval) error {
	if a.json {
		return a.object(showApprovalLine(p))
	}
	return printPending(a, p)
}
