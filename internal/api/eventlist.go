package api

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// logPage is how many log events one read of a listing takes at most, and minLogPage at least. In between it is
// half of what was asked for: an event of the log is shown as one to three.
const (
	logPage    = 500
	minLogPage = 32
	// maxPageBytes is from how much content on a page takes no further event: one may hold 32 MiB, and a page is
	// made in memory.
	maxPageBytes = 32 << 20
)

// spread is how far a wire event's time may be from that of its log event.
const spread = outboard.EventSpacing

// shownAs says which log events each persisted wire type comes from. Types of features that are not built have
// none: they may be asked for, and nothing is found.
var shownAs = map[string][]outboard.EventType{
	"user.message": {outboard.TypeInputProcessed}, "user.interrupt": {outboard.TypeInputProcessed},
	"user.tool_confirmation": {outboard.TypeInputProcessed}, "system.message": {outboard.TypeInputProcessed},
	"user.custom_tool_result": {outboard.TypeInputToolResult}, "user.tool_result": {outboard.TypeInputToolResult},
	"agent.message": {outboard.TypeAgentMessage}, "agent.thinking": {outboard.TypeAgentThinking},
	"agent.tool_use": {outboard.TypeCallRequested}, "agent.custom_tool_use": {outboard.TypeCallRequested,
		outboard.TypeCallOffered},
	"agent.tool_result":                 {outboard.TypeCallFinished},
	"agent.thread_context_compacted":    {outboard.TypeContextCompacted},
	"session.error":                     {outboard.TypeTurnRetrying, outboard.TypeTurnFailed},
	"session.status_running":            {outboard.TypeTurnStarted, outboard.TypeTurnResumed},
	"session.thread_status_running":     {outboard.TypeTurnStarted, outboard.TypeTurnResumed},
	"session.status_rescheduled":        {outboard.TypeTurnRetrying},
	"session.thread_status_rescheduled": {outboard.TypeTurnRetrying},
	"session.status_idle":               {outboard.TypeTurnEnded},
	"session.thread_status_idle":        {outboard.TypeTurnEnded},
	"session.usage":                     {outboard.TypeTurnEnded},
	"session.status_terminated":         {outboard.TypeSessionArchived},
	"session.thread_status_terminated":  {outboard.TypeSessionArchived},
	"session.updated":                   {outboard.TypeSessionUpdated},
	"span.model_request_start":          {outboard.TypeModelStarted},
	"span.model_request_end":            {outboard.TypeModelFinished, outboard.TypeModelFailed},
	"agent.mcp_tool_use":                nil,
	"agent.mcp_tool_result":             nil,
	"agent.thread_message_received":     nil,
	"agent.thread_message_sent":         nil,
	"session.thread_created":            nil,
	"span.outcome_evaluation_start":     nil,
	"span.outcome_evaluation_ongoing":   nil,
	"span.outcome_evaluation_end":       nil,
	"user.define_outcome":               nil,
	"workflow_run.created":              nil,
	"workflow_run.status_running":       nil,
	"workflow_run.status_idle":          nil,
	"workflow_run.status_ended":         nil,
	"workflow_run.error":                nil,
	"workflow_run.phase_started":        nil,
	"workflow_run.phase_ended":          nil,
}

// eventQuery is what a listing of events asks for.
type eventQuery struct {
	desc  bool
	types []string // wire types; empty = all
	time  between
	limit int
}

// logTypes are the log types that the wire types come from; ok is false when there are none, so nothing can match.
func (q *eventQuery) logTypes() (types []outboard.EventType, ok bool) {
	if len(q.types) == 0 {
		return nil, true
	}
	set := map[outboard.EventType]bool{}
	for _, t := range q.types {
		if own, ok := strings.CutPrefix(t, ownPrefix); ok {
			set[outboard.EventType(own)] = true
		}
		for _, l := range shownAs[t] {
			set[l] = true
		}
	}
	return slices.Sorted(maps.Keys(set)), len(set) > 0
}

// matches reports whether a wire event was asked for. A queued one has no time and matches no time range.
func (q *eventQuery) matches(w *wireEvent) bool {
	if len(q.types) > 0 && !slices.Contains(q.types, w.kind) {
		return false
	}
	if q.time == (between{}) {
		return true
	}
	return !w.at.IsZero() && q.time.holds(w.at)
}

// lister collects one page of a session's history.
type lister struct {
	ctl  *control.Control
	by   outboard.Caller
	id   outboard.SessionID
	src  *logSource // of tr
	tr   *translator
	q    eventQuery
	pos  cursor
	out  []wireEvent
	seen map[outboard.EventID]bool // ids on this page
}

