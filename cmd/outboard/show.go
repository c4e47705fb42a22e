package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/spf13/cobra"
)

func newShow(a *app) *cobra.Command {
	return &cobra.Command{Use: "show SESSION", Short: "Show where a session stands", Args: exactArgs("a session"),
		ValidArgsFunction: a.completeSessions,
		RunE:              func(cmd *cobra.Command, args []string) error { return runShow(cmd.Context(), a, args[0]) }}
}

// waitingCall is a call that waits for an answer.
type waitingCall struct {
	Call     string `json:"call,omitempty"`
	Approval string `json:"approval,omitempty"`
	Tool     string `json:"tool,omitempty"`
	Host     string `json:"host,omitempty"` // that the session was refused
	Input    string `json:"input"`
	Request  string `json:"request,omitempty"` // the whole of it
	Digest   string `json:"digest,omitempty"`
	Why      string `json:"why,omitempty"`
	Custom   bool   `json:"custom,omitempty"`

	q *question
}

func waitsWith(q *question) waitingCall {
	w := waitingCall{Approval: q.approval.ID, Request: q.approval.Request, Digest: q.approval.Digest,
		Why: q.approval.Why, Custom: q.custom(), q: q}
	if q.host() {
		w.Host, w.Input = q.approval.Network.Host, q.approval.Resource
		return w
	}
	w.Call, w.Tool, w.Input = q.call.id, q.call.name, q.call.what
	return w
}

type showLine struct {
	sessionLine
	Environment string        `json:"environment_id"`
	Root        string        `json:"root,omitempty"`
	Parent      string        `json:"parent_id,omitempty"`
	ForkedAt    int64         `json:"forked_at_seq,omitempty"`
	Waiting     []waitingCall `json:"waiting,omitempty"`
}

func runShow(ctx context.Context, a *app, ref string) error {
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := findSession(ctx, c.Client, ref)
	if err != nil {
		return err
	}
	base, err := describeSession(ctx, c.Client, s)
	if err != nil {
		return err
	}
	l := showLine{sessionLine: base, Environment: s.EnvironmentID}
	l.Agent = fmt.Sprintf("%s v%d", s.Agent.Name, s.Agent.Version)
	if full, err := c.Session(ctx, s.ID); err != nil {
		return err
	} else if full.Own != nil {
		l.Parent, l.ForkedAt = full.Own.ParentID, full.Own.ForkedAt
	}
	if rec, err := loadSent(c.data, s.ID); err == nil {
		l.Root = rec.Root
	}
	calls, err := waitingCalls(ctx, c.Client, s.ID)
	if err != nil {
		return err
	}
	qs, err := questionsOf(ctx, c.Client, s.ID, calls)
	if err != nil {
		return err
	}
	for _, q := range qs {
		l.Waiting = append(l.Waiting, waitsWith(q))
	}
	if a.json {
		return a.object(l)
	}
	return printShow(a, l)
}

// waitingCalls returns the calls a session is parked at, in the order the model made them.
func waitingCalls(ctx context.Context, c *client.Client, id string) ([]*openCall, error) {
	var ids []string
	for ev, err := range c.Events(ctx, id, client.EventQuery{Desc: true, Limit: 10,
		Types: []string{"session.status_idle", "session.status_running"}}) {
		if err != nil {
			return nil, err
		}
		var w wireEvent
		if err := ev.Decode(&w); err != nil {
			return nil, fmt.Errorf("reading event %s: %w", ev.ID, err)
		}
		if w.Stop != nil {
			ids = w.Stop.EventIDs
		}
		break
	}
	if len(ids) == 0 {
		return nil, nil
	}
	tl := silentTimeline()
	q := client.EventQuery{Desc: true, Types: []string{"agent.tool_use", "agent.mcp_tool_use", "agent.custom_tool_use"}}
	for ev, err := range c.Events(ctx, id, q) {
		if err != nil {
			return nil, err
		}
		if slices.Contains(ids, ev.ID) {
			if err := tl.event(ev); err != nil {
				return nil, err
			}
		}
		if len(tl.calls) == len(ids) {
			break
		}
	}
	return tl.waiting(ids), nil
}

// dollars is a cost for people.
func dollars(cost string) string {
	if cost == "" {
		return ""
	}
	return "$" + cost
}

func printShow(a *app, l showLine) error {
	rows := [][2]string{{"session", l.Name + "  " + l.ID}, {"state", l.State}, {"doing", l.Doing}, {"title", l.Title},
		{"agent", l.Agent}, {"owner", l.Owner},
		{"model", l.Model}, {"from", l.Root}, {"created", l.Created.Local().Format(time.DateTime)}, {"tokens",
			fmt.Sprint(l.Tokens)}, {"cost", dollars(l.Cost)},
		{"active", formatDuration(time.Duration(l.Active * float64(time.Second)))}}
	if l.Parent != "" {
		rows = append(rows, [2]string{"fork of", fmt.Sprintf("%s@%d", sessionName(l.Parent), l.ForkedAt)})
	}
	for _, r := range rows {
		if r[1] == "" {
			continue
		}
		if _, err := fmt.Fprintln(a.out, term.Words(fmt.Sprintf("%-8s %s", r[0], term.Line(r[1], 0)),
			term.Width(a.out, 0), 9)); err != nil {
			return err
		}
	}
	for _, w := range l.Waiting {
		if err := w.print(a, l.Name); err != nil {
			return err
		}
	}
	return nil
}

// print shows the whole request, and the command that answers it.
func (w waitingCall) print(a *app, name string) error {
	what, next := w.Tool, "outboard approve "+name
	switch {
	case w.Host != "":
		what = "for the network: " + w.Input
	case w.Custom:
		what, next = w.Tool+", for its client's result", "outboard attach "+name
	}
	if w.Digest != "" {
		next += " --digest " + w.Digest[:min(shortDigest, len(w.Digest))]
	}
	if _, err := fmt.Fprintf(a.out, "waits    %s\n", term.Line(what, 0)); err != nil {
		return err
	}
	if err := printRequest(a.out, facts(w.q.approval), requestLines(w.q.request()), term.Width(a.out, 0)); err != nil {
		return err
	}
	_, err := fmt.Fprintf(a.out, "         %s\n", next)
	return err
}
