package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/kill"
	"github.com/outboard-dev/outboard/internal/server"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/spf13/cobra"
)

type killOptions struct {
	level, reason string
	lift, drill   bool
	ahead         bool
}

func newKill(a *app) *cobra.Command {
	var o killOptions
	cmd := &cobra.Command{Use: "kill session|agent|owner|credential|host|environment|all [ID]",
		Short: "Stop sessions at once, above every agent", Args: rangeArgs(0, 2, "what to kill"),
		Long: "Stop what a scope covers at once, until it is lifted. No new effect begins, open connections close, " +
			"model calls are cut, and\n" +
			"processes are frozen (--level pause) or killed (stop, the default). revoke also ends for good what the scope names.\n" +
			"The switch is a file in the data directory first, which works without a server and without its database.\n" +
			"--drill makes a session (or what the scope names) of its own, kills it at the level, and says how long " +
			"everything took.",
		RunE: func(cmd *cobra.Command, args []string) error {
			args = append(args, "", "")[:2]
			target := args[1]
			switch {
			case o.drill && o.lift:
				return usagef("--drill and --lift exclude each other")
			case o.ahead && (args[0] != string(outboard.KillHost) || o.drill || o.lift):
				return usagef("--ahead is for outboard kill host NAME")
			case o.drill:
				return runDrill(cmd.Context(), a, outboard.KillScope(cmp.Or(args[0], string(outboard.KillSession))),
					target, o)
			case args[0] == "":
				return usagef("what is to be killed?").WithHint("outboard kill --help")
			}
			return runKill(cmd.Context(), a, outboard.KillScope(args[0]), target, o)
		}}
	f := cmd.Flags()
	f.StringVar(&o.level, "level", "stop", "pause, stop or revoke")
	f.StringVar(&o.reason, "reason", "", "why, for the record")
	f.BoolVar(&o.lift, "lift", false, "end the kills of this scope instead")
	f.BoolVar(&o.drill, "drill", false, "measure a kill of something made for it; exit 1 when a promise is broken")
	f.BoolVar(&o.ahead, "ahead", false, "of a host: also one that is not known yet, for when it comes")
	cmd.AddCommand(&cobra.Command{Use: "ls", Short: "List the kills in force", Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runKills(cmd.Context(), a) }})
	return cmd
}

func runKill(ctx context.Context, a *app, scope outboard.KillScope, ref string, o killOptions) error {
	k := outboard.Kill{ID: outboard.NewID[outboard.KillID](outboard.PrefixKill), Scope: scope, Target: ref,
		Level:  outboard.KillLevel(o.level),
		Reason: o.reason, By: whoHere(), At: time.Now().UTC()}
	if k.Level.Rank() == 0 {
		return usagef("--level %q is not pause, stop or revoke", o.level)
	}
	if (scope == outboard.KillAll) != (ref == "") {
		return usagef("outboard kill all takes no id, and every other scope takes one").
			WithHint("outboard kill session ID")
	}
	data, err := a.dataThere() // a kill that nobody obeys would be told as one in force
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, server.KillWait)
	defer cancel()
	if o.lift {
		return liftKills(ctx, a, data, scope, ref)
	}
	if k.Target, err = killTarget(ctx, a, scope, ref); err != nil {
		return err
	}
	var unwritten error
	if a.env("OUTBOARD_URL") == "" { // the data directory is the server's
		unwritten = kill.WriteFile(server.KillDir(data), k) // a server that runs can be asked all the same
	}
	c, err := a.connect(ctx, needAnswers)
	if err == nil {
		defer c.Close()
		var r client.KillReport
		if r, err = c.Kill(ctx, client.NewKill{ID: string(k.ID), Scope: string(scope), Target: k.Target, Level: o.level,
			Reason: o.reason, Ahead: o.ahead}); err == nil {
			if over := textOf(r.Kill.Target); over != k.Target {
				a.say("%s is a key of %s: the kill is over all that is theirs, whatever key or sign-in",
					term.Line(k.Target, 40), term.Line(over, 40))
			}
			return errors.Join(kill.RemoveFile(server.KillDir(data), k.ID), showKillReport(a, r)) // the row is in force
		}
		switch scope {
		case outboard.KillOwner:
			err = orListed(err, "outboard key ls, outboard user ls")
		case outboard.KillCredential:
			err = orListed(err, "outboard secret ls")
		}
	}
	if a.env("OUTBOARD_URL") != "" {
		return err
	}
	if unwritten != nil {
		return errors.Join(err, unwritten)
	}
	if kind := outboard.KindOf(err); kind == outboard.Invalid || kind == outboard.NotFound || kind == outboard.Denied ||
		kind == outboard.Unauthenticated {
		return errors.Join(err, kill.RemoveFile(server.KillDir(data), k.ID)) // it was no kill
	}
	a.say("the kill is in force as %s for the servers on this data directory, and nobody could be asked what was in "+
		"flight: %v", k.ID, err)
	a.say("hint: servers on other machines do not know of it while their database is down: run this there, too")
	if a.json {
		return a.object(map[string]any{"type": "kill_file", "id": k.ID, "scope": scope, "target_id": k.Target,
			"level": k.Level})
	}
	return nil
}

