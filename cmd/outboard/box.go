package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/spf13/cobra"
)

func newBox(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "box", Short: "Make and use sandboxes without a session", RunE: groupRun,
		Args: cobra.ArbitraryArgs,
		Long: "Make and use sandboxes of your own, with no agent in them. Programs that speak the E2B API see the " +
			"same ones (docs/reference/compat.md).\n" +
			"A BOX is an id, or the beginning of one."}
	cmd.AddCommand(newBoxList(a), newBoxCreate(a), newBoxExec(a), newBoxSSH(a), newBoxCopy(a), newBoxRemove(a))
	return cmd
}

// boxLine is a box in a list.
type boxLine struct {
	Type string `json:"type"`
	client.Box
}

func newBoxList(a *app) *cobra.Command {
	return &cobra.Command{Use: "ls", Short: "List boxes", Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runBoxList(cmd.Context(), a) }}
}

func runBoxList(ctx context.Context, a *app) error {
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	var rows [][]string
	for b, err := range c.Boxes(ctx) {
		if err != nil {
			return err
		}
		if a.json {
			if err := a.object(boxLine{"box", b}); err != nil {
				return err
			}
			continue
		}
		left := "-"
		if b.State == "running" {
			left = formatAge(time.Until(b.EndAt))
		}
		var meta []string
		for k, v := range b.Metadata {
			meta = append(meta, k+"="+v)
		}
		rows = append(rows, []string{b.ID, b.State, formatAge(time.Since(b.CreatedAt)), left, b.Template,
			term.Line(strings.Join(meta, " "), 40)})
	}
	if a.json {
		return nil
	}
	if len(rows) == 0 {
		a.say("no boxes; outboard box create makes one")
		return nil
	}
	return term.Table(a.out, []string{"BOX", "STATE", "AGE", "LEFT", "TEMPLATE", "METADATA"}, rows)
}

type boxCreateOptions struct {
	template string
	image    string
	ttl      time.Duration
	pause    bool
	env      []string
	meta     []string
}

func newBoxCreate(a *app) *cobra.Command {
	o := boxCreateOptions{template: "base", ttl: time.Hour}
	cmd := &cobra.Command{Use: "create", Short: "Make a box", Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runBoxCreate(cmd.Context(), a, &o) }}
	f := cmd.Flags()
	f.StringVar(&o.template, "template", o.template, "what it is made from: base, a snapshot, or a template (NAME "+
		"or NAME:TAG)")
	f.StringVar(&o.image, "image", "", "OCI image it begins with, instead of the host's programs")
	spanVar(f, &o.ttl, "ttl", o.ttl, "how long it lives")
	f.BoolVar(&o.pause, "pause", false, "pause it then, instead of removing it; any use wakes it, for 5 minutes at "+
		"least")
	f.StringArrayVarP(&o.env, "env", "e", nil, "NAME=VALUE in the environment of every process")
	f.StringArrayVarP(&o.meta, "metadata", "m", nil, "NAME=VALUE to find it by")
	return cmd
}

func runBoxCreate(ctx context.Context, a *app, o *boxCreateOptions) error {
	env, err := pairs("--env", o.env)
	if err != nil {
		return err
	}
	meta, err := pairs("--metadata", o.meta)
	if err != nil {
		return err
	}
	c, err := a.connect(ctx, needAnswers)
	if err != nil {
		return err
	}
	defer c.Close()
	end := map[bool]string{false: "kill", true: "pause"}[o.pause]
	body := map[string]any{"template": o.template, "timeout_seconds": int64(o.ttl.Seconds()), "on_timeout": end,
		"env": env, "metadata": meta}
	if o.image != "" {
		body["image"] = o.image
	}
	b, err := c.CreateBox(ctx, body)
	if err != nil {
		if o.image == "" { // an image is of no template
			err = orListed(err, "outboard template ls")
		}
		return err
	}
	if a.json {
		return a.object(boxLine{"box", b})
	}
	_, err = fmt.Fprintln(a.out, b.ID)
	return err
}

func pairs(flag string, list []string) (map[string]string, error) {
	out := map[string]string{}
	for _, kv := range list {
		k, v, ok := strings.Cut(kv, "=")
		if !ok || k == "" {
			return nil, usagef("%s %q is not NAME=VALUE", flag, kv)
		}
		out[k] = v
	}
	return out, nil
}

