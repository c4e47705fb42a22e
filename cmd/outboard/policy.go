package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/policy"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/outboard-dev/outboard/internal/tool/registry"
	"github.com/spf13/cobra"
)

// policyTestOptions are the flags of policy test.
type policyTestOptions struct {
	file, session, agent, permission string
	private, untrusted               bool
}

func newPolicy(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "policy", Short: "The rules that decide every call", Args: cobra.ArbitraryArgs,
		RunE: groupRun}
	var opt policyTestOptions
	test := &cobra.Command{Use: "test TOOL INPUT", Short: "Say what would happen to a call",
		Args: rangeArgs(2, 2, "a tool", "its input"),
		Long: "Say what would happen to a call: allow, ask or deny, by which rules. INPUT is the tool's JSON, or " +
			"for bash the command.\n" +
			"With --file a file of rules is added below the others, before it is put in force.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return runPolicyTest(cmd.Context(), a, args[0], args[1], opt)
		}}
	f := test.Flags()
	f.StringVarP(&opt.file, "file", "f", "", "rules to try, - for standard input")
	f.StringVar(&opt.session, "session", "", "as a call of this session")
	f.StringVar(&opt.agent, "agent", "", "as a call of this agent (its id or name)")
	f.StringVar(&opt.permission, "permission", "", "the agent's permission for the tool (default always_allow)")
	f.BoolVar(&opt.private, "private", false, "the session has read private data")
	f.BoolVar(&opt.untrusted, "untrusted", false, "the session has read untrusted content")
	cmd.AddCommand(
		&cobra.Command{Use: "show", Short: "Print the policies in force", Args: exactArgs(),
			RunE: func(cmd *cobra.Command, _ []string) error { return runPolicyShow(cmd.Context(), a) }},
		&cobra.Command{Use: "set organization|agent:AGENT|session:NAME FILE|-",
			Short: "Check a file of rules and put it in force", Args: rangeArgs(2, 2, "a level", "a file"),
			RunE: func(cmd *cobra.Command, args []string) error {
				return runPolicySet(cmd.Context(), a, args[0],
					args[1])
			}},
		&cobra.Command{Use: "lint FILE|-...", Short: "Check files of rules", Args: rangeArgs(1, -1, "a file"),
			RunE: func(cmd *cobra.Command, args []string) error { return runPolicyLint(a, args) }},
		test,
		&cobra.Command{Use: "why CALL|APPROVAL [SESSION]", Short: "Explain why a call was allowed, asked about or " +
			"denied", Args: rangeArgs(1, 2, "a call"),
			Long: "Explain the decision about a call, by its event id (sevt_...) or that of its approval, or of the " +
				"call that a session waits with.\n" +
				"Without a session, the newest ones are searched for an event id.",
			RunE: func(cmd *cobra.Command, args []string) error {
				return runPolicyWhy(cmd.Context(), a, args[0], strings.Join(args[1:], ""))
			}},
		&cobra.Command{Use: "schema", Short: "Print what rules may speak of", Args: exactArgs(),
			RunE: func(*cobra.Command, []string) error {
				text := strings.TrimLeft(policy.Schema, "\n")
				if a.json {
					return a.object(map[string]any{"type": "policy.schema", "text": text})
				}
				_, err := io.WriteString(a.out, text)
				return err
			}})
	return cmd
}

// rules reads a file of rules, or standard input.
func (a *app) rules(path string) (string, error) {
	r := a.in
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return "", outboard.Errorf(outboard.NotFound, "reading rules: %w", err)
		}
		defer f.Close()
		r = f
	}
	b, err := io.ReadAll(io.LimitReader(r, policy.MaxText+1))
	if err != nil {
		return "", outboard.Errorf(outboard.Invalid, "reading rules: %w", err)
	}
	return string(b), nil
}

func runPolicyLint(a *app, paths []string) error {
	for _, path := range paths {
		text, err := a.rules(path)
		var layer *policy.Layer
		if err == nil {
			layer, err = policy.Compile(outboard.LevelOrganization, text)
		}
		if err != nil {
			return outboard.Errorf(outboard.KindOf(err), "%s: %w", path, err).
				WithHint("outboard policy schema prints what rules may speak of")
		}
		a.say("%s: no mistakes", path)
		for _, note := range layer.Notes() {
			a.say("%s: note: %s", path, note)
		}
	}
	return nil
}

func runPolicyShow(ctx context.Context, a *app) error {
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	n := 0
	for p, err := range c.Policies(ctx) {
		if err != nil {
			return err
		}
		n++
		if a.json {
			if err := a.object(policyLine{"policy", p}); err != nil {
				return err
			}
			continue
		}
		target := ""
		if p.Target != nil {
			target = " " + *p.Target
		}
		if _, err := fmt.Fprintf(a.out, "// %s%s, version %d by %s\n%s\n\n", p.Level, term.Line(target, 0), p.Version,
			term.Line(p.CreatedBy, 40),
			term.Clean(strings.TrimSpace(p.Text))); err != nil {
			return err
		}
	}
	if n == 0 && !a.json {
		a.say("no policies beside the operator's and the built-in ones; outboard policy set adds one")
	}
	return nil
}

// policyLine is a policy in machine output.
type policyLine struct {
	Type string `json:"type"`
	client.Policy
}

