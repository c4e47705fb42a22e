package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/audit"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/spf13/cobra"
)

// auditFilter is which records a command is about.
type auditFilter struct {
	actor, action, decision, text string
	since, until                  string
	limit                         int
}

func newAudit(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "audit", Short: "See, check and export the record of every effect",
		Args: cobra.ArbitraryArgs, RunE: groupRun}
	var f auditFilter
	ls := &cobra.Command{Use: "ls", Short: "List records, the newest last", Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runAuditList(cmd.Context(), a, f) }}
	f.flags(ls)
	ls.Flags().IntVarP(&f.limit, "limit", "n", 50, "how many of the newest")
	var out string
	export := &cobra.Command{Use: "export", Short: "Write every record, as JSON lines", Args: exactArgs(),
		Long: "Write every record once, in order, one JSON object per line in the shape of OCSF 1.3. What ties a " +
			"record to the log is in it too,\n" +
			"so outboard audit verify --file checks the export anywhere.",
		RunE: func(cmd *cobra.Command, _ []string) error { return runAuditExport(cmd.Context(), a, out) }}
	export.Flags().StringVarP(&out, "output", "o", "-", "file, or - for standard output")
	var key bool
	checkpoint := &cobra.Command{Use: "checkpoint", Short: "Sign the audit as it is now, and print the signature",
		Args: exactArgs(),
		Long: "Sign the number of records and the root of their tree, and print the signed note. Keep notes where " +
			"neither the database nor the\n" +
			"data directory reaches: outboard audit verify --checkpoint FILE holds the log against any of them. " +
			"--key prints the public key.",
		RunE: func(cmd *cobra.Command, _ []string) error { return runAuditCheckpoint(cmd.Context(), a, key) }}
	checkpoint.Flags().BoolVar(&key, "key", false, "print the public key that checks the notes")
	cmd.AddCommand(ls, newAuditVerify(a), export, checkpoint, newAuditRedact(a))
	return cmd
}

// flags adds those of a filter.
func (f *auditFilter) flags(cmd *cobra.Command) {
	s := cmd.Flags()
	s.StringVar(&f.actor, "actor", "", "only of this session, sandbox or key (its id)")
	s.StringVar(&f.action, "action", "", "only of this action, such as http.request")
	s.StringVar(&f.decision, "decision", "", "only allow, deny or ask")
	s.StringVar(&f.text, "text", "", "only with this text in a field")
	s.StringVar(&f.since, "since", "", "only from this time on, as 2006-01-02T15:04:05Z or a duration ago such as 2h")
	s.StringVar(&f.until, "until", "", "only before this time, written likewise")
}

// query is the filter as the API takes it.
func (f *auditFilter) query(order string, page int) (url.Values, error) {
	q := url.Values{"order": {order}, "limit": {strconv.Itoa(page)}}
	for name, value := range map[string]string{"actor": f.actor, "action": f.action, "decision": f.decision,
		"text": f.text} {
		if value != "" {
			q.Set(name, value)
		}
	}
	for name, value := range map[string]string{"since": f.since, "until": f.until} {
		if value == "" {
			continue
		}
		at, err := time.Parse(time.RFC3339, value)
		if ago, bad := time.ParseDuration(value); err != nil && bad == nil {
			at, err = time.Now().Add(-ago), nil
		}
		if err != nil {
			return nil, usagef("--%s: %q is not a time", name, value).
				WithHint("2006-01-02T15:04:05Z, or a duration ago such as 2h")
		}
		q.Set(name, at.UTC().Format(time.RFC3339))
	}
	return q, nil
}

func runAuditList(ctx context.Context, a *app, f auditFilter) error {
	if f.limit < 1 {
		return usagef("--limit must be at least 1")
	}
	q, err := f.query("desc", min(f.limit, auditPage))
	if err != nil {
		return err
	}
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	var list []client.AuditEntry
	for e, err := range c.Audit(ctx, q) {
		if err != nil {
			return err
		}
		if list = append(list, e); len(list) == f.limit {
			break
		}
	}
	if len(list) == 0 {
		a.say("there are no such records")
	}
	var rows [][]string
	for i := len(list) - 1; i >= 0; i-- {
		r := &list[i].AuditRecord
		if a.json {
			if err := a.object(auditLine{"audit.record", *r}); err != nil {
				return err
			}
		}
		rows = append(rows, []string{strconv.FormatInt(r.Num, 10), r.At.Format(time.RFC3339), r.Decision, r.Actor,
			r.Action, r.Resource, r.Rule})
	}
	if a.json || len(rows) == 0 {
		return nil
	}
	return term.Table(a.out, []string{"RECORD", "TIME", "DECISION", "ACTOR", "ACTION", "RESOURCE", "RULE"}, rows)
}

