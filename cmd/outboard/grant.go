package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/spf13/cobra"
)

// grantOptions are the flags of grant add.
type grantOptions struct {
	human, agent, session string
	actions, resources    []string
	last                  time.Duration
	uses                  int
	why                   string
}

func newGrant(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "grant", Short: "Let calls pass for a while that would ask a person",
		Args: cobra.ArbitraryArgs, RunE: groupRun}
	var all bool
	ls := &cobra.Command{Use: "ls", Short: "List grants", Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runGrants(cmd.Context(), a, all) }}
	ls.Flags().BoolVarP(&all, "all", "a", false, "revoked ones too")
	var opt grantOptions
	add := &cobra.Command{Use: "add", Short: "Add a grant", Args: exactArgs(),
		Long: "Add a grant. It never lifts a deny. A resource is the command of bash, the path of a file tool or " +
			"the address of web_fetch; a * at\n" +
			"its end stands for any text without line breaks.",
		RunE: func(cmd *cobra.Command, _ []string) error { return runGrantAdd(cmd.Context(), a, opt) }}
	f := add.Flags()
	f.StringVar(&opt.human, "human", "", "only sessions of this person, by address or id, or of this program's key")
	f.StringVar(&opt.agent, "agent", "", "only sessions of this agent (its id or name)")
	f.StringVar(&opt.session, "session", "", "only this session")
	f.StringSliceVar(&opt.actions, "action", nil, "action, such as bash; may be repeated")
	f.StringArrayVar(&opt.resources, "resource", nil, "what it may act on; may be repeated")
	spanVar(f, &opt.last, "for", time.Hour, "how long it lasts")
	f.IntVar(&opt.uses, "uses", 0, "how many calls may pass (default: any number)")
	f.StringVar(&opt.why, "why", "", "the reason, for the record")
	cmd.AddCommand(ls, add, &cobra.Command{Use: "rm ID...", Short: "End grants at once",
		Args: rangeArgs(1, -1, "a grant"),
		RunE: func(cmd *cobra.Command, args []string) error { return runGrantRemove(cmd.Context(), a, args) }})
	return cmd
}

func runGrants(ctx context.Context, a *app, all bool) error {
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	var table [][]string
	for g, err := range c.Grants(ctx, all) {
		if err != nil {
			return err
		}
		if a.json {
			if err := a.object(grantLine{"grant", g}); err != nil {
				return err
			}
			continue
		}
		table = append(table, []string{g.ID, term.Line(holder(g), 40), term.Line(strings.Join(g.Actions, ","), 20),
			term.Line(strings.Join(g.Resources, ","), 40),
			uses(g), until(g), term.Line(g.ApprovedName+": "+g.Why, 40)})
	}
	if a.json {
		return nil
	}
	if len(table) == 0 {
		a.say("there are no grants")
		return nil
	}
	return term.Table(a.out, []string{"GRANT", "FOR", "ACTIONS", "RESOURCES", "USES", "UNTIL", "WHY"}, table)
}

// grantLine is a grant in machine output.
type grantLine struct {
	Type string `json:"type"`
	client.Grant
}

// holder says whose calls a grant covers.
func holder(g client.Grant) string {
	var out []string
	if g.Session != nil {
		out = append(out, sessionName(*g.Session))
	}
	for _, id := range []*string{g.Agent, g.Human} {
		if id != nil {
			out = append(out, *id)
		}
	}
	if len(out) == 0 {
		return "everybody"
	}
	return strings.Join(out, " ")
}

func uses(g client.Grant) string {
	if g.MaxUses == nil {
		return fmt.Sprint(g.Uses)
	}
	return fmt.Sprintf("%d of %d", g.Uses, *g.MaxUses)
}

func until(g client.Grant) string {
	switch {
	case g.RevokedAt != nil:
		return "revoked"
	case time.Now().After(g.ExpiresAt):
		return "over"
	}
	return formatAge(time.Until(g.ExpiresAt))
}

func runGrantAdd(ctx context.Context, a *app, opt grantOptions) error {
	if len(opt.actions) == 0 || len(opt.resources) == 0 || opt.why == "" {
		return usagef("a grant needs --action, --resource and --why").WithHint("outboard grant add --help")
	}
	c, err := a.connect(ctx, needAnswers)
	if err != nil {
		return err
	}
	defer c.Close()
	n := client.NewGrant{Actions: opt.actions, Resources: opt.resources,
		ExpiresAt: time.Now().Add(opt.last).UTC(), MaxUses: opt.uses, Why: opt.why}
	if opt.human != "" {
		if n.Human, err = findUser(ctx, c.Client, opt.human); err != nil {
			return err
		}
	}
	if opt.agent != "" {
		if n.Agent, err = existingAgent(ctx, c.Client, opt.agent); err != nil {
			return err
		}
	}
	if opt.session != "" {
		s, err := findSession(ctx, c.Client, opt.session)
		if err != nil {
			return err
		}
		n.Session = s.ID
	}
	g, err := c.AddGrant(ctx, n)
	if err != nil {
		return err
	}
	if a.json {
		return a.object(grantLine{"grant", g})
	}
	_, err = fmt.Fprintln(a.out, g.ID)
	return err
}

func runGrantRemove(ctx context.Context, a *app, ids []string) error {
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	return eachOf(ctx, ids, func(id string) error {
		g, err := c.RevokeGrant(ctx, id)
		return a.done(grantLine{"grant", g}, string(g.ID)+": revoked", orListed(err, "outboard grant ls"))
	})
}
