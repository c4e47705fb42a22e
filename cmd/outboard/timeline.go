package main

import (
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/term"
	"github.com/outboard-dev/outboard/internal/tool/registry"
)

const (
	// plainWidth is the line width where there is no terminal to ask.
	plainWidth = 110
	// indent begins the lines below a row.
	indent = "                    "
	// shownOutput bounds the lines of a tool's output that a log shows, and shownFailure those of a failed
	// command while it is watched.
	shownOutput, shownFailure = 40, 20
)

// wireEvent is the union of the fields of the events a timeline shows.
type wireEvent struct {
	Type       string           `json:"type"`
	ID         string           `json:"id"`
	Name       string           `json:"name"`
	Input      json.RawMessage  `json:"input"`
	Permission string           `json:"evaluated_permission"`
	ToolUseID  string           `json:"tool_use_id"`
	CustomID   string           `json:"custom_tool_use_id"`
	Content    []client.Content `json:"content"`
	IsError    bool             `json:"is_error"`
	Result     string           `json:"result"`
	Deny       string           `json:"deny_message"`
	Stop       *stopReason      `json:"stop_reason"`
	Error      *struct {
		Type    string `json:"type"`
		Message string `json:"message"`
		Retry   struct {
			Type string `json:"type"`
		} `json:"retry_status"`
	} `json:"error"`
}

type stopReason struct {
	Type     string   `json:"type"`
	EventIDs []string `json:"event_ids"`
}

// openCall is a tool call that has no result yet.
type openCall struct {
	id     string
	name   string
	what   string
	input  json.RawMessage
	text   string // the result, until the outcome is told
	last   string // the last line of what it has said so far
	since  time.Time
	asked  bool
	custom bool
}

// timeline turns a session's events into lines for people. It shows what happened, not what is said about it:
// one line per call, with its outcome and how long it took.
type timeline struct {
	out   io.Writer
	st    term.Style
	width int
	zone  *time.Location

	retries int  // errors in a row
	gaveUp  int  // of the error that ended a turn: how often it was tried
	cut     bool // the newest response ended at the model's length limit

	users  bool // show what the user said
	output bool // show the calls' output
	tools  bool // show calls only
	seqs   bool // show positions
	seq    int64
	full   bool   // nothing is left out of an output
	whole  bool   // rows are not cut: nobody's window is filled
	dates  bool   // show the day before the first row, too
	day    string // of the newest row

	running bool                 // a turn runs
	rested  time.Time            // the last one ended
	typing  *typing              // the message that is being written, nil when none is shown
	calls   map[string]*openCall // without an outcome
	done    int                  // calls with one
	begun   time.Time
	newest  time.Time
}

// newTimeline returns a timeline that writes to the command's output, or only keeps track where that is for machines.
func (a *app) newTimeline() *timeline {
	if a.json {
		return silentTimeline()
	}
	return &timeline{out: a.out, st: a.style(), width: term.Width(a.out, plainWidth), zone: time.Local,
		calls: map[string]*openCall{},
		whole: !term.IsTerminal(a.out), day: time.Now().Format(time.DateOnly)}
}

// silentTimeline returns a timeline that only keeps track.
func silentTimeline() *timeline {
	return &timeline{out: io.Discard, width: plainWidth, zone: time.Local, calls: map[string]*openCall{}}
}

// event shows one event.
func (t *timeline) event(ev client.Event) error {
	t.seq = ev.Seq
	if t.begun.IsZero() && !ev.ProcessedAt.IsZero() {
		t.begun = ev.ProcessedAt
	}
	if ev.ProcessedAt.After(t.newest) {
		t.newest = ev.ProcessedAt
	}
	if own, ok := strings.CutPrefix(ev.Type, ownPrefix); ok {
		return t.own(own, ev)
	}
	var w wireEvent
	if err := ev.Decode(&w); err != nil {
		return fmt.Errorf("reading event %s: %w", ev.ID, err)
	}
	switch ev.Type {
	case "session.status_running":
		t.running = true
	case "session.status_idle", "session.status_terminated", "session.deleted":
		t.running, t.rested = false, ev.ProcessedAt
	}
	switch ev.Type {
	case "agent.tool_use", "agent.mcp_tool_use", "agent.custom_tool_use":
		t.retries = 0
		return t.called(ev, w)
	case "agent.tool_result", "agent.mcp_tool_result":
		t.result(w, w.ToolUseID)
		return nil
	case "user.custom_tool_result", "user.tool_result":
		t.result(w, w.CustomID+w.ToolUseID)
		return nil
	}
	if t.tools {
		return nil
	}
	return t.talk(ev, w)
}

