package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

// resource is a kind of object of the API that is listed, shown and changed as it is there.
type resource struct {
	name, short string
	path        string   // of the API
	label       string   // the member that names one for people
	columns     []string // of the list, after the id: members of the object, "model.id" for one inside another
	verbs       string   // of create, update, archive and rm, those that the API has
	versioned   bool     // a change names the version it is of
}

var resources = []resource{
	{"agent", "The agents that sessions run", "/v1/agents", "name", []string{"name", "version", "model.id",
		"updated_at"}, "create update archive", true},
	{"environment", "Where sessions run: network, packages, limits", "/v1/environments", "name",
		[]string{"name", "config.type", "updated_at"}, "create update archive rm", false},
	{"vault", "Keep credentials together that sessions may use", "/v1/vaults", "display_name",
		[]string{"display_name", "updated_at"}, "create update archive rm", false},
	{"file", "What was uploaded, and what sessions brought out", "/v1/files", "filename",
		[]string{"filename", "size_bytes", "created_at"}, "rm", false},
	{"model", "The models that agents can name", "/v1/models", "id", []string{"display_name", "created_at"}, "", false},
}

// newResource returns the commands of one kind; name is one of the table.
func newResource(a *app, name string) *cobra.Command {
	var r resource
	for _, r = range resources {
		if r.name == name {
			break
		}
	}
	cmd := &cobra.Command{Use: r.name, Short: r.short, Args: cobra.ArbitraryArgs, RunE: groupRun}
	upper, article := strings.ToUpper(r.name), "a "+r.name
	if strings.Contains("aeiou", r.name[:1]) {
		article = "an " + r.name
	}
	add := func(verb, use, short string, args cobra.PositionalArgs, run func(ctx context.Context, c *client.Client,
		args []string) error) {
		cmd.AddCommand(&cobra.Command{Use: strings.TrimSpace(verb + " " + use), Short: short, Args: args,
			RunE: func(cmd *cobra.Command, args []string) error {
				need := needThere
				if verb == "create" {
					need = needAnswers
				}
				c, err := a.connect(cmd.Context(), need)
				if err != nil {
					return err
				}
				defer c.Close()
				return run(cmd.Context(), c.Client, args)
			}})
	}
	add("ls", "", "List them, the newest first", exactArgs(),
		func(ctx context.Context, c *client.Client, _ []string) error { return r.list(ctx, a, c) })
	add("show", upper, "Print one, as the API has it", exactArgs(article),
		func(ctx context.Context, c *client.Client, args []string) error {
			o, err := r.find(ctx, c, args[0])
			if err != nil {
				return err
			}
			return a.printObject(o)
		})
	if strings.Contains(r.verbs, "create") {
		add("create", "FILE|-", "Make one from a YAML or JSON file", exactArgs("a file"),
			func(ctx context.Context, c *client.Client, args []string) error {
				return r.put(ctx, a, c, r.path, nil, args[0])
			})
		add("update", upper+" FILE|-", "Change what a YAML or JSON file names", exactArgs(article, "a file"),
			func(ctx context.Context, c *client.Client, args []string) error {
				o, err := r.find(ctx, c, args[0])
				if err != nil {
					return err
				}
				return r.put(ctx, a, c, r.path+"/"+text(o["id"]), o, args[1])
			})
		add("archive", upper+"...", "Let no new session use one; what exists stays", rangeArgs(1, -1, article),
			func(ctx context.Context, c *client.Client, args []string) error {
				return r.end(ctx, a, c, args, "archived",
					func(id string) error { return c.Post(ctx, r.path+"/"+id+"/archive", struct{}{}, nil) })
			})
	}
	if strings.Contains(r.verbs, "rm") {
		add("rm", upper+"...", "Delete them", rangeArgs(1, -1, article),
			func(ctx context.Context, c *client.Client, args []string) error {
				return r.end(ctx, a, c, args, "removed", func(id string) error { return c.Delete(ctx, r.path+"/"+id) })
			})
	}
	return cmd
}

// text is a member for a row, or a time as an age.
func text(v any) string {
	switch v := v.(type) {
	case nil:
		return "-"
	case string:
		if at, err := time.Parse(time.RFC3339Nano, v); err == nil {
			return formatAge(time.Since(at)) + " ago"
		}
		return v
	case json.Number:
		return v.String()
	}
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}

