package main

import (
	"bytes"
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

// listOptions are the flags of ls.
type listOptions struct {
	all    bool
	states []string
	agent  string
	owner  string
	since  span
	watch  bool
}

func newList(a *app) *cobra.Command {
	var o listOptions
	cmd := &cobra.Command{Use: "ls", Aliases: []string{"ps"}, Short: "List sessions", Args: exactArgs(),
		Long: "List sessions: those that wait for somebody first, then those that did not end well, those at work, " +
			"and the rest. Where the window\n" +
			"is narrow columns are left out; pipes get all of them.",
		Example: "  outboard ls --state approval,check\n  outboard ls -w --since 2h",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.watch {
				return watchList(cmd.Context(), a, o)
			}
			return runList(cmd.Context(), a, o)
		}}
	f := cmd.Flags()
	f.BoolVarP(&o.all, "all", "a", false, fmt.Sprintf("every session, stopped ones too (default: the newest %d, and "+
		"all that wait)", listed))
	f.StringSliceVar(&o.states, "state", nil, "only in these states: "+strings.Join(states, ", "))
	f.StringVar(&o.agent, "agent", "", "only of this agent (its id or name)")
	f.StringVar(&o.owner, "owner", "", "only of this owner: a person's address or id, or a key")
	f.Var(&o.since, "since", "only those made in this time, such as 2h or 7d")
	f.BoolVarP(&o.watch, "watch", "w", false, "show the list again every two seconds until Ctrl-C")
	return cmd
}

// states are those of the list, what waits for somebody first.
var states = []string{"approval", "check", "failed", "budget", "refused", "cut", "unreadable", "running", "retrying",
	"idle", "done", "stopped"}

// rank orders sessions: what waits, what did not end well, what works, the rest.
func (l *sessionLine) rank() int {
	switch {
	case l.State == "approval" || len(l.Hosts) > 0:
		return 0
	case slices.Index(states, l.State) < slices.Index(states, "running"):
		return 1
	case l.State == "running" || l.State == "retrying":
		return 2
	case l.State == "stopped":
		return 4
	}
	return 3
}

// watchList redraws the list, with its warnings below it: the next redraw would overwrite warnings printed apart.
func watchList(ctx context.Context, a *app, o listOptions) error {
	if a.json || !term.IsTerminal(a.out) {
		return usagef("ls -w draws on a terminal").WithHint("outboard ls --json lists once")
	}
	out, errs := a.out, a.errs
	defer func() { a.out, a.errs = out, errs }() // for the error
	for {
		var page bytes.Buffer
		a.out, a.errs = sized{&page, out.(fileLike)}, &page
		if err := runList(ctx, a, o); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if _, err := fmt.Fprint(out, "\x1b[H\x1b[J"+screenful(page.String(), out)); err != nil {
			return err
		}
		select {
		case <-time.After(watchEvery):
		case <-ctx.Done():
			return nil
		}
	}
}

// screenful is the part of a page that a window has room for: what waits is on top, and must not scroll away.
func screenful(page string, window any) string {
	cols, rows := term.Size(window)
	var lines []string
	for line := range strings.Lines(page) {
		lines = append(lines, term.Wrap(strings.TrimSuffix(line, "\n"), cols)...)
	}
	if len(lines) >= rows { // the cursor has the last row
		fit := max(rows-2, 0)
		lines = append(lines[:fit], fmt.Sprintf("%d more; outboard ls shows all", len(lines)-fit))
	}
	return strings.Join(lines, "\n") + "\n"
}

// fileLike is a terminal.
type fileLike interface{ Fd() uintptr }

// sized is a page that is as wide as a terminal.
type sized struct {
	*bytes.Buffer
	fileLike
}

// sessionLine is a session in a list.
type sessionLine struct {
	Type    string    `json:"type"`
	ID      string    `json:"session_id"`
	Name    string    `json:"name"`
	State   string    `json:"state"`
	Doing   string    `json:"doing,omitempty"`
	Title   string    `json:"title,omitempty"`
	Agent   string    `json:"agent"`
	Owner   string    `json:"owner,omitempty"`
	Model   string    `json:"model"`
	Created time.Time `json:"created_at"`
	Tokens  int64     `json:"tokens"`
	Cost    string    `json:"list_cost_usd,omitempty"`
	Active  float64   `json:"active_seconds"`
	Hosts   []string  `json:"hosts,omitempty"` // that it was refused and nobody has decided about

	owner []string // by all its names
}

