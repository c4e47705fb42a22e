package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
	"github.com/outboard-dev/outboard/internal/term"
)

// hostsEvery is how often a watch looks for hosts that the session was refused.
const hostsEvery = 2 * time.Second

// Why a person's part in a watch ended.
var (
	errQuit  = errors.New("the person left")
	errLater = errors.New("the person decides another time")
)

// followAsking is follow with a person: questions are asked while the session is shown, and what they type is read.
func (w *watch) followAsking(ctx context.Context) (string, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w.lines = term.NewInput(w.a.in)
	left := make(chan struct{})
	go func() { w.talk(ctx, cancel); close(left) }()
	rest, err := w.follow(ctx)
	if err == nil && rest != restDeleted {
		err = w.finishAsking(ctx)
	}
	cause := context.Cause(ctx)
	cancel(errQuit)
	<-left
	w.refresh()
	if errors.Is(cause, errLater) && rest == "" {
		return restApproval, nil
	}
	return rest, err
}

// talk does what the person types until they leave.
func (w *watch) talk(ctx context.Context, cancel context.CancelCauseFunc) {
	for {
		line, err := w.lines.Next(ctx)
		if errors.Is(err, io.EOF) {
			err = errQuit
			if !w.untilEnd {
				w.mu.Lock()
				w.deaf = true
				w.mu.Unlock()
				w.keep(func(*question) bool { return false })
				err = w.leaveOff()
			}
		} else if err == nil {
			w.leaveRow()
			err = w.typed(ctx, line)
			w.refresh()
		}
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errQuit), errors.Is(err, errLater):
			cancel(err)
			return
		case errors.Is(err, io.EOF):
			return
		case err != nil:
			w.a.complain("failed", err.Error(), outboard.HintOf(err), 0)
		}
	}
}

// listens reports whether somebody can answer. w.mu is held.
func (w *watch) listens() bool { return w.lines != nil && !w.deaf }

// leaveOff returns why the watch ends when its person decides nothing now: a run that waits for them ends, any
// other goes on.
func (w *watch) leaveOff() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.asked != nil && len(w.questions) == 0 {
		return errLater
	}
	return io.EOF
}

// slash is a command of attach. What begins like a path is a message.
var slash = regexp.MustCompile(`^/([a-z]*)(?:\s+(.*))?$`)

const slashHelp = `  /stop        interrupts what the session does
  /ask         asks again what waits for a decision
  /allow       answers yes, once; /deny WHY answers no
  /quit        detaches; the session goes on
  //TEXT       says /TEXT
  anything else is sent as a message, or answers the question that is open
`

// typed does what one line says.
func (w *watch) typed(ctx context.Context, line term.Typed) error {
	text := strings.TrimSpace(line.Text)
	q, epoch := w.question()
	if q != nil && line.Asked < epoch {
		if text == "" {
			return nil
		}
		return usagef("%q was typed before the question and is not taken", term.Line(text, 60))
	}
	m := slash.FindStringSubmatch(text)
	switch {
	case m == nil && q != nil:
		return w.reply(ctx, q, line.Text)
	case text == "":
		return nil
	case m == nil && !w.untilEnd:
		return usagef("nothing is asked, and run takes no messages").WithHint("outboard attach %s", sessionName(w.id))
	case m == nil:
		_, err := w.c.Send(ctx, w.id, client.UserMessage(strings.TrimPrefix(text, "/")))
		return err
	}
	return w.command(ctx, q, m[1], m[2])
}

// command does what a line that begins with a slash says.
func (w *watch) command(ctx context.Context, q *question, word, rest string) error {
	switch word {
	case "quit", "exit":
		return errQuit
	case "help":
		fmt.Fprint(w.a.errs, slashHelp)
		return nil
	case "stop":
		_, err := w.c.Send(ctx, w.id, client.Interrupt())
		return err
	case "ask":
		return w.askAll(ctx)
	case "allow", "deny", "later":
		if q == nil {
			return outboard.Errorf(outboard.Conflict, "nothing waits for an approval")
		}
		if word == "later" {
			return w.reply(ctx, q, map[bool]string{true: "/later", false: "l"}[q.custom()])
		}
		return w.reply(ctx, q, map[string]string{"allow": "y", "deny": "n"}[word]+" "+rest)
	}
	known := []string{"help", "stop", "ask", "allow", "deny", "quit", "later"}
	return usagef("there is no /%s", term.Line(word, 40)).WithHint("%s/help lists what there is; //%s is sent as a "+
		"message", meant("/", word, known), word)
}

