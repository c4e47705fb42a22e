package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"time"

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
	// not of the wire: the turn ended, with a response that the model had no room to finish
	restCut     = "max_tokens"
	restDone    = "terminated"
	restDeleted = "deleted"
)

// watch follows one session and shows it.
type watch struct {
	a        *app
	c        *conn
	id       string
	opt      client.FollowOptions
	old      time.Time // what came to rest up to then is history
	untilEnd bool      // go on after the session has come to rest, until it is archived or deleted
	ran      bool      // a turn was seen
	asked    *stopAsks // what the session waits for
	lines    *term.Input
	screen   *term.Screen // nil where nothing is shown in place

	mu        sync.Mutex
	tl        *timeline
	deaf      bool              // the person's input has ended
	hosts     []client.Approval // that the session asked for and nobody has decided about
	seen      map[string]bool   // hosts that were shown
	questions []*question       // that the person is asked, the first of them now
	epoch     int               // a line answers the question if it was typed since
	settled   chan struct{}     // capacity 1: the last question was answered
}

// newWatch returns a watch that shows a session from its beginning. On a terminal it shows what the model writes
// while it writes it; elsewhere, where a line is read once it is whole, it waits for the message.
func (a *app) newWatch(c *conn, id string) *watch {
	a.useScreen()
	w := &watch{a: a, c: c, id: id, tl: a.newTimeline(), screen: a.screen,
		opt:  client.FollowOptions{Past: true, Own: true},
		seen: map[string]bool{}, settled: make(chan struct{}, 1)}
	if !a.json && term.IsTerminal(a.out) {
		w.opt.Live, w.opt.Line = w.piece, w.line
	}
	return w
}

// stopAsks are the calls that wait for an answer.
type stopAsks struct{ ids []string }

// follow shows events until the session rests (or, with untilEnd, ends) and returns how. An error is ctx's cause
// when the person or a timeout ended it.
func (w *watch) follow(ctx context.Context) (string, error) {
	stop := w.keepLive(ctx)
	defer stop()
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
	return w.showRow(ev)
}

func (w *watch) showRow(ev client.Event) error {
	w.mu.Lock()
	err := w.tl.event(ev)
	w.mu.Unlock()
	w.refresh()
	return err
}

func (w *watch) piece(p client.Piece) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tl.piece(p)
}

// line takes the newest line of a call that runs.
func (w *watch) line(l client.Line) {
	w.mu.Lock()
	c := w.tl.calls[l.Call]
	if c != nil {
		c.last = l.Text
	}
	w.mu.Unlock()
	if c != nil {
		w.refresh()
	}
}

// rested returns how the session came to rest with this event, or "".
func (w *watch) rested(ctx context.Context, ev client.Event) (string, error) {
	if !ev.ProcessedAt.After(w.old) {
		w.ran = w.ran || ev.Type == "session.status_running"
		if !ev.ProcessedAt.Before(w.old) { // the past ends with what is asked
			w.present()
		}
		return "", nil
	}
	switch ev.Type {
	case "session.status_running":
		w.ran, w.asked = true, nil
		w.keep((*question).host)
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
			w.mu.Lock()
			ask := w.listens() && (w.untilEnd || w.answerable())
			w.mu.Unlock()
			if ask {
				return "", w.askAll(ctx)
			}
		}
		if w.ran && !w.untilEnd {
			return w.tl.rest(body.Stop.Type), nil
		}
	}
	return "", nil
}

// answerable reports whether every call the session waits for is an ask that this person can answer; a custom
// tool's result can only come from its client.
func (w *watch) answerable() bool {
	calls := w.tl.waiting(w.asked.ids)
	for _, c := range calls {
		if c.custom {
			return false
		}
	}
	return len(calls) == len(w.asked.ids)
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
	if !w.a.interactive() || w.lines == nil {
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
	line, err := w.lines.Answer(ctx, func() { fmt.Fprintf(w.a.errs, "outboard: stop %s? [y/N] ", name) })
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if !isYes(line) {
		return nil
	}
	if _, err := w.c.Send(ctx, w.id, client.Interrupt()); err != nil {
		return err
	}
	w.a.say("interrupted %s", name)
	return nil
}

// isYes reports whether a line is a plain yes.
func isYes(line string) bool {
	line = strings.ToLower(strings.TrimSpace(line))
	return line == "y" || line == "yes"
}
