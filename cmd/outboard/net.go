package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/spf13/cobra"
)

func newNet(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "net", Short: "What a session or box may reach, and what it has asked for",
		RunE: groupRun, Args: cobra.ArbitraryArgs}
	cmd.AddCommand(newNetShow(a), newNetLog(a), newNetAllow(a), newNetRemove(a))
	return cmd
}

func newNetShow(a *app) *cobra.Command {
	return &cobra.Command{Use: "show SESSION", Short: "Everything a session or box may reach",
		Args: exactArgs("a session"), ValidArgsFunction: a.completeSessions,
		Long: "Print the effective allow-list of a session, or of the box with an id: nothing that is not in it can " +
			"be reached.",
		RunE: func(cmd *cobra.Command, args []string) error { return runNetShow(cmd.Context(), a, args[0]) }}
}

func newNetLog(a *app) *cobra.Command {
	var limit int
	cmd := &cobra.Command{Use: "log SESSION", Short: "The requests of a session or box, and the rule that decided each",
		Args:              exactArgs("a session"),
		ValidArgsFunction: a.completeSessions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return runNetLog(cmd.Context(), a, args[0],
				limit)
		}}
	cmd.Flags().IntVarP(&limit, "lines", "n", 100, "newest requests to print")
	return cmd
}

func newNetAllow(a *app) *cobra.Command {
	var once, session, rule, webSocket bool
	cmd := &cobra.Command{Use: "allow SESSION HOST[:PORT]", Short: "Let a session reach a host",
		Args:              exactArgs("a session", "a host"),
		ValidArgsFunction: a.completeSessions,
		Long: "Let a session reach a host that its environment does not allow. It counts at once. A rule of the " +
			"environment that denies the\n" +
			"host by name still holds. Without a port, 80 and 443 are meant. A connection becomes a WebSocket only " +
			"with --websocket.",
		RunE: func(cmd *cobra.Command, args []string) error {
			scope := "session"
			switch {
			case once:
				scope = "once"
			case rule:
				scope = "rule"
			}
			return runNetAllow(cmd.Context(), a, args[0], client.NetworkAllow{Host: args[1], Scope: scope,
				WebSocket: webSocket})
		}}
	cmd.Flags().BoolVar(&once, "once", false, "for one request")
	cmd.Flags().BoolVar(&session, "session", false, "for this session (the default)")
	cmd.Flags().BoolVar(&rule, "rule", false, "for this session, and as a rule of its environment for the next ones")
	cmd.Flags().BoolVar(&webSocket, "websocket", false, "by WebSocket, too")
	cmd.MarkFlagsMutuallyExclusive("once", "session", "rule")
	return cmd
}

func newNetRemove(a *app) *cobra.Command {
	var rule bool
	cmd := &cobra.Command{Use: "rm SESSION HOST[:PORT]", Short: "Take back what was allowed",
		Args:              exactArgs("a session", "a host"),
		ValidArgsFunction: a.completeSessions,
		Long: "Take back what net allow, or an answer, let a session reach. No request begins after it, and what it " +
			"let begin ends\n" +
			"within a second. " +
			"The host and port are those that net show lists; what the environment allows is not taken back.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return runNetRemove(cmd.Context(), a, args[0], args[1], rule)
		}}
	cmd.Flags().BoolVar(&rule, "rule", false, "also the rule of its environment, for the next sessions")
	return cmd
}

// netSession connects and finds the session.
func netSession(ctx context.Context, a *app, ref string) (*conn, client.Session, error) {
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return nil, client.Session{}, err
	}
	s, err := findSession(ctx, c.Client, ref)
	if err != nil {
		c.Close()
		return nil, s, err
	}
	return c, s, nil
}

// netHolder is a session or a box, by what it may reach and what it has asked for.
type netHolder struct {
	name string
	show func(ctx context.Context) (client.Network, error)
	log  func(ctx context.Context, most int) ([]client.NetworkRecord, error)
}

// netOf connects and finds a session, or a box by the whole of its id.
func netOf(ctx context.Context, a *app, ref string) (*conn, netHolder, error) {
	if outboard.BoxID(ref).Valid() {
		c, err := a.connect(ctx, needThere)
		if err != nil {
			return nil, netHolder{}, err
		}
		return c, netHolder{ref, func(ctx context.Context) (client.Network, error) { return c.BoxNetwork(ctx, ref) },
			func(ctx context.Context, most int) ([]client.NetworkRecord, error) {
				return c.BoxNetworkLog(ctx, ref, most)
			}}, nil
	}
	c, s, err := netSession(ctx, a, ref)
	if err != nil {
		return nil, netHolder{}, err
	}
	return c, netHolder{sessionName(s.ID),
		func(ctx context.Context) (client.Network, error) { return c.Network(ctx, s.ID) },
		func(ctx context.Context, most int) ([]client.NetworkRecord, error) {
			return c.NetworkLog(ctx, s.ID, most)
		}}, nil
}