func runPolicySet(ctx context.Context, a *app, where, path string) error {
	level, target, _ := strings.Cut(where, ":")
	text, err := a.rules(path)
	if err != nil {
		return err
	}
	c, err := a.connect(ctx, needAnswers)
	if err != nil {
		return err
	}
	defer c.Close()
	switch outboard.PolicyLevel(level) {
	case outboard.LevelAgent:
		if target, err = existingAgent(ctx, c.Client, target); err != nil {
			return err
		}
	case outboard.LevelSession:
		s, err := findSession(ctx, c.Client, target)
		if err != nil {
			return err
		}
		target = s.ID
	}
	p, err := c.SavePolicy(ctx, level, target, text)
	if err != nil {
		return err
	}
	if a.json {
		return a.object(policyLine{"policy", p})
	}
	a.say("%s: version %d is in force", where, p.Version)
	return nil
}

func runPolicyTest(ctx context.Context, a *app, tool, input string, opt policyTestOptions) error {
	in := json.RawMessage(input)
	def, _ := registry.Lookup(tool)
	// true and 42 are JSON, and commands
	if def.Subject == registry.Command && json.Unmarshal(in, &map[string]any{}) != nil {
		in, _ = json.Marshal(map[string]string{def.Target: input})
	}
	if !json.Valid(in) {
		return usagef("the input of %s is not JSON", tool)
	}
	body := map[string]any{"tool": tool, "input": in, "permission": opt.permission, "private": opt.private,
		"untrusted": opt.untrusted}
	if opt.file != "" {
		text, err := a.rules(opt.file)
		if err != nil {
			return err
		}
		body["text"] = text
	}
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	if opt.agent != "" {
		if body["agent_id"], err = existingAgent(ctx, c.Client, opt.agent); err != nil {
			return err
		}
	}
	if opt.session != "" {
		s, err := findSession(ctx, c.Client, opt.session)
		if err != nil {
			return err
		}
		body["session_id"] = s.ID
	}
	v, err := c.TestPolicy(ctx, body)
	if err != nil {
		return err
	}
	if a.json {
		return a.object(struct {
			Type string `json:"type"`
			client.Verdict
		}{"verdict", v})
	}
	text := v.Decision
	if len(v.Rules) > 0 {
		text += "  by " + term.Line(strings.Join(v.Rules, ", "), 0)
	}
	if v.Reason != nil {
		text += "\n" + term.Line(*v.Reason, 0)
	}
	_, err = fmt.Fprintln(a.out, text)
	return err
}

// whySessions is how many sessions are searched for a call whose session was not named.
const whySessions = 50

func runPolicyWhy(ctx context.Context, a *app, event, ref string) error {
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	w, err := findReason(ctx, c.Client, event, ref)
	if err != nil {
		return err
	}
	if a.json {
		return a.object(w.Raw)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "call      %s of %s\ntool      %s\ndecision  %s\n", w.EventID, sessionName(w.SessionID), w.Tool,
		w.Decision)
	row := func(name string, v *string) {
		if v != nil && *v != "" {
			fmt.Fprintf(&b, "%-9s %s\n", name, term.Line(*v, 0))
		}
	}
	row("because", w.Reason)
	row("agent", w.Permission)
	row("grant", w.Grant)
	if w.Judged != nil {
		row("judge", w.Judged.Verdict)
		row("", w.Judged.Reason)
	}
	if w.Approval != nil {
		row("approval", new(w.Approval.State+"  "+w.Approval.ID))
	}
	row("outcome", w.Outcome)
	for _, r := range w.Rules {
		fmt.Fprintf(&b, "\n// %s\n", term.Line(r.ID, 0))
		if !r.InForce {
			b.WriteString("// not in force any more\n")
		}
		if r.Text == nil {
			continue
		}
		b.WriteString(term.Clean(strings.TrimSpace(*r.Text)) + "\n")
	}
	_, err = io.WriteString(a.out, b.String())
	return err
}

// findReason explains a call of a session, or of the newest one that has it.
func findReason(ctx context.Context, c *client.Client, event, ref string) (client.Reason, error) {
	if ref != "" {
		s, err := findSession(ctx, c, ref)
		if err != nil {
			return client.Reason{}, err
		}
		return c.Why(ctx, s.ID, event)
	}
	if !strings.HasPrefix(event, outboard.PrefixEvent+"_") {
		p, err := findApproval(ctx, c, event)
		switch {
		case err != nil && outboard.KindOf(err) == outboard.NotFound:
			return client.Reason{}, outboard.Errorf(outboard.NotFound,
				"%q is no call, and nothing waits for an approval as that", event).
				WithHint("outboard approval ls -a lists approvals; outboard show SESSION says what a session waits for")
		case err != nil:
			return client.Reason{}, err
		case p.EventID == "":
			return client.Reason{}, outboard.Errorf(outboard.Invalid, "approval %s is about a host, not a call", p.ID).
				WithHint("outboard approval show %s", p.ID)
		}
		return c.Why(ctx, p.SessionID, p.EventID)
	}
	n := 0
	for s, err := range c.Sessions(ctx, true) {
		if err != nil {
			return client.Reason{}, err
		}
		w, err := c.Why(ctx, s.ID, event)
		if err == nil || outboard.KindOf(err) != outboard.NotFound {
			return w, err
		}
		if n++; n == whySessions {
			break
		}
	}
	return client.Reason{}, outboard.Errorf(outboard.NotFound, "none of the newest sessions has a call %q", event).
		WithHint("name the session as well")
}