// whoHere names who throws a kill that no server knows anybody by: the user of this machine. A server that is
// asked names the key instead.
func whoHere() string {
	name := "uid " + strconv.Itoa(os.Getuid())
	if u, err := user.Current(); err == nil && u.Username != "" {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return name
}

// killTarget finds the id that a scope's argument means. A name needs a server; an id needs nobody.
func killTarget(ctx context.Context, a *app, scope outboard.KillScope, ref string) (string, error) {
	prefix := map[outboard.KillScope]string{outboard.KillSession: outboard.PrefixSession,
		outboard.KillAgent:       outboard.PrefixAgent,
		outboard.KillEnvironment: outboard.PrefixEnvironment}[scope]
	switch {
	case scope == outboard.KillOwner && strings.Contains(ref, "@"): // an address
	case scope == outboard.KillAll, scope == outboard.KillOwner, scope == outboard.KillCredential, scope == outboard.KillHost:
		return ref, nil
	case prefix == "":
		return "", usagef("%q cannot be killed: name session, agent, owner, credential, host, environment or all",
			scope)
	case outboard.ValidID(prefix, ref) && len(ref) > len(prefix)+20:
		return ref, nil
	}
	c, err := a.connect(ctx, needAnswers)
	if err != nil {
		return "", err
	}
	defer c.Close()
	switch scope {
	case outboard.KillSession:
		s, err := findSession(ctx, c.Client, ref)
		return s.ID, err
	case outboard.KillAgent:
		return existingAgent(ctx, c.Client, ref)
	case outboard.KillOwner:
		return findUser(ctx, c.Client, ref)
	}
	return findEnvironment(ctx, c.Client, ref)
}

func showKillReport(a *app, r client.KillReport) error {
	if a.json {
		return a.object(struct {
			Type string `json:"type"`
			client.KillReport
		}{"kill_report", r})
	}
	for _, f := range r.InFlight {
		if _, err := fmt.Fprintf(a.out, "%s  %s  outcome %s\n", term.Line(sessionName(f.SessionID), 40),
			term.Line(f.What, 40), term.Line(f.Outcome, 20)); err != nil {
			return err
		}
	}
	flight := count(len(r.InFlight), "call")
	if r.Partial {
		flight = "at least " + flight
	}
	a.say("%s: in force after %s; in flight were %s, left are %s and %s", r.Kill.ID,
		formatDuration(time.Duration(r.Took*float64(time.Second))),
		flight, count(r.Machines, "machine"), count(r.Flows, "connection"))
	if r.Machines+r.Flows > 0 {
		return outboard.Errorf(outboard.Unavailable, "not everything has ended yet").
			WithHint("outboard kill again, or outboard doctor on the host")
	}
	return nil
}

func runKills(ctx context.Context, a *app) error {
	if _, err := a.dataThere(); err != nil {
		return err
	}
	list, err := killsInForce(ctx, a)
	if err != nil {
		return err
	}
	var table [][]string
	for _, k := range list {
		if a.json {
			if err := a.object(struct {
				Type string `json:"type"`
				client.Kill
			}{"kill", k}); err != nil {
				return err
			}
			continue
		}
		table = append(table, []string{term.Line(k.ID, 40), term.Line(k.Scope, 12), term.Line(textOf(k.Target), 40),
			term.Line(k.Level, 8), formatAge(time.Since(k.At)),
			term.Line(textOf(k.By), 20), term.Line(textOf(k.Reason), 40)})
	}
	switch {
	case a.json:
		return nil
	case len(table) == 0:
		a.say("no kill is in force")
		return nil
	}
	return term.Table(a.out, []string{"KILL", "SCOPE", "TARGET", "LEVEL", "AGE", "BY", "REASON"}, table)
}

func textOf(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// killsInForce asks the server, and when nobody answers reads the files.
func killsInForce(ctx context.Context, a *app) ([]client.Kill, error) {
	var out []client.Kill
	c, err := a.connect(ctx, needAnswers)
	if err == nil {
		defer c.Close()
		for k, err := range c.Kills(ctx) {
			if err != nil {
				return nil, err
			}
			out = append(out, k)
		}
		return out, nil
	}
	data, derr := a.dataDir()
	if derr != nil || a.env("OUTBOARD_URL") != "" {
		return nil, errors.Join(err, derr)
	}
	a.say("no server can be asked (%v); these are the files of %s", err, server.KillDir(data))
	files, err := kill.ReadFiles(server.KillDir(data))
	for _, f := range files {
		out = append(out, client.Kill{ID: string(f.ID), Scope: string(f.Scope), Target: &f.Target,
			Level: string(f.Level), At: f.At, Reason: &f.Reason, By: &f.By})
	}
	return out, err
}

func liftKills(ctx context.Context, a *app, data string, scope outboard.KillScope, ref string) error {
	target, err := killTarget(ctx, a, scope, ref)
	if err != nil {
		return err
	}
	list, err := killsInForce(ctx, a)
	if err != nil {
		return err
	}
	person := ""
	if scope == outboard.KillOwner && outboard.ValidID(outboard.PrefixKey, target) {
		person = personOf(ctx, a, target)
	}
	lifted := map[string]bool{}
	for _, k := range list {
		if k.Scope != string(scope) || textOf(k.Target) != target && (person == "" || textOf(k.Target) != person) ||
			lifted[k.ID] {
			continue
		}
		c, err := a.connect(ctx, needAnswers)
		if err == nil {
			err = c.LiftKill(ctx, k.ID)
			c.Close()
		}
		if err != nil && a.env("OUTBOARD_URL") == "" && outboard.KindOf(err) != outboard.Denied {
			a.say("no server could be told (%v); the file is removed", err)
			err = kill.RemoveFile(server.KillDir(data), outboard.KillID(k.ID))
		}
		if err != nil {
			return err
		}
		lifted[k.ID] = true
		if a.json {
			if err := a.object(map[string]string{"type": "kill_lifted", "id": k.ID}); err != nil {
				return err
			}
			continue
		}
		a.say("%s: lifted", k.ID)
	}
	if len(lifted) == 0 {
		return outboard.Errorf(outboard.NotFound, "no kill of %s %s is in force", scope, target).
			WithHint("outboard kill ls")
	}
	return nil
}

// personOf is whose key it is, or "": a kill over a person's key is one over the person.
func personOf(ctx context.Context, a *app, key string) string {
	c, err := a.connect(ctx, needAnswers)
	if err != nil {
		return ""
	}
	defer c.Close()
	k, err := c.Key(ctx, key)
	if err != nil {
		return "" // it is looked for by itself
	}
	return textOf(k.User)
}
