package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/spf13/cobra"
)

// pruneAfter is how long an image stays that nobody uses, unless it is said.
const pruneAfter = 7 * 24 * time.Hour

func newImage(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "image", Short: "Look after the images that sandboxes begin with", RunE: groupRun,
		Args: cobra.ArbitraryArgs,
		Long: "Look after the OCI images that sandboxes begin with (docs/guide/images.md). An image is pulled when " +
			"it is first used; its name\n" +
			"means the same here until it is pulled again."}
	cmd.AddCommand(
		&cobra.Command{Use: "ls", Short: "List images", Args: exactArgs(),
			RunE: func(cmd *cobra.Command, _ []string) error { return runImageList(cmd.Context(), a) }},
		&cobra.Command{Use: "pull NAME", Short: "Bring an image here as its registry has it now",
			Args: exactArgs("an image"),
			RunE: func(cmd *cobra.Command, args []string) error { return runImagePull(cmd.Context(), a, args[0]) }},
		&cobra.Command{Use: "import FILE|- NAME", Short: "Give the image of a file a name",
			Args: exactArgs("a file", "a name"),
			Long: "Give a name to the image in a file: what docker save writes, or a tar of an OCI layout directory.",
			RunE: func(cmd *cobra.Command, args []string) error {
				return runImageImport(cmd.Context(), a, args[0], args[1])
			}},
		&cobra.Command{Use: "rm NAME", Short: "Forget what a name means", Args: exactArgs("an image"),
			RunE: func(cmd *cobra.Command, args []string) error { return runImageRemove(cmd.Context(), a, args[0]) }},
		newImagePrune(a))
	return cmd
}

type imageLine struct {
	Type string `json:"type"`
	client.Image
}

func runImageList(ctx context.Context, a *app) error {
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	list, err := c.Images(ctx)
	if err != nil {
		return err
	}
	var rows [][]string
	for _, i := range list {
		if a.json {
			if err := a.object(imageLine{"image", i}); err != nil {
				return err
			}
			continue
		}
		here := map[bool]string{true: "yes", false: "no"}[i.Present]
		short, _, _ := strings.Cut(strings.TrimPrefix(i.Digest, "sha256:")+"            ", " ")
		rows = append(rows, []string{term.Line(i.Name, 60), short[:min(12, len(short))], fmt.Sprint(i.Layers),
			formatBytes(i.Bytes), here, formatAge(time.Since(i.UsedAt))})
	}
	if a.json {
		return nil
	}
	if len(rows) == 0 {
		a.say("no images; an environment that names one has it pulled, and so does outboard image pull")
		return nil
	}
	return term.Table(a.out, []string{"IMAGE", "DIGEST", "LAYERS", "SIZE", "HERE", "USED"}, rows)
}

func runImagePull(ctx context.Context, a *app, name string) error {
	c, err := a.connect(ctx, needAnswers)
	if err != nil {
		return err
	}
	defer c.Close()
	i, err := c.PullImage(ctx, name)
	if err != nil {
		return err
	}
	return a.showImage(i)
}

// showImage prints what a name means now.
func (a *app) showImage(i client.Image) error {
	if a.json {
		return a.object(imageLine{"image", i})
	}
	_, err := fmt.Fprintf(a.out, "%s %s\n", term.Line(i.Name, 0), i.Digest)
	return err
}

func runImageImport(ctx context.Context, a *app, file, name string) error {
	r := a.in
	if file != "-" {
		f, err := os.Open(file)
		if errors.Is(err, os.ErrNotExist) {
			return outboard.Errorf(outboard.NotFound, "there is no file %s", term.Line(file, 0))
		}
		if err != nil {
			return err
		}
		defer f.Close()
		r = f
	}
	c, err := a.connect(ctx, needAnswers)
	if err != nil {
		return err
	}
	defer c.Close()
	i, err := c.ImportImage(ctx, name, r)
	if err != nil {
		return err
	}
	return a.showImage(i)
}

func runImageRemove(ctx context.Context, a *app, name string) error {
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.RemoveImage(ctx, name); err != nil {
		return err
	}
	if a.json {
		return a.object(map[string]string{"type": "image_deleted", "name": name})
	}
	a.say("forgotten; outboard image prune removes its layers")
	return nil
}

func newImagePrune(a *app) *cobra.Command {
	unused, all := pruneAfter, false
	cmd := &cobra.Command{Use: "prune", Short: "Remove what no sandbox uses", Args: exactArgs(),
		Long: "Remove the layers of images and packages that no sandbox uses and that none has begun with for a " +
			"while. What they were made\n" +
			"from is known: they are pulled or installed again when they are needed.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if all {
				unused = 0
			}
			return runImagePrune(cmd.Context(), a, unused)
		}}
	spanVar(cmd.Flags(), &unused, "unused", unused, "for how long nobody used it")
	cmd.Flags().BoolVar(&all, "all", false, "everything that no sandbox uses now")
	return cmd
}

func runImagePrune(ctx context.Context, a *app, unused time.Duration) error {
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	p, err := c.PruneImages(ctx, unused)
	if err != nil {
		return err
	}
	if a.json {
		return a.object(map[string]any{"type": "images_pruned", "layers": p.Layers, "size_bytes": p.Bytes})
	}
	a.say("%d layers removed, %s", p.Layers, formatBytes(p.Bytes))
	return nil
}
