package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/term"
)

// resultLine is the last line of a run with --json.
type resultLine struct {
	Type    string   `json:"type"`
	Session string   `json:"session_id"`
	Name    string   `json:"name"`
	Stop    string   `json:"stop"`
	Calls   int      `json:"calls"`
	Seconds float64  `json:"seconds"`
	Tokens  int64    `json:"tokens"`
	Cost    string   `json:"list_cost_usd,omitempty"` // where the model has a price
	Check   string   `json:"check,omitempty"`         // passed, failed
	Waiting []string `json:"waiting,omitempty"`
	Hosts   []string `json:"hosts,omitempty"` // that were refused and wait for a decision
	Exit    int      `json:"exit"`
}

// end says how the session came to rest and what can be done next, and returns the matching exit code.
func (o runOptions) end(ctx context.Context, a *app, c *conn, s client.Session, w *watch, rest string,
	hasWork bool) error {
	line := resultLine{Type: "result", Session: s.ID, Name: sessionName(s.ID), Stop: rest, Calls: w.tl.done,
		Seconds: w.tl.newest.Sub(w.tl.begun).Seconds(), Exit: restCode(rest)}
	if err := w.total(ctx, &line); err != nil {
		return err
	}
	if (rest == restEndTurn || rest == restCut) && o.check != "" {
		passed, err := runCheck(ctx, a, c, s, o.check)
		if err != nil {
			return fmt.Errorf("running the check: %w", err)
		}
		line.Check, line.Exit = "passed", exitOK
		if !passed {
			line.Check, line.Exit = "failed", exitCheck
		}
		mark := map[string]string{checkKey: checkMark(line.Check, w.tl.rested)}
		// it goes on already
		if err := c.UpdateSession(ctx, s.ID, mark); err != nil && outboard.KindOf(err) != outboard.Conflict {
			return err
		}
	}
	if a.json {
		if err := a.object(line); err != nil {
			return err
		}
		if line.Exit == exitOK {
			return nil
		}
		return &exitError{code: line.Exit}
	}
	if err := o.summary(a, line, w, hasWork); err != nil {
		return err
	}
	return restError(ctx, line, w)
}

// total adds what the session has used so far, and what it waits for.
func (w *watch) total(ctx context.Context, line *resultLine) error {
	if w.asked != nil {
		line.Waiting = w.asked.ids
	}
	s, err := w.c.Session(ctx, w.id)
	if outboard.KindOf(err) == outboard.NotFound { // deleted
		return nil
	}
	if err != nil {
		return err
	}
	line.Tokens, line.Cost = s.Usage.Tokens(), s.Usage.Cost()
	if err := w.lookForHosts(ctx); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.hosts {
		line.Hosts = append(line.Hosts, hostArgument(p.Network))
	}
	return nil
}

// used says how much, for people.
func (l *resultLine) used() string {
	text := fmt.Sprintf("%s   %s tokens", count(l.Calls, "call"), grouped(l.Tokens))
	if l.Cost != "" {
		text += "   $" + l.Cost
	}
	return text
}

// grouped is a number with its thousands apart.
func grouped(n int64) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// summary prints the closing lines.
func (o runOptions) summary(a *app, line resultLine, w *watch, hasWork bool) error {
	st := a.style()
	mark, word := st.Good("✓"), "done"
	if line.Exit != exitOK {
		mark, word = st.Bad("✗"), "stopped ("+w.tl.stopped(line.Stop)+")"
		switch line.Exit {
		case exitCheck:
			word = "check failed"
		case exitApproval:
			word = "waiting"
		}
	}
	hosts := make([]string, 0, len(line.Hosts))
	for _, h := range line.Hosts {
		hosts = append(hosts, fmt.Sprintf("\n  refused: %s   outboard net allow %s %s", term.Line(h, 0), line.Name,
			term.Line(h, 0)))
	}
	text := fmt.Sprintf("%s %s in %s   %s", mark, word,
		formatDuration(time.Duration(line.Seconds*float64(time.Second))), line.used())
	if line.Check != "" {
		text += "   check " + line.Check + " (" + term.Line(o.check, 60) + ")"
	}
	next := "outboard send " + line.Name + ` "..."      outboard logs ` + line.Name
	if hasWork {
		next = "outboard diff " + line.Name + "      outboard apply " + line.Name + `      outboard send ` + line.Name +
			` "..."`
	}
	_, err := fmt.Fprintf(a.out, "%s%s\n  %s\n", text, strings.Join(hosts, ""), next)
	return err
}

func restCode(rest string) int {
	switch rest {
	case restEndTurn:
		return exitOK
	case restApproval:
		return exitApproval
	case restBudget, restCut:
		return exitLimit
	}
	return exitFailed
}

// restError is the error of a session that did not come to a good end.
func restError(ctx context.Context, line resultLine, w *watch) error {
	switch line.Exit {
	case exitOK:
		return nil
	case exitApproval:
		return &exitError{line.Exit, waitingError(line.Name, w)}
	case exitCheck:
		return &exitError{line.Exit, outboard.Errorf(outboard.Conflict, "the agent finished and the check failed").
			WithCode("check_failed").
			WithHint("outboard send %s \"the check still fails\"", line.Name)}
	}
	e := outboard.Errorf(outboard.Unavailable, "the session stopped: %s", w.tl.stopped(line.Stop)).WithCode(line.Stop)
	if line.Stop == restBudget {
		return &exitError{line.Exit, e.WithHint("%s lets the session go on; outboard budget ls --session %s shows "+
			"what was spent", raiseBudget(ctx, w.c.Client, w.id), line.Name)}
	}
	if line.Stop == restCut {
		return &exitError{line.Exit, e.WithHint("outboard send %s \"go on\"", line.Name)}
	}
	return &exitError{line.Exit, e.WithHint("outboard logs %s shows why", line.Name)}
}

// waitingError names the first call that waits and the command that answers it.
func waitingError(name string, w *watch) error {
	calls := w.tl.waiting(w.asked.ids)
	if len(calls) == 0 {
		return outboard.Errorf(outboard.Denied, "the session waits for an answer").WithCode("approval").
			WithHint("outboard show %s", name)
	}
	c := calls[0]
	if c.custom {
		return outboard.Errorf(outboard.Denied, "the session waits for the result of tool %s, which a client must send",
			term.Line(c.name, 60)).
			WithCode("approval").WithHint("POST /v1/sessions/%s/events with a user.custom_tool_result", w.id)
	}
	text, hint := strings.Join(barred(requestLines(c.name+" "+string(c.input)), 0), "\n"), "outboard approve "+name
	if qs, err := questionsOf(context.Background(), w.c.Client, w.id, calls[:1]); err == nil &&
		qs[0].approval.ID != "" {
		var b strings.Builder
		_ = printRequest(&b, facts(qs[0].approval), requestLines(qs[0].request()), 0) // a Builder takes all
		text, hint = strings.TrimRight(b.String(), "\n"), hint+" --digest "+qs[0].approval.Digest[:shortDigest]
	}
	return outboard.Errorf(outboard.Denied, "approval needed, and nobody answered here\n%s wants to run (call %s):\n%s",
		term.Line(c.name, 60), c.id, text).WithCode("approval").
		WithHint("%s, or outboard deny %s \"why\"; then outboard attach %s", hint, name, name)
}