func runNetShow(ctx context.Context, a *app, ref string) error {
	c, whose, err := netOf(ctx, a, ref)
	if err != nil {
		return err
	}
	defer c.Close()
	n, err := whose.show(ctx)
	if err != nil {
		return err
	}
	if a.json {
		return a.object(n)
	}
	a.say("%s: networking is %s", whose.name, n.Mode)
	if n.Proxy != "" {
		a.say("what is allowed goes through the proxy %s", term.Clean(n.Proxy))
	}
	if n.Used.Requests > 0 {
		a.say("%d requests, %d bytes and %d hosts are used, or held by a running gateway", n.Used.Requests,
			n.Used.Bytes, n.Used.Hosts)
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "HOST\tPORTS\tMETHODS\tPATH\tWEBSOCKET\tTRUSTED\tBY")
	for _, r := range n.Allow {
		host := r.Host
		if r.Deny {
			host = "not " + host
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", term.Clean(host), ports(r.Port),
			orAll(strings.Join(r.Methods, ",")), orAll(term.Clean(r.Path)),
			yesNo(r.WebSocket), yesNo(r.Trusted), term.Clean(r.Source))
	}
	for _, g := range n.Grants {
		by := "allowed by " + g.By
		if g.Uses > 0 {
			by += fmt.Sprintf(", %d left", g.Uses)
		}
		fmt.Fprintf(w, "%s\t%s\tall\tall\t%s\tno\t%s\n", term.Clean(g.Host), ports(g.Port), yesNo(g.WebSocket),
			term.Clean(by))
	}
	return w.Flush()
}

func ports(n int) string {
	switch n {
	case 0:
		return "80,443"
	case -1:
		return "all"
	}
	return strconv.Itoa(n)
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

func orAll(s string) string {
	if s == "" {
		return "all"
	}
	return s
}

func runNetLog(ctx context.Context, a *app, ref string, limit int) error {
	c, whose, err := netOf(ctx, a, ref)
	if err != nil {
		return err
	}
	defer c.Close()
	list, err := whose.log(ctx, limit)
	if err != nil {
		return err
	}
	if len(list) == 0 && !a.json {
		a.say("%s has made no request", ref)
	}
	for i := len(list) - 1; i >= 0; i-- {
		r := list[i]
		if a.json {
			if err := a.object(r); err != nil {
				return err
			}
			continue
		}
		line := fmt.Sprintf("%s  %-5s  %s  (%s)", r.At, r.Decision, r.Request, r.Rule)
		var d struct {
			Reason string `json:"reason"`
		}
		if json.Unmarshal(r.Detail, &d) == nil && d.Reason != "" {
			line += ": " + d.Reason
		}
		if _, err := fmt.Fprintln(a.out, term.Clean(line)); err != nil {
			return err
		}
	}
	return nil
}

// hostPort splits HOST[:PORT]; port 0 means 80 and 443.
func hostPort(text string) (host string, port int, err error) {
	h, p, err := net.SplitHostPort(text)
	if err != nil {
		return text, 0, nil
	}
	if port, err = strconv.Atoi(p); err != nil || port < 1 {
		return "", 0, usagef("%q is not a host and a port", text)
	}
	return h, port, nil
}

func runNetRemove(ctx context.Context, a *app, ref, host string, rule bool) error {
	host, port, err := hostPort(host)
	if err != nil {
		return err
	}
	c, s, err := netSession(ctx, a, ref)
	if err != nil {
		return err
	}
	defer c.Close()
	d, err := c.DisallowNetwork(ctx, s.ID, host, port, rule)
	if err != nil {
		return err
	}
	if a.json {
		return a.object(d)
	}
	if d.Grants > 0 {
		a.say("%s may not reach %s (ports %s) any more, unless its environment allows it", sessionName(s.ID), d.Host,
			ports(d.Port))
	}
	if d.Rule {
		a.say("the rule of its environment is gone: the next sessions may not either")
	}
	return nil
}

func runNetAllow(ctx context.Context, a *app, ref string, in client.NetworkAllow) (err error) {
	if in.Host, in.Port, err = hostPort(in.Host); err != nil {
		return err
	}
	c, s, err := netSession(ctx, a, ref)
	if err != nil {
		return err
	}
	defer c.Close()
	g, err := c.AllowNetwork(ctx, s.ID, in)
	if err != nil {
		return err
	}
	if a.json {
		return a.object(g)
	}
	how := ""
	if g.WebSocket {
		how = " by WebSocket, too"
	}
	a.say("%s may reach %s (ports %s)%s, %s", sessionName(s.ID), g.Host, ports(g.Port), how,
		map[string]string{"once": "for one request",
			"session": "until it ends", "rule": "and so may the next sessions of its environment"}[in.Scope])
	return nil
}
