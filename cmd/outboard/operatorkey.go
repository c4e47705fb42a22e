package main

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/server"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/spf13/cobra"
)

// operatorKeyOptions name the database of a data directory as outboard serve does. The commands open it
// themselves: a key that is lost cannot let its owner in through the API.
type operatorKeyOptions struct {
	db     string
	config string
}

func (o *operatorKeyOptions) flags(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().StringVar(&o.db, "db", "", "PostgreSQL database of the server, postgres://... (default: as "+
		"configured, else SQLite in the data directory)")
	cmd.Flags().StringVar(&o.config, "config", "", "configuration file of the server (default config.yaml in the "+
		"data directory)")
	return cmd
}

func newKeyRotate(a *app) *cobra.Command {
	var o operatorKeyOptions
	return o.flags(&cobra.Command{Use: "rotate", Short: "Replace the operator's key in admin.key, and revoke the " +
		"old one", Args: exactArgs(),
		Long: "Replace the operator's key in admin.key, and revoke the old one.\n\n" +
			"It works on the database itself, so it runs on the server's machine, while the server runs or not. Servers and\n" +
			"commands of this data directory use the new key at once; copies of the old one elsewhere stop working.",
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), a, rotateKey) }})
}

func newKeyRecover(a *app) *cobra.Command {
	var o operatorKeyOptions
	return o.flags(&cobra.Command{Use: "recover", Short: "Make a new operator's key when the old one is lost, and " +
		"revoke all the others", Args: exactArgs(),
		Long: "Make a new operator's key when the one in admin.key is lost or not valid, and revoke every other " +
			"operator's key.\n\n" +
			"It works on the database itself, so it runs on the server's machine, while the server runs or not. A file admin.key\n" +
			"that is there is kept as admin.key.old. Keys of people and of organizations stay.",
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), a, recoverKey) }})
}

// keyChange is one change of the operator's key: what is living, and what admin.key holds ("" = nothing).
type keyChange struct {
	control *control.Control
	data    string
	living  []outboard.Key
	secret  string
	actor   string
}

func (o *operatorKeyOptions) run(ctx context.Context, a *app,
	change func(context.Context, *app, *keyChange) error) error {
	data, err := a.dataThere()
	if err != nil {
		return err
	}
	st, err := o.open(ctx, a, data)
	if err != nil {
		return err
	}
	defer st.Close()
	k := &keyChange{control: control.New(control.Config{Store: st, Logger: a.privateLogger()}), data: data,
		actor: "local:" + localUser()}
	if k.living, err = st.LivingOperatorKeys(ctx); err != nil {
		return err
	}
	if k.secret, err = readKey(data); err != nil {
		return dataError(data, err)
	}
	return change(ctx, a, k)
}

// open opens the database of a data directory. It makes none, and refuses one that is not the directory's.
func (o *operatorKeyOptions) open(ctx context.Context, a *app, data string) (*store.Store, error) {
	cfg, err := loadConfig(data, o.config, a.env)
	if err != nil {
		return nil, err
	}
	address := cmp.Or(o.db, cfg.DB)
	if err := checkDatabase(data, address); err != nil {
		return nil, err
	}
	if _, err := os.Stat(server.SQLitePath(data)); address == "" && errors.Is(err, fs.ErrNotExist) {
		return nil, outboard.Errorf(outboard.NotFound, "there is no database in %s", data).
			WithHint("name the server's with --db or --config, or its directory with --data")
	}
	st, err := store.Open(ctx, store.Config{Path: server.SQLitePath(data), URL: address, Logger: a.privateLogger()})
	if err != nil {
		return nil, err
	}
	if err := claimDatabase(ctx, data, address, st); err != nil {
		return nil, errors.Join(err, st.Close())
	}
	return st, nil
}

// localUser names the person at this machine, as far as it knows.
func localUser() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return strconv.Itoa(os.Getuid())
}

// rotateKey replaces a key that is known by a new one.
func rotateKey(ctx context.Context, a *app, k *keyChange) error {
	at := slices.IndexFunc(k.living, func(key outboard.Key) bool { return key.Hash == control.HashSecret(k.secret) })
	if k.secret == "" || at < 0 {
		return outboard.Errorf(outboard.Unauthenticated, "%s does not hold a living operator's key, so there is "+
			"none to rotate", keyPath(k.data)).
			WithHint("outboard key recover makes a new one")
	}
	return k.replace(ctx, a, "outboard key rotate, with the database at hand", k.living[at:at+1])
}

// recoverKey makes a key when nobody has one any more.
func recoverKey(ctx context.Context, a *app, k *keyChange) error {
	if k.secret != "" {
		if err := writePrivate(keyPath(k.data)+".old", k.secret+"\n"); err != nil {
			return dataError(k.data, err)
		}
	}
	return k.replace(ctx, a, "outboard key recover, with the database at hand", k.living)
}

// replace makes a new key, puts it into admin.key, and revokes old ones, in this order: when it is killed in
// between, admin.key holds a key that works, and the next call goes on.
func (k *keyChange) replace(ctx context.Context, a *app, why string, old []outboard.Key) error {
	next := keyPath(k.data) + ".next"
	old = slices.Concat(old, k.leftBy(next))
	made, err := k.control.AddAdminKey(ctx, k.actor, why,
		func(secret string) error { return writePrivate(next, secret+"\n") })
	if err != nil {
		return err
	}
	if err := os.Rename(next, keyPath(k.data)); err != nil {
		return dataError(k.data, err)
	}
	if err := k.control.RetireAdminKeys(ctx, k.actor, why, old); err != nil {
		return err
	}
	if a.json {
		type line struct {
			Type    string   `json:"type"`
			ID      string   `json:"id"`
			Path    string   `json:"path"`
			Revoked []string `json:"revoked"`
		}
		out := line{"operator_key", string(made.ID), keyPath(k.data), []string{}}
		for i := range old {
			out.Revoked = append(out.Revoked, string(old[i].ID))
		}
		return a.object(out)
	}
	a.say("the operator's key is now %s, in %s", made.ID, keyPath(k.data))
	for i := range old {
		a.say("revoked %s", old[i].ID)
	}
	return nil
}

// leftBy returns the living key of a change that was killed before its secret was in admin.key.
func (k *keyChange) leftBy(next string) []outboard.Key {
	b, err := os.ReadFile(next)
	if err != nil {
		return nil
	}
	hash := control.HashSecret(strings.TrimSpace(string(b)))
	return slices.DeleteFunc(slices.Clone(k.living), func(key outboard.Key) bool { return key.Hash != hash })
}
