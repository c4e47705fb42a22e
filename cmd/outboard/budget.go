package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/spf13/cobra"
)

// limits are the flags of budget set.
type limits struct {
	money            string
	tokens, steps    int64
	running, sandbox time.Duration
}

func newBudget(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "budget", Short: "Bound what sessions may spend", Args: cobra.ArbitraryArgs,
		RunE: groupRun}
	var session string
	ls := &cobra.Command{Use: "ls", Short: "List budgets, with what was spent of them", Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runBudgets(cmd.Context(), a, session) }}
	ls.Flags().StringVar(&session, "session", "", "those that this session spends of")
	var l limits
	set := &cobra.Command{Use: "set session|agent|owner ID", Short: "Set the limits of a budget",
		Args: exactArgs("session, agent or owner", "an id"),
		Long: "Set all limits of one budget; what was spent stays counted, from when the budget was first set. A " +
			"session's budget counts\n" +
			"its forks, and theirs. An owner is for whom sessions act: a person, by their address or id, whatever they signed in with, or\n" +
			"the API key of a program. Money, tokens and steps are reserved before each model call; sessions that stopped at a limit\n" +
			"go on when it is raised.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return runBudgetSet(cmd.Context(), a, args[0], args[1], l)
		}}
	f := set.Flags()
	f.StringVar(&l.money, "money", "", "list cost in dollars, such as 2.50")
	f.Int64Var(&l.tokens, "tokens", 0, "tokens of all kinds")
	f.Int64Var(&l.steps, "steps", 0, "model calls")
	spanVar(f, &l.running, "running", 0, "time in which turns run")
	spanVar(f, &l.sandbox, "sandbox", 0, "time of calls in sandboxes")
	cmd.AddCommand(ls, set, &cobra.Command{Use: "rm session|agent|owner ID",
		Short: "Remove a budget, and what it counted", Args: exactArgs("session, agent or owner", "an id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runBudgetRemove(cmd.Context(), a, args[0], args[1])
		}})
	return cmd
}

// spend is the limits as the API takes them.
func (l limits) spend() (s client.Spend, err error) {
	if l.money != "" {
		c, err := outboard.ParseCost(l.money)
		if err != nil {
			return s, usagef("--money %q is not an amount in dollars such as 2.50", l.money)
		}
		s.Money = new(c.String()[1:])
	}
	if l.tokens < 0 || l.steps < 0 || l.running < 0 || l.sandbox < 0 {
		return s, usagef("a limit must not be negative")
	}
	if l.tokens > 0 {
		s.Tokens = &l.tokens
	}
	if l.steps > 0 {
		s.Steps = &l.steps
	}
	if l.running > 0 {
		s.Running = new(l.running.Seconds())
	}
	if l.sandbox > 0 {
		s.Sandbox = new(l.sandbox.Seconds())
	}
	if s == (client.Spend{}) {
		return s, usagef("a budget needs a limit: --money, --tokens, --steps, --running or --sandbox").
			WithHint("outboard budget set --help")
	}
	return s, nil
}

// wireBudget is a session's budget on the wire, which counts in whole cents.
func wireBudget(text string) (any, error) {
	c, err := outboard.ParseCost(text)
	if err != nil || c <= 0 || c%outboard.Cent != 0 {
		return nil, usagef("--budget %q is not an amount in dollars and cents such as 2.50", text)
	}
	return map[string]any{"type": "limit",
		"max_list_cost": map[string]string{"amount": strconv.FormatInt(c.Cents(), 10), "currency": "USD"}}, nil
}

// budgetTarget finds the id that a scope's argument means.
func budgetTarget(ctx context.Context, c *client.Client, scope, ref string) (string, error) {
	switch outboard.BudgetScope(scope) {
	case outboard.BudgetSession:
		s, err := findSession(ctx, c, ref)
		return s.ID, err
	case outboard.BudgetAgent:
		return existingAgent(ctx, c, ref)
	case outboard.BudgetOwner:
		return findUser(ctx, c, ref)
	}
	return "", usagef("a budget is over a session, an agent or an owner, not over %q", scope)
}

func runBudgetSet(ctx context.Context, a *app, scope, ref string, l limits) error {
	spend, err := l.spend()
	if err != nil {
		return err
	}
	c, err := a.connect(ctx, needAnswers)
	if err != nil {
		return err
	}
	defer c.Close()
	target, err := budgetTarget(ctx, c.Client, scope, ref)
	if err != nil {
		return err
	}
	b, err := c.SetBudget(ctx, client.NewBudget{Scope: scope, Target: target, Limit: spend})
	if err != nil {
		return err
	}
	if a.json {
		return a.object(budgetLine{"budget", b})
	}
	_, err = fmt.Fprintln(a.out, b.ID)
	return err
}

// budgetLine is a budget in machine output.
type budgetLine struct {
	Type string `json:"type"`
	client.Budget
}