// member is o's member at a path with dots.
func member(o map[string]any, path string) any {
	first, rest, deeper := strings.Cut(path, ".")
	if inner, ok := o[first].(map[string]any); deeper && ok {
		return member(inner, rest)
	}
	return o[first]
}

func (r *resource) list(ctx context.Context, a *app, c *client.Client) error {
	header := []string{"ID"}
	for _, name := range r.columns {
		header = append(header, strings.ToUpper(strings.NewReplacer("_at", "", "_", " ", ".id", "", "config.", "").
			Replace(name)))
	}
	var rows [][]string
	for o, err := range c.Objects(ctx, r.path) {
		if err != nil {
			return err
		}
		if a.json {
			if err := a.object(o); err != nil {
				return err
			}
			continue
		}
		row := []string{text(o["id"])}
		for _, name := range r.columns {
			row = append(row, term.Line(text(member(o, name)), 60))
		}
		rows = append(rows, row)
	}
	if a.json {
		return nil
	}
	if len(rows) == 0 {
		a.say("there is no %s", r.name)
		return nil
	}
	return term.TableWithin(a.out, term.Width(a.out, 0), header, rows)
}

// find returns the object with an id, or the only live one with a name.
func (r *resource) find(ctx context.Context, c *client.Client, ref string) (map[string]any, error) {
	var found, names = []map[string]any(nil), []string(nil)
	for o, err := range c.Objects(ctx, r.path) {
		if err != nil {
			return nil, err
		}
		name := text(o[r.label])
		if o["id"] == ref {
			return o, nil
		}
		if names = append(names, name); name == ref {
			found = append(found, o)
		}
	}
	switch len(found) {
	case 0:
		return nil, outboard.Errorf(outboard.NotFound, "there is no %s %q", r.name, ref).
			WithHint("%soutboard %s ls lists them", meant("", ref, names), r.name)
	case 1:
		return found[0], nil
	}
	return nil, outboard.Errorf(outboard.Invalid, "%q means %d of them", ref, len(found)).
		WithHint("name one by its id: outboard %s ls", r.name)
}

// put creates or changes one from a file.
func (r *resource) put(ctx context.Context, a *app, c *client.Client, path string, old map[string]any,
	file string) error {
	body, err := a.readObject(file)
	if err != nil {
		return err
	}
	if r.versioned && old != nil && body["version"] == nil {
		body["version"] = old["version"]
	}
	var out map[string]any
	if err := c.Post(ctx, path, body, &out); err != nil {
		return err
	}
	if a.json {
		return a.object(out)
	}
	_, err = fmt.Fprintln(a.out, text(out["id"]))
	return err
}

func (r *resource) end(ctx context.Context, a *app, c *client.Client, refs []string, what string,
	do func(id string) error) error {
	return eachOf(ctx, refs, func(ref string) error {
		o, err := r.find(ctx, c, ref)
		if err == nil {
			err = do(text(o["id"]))
		}
		return a.done(map[string]any{"type": r.name + "." + what, "id": o["id"]}, term.Line(ref, 0)+": "+what, err)
	})
}

// readObject reads one YAML or JSON object, from standard input with "-".
func (a *app) readObject(file string) (map[string]any, error) {
	in := a.in
	if file != "-" {
		f, err := os.Open(filepath.Clean(file))
		if errors.Is(err, os.ErrNotExist) {
			return nil, outboard.Errorf(outboard.NotFound, "there is no file %s", term.Line(file, 0))
		}
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, maxAgentFile+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxAgentFile {
		return nil, outboard.Errorf(outboard.TooLarge, "%s is over %d bytes", term.Line(file, 0), maxAgentFile)
	}
	var out map[string]any
	if err := yaml.Unmarshal(b, &out); err != nil || out == nil {
		return nil, usagef("%s is not a YAML or JSON object: %v", term.Line(file, 0), err)
	}
	return out, nil
}

// printObject prints one object, as a line with --json and else as YAML.
func (a *app) printObject(o map[string]any) error {
	if a.json {
		return a.object(o)
	}
	b, err := yaml.Marshal(plainNumbers(o))
	if err != nil {
		return err
	}
	_, err = io.WriteString(a.out, term.Clean(string(b)))
	return err
}

// plainNumbers turns JSON's numbers into ones that YAML writes without quotes.
func plainNumbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = plainNumbers(v[k])
		}
	case []any:
		for i := range v {
			v[i] = plainNumbers(v[i])
		}
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		f, _ := v.Float64() // it is a number of JSON
		return f
	}
	return v
}
