package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/spf13/cobra"
)

// verb is a command that asks the server one thing about what is there, and prints what it answers.
func verb(a *app, use, short string, args cobra.PositionalArgs,
	run func(ctx context.Context, c *conn, args []string) error) *cobra.Command {
	return asking(a, needThere, use, short, args, run)
}

// maker is a verb that may be the first one about a data directory.
func maker(a *app, use, short string, args cobra.PositionalArgs,
	run func(ctx context.Context, c *conn, args []string) error) *cobra.Command {
	return asking(a, needAnswers, use, short, args, run)
}

func asking(a *app, want need, use, short string, args cobra.PositionalArgs,
	run func(ctx context.Context, c *conn, args []string) error) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Args: args, RunE: func(cmd *cobra.Command, words []string) error {
		c, err := a.connect(cmd.Context(), want)
		if err != nil {
			return err
		}
		defer c.Close()
		return run(cmd.Context(), c, words)
	}}
}

func newOrg(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "org", Short: "Manage organizations", Args: cobra.ArbitraryArgs, RunE: groupRun}
	cmd.AddCommand(
		verb(a, "ls", "List the organizations you may know of", exactArgs(),
			func(ctx context.Context, c *conn, _ []string) error {
				return list(a, c.Orgs(ctx), []string{"ORGANIZATION", "NAME", "STATE"},
					func(o client.Organization) []string {
						return []string{o.ID, term.Line(o.Name, 40), living(o.ArchivedAt, "archived")}
					})
			}),
		maker(a, "create NAME", "Make an organization (only who runs the server)", exactArgs("a name"),
			func(ctx context.Context, c *conn, args []string) error {
				o, err := c.CreateOrg(ctx, args[0])
				return a.made(o, o.ID, err)
			}),
		verb(a, "rm ORGANIZATION", "End an organization: its keys and logins are refused, and its sessions stop, at "+
			"once", exactArgs("an organization"), func(ctx context.Context, c *conn, args []string) error {
			o, err := c.ArchiveOrg(ctx, args[0])
			return a.done(o, o.Name+": archived", orListed(err, "outboard org ls"))
		}))
	return cmd
}

func newUser(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "user", Short: "Manage the people of the organization", Args: cobra.ArbitraryArgs,
		RunE: groupRun}
	var all bool
	ls := verb(a, "ls", "List people", exactArgs(), func(ctx context.Context, c *conn, _ []string) error {
		return list(a, c.Users(ctx, all), []string{"USER", "EMAIL", "NAME", "ROLE", "STATE"},
			func(u client.User) []string {
				state := living(u.RemovedAt, "removed")
				if state == "" && !u.SignedIn {
					state = "has not signed in"
				}
				return []string{u.ID, term.Line(u.Email, 40), term.Line(u.Name, 30), u.Role, state}
			})
	})
	ls.Flags().BoolVarP(&all, "all", "a", false, "removed ones too")
	var name, role string
	create := maker(a, "create EMAIL", "Add a person, who signs in with that address", exactArgs("an address"),
		func(ctx context.Context, c *conn, args []string) error {
			u, err := c.AddUser(ctx, args[0], name, role)
			return a.made(u, u.ID, err)
		})
	create.Flags().StringVar(&name, "name", "", "their name")
	create.Flags().StringVar(&role, "role", outboard.RoleDeveloper, strings.Join(outboard.Roles, ", "))
	change := func(use, short, done string, ask func(*conn, context.Context, string) (client.User,
		error)) *cobra.Command {
		return verb(a, use, short, rangeArgs(1, -1, "a user"), func(ctx context.Context, c *conn, args []string) error {
			return eachOf(ctx, args, func(ref string) error {
				id, err := findUser(ctx, c.Client, ref)
				if err != nil {
					return err
				}
				u, err := ask(c, ctx, id)
				return a.done(u, u.Email+": "+done, orListed(err, "outboard user ls -a"))
			})
		})
	}
	cmd.AddCommand(ls, create,
		verb(a, "role USER ROLE", "Give a person another role; a lower one ends their keys and logins",
			exactArgs("a user", "a role"), func(ctx context.Context, c *conn, args []string) error {
				id, err := findUser(ctx, c.Client, args[0])
				if err != nil {
					return err
				}
				u, err := c.SetRole(ctx, id, args[1])
				return a.done(u, u.Email+": "+u.Role, orListed(err, "outboard user ls"))
			}),
		change("rm USER...", "End everything of a person: keys, also those they made, logins, grants, running sessions",
			"removed",
			func(c *conn, ctx context.Context, id string) (client.User, error) { return c.RemoveUser(ctx, id) }),
		change("restore USER...", "Let a removed person sign in again", "restored",
			func(c *conn, ctx context.Context, id string) (client.User, error) { return c.RestoreUser(ctx, id) }))
	return cmd
}

// findUser returns the id of a person named by id or address.
func findUser(ctx context.Context, c *client.Client, ref string) (string, error) {
	if !strings.Contains(ref, "@") {
		return ref, nil
	}
	for u, err := range c.Users(ctx, true) {
		if err != nil {
			return "", err
		}
		if strings.EqualFold(u.Email, ref) {
			return u.ID, nil
		}
	}
	return "", outboard.Errorf(outboard.NotFound, "there is no user %q", ref).WithHint("outboard user ls")
}