func runBudgets(ctx context.Context, a *app, session string) error {
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	if session != "" {
		s, err := findSession(ctx, c.Client, session)
		if err != nil {
			return err
		}
		session = s.ID
	}
	var table [][]string
	used := false
	for b, err := range c.Budgets(ctx, session) {
		if err != nil {
			return err
		}
		used = used || b.UsedUp != nil
		if a.json {
			if err := a.object(budgetLine{"budget", b}); err != nil {
				return err
			}
			continue
		}
		state := ""
		if b.UsedUp != nil {
			state = "used up: " + *b.UsedUp
		}
		table = append(table, []string{term.Line(b.Scope, 10), term.Line(b.Target, 40), strings.Join(spentOf(b), ", "),
			state})
	}
	if a.json {
		return nil
	}
	if len(table) == 0 {
		a.say("there are no budgets")
		return nil
	}
	if err := term.Table(a.out, []string{"SCOPE", "TARGET", "SPENT", "STATE"}, table); err != nil || session == "" ||
		used {
		return err
	}
	v, err := look(ctx, c.Client, session)
	if err != nil || v.stop != restBudget {
		return err
	}
	a.say("session %s waits: of one of these there is less left than its next model call needs at least, the prompt "+
		"and a short answer", sessionName(session))
	a.say("hint: %s lets it go on", raiseBudget(ctx, c.Client, session))
	return nil
}

// raiseBudget is the command that raises the budget at which a session stopped. It names all limits, because the
// command sets all.
func raiseBudget(ctx context.Context, c *client.Client, session string) string {
	var b *client.Budget
	for next, err := range c.Budgets(ctx, session) {
		if err != nil {
			break // the command's help says the rest
		}
		if b == nil || b.UsedUp == nil && next.UsedUp != nil {
			b = &next
		}
	}
	if b == nil {
		return "outboard budget set"
	}
	target := b.Target
	if b.Scope == string(outboard.BudgetSession) {
		target = sessionName(target)
	}
	return "outboard budget set " + term.Line(b.Scope+" "+target, 0) + raisedLimits(b)
}

// raisedLimits are the limits of a budget as flags, with MORE for the one to raise.
func raisedLimits(b *client.Budget) string {
	short, out := "money", ""
	if b.UsedUp != nil {
		short, _, _ = strings.Cut(*b.UsedUp, " ") // "running time" is the flag running
	} else if b.Limit.Money == nil {
		short = "tokens"
	}
	flag := func(name, value string) {
		if name == short {
			value = "MORE"
		}
		out += " --" + name + " " + value
	}
	if l := b.Limit.Money; l != nil {
		flag("money", *l)
	}
	if l := b.Limit.Tokens; l != nil {
		flag("tokens", strconv.FormatInt(*l, 10))
	}
	if l := b.Limit.Steps; l != nil {
		flag("steps", strconv.FormatInt(*l, 10))
	}
	if l := b.Limit.Running; l != nil {
		flag("running", fmt.Sprint(*l)+"s")
	}
	if l := b.Limit.Sandbox; l != nil {
		flag("sandbox", fmt.Sprint(*l)+"s")
	}
	return out
}

// spentOf says of each limit how much is spent.
func spentOf(b client.Budget) []string {
	var out []string
	if l := b.Limit.Money; l != nil {
		out = append(out, "$"+dollarsOf(b.Spent.Money)+" of $"+dollarsOf(l))
	}
	number := func(limit, spent *int64, unit string) {
		if limit != nil {
			out = append(out, strconv.FormatInt(orZero(spent), 10)+" of "+strconv.FormatInt(*limit, 10)+" "+unit)
		}
	}
	number(b.Limit.Tokens, b.Spent.Tokens, "tokens")
	number(b.Limit.Steps, b.Spent.Steps, "steps")
	seconds := func(limit, spent *float64, unit string) {
		if limit != nil {
			d := func(s float64) string {
				return time.Duration(s * float64(time.Second)).Round(time.Millisecond).String()
			}
			out = append(out, d(orZero(spent))+" of "+d(*limit)+" "+unit)
		}
	}
	seconds(b.Limit.Running, b.Spent.Running, "running")
	seconds(b.Limit.Sandbox, b.Spent.Sandbox, "in sandboxes")
	return out
}

// dollarsOf is an amount in whole cents, rounded up.
func dollarsOf(text *string) string {
	if text == nil {
		return "0.00"
	}
	c, err := outboard.ParseCost(*text)
	if err != nil {
		return term.Line(*text, 20)
	}
	return (outboard.Cost(c.Cents()) * outboard.Cent).String()[1:]
}

func orZero[T int64 | float64](p *T) T {
	if p == nil {
		return 0
	}
	return *p
}

func runBudgetRemove(ctx context.Context, a *app, scope, ref string) error {
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	target, err := budgetTarget(ctx, c.Client, scope, ref)
	if err != nil {
		return err
	}
	id := string(outboard.BudgetOf(outboard.BudgetScope(scope), target))
	if err := c.RemoveBudget(ctx, id); err != nil {
		return err
	}
	if a.json {
		return a.object(map[string]string{"type": "budget_deleted", "id": id})
	}
	a.say("%s: removed", id)
	return nil
}
