package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/spf13/cobra"
)

// maxPublicKey bounds what is read of a .pub file.
const maxPublicKey = 64 << 10

func newSSHKey(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "ssh-key", Short: "Manage the public keys that let you into sandboxes",
		Args: cobra.ArbitraryArgs, RunE: groupRun}
	var all bool
	ls := verb(a, "ls", "List SSH keys: yours, or all of the organization for an administrator", exactArgs(),
		func(ctx context.Context, c *conn, _ []string) error {
			return list(a, c.SSHKeys(ctx, all), []string{"KEY", "NAME", "FINGERPRINT", "UNTIL"},
				func(k client.SSHKey) []string {
					until := living(k.RevokedAt, "revoked")
					if until == "" && k.ExpiresAt != nil {
						until = term.Line(k.ExpiresAt.Local().Format("2006-01-02 15:04"), 20)
					}
					return []string{k.ID, term.Line(k.Name, 30), term.Line(k.Fingerprint, 60), until}
				})
		})
	ls.Flags().BoolVarP(&all, "all", "a", false, "revoked ones too")
	var name string
	var last time.Duration
	add := maker(a, "add [FILE]", "Register a public key", rangeArgs(0, 1),
		func(ctx context.Context, c *conn, args []string) error {
			public, err := a.publicKey(args)
			if err != nil {
				return err
			}
			k, err := c.AddSSHKey(ctx, name, public, last)
			return a.made(k, k.ID, err)
		})
	add.Long = "Register a public key. FILE is a .pub file, or - for standard input; the default is " +
		"~/.ssh/id_ed25519.pub.\n" +
		"After outboard login the key is yours until you are removed; else it ends with the API key that registers it."
	add.Flags().StringVar(&name, "name", "", "what to call it (default: its comment)")
	spanVar(add.Flags(), &last, "for", 0, "how long it lasts (default: until it is removed)")
	cmd.AddCommand(ls, add, verb(a, "rm KEY...", "End SSH keys, and within a second the connections they opened",
		rangeArgs(1, -1, "an SSH key"), func(ctx context.Context, c *conn, args []string) error {
			return eachOf(ctx, args, func(id string) error {
				k, err := c.RevokeSSHKey(ctx, id)
				return a.done(k, k.ID+": revoked", orListed(err, "outboard ssh-key ls"))
			})
		}))
	return cmd
}

// publicKey reads what is to be registered.
func (a *app) publicKey(args []string) (string, error) {
	from := filepath.Join(a.env("HOME"), ".ssh", "id_ed25519.pub")
	if len(args) == 1 {
		from = args[0]
	}
	r := a.in
	if from != "-" {
		f, err := os.Open(from)
		if err != nil {
			return "", outboard.Errorf(outboard.NotFound, "opening the public key: %w", err).
				WithHint("ssh-keygen -t ed25519 makes one; outboard ssh needs none")
		}
		defer f.Close()
		r = f
	}
	b, err := io.ReadAll(io.LimitReader(r, maxPublicKey+1))
	if err == nil && len(b) > maxPublicKey {
		err = usagef("%s is no public key: it has more than %d bytes", from, maxPublicKey)
	}
	return string(b), err
}