func newKey(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "key", Short: "Manage API keys", Args: cobra.ArbitraryArgs, RunE: groupRun}
	var all bool
	ls := verb(a, "ls", "List keys: yours, or all of the organization for an administrator", exactArgs(),
		func(ctx context.Context, c *conn, _ []string) error {
			name := peopleByID(ctx, c.Client)
			return list(a, c.Keys(ctx, all), []string{"KEY", "NAME", "KIND", "ROLE", "SCOPES", "OF", "MADE BY", "UNTIL"},
				func(k client.Key) []string {
					until := living(k.RevokedAt, "revoked")
					if until == "" && k.ExpiresAt != nil {
						until = term.Line(k.ExpiresAt.Local().Format("2006-01-02 15:04"), 20)
					}
					return []string{k.ID, term.Line(k.Name, 30), k.Kind, k.Role, strings.Join(k.Scopes, ","), name(k.User),
						name(k.Maker), until}
				})
		})
	ls.Flags().BoolVarP(&all, "all", "a", false, "revoked ones too")
	var n client.NewKey
	var last time.Duration
	create := maker(a, "create NAME", "Make a key and print its secret, once", exactArgs("a name"),
		func(ctx context.Context, c *conn, args []string) error {
			n.Name, n.Expires = args[0], int64(last.Seconds())
			if strings.Contains(n.User, "@") {
				id, err := findUser(ctx, c.Client, n.User)
				if err != nil {
					return err
				}
				n.User = id
			}
			k, err := c.CreateKey(ctx, n)
			if err == nil {
				a.say("key %s: keep its secret, nobody can read it again", k.ID)
			}
			return a.made(k, k.Secret, err)
		})
	f := create.Flags()
	f.StringVar(&n.Role, "role", "", strings.Join(outboard.Roles, ", ")+" (default developer)")
	f.StringSliceVar(&n.Scopes, "scope", nil, "what it may change: "+strings.Join(outboard.KeyScopes,
		", ")+"; may be repeated (default: all its role may)")
	f.StringVar(&n.User, "user", "", "whose key it is; it has no more than their role")
	f.StringVar(&n.Environment, "environment", "", "make it a worker's, of this self-hosted environment")
	spanVar(f, &last, "for", 0, "how long it lasts (default: until it is removed)")
	var made bool
	rm := verb(a, "rm KEY...", "End keys at once", rangeArgs(1, -1, "a key"),
		func(ctx context.Context, c *conn, args []string) error {
			revoke := c.RevokeKey
			if made {
				revoke = c.RevokeKeyAndMade
			}
			var left []string
			err := eachOf(ctx, args, func(id string) error {
				k, err := revoke(ctx, id)
				if err := a.done(k, k.ID+": revoked", orListed(err, "outboard key ls")); err != nil {
					return err
				}
				for _, m := range k.Made {
					if m.RevokedAt == nil && !slices.Contains(args, m.ID) {
						left = append(left, m.ID)
						a.say("%s (%s) was made with %s and goes on", m.ID, term.Line(m.Name, 30), k.ID)
					} else if made {
						a.say("%s (%s), made with it: revoked", m.ID, term.Line(m.Name, 30))
					}
				}
				return nil
			})
			if len(left) > 0 {
				a.say("hint: if somebody else has had the secret, they may know those too: outboard key rm %s",
					strings.Join(left, " "))
			}
			return err
		})
	rm.Flags().BoolVar(&made, "made", false, "also the keys that were made with them, and with those")
	cmd.AddCommand(newKeyRotate(a), newKeyRecover(a), ls, create, rm)
	return cmd
}

// peopleByID returns what shows a person by their address, and a key by its id. It asks for people when the
// first is to be shown.
func peopleByID(ctx context.Context, c *client.Client) func(id *string) string {
	var known map[string]string
	return func(id *string) string {
		if id == nil || !strings.HasPrefix(*id, outboard.PrefixUser) {
			return textOf(id)
		}
		if known == nil {
			known = map[string]string{}
			for u, err := range c.Users(ctx, true) {
				if err != nil {
					break // then they are shown by id
				}
				known[u.ID] = term.Line(u.Email, 40)
			}
		}
		return cmp.Or(known[*id], *id)
	}
}

func newWhoami(a *app) *cobra.Command {
	return verb(a, "whoami", "Say who you are to the server", exactArgs(),
		func(ctx context.Context, c *conn, _ []string) error {
			me, err := c.Whoami(ctx)
			if err != nil {
				return err
			}
			if a.json {
				return a.object(me)
			}
			who := "key " + me.Key.Name
			if me.User != nil {
				who = me.User.Email
			}
			_, err = fmt.Fprintf(a.out, "%s, %s in %s\n", term.Line(who, 80), me.Role, term.Line(me.Org.Name, 80))
			return err
		})
}

// living is "" for what goes on, and else what it is.
func living(ended *time.Time, what string) string {
	if ended == nil {
		return ""
	}
	return what
}

// made prints what was made: the whole as JSON, or the one thing that a script wants.
func (a *app) made(v any, id string, err error) error {
	if err != nil {
		return err
	}
	if a.json {
		return a.object(v)
	}
	_, err = fmt.Fprintln(a.out, id)
	return err
}

// done says that something was changed.
func (a *app) done(v any, what string, err error) error {
	if err != nil {
		return err
	}
	if a.json {
		return a.object(v)
	}
	a.say("%s", term.Line(what, 200))
	return nil
}

// list prints rows as a table, or one JSON object per line.
func list[T any](a *app, rows func(func(T, error) bool), head []string, cells func(T) []string) error {
	var table [][]string
	for v, err := range rows {
		if err != nil {
			return err
		}
		if a.json {
			if err := a.object(v); err != nil {
				return err
			}
			continue
		}
		table = append(table, cells(v))
	}
	if a.json {
		return nil
	}
	return term.Table(a.out, head, table)
}
