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
	cmd := &cobra.Command{Use: "approval", Short: "Calls and hosts that wait for a person, over all sessions", Args: cobra.ArbitraryArgs, RunE: groupRun}
	var all bool
	ls := &cobra.Command{Use: "ls", Short: "List what waits", Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runApprovals(cmd.Context(), a, all) }}
	ls.Flags().BoolVarP(&all, "all", "a", false, "answered and expired ones too")
	var session, rule, once bool
	allow := &cobra.Command{Use: "allow ID|SESSION", Short: "Let a call run, or a host be reached", Args: exactArgs("an approval or a session"),
		Long: "Let the call run, once. With --session the same action on the same resource (a command, a path whatever is written there, an\n" +
			"address) passes for the rest of the session, with --rule for all sessions of the agent: both for 30 days, as a grant that\n" +
			"outboard grant rm ends. A custom tool's call is allowed once only.\n\n" +
			"A host may be reached by the next request, with --session until the session ends, with --rule also by the next sessions of its\n" +
			"environment, which gets a rule.",
		RunE: func(cmd *cobra.Command, args []string) error {
			ans := client.ApprovalAnswer{Result: string(outboard.Allow)}
			switch {
			case session && rule || once && (session || rule):
				return usagef("--once, --session and --rule exclude each other")
			case session:
				ans.Scope = "session"
			case rule:
				ans.Scope = scopeRule
			}
			return runAnswerApproval(cmd.Context(), a, args[0], ans)
		}}
	allow.Flags().BoolVar(&once, "once", false, "this call, or one request to the host, only (the default)")
	allow.Flags().BoolVar(&session, "session", false, "also the same command, path or address later in this session")
	allow.Flags().BoolVar(&rule, "rule", false, "also the same command, path or address in every session of the agent, or the host in the environment's next sessions")
	cmd.AddCommand(ls,
		&cobra.Command{Use: "show ID|SESSION", Short: "Show the whole request and why it was stopped", Args: exactArgs("an approval or a session"),
			RunE: func(cmd *cobra.Command, args []string) error { return runApprovalShow(cmd.Context(), a, args[0]) }},
		allow,
		&cobra.Command{Use: "deny ID|SESSION [WHY]", Short: "Refuse a call; the model is told why, if you say so", Args: rangeArgs(1, -1, "an approval or a session"),
			RunE: func(cmd *cobra.Command, args []string) error {
				return runAnswerApproval(cmd.Context(), a, args[0], client.ApprovalAnswer{Result: string(outboard.Deny), Message: strings.Join(args[1:], " ")})
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

// summary is an approval on one line.
func approvalSummary(p client.Approval) string { return term.Line(p.Action+" "+p.Resource, 60) }

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
		table = append(table, []string{p.ID, sessionName(p.SessionID), approvalSummary(p), term.Line(p.Why, 50), formatAge(time.Since(p.CreatedAt)), approvalState(p)})
	}
	if a.json {
		return nil
	}
	if len(table) == 0 {
		a.say("nothing waits for an approval")
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
		if ref != "" && (strings.HasPrefix(p.ID, ref) || strings.HasPrefix(sessionName(p.SessionID), ref) || p.SessionID == ref) {
			found = append(found, p)
		}
	}
	switch len(found) {
	case 0:
		return client.Approval{}, outboard.Errorf(outboard.NotFound, "nothing waits for an approval as %q", ref).WithHint("outboard approval ls lists what waits")
	case 1:
		return found[0], nil
	}
	var ids []string
	for _, p := range found[:min(len(found), 5)] {
		ids = append(ids, p.ID)
	}
	return client.Approval{}, outboard.Errorf(outboard.Invalid, "%q means %d approvals: %s", ref, len(found), strings.Join(ids, ", ")).
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
	call := ""
	if p.EventID != "" {
		call = "call      " + term.Line(p.EventID, 0) + "\n"
	}
	_, err = fmt.Fprintf(a.out, "approval  %s  %s\nsession   %s  %s\n%swhy       %s\nrules     %s\nanswer    by %s, until %s\n%sdigest    %s\n\n%s\n", p.ID, approvalState(p),
		sessionName(p.SessionID), p.SessionID, call, term.Line(p.Why, 0), term.Line(strings.Join(p.Rules, ", "), 0), map[string]string{"any": "anybody",
			"other": "somebody else than the session's owner", "admin": "an administrator", "other_admin": "an administrator who is not the session's owner"}[p.Approver], p.ExpiresAt.Local().Format(time.RFC3339), approvalVotes(p),
		term.Line(p.Digest, 0), term.Clean(p.Request))
	if err == nil && p.State == string(outboard.ApprovalPending) {
		a.say("hint: outboard approval allow %s, or outboard approval deny %s \"why\"", p.ID, p.ID)
	}
	return err
}

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

// runAnswerApproval answers with the digest of the request it has read, so that nothing can change in between.
func runAnswerApproval(ctx context.Context, a *app, ref string, ans client.ApprovalAnswer) error {
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	p, err := findApproval(ctx, c.Client, ref)
	if err != nil {
		return err
	}
	ans.Digest = p.Digest
	if ans.Scope == scopeRule && (p.Network == nil || p.Network.Policy) {
		ans.Scope = "agent"
	}
	p, grant, err := c.AnswerApproval(ctx, p.ID, ans)
	if err != nil {
		return err
	}
	if a.json {
		return a.object(showApprovalLine(p))
	}
	if p.State == string(outboard.ApprovalPending) {
		a.say("%s: your answer is kept; %d must allow it: %s", sessionName(p.SessionID), p.Needs, approvalSummary(p))
		a.say("hint: outboard approval show %s says who has", p.ID)
		return nil
	}
	a.say("%s: %s: %s", sessionName(p.SessionID), p.State, approvalSummary(p))
	if grant != nil {
		whatever := ""
		if p.Action == "write" || p.Action == "edit" {
			whatever = ", whatever it writes"
		}
		a.say("%s passes until %s%s; outboard grant rm %s ends that", approvalSummary(p), grant.ExpiresAt.Local().Format(time.DateOnly), whatever, grant.ID)
	}
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
	_, err := fmt.Fprintf(a.out, "%s  %s  %s  (%s)\n", p.ID, sessionName(p.SessionID), approvalSummary(p), term.Line(p.Why, 60))
	return err
}
