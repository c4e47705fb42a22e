package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/term"
)

// secondPress is how soon a second Ctrl-C must follow the first to mean "stop the session".
const secondPress = 2 * time.Second

// How a watched session came to rest.
const (
	restEndTurn   = "end_turn"
	restApproval  = "requires_action"
	restExhausted = "retries_exhausted"
	restBudget    = "budget_reached"
	restRefusal   = "refusal"
	restCut       = "max_tokens" // not of the wire: the turn ended, with a response that the model had no room to finish
	restDone      = "terminated"
	restDeleted   = "deleted"
)

// watch follows one session and shows it.
type watch struct {
	a        *app
	c        *conn
	id       string
	tl       *timeline
	opt      client.FollowOptions
	old      time.Time // what came to rest up to then is history
	untilEnd bool      // go on after the session has come to rest, until it is archived or deleted
	lines    *lineReader

	ran   bool      // a turn was seen
	asked *stopAsks // what the session waits for

	mu        sync.Mutex
	questions []*openCall // attach: what the person is asked about, the first of them now; guarded by mu
}

// newWatch returns a watch that shows a session from its beginning. On a terminal it shows what the model writes while it writes it;
// elsewhere, where a line is read once it is whole, it waits for the message.
func (a *app) newWatch(c *conn, id string) *watch {
	w := &watch{a: a, c: c, id: id, tl: a.newTimeline(), opt: client.FollowOptions{Past: true, Own: true}}
	if !a.json && term.IsTerminal(a.out) {
		w.opt.Live = w.tl.piece
	}
	return w
}

// stopAsks are the calls that wait for an answer.
type stopAsks struct{ ids []string }

// follow shows events until the session rests (or, with untilEnd, ends) and returns how. An error is ctx's cause when the person
// or a timeout ended it.
func (w *watch) follow(ctx context.Context) (string, error) {
	for ev, err := range w.c.Follow(ctx, w.id, w.opt) {
		if err != nil {
			return "", err
		}
		if err := w.show(ev); err != nil {
			return "", err
		}
		rest, err := w.rested(ctx, ev)
		if err != nil || rest != "" {
			return rest, err
		}
		w.opt.After = ev.ProcessedAt
	}
	if err := context.Cause(ctx); err != nil {
		return "", err
	}
	return restDeleted, nil
}

// show prints an event; the timeline learns of it in any case.
func (w *watch) show(ev client.Event) error {
	if w.a.json {
		if err := w.a.object(ev); err != nil {
			return err
		}
	}
	return w.tl.event(ev)
}

// rested returns how the session came to rest with this event, or "".
func (w *watch) rested(ctx context.Context, ev client.Event) (string, error) {
	if !ev.ProcessedAt.After(w.old) {
		w.ran = w.ran || ev.Type == "session.status_running"
		if c := w.question(); c != nil && !ev.ProcessedAt.Before(w.old) { // the past ends with what is asked
			w.put(c)
		}
		return "", nil
	}
	switch ev.Type {
	case "session.status_running":
		w.ran, w.asked = true, nil
		w.ask(nil)
	case "session.status_terminated":
		return restDone, nil
	case "session.deleted":
		return restDeleted, nil
	case "session.status_idle":
		var body wireEvent
		if err := ev.Decode(&body); err != nil || body.Stop == nil {
			return "", err
		}
		if body.Stop.Type == restApproval {
			w.asked = &stopAsks{body.Stop.EventIDs}
			switch {
			case w.lines == nil:
			case w.untilEnd: // whoever reads the lines answers
				w.ask(w.tl.waiting(w.asked.ids))
			case w.answerable():
				return "", w.answer(ctx)
			}
		}
		if w.ran && !w.untilEnd {
			return w.tl.rest(body.Stop.Type), nil
		}
	}
	return "", nil
}

// answerable reports whether every call the session waits for is an ask that this person can answer; a custom tool's result can
// only come from its client.
func (w *watch) answerable() bool {
	calls := w.tl.waiting(w.asked.ids)
	for _, c := range calls {
		if c.custom {
			return false
		}
	}
	return len(calls) == len(w.asked.ids)
}

// answer asks the person about every waiting call and sends the answers.
func (w *watch) answer(ctx context.Context) error {
	var events []any
	for _, c := range w.tl.waiting(w.asked.ids) {
		for clear := false; !clear; {
			w.put(c)
			line, err := w.lines.next(ctx)
			if err != nil {
				return err
			}
			var yes bool
			var reason string
			if yes, reason, clear = parseAnswer(line); clear {
				events = append(events, client.Confirmation(c.id, yes, reason))
			} else if strings.TrimSpace(line) != "" {
				w.a.say("%v", noAnswer(line))
			}
		}
	}
	_, err := w.c.Send(ctx, w.id, events...)
	return err
}