// talk shows what is not about a call.
func (t *timeline) talk(ev client.Event, w wireEvent) error {
	switch ev.Type {
	case "user.message":
		if at, ok := outboard.MadeAt(ev.ID); t.users && ok && ev.ProcessedAt.IsZero() {
			return t.text(at, "you", client.Text(w.Content)+"  (queued)")
		}
		if t.users {
			return t.text(ev.At(), "you", client.Text(w.Content))
		}
	case "system.message":
		return t.text(ev.At(), "note", client.Text(w.Content))
	case "agent.message":
		t.retries = 0
		if t.typed(ev.ID, client.Text(w.Content)) {
			return nil
		}
		return t.text(ev.ProcessedAt, "says", client.Text(w.Content))
	case "user.interrupt":
		t.retries = 0
		return t.line(ev.ProcessedAt, "stop", "interrupted", "")
	case "user.tool_confirmation":
		return t.confirmed(ev, w)
	case "agent.thread_context_compacted":
		return t.line(ev.ProcessedAt, "note", "context compacted", "")
	case "session.status_rescheduled":
		return t.line(ev.ProcessedAt, "wait", "trying again soon", "")
	case "session.error":
		if w.Error != nil {
			return t.text(ev.ProcessedAt, "error",
				w.Error.Message+" ("+w.Error.Type+", "+t.tried(w.Error.Retry.Type)+")")
		}
	}
	return nil
}

// tried says in words what becomes of an error: the wire calls every one that is not tried again "exhausted".
func (t *timeline) tried(retry string) string {
	t.retries++
	switch {
	case retry == "retrying":
		return "trying again"
	case t.retries == 1:
		t.retries, t.gaveUp = 0, 1
		return "not tried again"
	}
	t.retries, t.gaveUp = 0, t.retries
	return fmt.Sprintf("given up after %d tries", t.gaveUp)
}

// rest is how a session rests that stopped for a reason of the wire, which knows no word for a last response
// that is not whole.
func (t *timeline) rest(stop string) string {
	if stop == restEndTurn && t.cut {
		return restCut
	}
	return stop
}

// stopped says in words why a session stopped.
func (t *timeline) stopped(stop string) string {
	switch {
	case stop == restCut:
		return "the last response was cut at its length limit"
	case stop != restExhausted:
		return strings.ReplaceAll(stop, "_", " ")
	case t.gaveUp > 1:
		return fmt.Sprintf("given up after %d tries", t.gaveUp)
	}
	return "an error that is not tried again"
}

func (t *timeline) called(ev client.Event, w wireEvent) error {
	c := &openCall{id: ev.ID, name: w.Name, what: string(w.Input), input: w.Input, since: ev.ProcessedAt,
		asked: w.Permission == "ask", custom: ev.Type == "agent.custom_tool_use"}
	if ev.Type == "agent.tool_use" { // the names of others mean something else
		c.what = describeCall(w.Name, w.Input)
	}
	t.calls[ev.ID] = c
	switch {
	case c.asked:
		return t.line(ev.ProcessedAt, "ask", c.name+" "+c.what, "")
	case c.custom:
		return t.line(ev.ProcessedAt, "call", c.name+" "+c.what, "waits for a client")
	}
	return nil
}

// confirmed restarts the clock of a call: how long a person thought is not how long it ran.
func (t *timeline) confirmed(ev client.Event, w wireEvent) error {
	c := t.calls[w.ToolUseID]
	if c == nil {
		return nil
	}
	c.since, c.asked = ev.ProcessedAt, false
	if w.Result == "deny" {
		return t.line(ev.ProcessedAt, "deny", c.name+" "+c.what, w.Deny)
	}
	return t.line(ev.ProcessedAt, "allow", c.name+" "+c.what, "")
}

// result keeps what a call gave until its outcome is told, which is the next event about it.
func (t *timeline) result(w wireEvent, id string) {
	if c := t.calls[id]; c != nil {
		c.text = client.Text(w.Content)
	}
}

// finished shows a call with its outcome. What took time is running it, not waiting for an answer, so the
// runner's own measure is shown where there is one.
func (t *timeline) finished(ev client.Event, p ownPayload) error {
	c := t.calls[p.Call]
	if c == nil {
		return nil // it was asked for before this timeline began
	}
	delete(t.calls, p.Call)
	// of a custom tool's call that was asked about, both were shown
	delete(t.calls, string(outboard.OfferedID(outboard.CallID(p.Call))))
	t.done++
	took := time.Duration(p.DurationUs) * time.Microsecond
	if took == 0 {
		took = ev.ProcessedAt.Sub(c.since)
	}
	if err := t.line(c.since, c.name, c.what, strings.TrimSpace(t.outcome(p)+"  "+formatDuration(took))); err != nil {
		return err
	}
	if lines := editLines(c, p); len(lines) > 0 && !p.IsError {
		return t.block(strings.Join(lines, "\n"), shownFailure, false)
	}
	failed := p.IsError || p.Outcome != "ok" || p.ExitCode != nil && *p.ExitCode != 0
	switch {
	case c.text == "":
		return nil
	case t.output:
		return t.block(c.text, shownOutput, p.Truncated)
	case failed:
		return t.block(c.text, shownFailure, p.Truncated)
	}
	return nil
}

