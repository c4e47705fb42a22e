package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/spf13/cobra"
)

// logEvery is how often a build that goes on is asked what it says: nobody tells a client.
const logEvery = 300 * time.Millisecond

func newTemplate(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "template", Short: "Prepare what sandboxes begin with", RunE: groupRun,
		Args: cobra.ArbitraryArgs,
		Long: "Prepare what sandboxes begin with: programs, a repository, its dependencies " +
			"(docs/guide/templates.md). A template is built once of\n" +
			"steps, and shared by every sandbox that begins with it. TEMPLATE is a name or an id."}
	cmd.AddCommand(newTemplateBuild(a), newTemplateList(a), newTemplateShow(a), newTemplateLogs(a),
		newTemplateRemove(a))
	return cmd
}

type templateBuildOptions struct {
	file     string
	tags     []string
	hosts    []string
	isolated string
	noCache  bool
	warm     int
	detach   bool
}

func newTemplateBuild(a *app) *cobra.Command {
	var o templateBuildOptions
	cmd := &cobra.Command{Use: "build NAME[:TAG] [DIR]", Short: "Build a template of the steps in a file",
		Args: rangeArgs(1, 2, "a name for the template"),
		Long: "Build a template and show what the build says. The steps are in DIR/Dockerfile, with Docker's own " +
			"words: FROM, RUN, COPY, ENV,\n" +
			"WORKDIR, USER, and besides START and READY, the commands of every sandbox that is made from it. COPY takes files of DIR,\n" +
			"but for those that DIR/.dockerignore names. FROM names an image, or base for the host's programs, or " +
			"template:NAME[:TAG].",
		RunE: func(cmd *cobra.Command, args []string) error {
			return runTemplateBuild(cmd.Context(), a, &o, args[0], append(args, ".")[1])
		}}
	f := cmd.Flags()
	f.StringVarP(&o.file, "file", "f", "", "the file with the steps (default DIR/Dockerfile)")
	f.StringArrayVarP(&o.tags, "tag", "t", nil, "another tag that means the build once it is ready")
	f.StringArrayVar(&o.hosts, "allow", nil, "a host that steps reach, besides the registries of package managers")
	f.StringVar(&o.isolated, "isolation", "", "technology of its sandboxes (default: the server's)")
	f.BoolVar(&o.noCache, "no-cache", false, "do steps again that were done before")
	f.IntVar(&o.warm, "warm", 0, "sandboxes of it that are started before anybody asks")
	f.BoolVarP(&o.detach, "detach", "d", false, "print the build's id and do not wait for its end")
	return cmd
}

func runTemplateBuild(ctx context.Context, a *app, o *templateBuildOptions, name, dir string) error {
	file := o.file
	if file == "" {
		file = filepath.Join(dir, "Dockerfile")
	}
	text, err := readRecipe(file)
	if err != nil {
		return err
	}
	r, err := parseRecipe(text)
	if err != nil {
		return fileError(file, err)
	}
	for _, what := range r.ignored {
		a.say("%s: %s", file, what)
	}
	c, err := a.connect(ctx, needWork)
	if err != nil {
		return err
	}
	defer c.Close()
	if o.detach && c.private != nil {
		return usagef("--detach needs a server that goes on").WithHint("outboard serve")
	}
	b, err := a.beginBuild(ctx, c, o, r, name, dir)
	if err != nil {
		return fileError(file, err)
	}
	if o.detach {
		return a.made(b, b.ID, nil)
	}
	return a.followBuild(ctx, c, b.Name, b)
}

// fileError says which file is wrong, where a line of it is.
func fileError(file string, err error) error {
	if e, ok := errors.AsType[*recipeError](err); ok {
		return usagef("%s:%d: %v", file, e.line, e.err).WithHint("docs/guide/templates.md lists what a file may say")
	}
	return err
}