// put asks the person about one call.
func (w *watch) put(c *openCall) {
	if c.custom {
		fmt.Fprintf(w.a.errs, "outboard: %s %s waits for its result; the next line is sent as it: ", term.Line(c.name, 40), term.Line(c.what, 200))
		return
	}
	fmt.Fprintf(w.a.errs, "outboard: allow %s %s? [y/n, or n and a reason] ", term.Line(c.name, 40), term.Line(c.what, 200))
}

// noAnswer explains a line that is neither a yes nor a no: nothing is decided by a slip of the hand.
func noAnswer(line string) error {
	return usagef("%q is no answer: y lets it run, n (and a reason, if you like) does not", term.Line(strings.TrimSpace(line), 60))
}

// ask makes calls the questions that what the person types next answers, in order; with none, nothing is asked any more.
func (w *watch) ask(calls []*openCall) {
	w.mu.Lock()
	w.questions = calls
	w.mu.Unlock()
	if len(calls) > 0 {
		w.put(calls[0])
	}
}

// question returns what the person is asked now, or nil.
func (w *watch) question() *openCall {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.questions) == 0 {
		return nil
	}
	return w.questions[0]
}

// reply answers a question with a line, and asks the next one.
func (w *watch) reply(ctx context.Context, c *openCall, line string) error {
	event := client.CustomResult(c.id, line)
	if !c.custom {
		yes, reason, clear := parseAnswer(line)
		if !clear {
			w.a.say("%v", noAnswer(line))
			w.put(c)
			return nil
		}
		event = client.Confirmation(c.id, yes, reason)
	}
	w.mu.Lock()
	var rest []*openCall
	if len(w.questions) > 0 && w.questions[0] == c {
		rest = w.questions[1:]
	}
	w.mu.Unlock()
	w.ask(rest)
	_, err := w.c.Send(ctx, w.id, event)
	return err
}

// parseAnswer reads a yes or a no with its reason; clear is false for anything else.
func parseAnswer(line string) (allow bool, reason string, clear bool) {
	first, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
	switch strings.ToLower(first) {
	case "y", "yes", "allow":
		return true, "", rest == "" // "yes but not there" is no yes
	case "n", "no", "deny":
		return false, strings.TrimSpace(rest), true
	}
	return false, "", false
}

// lineReader reads a person's lines. Its goroutine lives until the input ends, because nothing can interrupt a read from a
// terminal; the process ends with it or before it.
type lineReader struct {
	once  sync.Once
	in    io.Reader
	lines chan string // capacity 0; closed by the reading goroutine at the end of the input
}

func newLineReader(in io.Reader) *lineReader { return &lineReader{in: in, lines: make(chan string)} }

// next returns the next line, io.EOF at the end, or ctx's cause.
func (r *lineReader) next(ctx context.Context) (string, error) {
	r.once.Do(func() { go r.read() })
	select {
	case l, ok := <-r.lines:
		if !ok {
			return "", io.EOF
		}
		return l, nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

func (r *lineReader) read() {
	defer close(r.lines)
	s := bufio.NewScanner(r.in)
	s.Buffer(nil, outboard.MaxInlineContent)
	for s.Scan() {
		r.lines <- s.Text()
	}
}

// detached reports whether ctx ended because the person pressed Ctrl-C (or the process was asked to end).
func detached(ctx context.Context) bool {
	return ctx.Err() != nil && !errors.Is(context.Cause(ctx), context.DeadlineExceeded)
}

// detach says what becomes of the session, and stops it if the person presses Ctrl-C again soon and confirms.
func (w *watch) detach() error {
	name := sessionName(w.id)
	ctx := context.Background() // the command's own has ended
	goesOn := "it goes on"
	if w.c.private != nil {
		goesOn = "it goes on when it is attached again, or when a server runs"
	}
	w.a.say("detached from %s; %s", name, goesOn)
	if !w.a.interactive() {
		return nil
	}
	again := make(chan os.Signal, 1)
	signal.Notify(again, os.Interrupt)
	defer signal.Stop(again)
	fmt.Fprintf(w.a.errs, "hint: outboard attach %s; Ctrl-C again within %v stops the session\n", name, secondPress)
	t := time.NewTimer(secondPress)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-again:
	}
	fmt.Fprintf(w.a.errs, "outboard: stop %s? [y/N] ", name)
	line, err := w.lines.next(ctx)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if yes, _, clear := parseAnswer(line); !yes || !clear {
		return nil
	}
	if _, err := w.c.Send(ctx, w.id, client.Interrupt()); err != nil {
		return err
	}
	w.a.say("interrupted %s", name)
	return nil
}
