package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"
)

func newBlob(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "blob", Short: "Look after stored content", RunE: groupRun, Args: cobra.ArbitraryArgs,
		Long: "Look after the content of files, checkpoints and long outputs, which lies in blobs of the server's " +
			"data directory."}
	cmd.AddCommand(newBlobPrune(a))
	return cmd
}

func newBlobPrune(a *app) *cobra.Command {
	unused, dry := pruneAfter, false
	cmd := &cobra.Command{Use: "prune", Short: "Remove content that nothing names any more", Args: exactArgs(),
		Long: "Remove content that nothing in the database names any more, such as the files of deleted sessions, " +
			"and that was last stored a\n" +
			"while ago. Content that an older backup of the database names goes too: keep blobs and database in the " +
			"same backup.",
		RunE: func(cmd *cobra.Command, _ []string) error { return runBlobPrune(cmd.Context(), a, unused, dry) }}
	spanVar(cmd.Flags(), &unused, "unused", unused, "for how long nobody stored it, at least 24h")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "remove nothing, only count")
	return cmd
}

func runBlobPrune(ctx context.Context, a *app, unused time.Duration, dry bool) error {
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	p, err := c.PruneBlobs(ctx, unused, dry)
	if err != nil {
		return err
	}
	if a.json {
		return a.object(map[string]any{"type": "blobs_pruned", "removed": p.Removed, "size_bytes": p.Bytes,
			"kept": p.Kept, "dry_run": dry})
	}
	done := "removed"
	if dry {
		done = "would be removed"
	}
	a.say("%d blobs %s, %s; %d stay", p.Removed, done, formatBytes(p.Bytes), p.Kept)
	return nil
}
