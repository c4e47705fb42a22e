package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/spf13/cobra"
)

const (
	// listed is how many sessions ls shows without -a: about a screen.
	listed = 20
	// recent is how many events are read to tell what a session is doing.
	recent = 25
	// looks is how many sessions are looked at at a time, and batch how many before they are shown.
	looks, batch = 16, 100
)

func newList(a *app) *cobra.Command {
	var all bool
	cmd := &cobra.Command{Use: "ls", Aliases: []string{"ps"}, Short: "List sessions", Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runList(cmd.Context(), a, all) }}
	cmd.Flags().BoolVarP(&all, "all", "a", false, fmt.Sprintf("every session, stopped ones too (default: the newest %d)", listed))
	return cmd
}

// sessionLine is a session in a list.
type sessionLine struct {
	Type    string    `json:"type"`
	ID      string    `json:"session_id"`
	Name    string    `json:"name"`
	State   string    `json:"state"`
	Doing   string    `json:"doing,omitempty"`
	Title   string    `json:"title,omitempty"`
	Model   string    `json:"model"`
	Created time.Time `json:"created_at"`
	Tokens  int64     `json:"tokens"`
	Active  float64   `json:"active_seconds"`
}

func runList(ctx context.Context, a *app, all bool) error {
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	var rows [][]string
	var some []client.Session
	show := func() error {
		lines, err := describeSessions(ctx, c.Client, some)
		if err != nil {
			return err
		}
		some = some[:0]
		for _, l := range lines {
			if a.json {
				if err := a.object(l); err != nil {
					return err
				}
			}
			rows = append(rows, []string{l.Name, l.State, term.Line(l.Doing, 40), formatAge(time.Since(l.Created)), fmt.Sprint(l.Tokens), term.Line(l.Title, 40)})
		}
		return nil
	}
	more := false
	for s, err := range c.Sessions(ctx, all) {
		if err != nil {
			return err
		}
		if !all && len(some) == listed {
			more = true
			break
		}
		if some = append(some, s); len(some) == batch {
			if err := show(); err != nil {
				return err
			}
		}
	}
	if err := show(); err != nil {
		return err
	}
	if a.json {
		return nil
	}
	if len(rows) == 0 {
		a.say("no sessions yet; outboard run starts one")
		return nil
	}
	if err := term.Table(a.out, []string{"SESSION", "STATE", "DOING", "AGE", "TOKENS", "TITLE"}, rows); err != nil {
		return err
	}
	if more {
		a.say("older sessions are left out; outboard ls -a lists all")
	}
	return nil
}

// describeSessions is describeSession of several, some of them at a time: a look is a round trip, and there may be thousands. One that was
// deleted meanwhile is left out.
func describeSessions(ctx context.Context, c *client.Client, list []client.Session) ([]sessionLine, error) {
	lines, errs := make([]sessionLine, len(list)), make([]error, len(list))
	free := make(chan struct{}, looks)
	var wg sync.WaitGroup
	for i, s := range list {
		free <- struct{}{}
		wg.Go(func() {
			lines[i], errs[i] = describeSession(ctx, c, s)
			<-free
		})
	}
	wg.Wait()
	for i, err := range errs {
		if outboard.KindOf(err) == outboard.NotFound {
			errs[i], lines[i].ID = nil, ""
		}
	}
	return slices.DeleteFunc(lines, func(l sessionLine) bool { return l.ID == "" }), cmp.Or(errs...)
}

// describeSession says where a session stands. Only one that may be doing something costs a look at its newest events.
func describeSession(ctx context.Context, c *client.Client, s client.Session) (sessionLine, error) {
	l := sessionLine{Type: "session", ID: s.ID, Name: sessionName(s.ID), State: s.Status, Title: s.Title, Model: s.Agent.Model.ID,
		Created: s.CreatedAt, Tokens: s.Usage.Input + s.Usage.CacheRead + s.Usage.Output, Active: s.Stats.Active}
	switch {
	case s.ArchivedAt != nil || s.Status == "terminated":
		l.State = "stopped" // by outboard stop, or archived by a program
		return l, nil
	case s.Status == "rescheduling":
		l.State = "retrying"
		return l, nil
	}
	v, err := look(ctx, c, s.ID)
	if e, ok := errors.AsType[*outboard.Error](err); ok && (e.Code == outboard.CodeEventDamaged || e.Code == outboard.CodeEventUnknown) {
		l.State = "unreadable" // which is no reason not to show the others
		return l, nil
	}
	if err != nil {
		return l, err
	}
	if s.Status == "idle" {
		l.State = map[string]string{restEndTurn: "done", restApproval: "approval", restExhausted: "failed", restBudget: "budget",
			restRefusal: "refused", restCut: "cut"}[v.stop]
		if l.State == "" {
			l.State = "idle"
		}
	}
	if l.State == "approval" || s.Status == "running" {
		l.Doing = v.doing(time.Now())
	}
	return l, nil
}

// view is what the newest events of a session tell.
type view struct {
	stop    string // why it went idle last
	waiting []string
	tl      *timeline // with the open calls
}

// look reads the newest events.
func look(ctx context.Context, c *client.Client, id string) (view, error) {
	v := view{tl: silentTimeline()}
	var events []client.Event
	for ev, err := range c.Events(ctx, id, client.EventQuery{Desc: true, Limit: recent, Own: true}) {
		if err != nil {
			return v, err
		}
		if events = append(events, ev); len(events) == recent {
			break
		}
	}
	for i := len(events) - 1; i >= 0; i-- {
		ev := events[i]
		if err := v.tl.event(ev); err != nil {
			return v, err
		}
		if ev.Type != "session.status_idle" {
			continue
		}
		var w wireEvent
		if err := ev.Decode(&w); err != nil {
			return v, fmt.Errorf("reading event %s: %w", ev.ID, err)
		}
		if w.Stop != nil {
			v.stop, v.waiting = v.tl.rest(w.Stop.Type), w.Stop.EventIDs
		}
	}
	return v, nil
}

// doing names the oldest open call and how long it has been open.
func (v *view) doing(now time.Time) string {
	var first *openCall
	for _, c := range v.tl.calls {
		if first == nil || c.since.Before(first.since) {
			first = c
		}
	}
	if first == nil {
		return "model"
	}
	return strings.TrimSpace(first.name + " " + first.what + " (" + formatAge(now.Sub(first.since)) + ")")
}

// formatAge is a duration in one unit: 40s, 6m, 3h, 2d.
func formatAge(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", max(0, int(d.Seconds())))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