// beginBuild uploads what is copied, and begins the build. The uploads are needed until then.
func (a *app) beginBuild(ctx context.Context, c *conn, o *templateBuildOptions, r *recipe, name,
	dir string) (b client.TemplateBuild, err error) {
	p, err := openContext(dir)
	if err != nil {
		return b, err
	}
	defer p.close()
	for i := range r.steps {
		s := &r.steps[i]
		if s.Type != "copy" {
			continue
		}
		f, err := p.upload(ctx, c.Client, s.Source)
		if err != nil {
			return b, &recipeError{s.line, err}
		}
		s.File = f.ID
		defer func() {
			if err := c.DeleteFile(context.WithoutCancel(ctx), f.ID); err != nil {
				a.say("the uploaded archive %s stays: %v", f.ID, err)
			}
		}()
	}
	body := map[string]any{"name": name, "tags": o.tags, "image": r.image, "from": r.from, "isolation": o.isolated,
		"allowed_hosts": o.hosts, "steps": r.steps,
		"start_command": r.start, "ready_command": r.ready, "no_cache": o.noCache, "warm": o.warm}
	return c.BuildTemplate(ctx, body)
}

// followBuild shows the log of a build from its beginning to its end. Ctrl-C ends the showing, not the build.
func (a *app) followBuild(ctx context.Context, c *conn, name string, b client.TemplateBuild) error {
	again := fmt.Sprintf("outboard template logs -f %s %s", name, b.ID)
	if b.State == "waiting" {
		a.say("build %s waits to be begun", b.ID)
	}
	err := a.buildLog(ctx, c.Client, name, b.ID, true)
	switch {
	case detached(ctx) && c.private != nil:
		a.say("the build ends with this command, which ran it")
		return &exitError{code: exitFailed}
	case detached(ctx):
		a.say("build %s goes on", b.ID)
		if !a.json {
			fmt.Fprintf(a.errs, "hint: %s\n", again)
		}
		return nil
	case err != nil:
		return err
	}
	if b, err = c.TemplateBuild(ctx, name, b.ID); err != nil {
		return err
	}
	return a.buildEnded(b)
}

// buildEnded says how a build went.
func (a *app) buildEnded(b client.TemplateBuild) error {
	if a.json {
		if err := a.object(b); err != nil {
			return err
		}
	}
	if b.State == "error" {
		if a.json {
			return &exitError{code: exitFailed}
		}
		return &exitError{exitFailed, outboard.Errorf(outboard.Invalid, "building %s: %s", b.Name, b.Error.Message)}
	}
	var names []string
	for _, tag := range b.Tags {
		names = append(names, b.Name+":"+tag)
	}
	a.say("%s ready; outboard box create --template %s", strings.Join(names, " "), names[0])
	return nil
}

type templateLogLine struct {
	Type string `json:"type"` // "template_log"
	client.TemplateLine
}