// findBox returns the box whose id is, or begins with, ref.
func findBox(ctx context.Context, c *client.Client, ref string) (client.Box, error) {
	var found []client.Box
	for b, err := range c.Boxes(ctx) {
		if err != nil {
			return b, err
		}
		if b.ID == ref {
			return b, nil
		}
		if ref != "" && strings.HasPrefix(b.ID, ref) {
			found = append(found, b)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return client.Box{}, outboard.Errorf(outboard.NotFound, "there is no box %q", ref).WithHint("outboard box ls")
	}
	return client.Box{}, usagef("%d boxes begin with %q", len(found), ref).WithHint("outboard box ls")
}

func newBoxRemove(a *app) *cobra.Command {
	return &cobra.Command{Use: "rm BOX...", Short: "Remove boxes with everything in them",
		Args: rangeArgs(1, -1, "a box"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect(cmd.Context(), needThere)
			if err != nil {
				return err
			}
			defer c.Close()
			return eachOf(cmd.Context(), args, func(ref string) error {
				b, err := findBox(cmd.Context(), c.Client, ref)
				if err == nil {
					err = c.DeleteBox(cmd.Context(), b.ID)
				}
				return a.done(map[string]string{"type": "box_deleted", "id": b.ID}, b.ID+": removed", err)
			})
		}}
}

func newBoxCopy(a *app) *cobra.Command {
	return &cobra.Command{Use: "cp FROM TO", Short: "Copy a file into a box or out of it",
		Args: exactArgs("what to copy", "where to"),
		Long: "Copy a file. One of FROM and TO is BOX:PATH, the other a path of this machine, or - for standard " +
			"input or output.\n" +
			"A copy is whole, or leaves what was there before.\n" +
			"For directories: outboard box exec BOX -- tar -C DIR -cf - . | tar -xf -",
		RunE: func(cmd *cobra.Command, args []string) error { return runBoxCopy(cmd.Context(), a, args[0], args[1]) }}
}

func runBoxCopy(ctx context.Context, a *app, from, to string) error {
	fromBox, fromPath, out := strings.Cut(from, ":")
	toBox, toPath, in := strings.Cut(to, ":")
	if in == out {
		return usagef("one of FROM and TO must be BOX:PATH, the other a path here")
	}
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	if in {
		return a.copyIn(ctx, c.Client, from, toBox, toPath)
	}
	return a.copyOut(ctx, c.Client, fromBox, fromPath, to)
}

func (a *app) copyIn(ctx context.Context, c *client.Client, from, ref, to string) error {
	b, err := findBox(ctx, c, ref)
	if err != nil {
		return err
	}
	r := a.in
	if from != "-" {
		f, err := os.Open(from)
		if err != nil {
			return outboard.Errorf(outboard.NotFound, "opening what to copy: %w", err)
		}
		defer f.Close()
		if fi, err := f.Stat(); err != nil || fi.IsDir() {
			return usagef("%s is a directory", from).WithHint("tar -cf - . | outboard box exec -i BOX -- tar -xf -")
		}
		r = f
	}
	if list, err := c.BoxFiles(ctx, b.ID, to); err == nil && list[0].Kind == "directory" && from != "-" {
		to = path.Join(to, path.Base(from))
	}
	_, err = c.WriteBoxFile(ctx, b.ID, to, r)
	return err
}

func (a *app) copyOut(ctx context.Context, c *client.Client, ref, from, to string) error {
	b, err := findBox(ctx, c, ref)
	if err != nil {
		return err
	}
	r, err := c.ReadBoxFile(ctx, b.ID, from)
	if err != nil {
		return err
	}
	defer r.Close()
	if to == "-" {
		w, flush := exact(a.out)
		defer flush()
		_, err := io.Copy(w, r)
		return err
	}
	if fi, err := os.Stat(to); err == nil && fi.IsDir() {
		name := path.Base(from)
		if name == "/" || name == "." || name == ".." {
			return usagef("%q is not the name of a file", from)
		}
		to += string(os.PathSeparator) + name
	}
	return keepWhole(to, func(w io.Writer) error {
		if _, err := io.Copy(w, r); err != nil {
			return c.BoxLost(ctx, b.ID, err)
		}
		return nil
	})
}

// keepWhole makes a file what fill writes, or leaves what was there: a copy that broke off must not look like
// one. What is no regular file, such as a device or a pipe, is written to as it is.
func keepWhole(name string, fill func(io.Writer) error) error {
	making := func(err error) error { return outboard.Errorf(outboard.Invalid, "making the copy: %w", err) }
	mode := os.FileMode(0o644)
	if fi, err := os.Stat(name); err == nil {
		there, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			return making(err)
		}
		if !fi.Mode().IsRegular() {
			return errors.Join(fill(there), there.Close())
		}
		there.Close()                                            // nothing was written
		if name, err = filepath.EvalSymlinks(name); err != nil { // a link stays one
			return making(err)
		}
		mode = fi.Mode().Perm()
	}
	half := name + ".half-" + rand.Text()
	f, err := os.OpenFile(half, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return making(err)
	}
	if err = errors.Join(fill(f), f.Close()); err == nil {
		err = os.Rename(half, name)
	}
	if err != nil {
		_ = os.Remove(half) // why it is of no use is the other error
	}
	return err
}