// editLines is what an edit replaced, and with what.
func editLines(c *openCall, p ownPayload) (out []string) {
	def, _ := registry.Lookup(c.name)
	var in map[string]any
	if c.custom || def.Replaced == "" || p.Outcome != "ok" || json.Unmarshal(c.input, &in) != nil {
		return nil
	}
	before, _ := in[def.Replaced].(string)
	after, _ := in[def.Replacement].(string)
	for _, side := range []struct{ mark, text string }{{"- ", before}, {"+ ", after}} {
		if side.text == "" {
			continue
		}
		for _, l := range visibleLines(strings.TrimSuffix(side.text, "\n")) {
			out = append(out, side.mark+strings.ReplaceAll(l, "⇥   ", "\t"))
		}
	}
	return out
}

// waiting returns the calls that a person or client must answer, in order.
func (t *timeline) waiting(ids []string) []*openCall {
	var out []*openCall
	for _, id := range ids {
		if c := t.calls[id]; c != nil {
			out = append(out, c)
		}
	}
	return out
}

// line prints one row: time, verb, what, and how it ended, cut to the width.
func (t *timeline) line(at time.Time, verb, what, end string) error {
	t.stopTyping()
	t.width = term.Width(t.out, t.width) // the window may have another size by now
	verb = fmt.Sprintf("%-6s", term.Line(verb, 12))
	long := utf8.RuneCountInString(verb) - 6
	left := 2 + len(t.stamp(at)) + 2 + 6 + long + 1 // indent, time, gap, verb, gap
	if err := t.newDay(at); err != nil {
		return err
	}
	room := max(20, t.width-left-visible(end)-2)
	if t.whole {
		room = 0
	}
	what = term.Line(oneLine(what), room)
	pad := ""
	if end != "" {
		pad = strings.Repeat(" ", max(2, min(60-long, t.width-left-visible(end))-utf8.RuneCountInString(what)))
	}
	_, err := fmt.Fprintf(t.out, "  %s  %s %s%s%s\n", t.st.Dim(t.stamp(at)), verb, what, pad, end)
	return err
}

// newDay says which day it is, before its first row.
func (t *timeline) newDay(at time.Time) error {
	day := at.In(t.zone).Format(time.DateOnly)
	if t.day == "" && !t.dates {
		t.day = day
	}
	if at.IsZero() || day == t.day && !t.dates {
		return nil
	}
	t.day, t.dates = day, false
	_, err := fmt.Fprintf(t.out, "  %s\n", t.st.Dim("── "+day+" ──"))
	return err
}

// stamp is how a row begins.
func (t *timeline) stamp(at time.Time) string {
	text := at.In(t.zone).Format("15:04:05")
	if t.seqs {
		text = fmt.Sprintf("%6d  %s", t.seq, text)
	}
	return text
}

// visible is the width of text that may carry our own style codes.
func visible(s string) int {
	n, in := 0, false
	for _, r := range s {
		switch {
		case r == '\x1b':
			in = true
		case in:
			in = r != 'm'
		default:
			n++
		}
	}
	return n
}

// text prints something said, whole.
func (t *timeline) text(at time.Time, who, text string) error {
	t.stopTyping()
	if err := t.newDay(at); err != nil {
		return err
	}
	first, rest, _ := strings.Cut(strings.TrimSpace(term.Clean(text)), "\n")
	if _, err := fmt.Fprintf(t.out, "  %s  %-6s %s\n", t.st.Dim(t.stamp(at)), who, first); err != nil || rest == "" {
		return err
	}
	return t.block(rest, 0, false)
}

// leftOut is what stands in a text where the guest, or the runner, has left out its middle.
var leftOut = regexp.MustCompile(`(?m)^\[(?:\.\.\. )?(\d+) (?:of \d+ )?bytes left out`)

// block prints foreign lines below a row, of long ones the end; limit 0 prints all. cut is that the log does not
// have all of the text.
func (t *timeline) block(text string, limit int, cut bool) error {
	lines := strings.Split(strings.TrimRight(term.Clean(text), "\n"), "\n")
	if more := len(lines) - limit; limit > 0 && more > 0 && !t.full {
		dropped := int64(0)
		if cut {
			for _, m := range leftOut.FindAllStringSubmatch(strings.Join(lines[:more], "\n"), -1) {
				n, _ := strconv.ParseInt(m[1], 10, 64) // 0 of what is no number
				dropped += max(0, n)
			}
		}
		rest := "… " + count(more, "more line") + " before these"
		if dropped > 0 {
			rest += fmt.Sprintf(", and between them %s that the log does not have", formatBytes(dropped))
		}
		lines = append([]string{t.st.Dim(rest)}, lines[more:]...)
	}
	_, err := fmt.Fprintf(t.out, "%s%s\n", indent, strings.Join(lines, "\n"+indent))
	return err
}

// describeCall is a call's input in a few words.
func describeCall(name string, input json.RawMessage) string {
	t, _ := registry.Lookup(name)
	return t.Title(input)
}

// oneLine is a text of several lines as one, in which each end of a line can be seen.
func oneLine(text string) string {
	return strings.Join(strings.Split(strings.TrimRight(text, "\n"), "\n"), " ⏎ ")
}

// workspacePath is where the work is inside a sandbox.
const workspacePath = "/workspace"

// formatDuration is a duration for people: 0.4s, 3.1s, 2m05s.
func formatDuration(d time.Duration) string {
	switch {
	case d < 0:
		return ""
	case d < 100*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
}