// auditPage is how many records are asked for at a time.
const auditPage = 1000

// auditLine is a record in machine output.
type auditLine struct {
	Type string `json:"type"`
	outboard.AuditRecord
}

func runAuditCheckpoint(ctx context.Context, a *app, key bool) error {
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	cp, err := c.CheckpointAudit(ctx)
	switch {
	case err != nil:
		return err
	case a.json:
		return a.object(cp)
	case key:
		_, err = fmt.Fprintln(a.out, cp.Public)
	default:
		_, err = fmt.Fprint(a.out, cp.Note)
	}
	return err
}

func newAuditRedact(a *app) *cobra.Command {
	var f auditFilter
	var fields []string
	var why string
	cmd := &cobra.Command{Use: "redact [RECORD...]", Short: "Take the text of records out for good",
		Args: cobra.ArbitraryArgs,
		Long: "Take fields out of records: those with the given numbers, or all that the filters select. The hashes " +
			"stay, so the log still\n" +
			"verifies, and a record says who did it, to which records and why. There is no way back. Backups and " +
			"exports are not changed.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return runAuditRedact(cmd.Context(), a, args, f, fields, why)
		}}
	f.flags(cmd)
	cmd.Flags().StringSliceVar(&fields, "field", []string{"actor", "resource", "detail"},
		"field to take out: "+strings.Join(audit.Fields, ", "))
	cmd.Flags().StringVar(&why, "why", "", "the reason, for the record")
	return cmd
}

func runAuditRedact(ctx context.Context, a *app, args []string, f auditFilter, fields []string, why string) error {
	if why == "" {
		return usagef("--why is missing").
			WithHint("the record of a redaction says who asked for it and on what grounds")
	}
	var nums []int64
	for _, arg := range args {
		n, err := strconv.ParseInt(arg, 10, 64)
		if err != nil || n < 1 {
			return usagef("%q is not the number of a record", arg).WithHint("outboard audit ls shows them")
		}
		nums = append(nums, n)
	}
	filtered := f != auditFilter{}
	if filtered == (len(nums) > 0) {
		return usagef("name records by number, or by filters such as --actor or --text")
	}
	q, err := f.query("asc", auditPage)
	if err != nil {
		return err
	}
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	if filtered {
		for e, err := range c.Audit(ctx, q) {
			if err != nil {
				return err
			}
			if e.Action != audit.ActionRedact {
				nums = append(nums, e.Num)
			}
		}
	}
	for todo := nums; len(todo) > 0; todo = todo[min(len(todo), auditPage):] {
		if err := c.RedactAudit(ctx, todo[:min(len(todo), auditPage)], fields, why); err != nil {
			return err
		}
	}
	if a.json {
		return a.object(map[string]any{"type": "audit.redaction", "records": len(nums), "fields": fields})
	}
	a.say("%s redacted: %s", count(len(nums), "record"), strings.Join(fields, ", "))
	return nil
}

func runAuditExport(ctx context.Context, a *app, out string) (err error) {
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	w, flush := exact(a.out)
	defer flush()
	if out != "-" {
		f, err := os.OpenFile(out, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // it is nobody else's to read
		if os.IsExist(err) {
			return outboard.Errorf(outboard.Conflict, "a file is already there: %s", term.Line(out, 0)).
				WithHint("-o FILE names another place")
		}
		if err != nil {
			return err
		}
		w = f
		defer func() {
			if e := f.Sync(); err == nil {
				err = e
			}
			if e := f.Close(); err == nil {
				err = e
			}
		}()
	}
	n := 0
	for e, err := range c.Audit(ctx, url.Values{"order": {"asc"}, "limit": {strconv.Itoa(auditPage)}}) {
		if err != nil {
			return err
		}
		line, err := audit.Export(audit.Entry(e), thisVersion().Version)
		if err != nil {
			return err
		}
		if _, err := w.Write(line); err != nil {
			return fmt.Errorf("writing the export: %w", err)
		}
		n++
	}
	if out != "-" {
		a.say("%s in %s", count(n, "record"), term.Line(out, 0))
	}
	return nil
}