// askAll asks what the session waits for, and about hosts it was refused.
func (w *watch) askAll(ctx context.Context) error {
	calls, err := waitingCalls(ctx, w.c.Client, w.id)
	if err != nil {
		return err
	}
	qs, err := questionsOf(ctx, w.c.Client, w.id, calls)
	if err != nil {
		return err
	}
	w.mu.Lock()
	for _, q := range qs {
		if q.host() {
			w.seen[q.id()] = true
		}
	}
	w.questions = qs
	w.mu.Unlock()
	w.present()
	return nil
}

// keep drops the questions that keep does not want, and presents what is first then.
func (w *watch) keep(keep func(*question) bool) {
	w.mu.Lock()
	first := len(w.questions) > 0 && keep(w.questions[0])
	w.questions = slices.DeleteFunc(w.questions, func(q *question) bool { return !keep(q) })
	w.mu.Unlock()
	if !first {
		w.present()
	}
	w.refresh()
}

// present shows the first question, whole or its first page. What was typed before that does not answer it.
func (w *watch) present() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.listens() || len(w.questions) == 0 {
		select {
		case w.settled <- struct{}{}:
		default:
		}
		return
	}
	w.tl.stopTyping()
	w.questions[0].begin(w.a, sessionName(w.id))
	w.prompt()
}

// prompt shows which answers there are, and drops what was typed before. w.mu is held.
func (w *watch) prompt() {
	w.epoch = w.lines.Ask()
	text := w.questions[0].prompt()
	if w.screen == nil {
		fmt.Fprintln(w.a.errs, text)
		return
	}
	w.screen.Status(term.StyleFor(w.a.errs, w.a.env).Bold(text))
}

// question returns what the person is asked now, or nil, and since when lines answer it.
func (w *watch) question() (*question, int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.questions) == 0 {
		return nil, 0
	}
	return w.questions[0], w.epoch
}

// reply answers a question with a line, and asks the next one.
func (w *watch) reply(ctx context.Context, q *question, line string) error {
	w.mu.Lock()
	// the question stands, and what is typed next answers it
	if strings.TrimSpace(line) == "" && q.scope == "" && q.shown == len(q.lines) {
		w.mu.Unlock()
		return nil
	}
	d, err := decision{}, error(nil)
	if !w.a.pageOn(q, line) {
		d, err = q.reply(line)
	}
	w.mu.Unlock()
	if err != nil || d == (decision{}) {
		if err == nil && q.scope != "" {
			s, serr := w.c.Session(ctx, w.id)
			if serr != nil {
				return serr
			}
			w.a.showRule(q, s)
		}
		w.again(q)
		return err
	}
	if !d.later {
		grant, err := d.put(ctx, w.c.Client, w.id, q)
		if err != nil && !settled(err) {
			w.again(q)
			return err
		}
		if err != nil {
			w.a.complain("failed", err.Error(), "", 0)
		} else {
			w.a.sayDecided(q, d, grant)
		}
	} else if w.untilEnd {
		w.a.say("left undecided; /ask asks again")
	}
	w.keep(func(other *question) bool { return other != q && (!d.later || w.untilEnd || !q.host()) })
	if d.later && !w.untilEnd {
		return w.laterInRun()
	}
	return nil
}

// laterInRun ends a run whose session waits, as soon as nothing else is asked.
func (w *watch) laterInRun() error {
	if err := w.leaveOff(); errors.Is(err, errLater) {
		return err
	}
	return nil
}

// again prompts for the same question, if it is still open.
func (w *watch) again(q *question) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.questions) > 0 && w.questions[0] == q {
		w.prompt()
	}
}

// lookForHosts learns which hosts the session was refused and nobody has decided about. A person is asked; else
// each is a row.
func (w *watch) lookForHosts(ctx context.Context) error {
	var hosts []client.Approval
	for p, err := range w.c.Approvals(ctx, w.id, false) {
		if err != nil {
			return err
		}
		if p.Network != nil {
			hosts = append(hosts, p)
		}
	}
	slices.Reverse(hosts) // the oldest first
	w.mu.Lock()
	w.hosts = hosts
	idle := len(w.questions) == 0
	for _, p := range hosts {
		if w.seen[p.ID] {
			continue
		}
		w.seen[p.ID] = true
		if w.listens() {
			w.questions = append(w.questions, &question{approval: p})
		} else if err := w.tl.line(p.CreatedAt, "net", "refused "+p.Resource, "asks for approval"); err != nil {
			w.mu.Unlock()
			return err
		}
	}
	idle = idle && len(w.questions) > 0
	w.mu.Unlock()
	if idle {
		w.present()
	}
	return nil
}

// finishAsking asks about hosts that the session was refused, when it has come to rest, and waits for the answers.
func (w *watch) finishAsking(ctx context.Context) error {
	if err := w.lookForHosts(ctx); err != nil {
		return err
	}
	for {
		if q, _ := w.question(); q == nil {
			return nil
		}
		select {
		case <-w.settled:
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), errLater) {
				return nil
			}
			return context.Cause(ctx)
		}
	}
}
