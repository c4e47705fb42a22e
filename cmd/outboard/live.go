package main

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/outboard-dev/outboard/internal/term"
)

// liveEvery is how often the row about what runs is drawn again.
const liveEvery = time.Second

// useScreen writes through a screen from now on, where there is one to draw on.
func (a *app) useScreen() {
	if a.screen == nil && !a.json && term.IsTerminal(a.errs) && a.env("TERM") != "dumb" {
		a.screen, a.out, a.errs = term.NewScreen(a.out, a.errs)
	}
}

// keepLive draws the row about what runs until stop, and looks for hosts that the session was refused.
func (w *watch) keepLive(ctx context.Context) (stop func()) {
	if w.a.json {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	every := func(d time.Duration, do func()) {
		wg.Go(func() {
			t := time.NewTicker(d)
			defer t.Stop()
			for {
				select {
				case <-t.C:
					do()
				case <-ctx.Done():
					return
				}
			}
		})
	}
	if w.screen != nil {
		every(liveEvery, w.refresh)
	}
	every(hostsEvery, func() { _ = w.lookForHosts(ctx) }) // the watch itself learns what is wrong with the server
	return func() {
		cancel()
		wg.Wait()
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.screen != nil && len(w.questions) == 0 {
			w.screen.Status("")
		}
	}
}

// refresh draws the row below the rest: the answers of an open question, else what runs and for how long.
func (w *watch) refresh() {
	if w.screen == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.questions) == 0 {
		w.screen.Status(w.tl.live(time.Now()))
	}
}

// leaveRow is told that the person has typed a line below the row.
func (w *watch) leaveRow() {
	if w.screen != nil {
		w.screen.Leave()
	}
}

// live is what runs, for how long, and the last line of what it says.
func (t *timeline) live(now time.Time) string {
	if !t.running {
		return ""
	}
	verb, what, since, last := "model", "", t.newest, ""
	for _, c := range t.calls {
		if !c.asked && (verb == "model" || c.since.Before(since)) {
			verb, what, since, last = c.name, c.what, c.since, c.last
		}
	}
	width := term.Width(t.out, t.width)
	text := "  … " + term.Line(verb, 12)
	if what != "" {
		text += " " + term.Line(oneLine(what), max(10, width/2-12))
	}
	text += "  " + formatAge(now.Sub(since))
	if last != "" {
		text += "  │ " + term.Line(last, width)
	}
	return strings.TrimRight(text, " ")
}
