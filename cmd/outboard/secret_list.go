package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/spf13/cobra"
)

func newSecretList(a *app) *cobra.Command {
	return &cobra.Command{Use: "ls", Short: "List secrets, never their values", Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runSecretList(cmd.Context(), a) }}
}

func runSecretList(ctx context.Context, a *app) error {
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	var rows [][]string
	for v, err := range c.Vaults(ctx) {
		if err != nil {
			return err
		}
		for s, err := range c.Credentials(ctx, v.ID) {
			if err != nil {
				return err
			}
			l := lineOf(s, v.DisplayName)
			if a.json {
				if err := a.object(l); err != nil {
					return err
				}
			}
			rows = append(rows, []string{l.Name, l.Vault, l.Kind, term.Line(l.Where, 50),
				formatAge(time.Since(l.Updated))})
		}
	}
	if a.json {
		return nil
	}
	if len(rows) == 0 {
		a.say("no secrets yet; outboard secret set stores one")
		return nil
	}
	return term.Table(a.out, []string{"SECRET", "VAULT", "KIND", "WHERE", "CHANGED"}, rows)
}

// withSecret runs fn on a secret that is there.
func withSecret(ctx context.Context, a *app, vault, name string, fn func(*conn, client.Credential) error) error {
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	v, err := findVault(ctx, c.Client, vault, false)
	if err != nil {
		return err
	}
	s, found, err := findCredential(ctx, c.Client, v.ID, name)
	if err != nil {
		return err
	}
	if !found {
		return outboard.Errorf(outboard.NotFound, "vault %q has no secret %q", v.DisplayName, name).
			WithHint("outboard secret ls")
	}
	return fn(c, s)
}

func newSecretRemove(a *app) *cobra.Command {
	var vault string
	cmd := &cobra.Command{Use: "rm NAME", Short: "Purge a secret: running sessions lose it within a second",
		Args: exactArgs("a secret"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withSecret(cmd.Context(), a, vault, args[0], func(c *conn, s client.Credential) error {
				if err := c.ArchiveCredential(cmd.Context(), s.VaultID, s.ID); err != nil {
					return err
				}
				a.say("purged %s", term.Clean(args[0]))
				if a.json {
					return a.object(map[string]string{"type": "secret_purged", "credential_id": s.ID})
				}
				return nil
			})
		}}
	vaultFlag(cmd, &vault)
	return cmd
}

func newSecretTest(a *app) *cobra.Command {
	var vault, method string
	cmd := &cobra.Command{Use: "test NAME URL",
		Short: "Would a secret be used on a request? Nothing is sent to the URL", Args: rangeArgs(2, 2, "a secret",
			"a URL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withSecret(cmd.Context(), a, vault, args[0], func(c *conn, s client.Credential) error {
				got, err := c.TestCredential(cmd.Context(), s.VaultID, s.ID, method, args[1])
				if err != nil {
					return err
				}
				if a.json {
					return a.object(map[string]any{"type": "secret_test", "used": got.Used, "reason": got.Reason})
				}
				if !got.Used {
					return outboard.Errorf(outboard.Denied, "%s is not used on that request: %s", args[0], got.Reason)
				}
				_, err = fmt.Fprintf(a.out, "%s is used on that request\n", term.Clean(args[0]))
				return err
			})
		}}
	vaultFlag(cmd, &vault)
	cmd.Flags().StringVar(&method, "method", "GET", "method of the request")
	return cmd
}

func newSecretRotate(a *app) *cobra.Command {
	return &cobra.Command{Use: "rotate-keys", Short: "Seal everything with new keys: of all organizations for who " +
		"runs the server", Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runSecretRotate(cmd.Context(), a) }}
}

func runSecretRotate(ctx context.Context, a *app) error {
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	all, err := c.RotateVaultKeys(ctx)
	if err != nil {
		return err
	}
	var failed []string
	for _, r := range all {
		if a.json {
			if err := a.object(rotationLine{"vault_keys_rotated", r}); err != nil {
				return err
			}
		}
		whose := ""
		if len(all) > 1 {
			whose = r.Org + ": "
		}
		if r.Error != nil {
			failed = append(failed, r.Org+": "+r.Error.Message)
			continue
		}
		a.say("%s%s sealed with new keys", whose, rotatedText(r))
		if r.Lost > 0 {
			a.say("%s%s cannot be opened by anybody: the key was given up before. Who signed in with it has to do "+
				"so again", whose, count(r.Lost, "token"))
		}
	}
	if len(failed) > 0 {
		return outboard.Errorf(outboard.Unavailable, "the keys of %s were not rotated, and theirs stay as they "+
			"were:\n%s", count(len(failed), "organization"), strings.Join(failed, "\n")).
			WithHint("repair that, and run it again")
	}
	return nil
}

type rotationLine struct {
	Type string `json:"type"`
	client.KeyRotation
}

// rotatedText names what was sealed anew.
func rotatedText(r client.KeyRotation) string {
	nouns := map[string][2]string{"login_renewals": {"login", "logins"},
		"login_withdrawals": {"token on its way back", "tokens on their way back"}}
	parts := []string{count(r.Credentials, "secret")}
	for _, table := range slices.Sorted(maps.Keys(r.Values)) {
		noun, ok := nouns[table]
		switch n := r.Values[table]; {
		case !ok:
			parts = append(parts, fmt.Sprintf("%d of %s", n, term.Clean(table)))
		case n == 1:
			parts = append(parts, "1 "+noun[0])
		default:
			parts = append(parts, fmt.Sprintf("%d %s", n, noun[1]))
		}
	}
	return strings.Join(parts, ", ")
}