func runList(ctx context.Context, a *app, o listOptions) error {
	for _, state := range o.states {
		if !slices.Contains(states, state) {
			return usagef("--state %q is none: %s", state, meant("", state, states)+strings.Join(states, ", "))
		}
	}
	c, err := a.connect(ctx, needThere)
	if err != nil {
		return err
	}
	defer c.Close()
	agent := ""
	if o.agent != "" {
		if agent, err = existingAgent(ctx, c.Client, o.agent); err != nil {
			return err
		}
	}
	if strings.Contains(o.owner, "@") { // sessions name a person by their id
		if o.owner, err = findUser(ctx, c.Client, o.owner); err != nil {
			return err
		}
	}
	waits, err := waitingSessions(ctx, c.Client)
	if err != nil {
		return err
	}
	lines, more, err := o.collect(ctx, c.Client, agent, waits)
	if err != nil {
		return err
	}
	slices.SortStableFunc(lines, func(x, y sessionLine) int { return cmp.Compare(x.rank(), y.rank()) })
	if a.json {
		for _, l := range lines {
			if err := a.object(l); err != nil {
				return err
			}
		}
		return nil
	}
	if len(lines) == 0 && o.filtered() {
		a.say("no session fits")
		return nil
	}
	if len(lines) == 0 {
		a.say("no sessions yet; outboard run starts one")
		return nil
	}
	if err := printList(a, lines); err != nil {
		return err
	}
	if more {
		a.say("older sessions are left out; outboard ls -a lists all")
	}
	return nil
}

func (o *listOptions) filtered() bool {
	return len(o.states) > 0 || o.agent != "" || o.owner != "" || o.since > 0
}

// fits reports whether a session is asked for.
func (o *listOptions) fits(l sessionLine) bool {
	return (len(o.states) == 0 || slices.Contains(o.states, l.State) || slices.Contains(o.states, "approval") &&
		len(l.Hosts) > 0) &&
		(o.owner == "" || slices.ContainsFunc(l.owner,
			func(name string) bool { return strings.EqualFold(name, o.owner) }))
}

// waitingSessions are the sessions that wait for a person, with the hosts they were refused.
func waitingSessions(ctx context.Context, c *client.Client) (map[string][]string, error) {
	out := map[string][]string{}
	for p, err := range c.Approvals(ctx, "", false) {
		if err != nil {
			return nil, err
		}
		hosts := out[p.SessionID]
		if p.Network != nil {
			hosts = append(hosts, hostArgument(p.Network))
		}
		out[p.SessionID] = hosts
	}
	return out, nil
}

// collect describes the newest sessions that fit, and all that wait however old they are. more says that some
// were left out.
func (o *listOptions) collect(ctx context.Context, c *client.Client, agent string,
	waits map[string][]string) (lines []sessionLine, more bool, err error) {
	var since time.Time
	if o.since > 0 {
		since = time.Now().Add(-time.Duration(o.since))
	}
	seen := map[string]bool{}
	add := func(some []client.Session) error {
		described, err := describeSessions(ctx, c, some)
		for _, l := range described {
			if l.Hosts = waits[l.ID]; o.fits(l) && !seen[l.ID] {
				lines = append(lines, l)
			}
			seen[l.ID] = true
		}
		return err
	}
	want := batch
	if !o.all && !o.filtered() {
		want = listed
	}
	var some []client.Session
	for s, err := range c.SessionsSince(ctx, o.all, agent, since) {
		if err != nil {
			return nil, false, err
		}
		if !o.all && len(lines) >= listed {
			more = true
			break
		}
		if some = append(some, s); len(some) == want {
			if err := add(some); err != nil {
				return nil, false, err
			}
			some = some[:0]
		}
	}
	if err := add(some); err != nil {
		return nil, false, err
	}
	if !o.all && len(lines) > listed {
		lines, more = lines[:listed], true
		clear(seen)
		for _, l := range lines {
			seen[l.ID] = true
		}
	}
	var old []client.Session // that wait and are not among the newest
	for id := range waits {
		if seen[id] {
			continue
		}
		s, err := c.Session(ctx, id)
		if err != nil && outboard.KindOf(err) != outboard.NotFound {
			return nil, false, err
		}
		if err == nil && (agent == "" || s.Agent.ID == agent) && !s.CreatedAt.Before(since) {
			old = append(old, s)
		}
	}
	slices.SortFunc(old, func(x, y client.Session) int { return y.CreatedAt.Compare(x.CreatedAt) })
	return lines, more, add(old)
}

