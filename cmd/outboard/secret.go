package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/spf13/cobra"
)

const (
	// defaultVault is where secrets go when no vault is named.
	defaultVault = "default"
	// maxSecretInput bounds what is read as a secret: a private key is the longest there is.
	maxSecretInput = 64 << 10
)

func newSecret(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "secret", Short: "Keep secrets that sessions use without seeing them",
		Args: cobra.ArbitraryArgs, RunE: groupRun}
	cmd.AddCommand(newSecretSet(a), newSecretList(a), newSecretRemove(a), newSecretTest(a), newSecretRotate(a))
	return cmd
}

type secretOptions struct {
	vault                 string
	env                   bool
	mcp, header, auth     string
	hosts, methods, paths []string
	in                    []string
	ports                 []int
}

func newSecretSet(a *app) *cobra.Command {
	var o secretOptions
	cmd := &cobra.Command{Use: "set NAME", Short: "Store a secret, or a new value of it", Args: exactArgs("a name"),
		Long: "Store a secret, read from standard input, or asked for on a terminal: never from the arguments.\n\n" +
			"By default the gateway sets it as a header on requests of the sandbox to --host, and the sandbox sees nothing of it.\n" +
			"With --env the sandbox has a variable NAME with a placeholder, which is replaced on the way to --host only, in the places\n" +
			"that --in names: header, body, path and query of a request.\n" +
			"Setting one that exists changes its value, and what else is given; running sessions have it within a " +
			"second.",
		Example: "  outboard secret set github --host api.github.com < token\n" +
			"  outboard secret set ANTHROPIC_API_KEY --env --host api.anthropic.com < key\n" +
			"  outboard secret set TELEGRAM_TOKEN --env --in path --host api.telegram.org < token\n" +
			"  outboard secret set anthropic --host api.anthropic.com --header 'x-api-key: {secret}' < key",
		RunE: func(cmd *cobra.Command, args []string) error { return runSecretSet(cmd.Context(), a, o, args[0]) }}
	f := cmd.Flags()
	vaultFlag(cmd, &o.vault)
	f.BoolVar(&o.env, "env", false, "a variable in the sandbox, NAME, with a placeholder in it")
	f.StringSliceVar(&o.in, "in", nil, "with --env, where in a request it is replaced: "+strings.Join(injectionPlaces,
		", ")+" (default header,body)")
	if err := cmd.RegisterFlagCompletionFunc("in", cobra.FixedCompletions(injectionPlaces,
		cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // there is no such flag
	}
	f.StringVar(&o.mcp, "mcp", "", "a bearer token for the MCP server at this URL")
	f.StringVar(&o.header, "header", "", "the header to set, with {secret} or {basic} in it (default "+
		"\"Authorization: Bearer {secret}\")")
	f.StringSliceVar(&o.hosts, "host", nil, "where it may go: a name, *.name or an IPv4 address")
	f.IntSliceVar(&o.ports, "port", nil, "at these ports only (default 443)")
	f.StringSliceVar(&o.methods, "method", nil, "with these methods only")
	f.StringSliceVar(&o.paths, "path", nil, "to these paths only; * is text within a segment, ** any segments")
	f.StringVar(&o.auth, "auth", "", "a JSON file with the credential's auth as the API takes it, without the secret")
	return cmd
}

func vaultFlag(cmd *cobra.Command, to *string) {
	cmd.Flags().StringVar(to, "vault", defaultVault, "vault: a name or an id")
}

// injectionPlaces are the places in a request where a placeholder is replaced, as the API calls them.
var injectionPlaces = []string{"header", "body", "path", "query"}

// location is where a placeholder is replaced, as the API takes it.
func (o *secretOptions) location() (map[string]bool, error) {
	if !o.env {
		return nil, usagef("--in is about the placeholder of a variable").
			WithHint("outboard secret set NAME --env --in %s", strings.Join(o.in, ","))
	}
	at := map[string]bool{}
	for _, place := range injectionPlaces {
		at[place] = false
	}
	for _, place := range o.in {
		if _, ok := at[place]; !ok {
			return nil, usagef("--in %q is no place in a request: %s", place,
				meant("", place, injectionPlaces)+strings.Join(injectionPlaces, ", "))
		}
		at[place] = true
	}
	return at, nil
}

// secretField is the member of an auth that holds the secret, by its type.
var secretField = map[string]string{outboard.AuthEnv: "secret_value", outboard.AuthHeader: "value",
	outboard.AuthBearer: "token",
	outboard.AuthOAuth:  "access_token", outboard.AuthAWS: "secret_access_key", outboard.AuthGitHub: "private_key"}

// describe returns the auth of a credential to make or change, without its secret.
func (o *secretOptions) describe(name string) (map[string]any, error) {
	auth := map[string]any{}
	put := func(key string, v any, given bool) {
		if given {
			auth[key] = v
		}
	}
	if len(o.in) > 0 {
		at, err := o.location()
		if err != nil {
			return nil, err
		}
		auth["injection_location"] = at
	}
	switch {
	case o.auth != "":
		b, err := os.ReadFile(o.auth)
		if err != nil {
			return nil, usagef("reading --auth: %v", err)
		}
		if err := json.Unmarshal(b, &auth); err != nil {
			return nil, usagef("reading --auth: %v", err)
		}
		return auth, nil
	case o.mcp != "":
		auth["type"], auth["mcp_server_url"] = outboard.AuthBearer, o.mcp
	case o.env:
		auth["type"], auth["secret_name"] = outboard.AuthEnv, name
		put("networking", map[string]any{"type": "limited", "allowed_hosts": o.hosts}, len(o.hosts) > 0)
		extra := map[string]any{"ports": o.ports, "methods": o.methods, "paths": o.paths}
		put("outboard", extra, len(o.ports)+len(o.methods)+len(o.paths) > 0)
	default:
		auth["type"], auth["name"] = outboard.AuthHeader, name
		put("hosts", o.hosts, len(o.hosts) > 0)
		put("ports", o.ports, len(o.ports) > 0)
		put("methods", o.methods, len(o.methods) > 0)
		put("paths", o.paths, len(o.paths) > 0)
		if o.header != "" {
			header, format, ok := strings.Cut(o.header, ":")
			if !ok {
				return nil, usagef("--header %q is not NAME: VALUE", o.header).
					WithHint("for example 'x-api-key: {secret}'")
			}
			auth["header"], auth["format"] = strings.TrimSpace(header), strings.TrimSpace(format)
		}
	}
	return auth, nil
}

func runSecretSet(ctx context.Context, a *app, o secretOptions, name string) error {
	auth, err := o.describe(name)
	if err != nil {
		return err
	}
	kind, _ := auth["type"].(string)
	field := secretField[kind]
	if field == "" {
		return usagef("--auth: %q is no type of credential", kind)
	}
	if _, there := auth[field]; there {
		return usagef("--auth holds the secret itself: leave %s out, it is read from standard input", field)
	}
	secret, err := a.readSecret(name)
	if err != nil {
		return err
	}
	auth[field] = secret
	c, err := a.connect(ctx, needAnswers)
	if err != nil {
		return err
	}
	defer c.Close()
	v, err := findVault(ctx, c.Client, o.vault, true)
	if err != nil {
		return err
	}
	old, found, err := findCredential(ctx, c.Client, v.ID, name)
	if err != nil {
		return err
	}
	if !found {
		made, err := c.CreateCredential(ctx, v.ID, map[string]any{"display_name": name, "auth": auth})
		return a.secretDone(made, "stored", err)
	}
	for _, fixed := range []string{"secret_name", "name", "mcp_server_url", "service", "region"} {
		delete(auth, fixed)
	}
	if o.auth == "" && !o.env && o.mcp == "" { // a new value needs no flags again
		auth["type"] = authOf(old).Type
		if f := secretField[authOf(old).Type]; f != field {
			delete(auth, field)
			auth[f] = secret
		}
	}
	made, err := c.UpdateCredential(ctx, v.ID, old.ID, map[string]any{"auth": auth})
	return a.secretDone(made, "changed", err)
}

// readSecret reads the secret: one line asked for on a terminal, without showing it, or all of standard input
// but a line break at its end.
func (a *app) readSecret(name string) (string, error) {
	var b []byte
	var err error
	if term.IsTerminal(a.in) {
		if !a.interactive() {
			return "", usagef("there is no secret on standard input").WithHint("outboard secret set %s < FILE", name)
		}
		fmt.Fprintf(a.errs, "value of %s (not shown): ", term.Clean(name))
		b, err = term.ReadPassword(a.in)
		fmt.Fprintln(a.errs)
	} else {
		b, err = io.ReadAll(io.LimitReader(a.in, maxSecretInput+1))
	}
	if err != nil {
		return "", fmt.Errorf("reading the secret: %w", err)
	}
	if len(b) > maxSecretInput {
		return "", outboard.Errorf(outboard.TooLarge, "the secret is over %d KB", maxSecretInput>>10)
	}
	s := strings.TrimRight(string(b), "\r\n")
	if s == "" {
		return "", usagef("the secret is empty").WithHint("give it on standard input: outboard secret set %s < FILE",
			name)
	}
	return s, nil
}

// secretAuth is what a list shows of a credential's auth.
type secretAuth struct {
	Type       string   `json:"type"`
	Name       string   `json:"name"`
	SecretName string   `json:"secret_name"`
	URL        string   `json:"mcp_server_url"`
	Hosts      []string `json:"hosts"`
	Header     string   `json:"header"`
	Networking struct {
		Type  string   `json:"type"`
		Hosts []string `json:"allowed_hosts"`
	} `json:"networking"`
}

func authOf(c client.Credential) (s secretAuth) {
	_ = json.Unmarshal(c.Auth, &s) // what is not there shows as nothing
	return s
}

func (s secretAuth) name(c client.Credential) string {
	for _, n := range []string{s.SecretName, s.Name, c.DisplayName, c.ID} {
		if n != "" {
			return n
		}
	}
	return ""
}

func (s secretAuth) where() string {
	switch {
	case s.URL != "":
		return s.URL
	case s.Networking.Type == "unrestricted":
		return "any host"
	}
	return strings.Join(append(s.Hosts, s.Networking.Hosts...), ", ")
}

// secretLine is a secret in a list.
type secretLine struct {
	Type    string    `json:"type"`
	ID      string    `json:"credential_id"`
	Name    string    `json:"name"`
	Vault   string    `json:"vault"`
	Kind    string    `json:"kind"`
	Where   string    `json:"where"`
	Updated time.Time `json:"updated_at"`
}

func lineOf(c client.Credential, vault string) secretLine {
	s := authOf(c)
	return secretLine{"secret", c.ID, s.name(c), vault, s.Type, s.where(), c.UpdatedAt}
}

func (a *app) secretDone(c client.Credential, verb string, err error) error {
	if err != nil {
		return err
	}
	l := lineOf(c, c.VaultID)
	if a.json {
		return a.object(l)
	}
	a.say("%s %s: %s to %s", verb, term.Clean(l.Name), l.Kind, term.Clean(l.Where))
	return nil
}

// findVault finds a vault by id or name. The default one is made when it is needed and not there.
func findVault(ctx context.Context, c *client.Client, ref string, create bool) (client.Vault, error) {
	var found []client.Vault
	for v, err := range c.Vaults(ctx) {
		if err != nil {
			return v, err
		}
		if v.ID == ref {
			return v, nil
		}
		if v.DisplayName == ref {
			found = append(found, v)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return found[0], outboard.Errorf(outboard.Invalid, "%d vaults are called %q", len(found), ref).
			WithHint("name one by its id: %s", found[0].ID)
	case create:
		return c.CreateVault(ctx, ref)
	}
	return client.Vault{}, outboard.Errorf(outboard.NotFound, "there is no vault %q", ref).
		WithHint("outboard secret ls")
}

// findCredential finds a credential of a vault by id or name.
func findCredential(ctx context.Context, c *client.Client, vault, name string) (client.Credential, bool, error) {
	for v, err := range c.Credentials(ctx, vault) {
		if err != nil {
			return v, false, err
		}
		if v.ID == name || v.DisplayName == name || authOf(v).name(v) == name {
			return v, true, nil
		}
	}
	return client.Credential{}, false, nil
}