// buildLog prints the log of a build as far as it is there; with follow, until the build is over.
func (a *app) buildLog(ctx context.Context, c *client.Client, ref, build string, follow bool) error {
	from := 0
	for {
		l, err := c.TemplateLog(ctx, ref, build, from)
		if err != nil {
			return err
		}
		for _, line := range l.Data {
			if err := a.buildLine(line); err != nil {
				return err
			}
		}
		from = l.NextFrom
		last := l.Over() || !follow
		switch {
		case len(l.Data) > 0 && last:
			continue // there may be more of it
		case last:
			return nil
		}
		select {
		case <-time.After(logEvery):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (a *app) buildLine(l client.TemplateLine) error {
	if a.json {
		return a.object(templateLogLine{"template_log", l})
	}
	text := term.Clean(l.Message)
	if l.Level == "warn" || l.Level == "error" {
		text = l.Level + ": " + text
	}
	_, err := fmt.Fprintln(a.out, text)
	return err
}

func newTemplateList(a *app) *cobra.Command {
	return verb(a, "ls", "List templates", exactArgs(), func(ctx context.Context, c *conn, _ []string) error {
		var all []client.Template
		for t, err := range c.Templates(ctx) {
			if err != nil {
				return err
			}
			all = append(all, t)
		}
		if len(all) == 0 {
			a.say("no templates; outboard template build makes one")
			return nil
		}
		rows := func(yield func(client.Template, error) bool) {
			for _, t := range all {
				if !yield(t, nil) {
					return
				}
			}
		}
		return list(a, rows, []string{"TEMPLATE", "TAGS", "CHANGED", "ID"}, func(t client.Template) []string {
			tags := strings.Join(slices.Sorted(maps.Keys(t.Tags)), " ")
			if tags == "" {
				tags = "-"
			}
			return []string{t.Name, term.Line(tags, 60), formatAge(time.Since(t.UpdatedAt)), t.ID}
		})
	})
}

func newTemplateShow(a *app) *cobra.Command {
	return verb(a, "show TEMPLATE", "Show a template's tags and its newest builds", exactArgs("a template"),
		func(ctx context.Context, c *conn, args []string) error {
			t, err := c.Template(ctx, args[0])
			if err != nil {
				return orListed(err, "outboard template ls")
			}
			if a.json {
				if err := a.object(t); err != nil {
					return err
				}
			}
			means := map[string][]string{}
			for _, tag := range slices.Sorted(maps.Keys(t.Tags)) {
				means[t.Tags[tag].BuildID] = append(means[t.Tags[tag].BuildID], tag)
			}
			if !a.json {
				fmt.Fprintf(a.out, "%s  %s\n\n", t.Name, t.ID)
			}
			return list(a, c.TemplateBuilds(ctx, t.ID), []string{"BUILD", "STATE", "TAGS", "BEGINS WITH", "STEPS", "AGE"},
				func(b client.TemplateBuild) []string {
					image := "base"
					if b.Image != nil {
						image = *b.Image
					}
					tags := strings.Join(means[b.ID], " ")
					if tags == "" {
						tags = "-"
					}
					return []string{b.ID, b.State, term.Line(tags, 40), term.Line(image, 40), fmt.Sprint(b.Steps),
						formatAge(time.Since(b.CreatedAt))}
				})
		})
}

func newTemplateLogs(a *app) *cobra.Command {
	var follow bool
	cmd := verb(a, "logs TEMPLATE [BUILD]", "Show what a build said", rangeArgs(1, 2, "a template"),
		func(ctx context.Context, c *conn, args []string) error {
			b, err := findBuild(ctx, c.Client, args[0], append(args, "")[1])
			if err != nil {
				return orListed(err, "outboard template ls")
			}
			if follow {
				return a.followBuild(ctx, c, args[0], b)
			}
			return a.buildLog(ctx, c.Client, args[0], b.ID, false)
		})
	cmd.Long = "Show what a build said; without BUILD, the newest one of the template. With -f until it is over: " +
		"the exit code says how it went."
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the build is over")
	return cmd
}

// findBuild returns a build by its id, or the beginning of it; of "" the newest.
func findBuild(ctx context.Context, c *client.Client, ref, build string) (client.TemplateBuild, error) {
	var found []client.TemplateBuild
	for b, err := range c.TemplateBuilds(ctx, ref) {
		if err != nil {
			return b, err
		}
		if build == "" || b.ID == build {
			return b, nil
		}
		if strings.HasPrefix(b.ID, build) {
			found = append(found, b)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return client.TemplateBuild{}, outboard.Errorf(outboard.NotFound, "template %s has no build %q", ref, build).
			WithHint("outboard template show %s", ref)
	}
	return client.TemplateBuild{}, usagef("%d builds begin with %q", len(found), build).
		WithHint("outboard template show %s", ref)
}

func newTemplateRemove(a *app) *cobra.Command {
	cmd := verb(a, "rm TEMPLATE...", "Remove templates; what began with them goes on", rangeArgs(1, -1, "a template"),
		func(ctx context.Context, c *conn, args []string) error {
			return eachOf(ctx, args, func(ref string) error {
				err := orListed(c.DeleteTemplate(ctx, ref), "outboard template ls")
				return a.done(map[string]string{"type": "template_deleted", "id": ref}, ref+": removed", err)
			})
		})
	return cmd
}

// readRecipe reads a file with steps.
func readRecipe(file string) (string, error) {
	f, err := os.Open(file)
	if os.IsNotExist(err) {
		return "", outboard.Errorf(outboard.NotFound, "there is no file %s", term.Line(file, 0)).
			WithHint("-f names another; docs/guide/templates.md shows one")
	}
	if err != nil {
		return "", outboard.Errorf(outboard.Invalid, "opening the steps: %w", err)
	}
	defer f.Close()
	return readBounded(f, file)
}