// column is one of the list, and the least width of a window that shows it.
type column struct {
	name string
	from int
	cell func(l sessionLine) string
}

var columns = []column{
	{"SESSION", 0, func(l sessionLine) string { return l.Name }},
	{"STATE", 0, func(l sessionLine) string { return l.State }},
	{"DOING", 0, func(l sessionLine) string { return l.Doing }},
	{"AGE", 0, func(l sessionLine) string { return formatAge(time.Since(l.Created)) }},
	{"TOKENS", 90, func(l sessionLine) string { return fmt.Sprint(l.Tokens) }},
	{"COST", 80, func(l sessionLine) string {
		if l.Cost == "" {
			return "-"
		}
		return "$" + l.Cost
	}},
	{"OWNER", 105, func(l sessionLine) string { return term.Line(l.Owner, 24) }},
	{"AGENT", 100, func(l sessionLine) string { return term.Line(l.Agent, 16) }},
	{"MODEL", 118, func(l sessionLine) string { return term.Line(l.Model, 28) }},
	{"TITLE", 70, func(l sessionLine) string { return term.Line(l.Title, 40) }},
}

// printList prints the columns that a window has room for, and cuts the last.
func printList(a *app, lines []sessionLine) error {
	width := 0
	if _, ok := a.out.(fileLike); ok {
		width = term.Width(a.out, 0)
	}
	var header []string
	rows := make([][]string, len(lines))
	for _, c := range columns {
		if width > 0 && width < c.from {
			continue
		}
		header = append(header, c.name)
		for i, l := range lines {
			cell := c.cell(l)
			if c.name == "DOING" {
				cell = l.shownDoing(width)
			}
			rows[i] = append(rows[i], cell)
		}
	}
	return term.TableWithin(a.out, width, header, rows)
}

// shownDoing is what a session does or asks for, cut to a share of the window.
func (l *sessionLine) shownDoing(width int) string {
	text := l.Doing
	if len(l.Hosts) > 0 {
		text = strings.TrimSpace("asks for " + strings.Join(l.Hosts, ", ") + "  " + text)
	}
	if width == 0 {
		return term.Line(oneLine(text), 0)
	}
	return term.Line(oneLine(text), max(16, width/3-8))
}

// describeSessions is describeSession of several, some of them at a time: a look is a round trip, and there may
// be thousands. One that was deleted meanwhile is left out.
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
	l := sessionLine{Type: "session", ID: s.ID, Name: sessionName(s.ID), State: s.Status, Title: s.Title,
		Agent: s.Agent.Name,
		Model: s.Agent.Model.ID, Created: s.CreatedAt, Tokens: s.Usage.Tokens(), Cost: s.Usage.Cost(), Active: s.Stats.Active}
	if s.Own != nil {
		l.Owner, l.owner = s.Own.Owner.Name, []string{s.Own.Owner.Name, s.Own.Owner.UserID, s.Own.Owner.KeyID}
	}
	switch {
	case s.ArchivedAt != nil || s.Status == "terminated":
		l.State = "stopped" // by outboard stop, or archived by a program
		return l, nil
	case s.Status == "rescheduling":
		l.State = "retrying"
		return l, nil
	}
	v, err := look(ctx, c, s.ID)
	if e, ok := errors.AsType[*outboard.Error](err); ok && (e.Code == outboard.CodeEventDamaged ||
		e.Code == outboard.CodeEventUnknown) {
		l.State = "unreadable" // which is no reason not to show the others
		return l, nil
	}
	if err != nil {
		return l, err
	}
	if s.Status == "idle" {
		l.State = map[string]string{restEndTurn: "done", restApproval: "approval", restExhausted: "failed",
			restBudget:  "budget",
			restRefusal: "refused", restCut: "cut"}[v.stop]
		if l.State == "" {
			l.State = "idle"
		}
		if (l.State == "done" || l.State == "cut") && checkFailed(s, v.tl.rested) {
			l.State = "check"
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