// list returns one page and the cursor of the next, nil on the last. Queued inputs come after all processed
// events. They are read first: an input that is processed meanwhile is then found twice, and given once, rather
// than not at all.
func (l *lister) list(ctx context.Context) ([]wireEvent, *cursor, error) {
	l.seen = map[outboard.EventID]bool{}
	waiting, err := l.ctl.Waiting(ctx, l.by, l.id)
	if err != nil {
		return nil, nil, err
	}
	steps := []func(context.Context, []outboard.Event) (bool, error){l.log, l.queue}
	if l.q.desc {
		slices.Reverse(waiting)
		slices.Reverse(steps)
	}
	for _, step := range steps {
		full, err := step(ctx, waiting)
		if err != nil {
			return nil, nil, err
		}
		if full {
			return l.out, &l.pos, nil
		}
	}
	return l.out, nil, nil
}

// take puts a wire event on the page; full means that there is no room, and pos is where the next page begins.
func (l *lister) take(w wireEvent, pos cursor) (full bool) {
	if !l.q.matches(&w) || l.seen[w.id] {
		return false
	}
	if len(l.out) == l.q.limit {
		return true
	}
	if !w.at.IsZero() {
		pos.At = w.at.UnixMicro()
	}
	l.out, l.pos, l.seen[w.id] = append(l.out, w), pos, true
	return false
}

// heavy reports whether a page has as much content as one may have. Clients go by next_page, whatever their limit was.
func (l *lister) heavy() bool { return l.src.loaded >= maxPageBytes && len(l.out) > 0 }

// queue lists the inputs that wait.
func (l *lister) queue(ctx context.Context, waiting []outboard.Event) (full bool, err error) {
	if l.q.desc && l.pos.Seq > 0 {
		return false, nil // the page before was already among the processed ones
	}
	for _, e := range waiting {
		if l.pos.Wait > 0 && (l.q.desc && e.Seq >= l.pos.Wait || !l.q.desc && e.Seq <= l.pos.Wait) {
			continue
		}
		if e.Type == outboard.TypeInputToolResult {
			continue // processed on receipt: it is in the log part
		}
		if l.heavy() {
			return true, nil
		}
		l.src.loaded += int64(len(e.Data))
		w, err := l.tr.queued(ctx, &e, false)
		if err != nil {
			return false, err
		}
		pos := l.pos
		pos.Wait = e.Seq
		if l.take(w, pos) {
			return true, nil
		}
	}
	return false, nil
}

// log lists the processed events.
func (l *lister) log(ctx context.Context, _ []outboard.Event) (full bool, err error) {
	types, ok := l.q.logTypes()
	if !ok {
		return false, nil
	}
	start := l.pos
	q := control.EventQuery{Types: types, Desc: l.q.desc, Limit: min(max(l.q.limit/2, minLogPage), logPage),
		Bytes: maxPageBytes}
	if !l.q.time.from.IsZero() {
		q.Since = l.q.time.from.Add(-spread)
	}
	if !l.q.time.to.IsZero() {
		q.Until = l.q.time.to.Add(time.Microsecond)
	}
	if start.Seq > 0 { // the page before may have ended inside this event
		if l.q.desc {
			q.Before = start.Seq + 1
		} else {
			q.After = start.Seq - 1
		}
	}
	for {
		page, err := l.ctl.Events(ctx, l.by, l.id, q)
		if err != nil {
			return false, err
		}
		for i := range page {
			if !l.q.desc && len(types) == 0 { // all there are, in order
				if err := l.src.next(ctx, &page[i]); err != nil {
					return false, err
				}
				if page[i].Type.IsInput() || page[i].Type == outboard.TypeCallRequested {
					l.src.keep(page[i])
				}
			}
			full, err := l.event(ctx, &page[i], start)
			if full || err != nil {
				return full, err
			}
		}
		if q.Ends(page) {
			return false, nil
		}
		last := page[len(page)-1].Seq
		if l.q.desc {
			q.Before = last
		} else {
			q.After = last
		}
	}
}

// event lists the wire events of one log event, those before start left out.
func (l *lister) event(ctx context.Context, e *outboard.Event, start cursor) (full bool, err error) {
	if l.heavy() {
		return true, nil
	}
	l.src.loaded += int64(len(e.Data))
	ws, err := l.tr.events(ctx, e)
	if err != nil {
		return false, err
	}
	for i := range ws {
		k := i
		if l.q.desc {
			k = len(ws) - 1 - i
		}
		if e.Seq == start.Seq && (l.q.desc && k >= start.Sub || !l.q.desc && k < start.Sub) {
			continue
		}
		pos := l.pos
		pos.Seq, pos.Sub = e.Seq, k+1
		if l.q.desc {
			pos.Sub = k
		}
		if l.take(ws[k], pos) {
			return true, nil
		}
	}
	if !l.q.desc {
		l.pos.Seq, l.pos.Sub = e.Seq, len(ws) // what matched nothing is behind us too
	}
	return false, nil
}
