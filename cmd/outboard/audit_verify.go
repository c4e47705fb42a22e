package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/audit"
	"github.com/outboard-dev/outboard/internal/server"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/spf13/cobra"
)

// verifyOptions are the flags of audit verify.
type verifyOptions struct {
	file        string
	checkpoints []string
	key         string
}

func newAuditVerify(a *app) *cobra.Command {
	var opt verifyOptions
	cmd := &cobra.Command{Use: "verify", Short: "Find the first record that is not as it was written",
		Args: exactArgs(),
		Long: "Read the whole log, or an export of it, and hold it against itself, against what the data directory " +
			"remembers of it, and against\n" +
			"signed checkpoints that were kept elsewhere. Exit 0: nothing was deleted, changed, moved, repeated or cut off. Exit 1: something\n" +
			"was, and the first such record is named.",
		RunE: func(cmd *cobra.Command, _ []string) error { return runAuditVerify(cmd.Context(), a, opt) }}
	f := cmd.Flags()
	f.StringVar(&opt.file, "file", "", "verify an export instead of the server's log; - for standard input")
	f.StringArrayVar(&opt.checkpoints, "checkpoint", nil, "file with a signed checkpoint; may be repeated")
	f.StringVar(&opt.key, "key", "", "file with the public key of the checkpoints (default: the data directory's)")
	return cmd
}

func runAuditVerify(ctx context.Context, a *app, opt verifyOptions) error {
	if opt.file != "" {
		return opt.verifyFile(a)
	}
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	trust, done, err := opt.trust(a, a.env("OUTBOARD_URL") == "") // before the log is read, which only grows
	if err != nil {
		return err
	}
	defer done()
	list := c.Audit(ctx, url.Values{"whole": {"true"}, "order": {"asc"}, "limit": {strconv.Itoa(auditPage)}})
	r, err := audit.Verify(func(yield func(audit.Entry, error) bool) {
		for e, err := range list {
			if !yield(audit.Entry(e), err) {
				return
			}
		}
	}, trust)
	if err != nil {
		return err
	}
	return showReport(a, r, len(trust.Checkpoints))
}

// verifyFile verifies an export.
func (o *verifyOptions) verifyFile(a *app) error {
	in := a.in
	if o.file != "-" {
		f, err := os.Open(o.file)
		if errors.Is(err, os.ErrNotExist) {
			return outboard.Errorf(outboard.NotFound, "there is no file %s", term.Line(o.file, 0))
		}
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	trust, done, err := o.trust(a, false) // the log has grown since
	if err != nil {
		return err
	}
	defer done()
	r, err := audit.Verify(audit.Exported(in), trust)
	if err != nil {
		return err
	}
	return showReport(a, r, len(trust.Checkpoints))
}

// trust collects what is known of the log from outside of it: with here, what this data directory's witness keeps.
func (o *verifyOptions) trust(a *app, here bool) (audit.Trust, func(), error) {
	done := func() {}
	var t audit.Trust
	data, err := a.dataDir()
	if err != nil {
		return t, done, err
	}
	key, err := o.publicKey(data)
	if err != nil {
		return t, done, err
	}
	if here && key != "" {
		if t, done, err = audit.TrustOf(server.AuditDir(data), key); err != nil {
			return t, func() {}, err
		}
	}
	for _, name := range o.checkpoints {
		text, err := os.ReadFile(name)
		if err != nil {
			return t, done, outboard.Errorf(outboard.NotFound, "reading a checkpoint: %w", err)
		}
		if key == "" {
			return t, done, usagef("--checkpoint needs --key: there is no key in %s", server.AuditDir(data)).
				WithHint("outboard audit checkpoint --key prints it")
		}
		c, err := audit.Open(key, text)
		if err != nil {
			return t, done, outboard.Errorf(outboard.Conflict, "%s: %w", term.Line(name, 0), err)
		}
		t.Checkpoints = append(t.Checkpoints, c)
	}
	return t, done, nil
}

// publicKey is the one that was named, or the data directory's, or "".
func (o *verifyOptions) publicKey(data string) (string, error) {
	if o.key != "" {
		key, err := audit.ReadKey(o.key)
		if err != nil {
			return "", outboard.Errorf(outboard.NotFound, "reading the key: %w", err)
		}
		return key, nil
	}
	key, err := audit.PublicOf(server.AuditDir(data))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return key, err
}

func showReport(a *app, r audit.Report, checkpoints int) error {
	if a.json {
		if err := a.object(struct {
			Type string `json:"type"`
			audit.Report
		}{"audit.report", r}); err != nil {
			return err
		}
	}
	if r.Bad != nil {
		good := "the records before it are as they were written; "
		if r.Bad.Num <= 1 {
			good = ""
		}
		return outboard.Errorf(outboard.Internal, "%s", r.Bad.Text).
			WithHint("%sdocs/reference/audit.md says how to go on", good)
	}
	if a.json {
		return nil
	}
	said := "nothing outside the log was given to hold it against"
	if checkpoints > 0 {
		said = fmt.Sprintf("the first %d are as they were signed", r.Signed)
	}
	_, err := fmt.Fprintf(a.out, "%s, nothing was changed; %s; root %s\n", count(int(r.Size), "record"), said, r.Root)
	return err
}
