package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/client"
)

// mark is the command every marked step runs: one short append, which a kill can hit before, within or after.
// The pause behind it gives the kill a target.
const mark = `printf '%s %s\n' "$OUTBOARD_CALL_KEY" "$OUTBOARD_SANDBOX" >> /workspace/effects; `

// driver is the client of one session. It behaves as a careful one must: after a lost answer it looks before it
// sends again.
type driver struct {
	c   *client.Client
	id  outboard.SessionID
	rec *record
	rng *rand.Rand
	n   int // messages so far
}

// drive sends work until over is closed, then has the effects file read, and returns when the session rests.
func (d *driver) drive(ctx context.Context, over <-chan struct{}) error {
	for {
		if err := d.say(ctx, d.script()); err != nil {
			return err
		}
		if d.rng.IntN(3) > 0 { // else the next message queues behind this one
			if _, err := d.rest(ctx); err != nil {
				return err
			}
			switch d.rng.IntN(16) {
			case 0, 1:
				if !pause(ctx, over) {
					continue
				}
			case 2:
				if err := d.dropped(ctx); err != nil { // while others are being killed
					return err
				}
			}
		}
		select {
		case <-over:
			return d.finish(ctx)
		case <-ctx.Done():
			return context.Cause(ctx)
		default:
		}
	}
}

// pause is a rest in which a sandbox is let go, and may be stopped. It reports false when ctx has ended.
func pause(ctx context.Context, over <-chan struct{}) bool {
	select {
	case <-time.After(3 * time.Second): // a runner keeps a sandbox for two
	case <-over:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// dropWait bounds the wait for the timer to drop a sandbox, so that one that never is becomes a violation and
// not a hang: it is kept for two seconds after a turn, and dropped after dropAfter. On a busy machine the
// processes whose timers do it spend most of their lives, which the killer makes two seconds long, on starting.
const dropWait = 5 * time.Minute

// dropped waits until the session has no sandbox left on any host.
func (d *driver) dropped(ctx context.Context) error {
	for again := time.Now().Add(dropWait); ; {
		left, err := d.sandboxes(ctx)
		if err == nil && left == "" {
			return nil
		}
		if err != nil {
			if err = d.passing(ctx, err); err != nil {
				return fmt.Errorf("waiting for the sandbox to be dropped: %w", err)
			}
		}
		if time.Now().After(again) {
			return fmt.Errorf("the sandbox %s was not dropped in %v", left, dropWait)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(100 * time.Millisecond): // the API has nothing to await it by
		}
	}
}

// sandboxes names one sandbox of the session with its state, or none.
func (d *driver) sandboxes(ctx context.Context) (string, error) {
	for m, err := range d.c.Sandboxes(ctx) {
		if err != nil {
			return "", err
		}
		if m.Session == string(d.id) {
			return m.ID + " (" + m.State + ")", nil
		}
	}
	return "", nil
}

// finish reads the marks. The file comes back in parts that stay below the limit on a tool's output.
func (d *driver) finish(ctx context.Context) error {
	// One more sandbox, which nothing kills: it rests until it was stopped and dropped, so the marks come back
	// from its checkpoint alone.
	if err := d.say(ctx, fmt.Sprintf("- bash: |-\n    %strue\n- say: rest\n", mark)); err != nil {
		return err
	}
	if _, err := d.rest(ctx); err != nil {
		return err
	}
	if err := d.dropped(ctx); err != nil {
		return err
	}
	const lines = 500
	for from := 1; ; from += lines {
		if err := d.say(ctx, fmt.Sprintf("- bash: '[ ! -e /workspace/effects ] || sed -n %d,%dp "+
			"/workspace/effects'\n- say: read\n", from, from+lines-1)); err != nil {
			return err
		}
		text, err := d.rest(ctx)
		if err != nil {
			return err
		}
		got := parseEffects(text)
		if strings.Contains(text, "(no output)") {
			got = nil
		}
		d.rec.effects = append(d.rec.effects, got...)
		if len(got) < lines {
			return nil
		}
	}
}

// script returns a message: a list of steps of several kinds, most of which leave a mark.
func (d *driver) script() string {
	var b strings.Builder
	for range 1 + d.rng.IntN(4) {
		pause := fmt.Sprintf("%.2f", d.rng.Float64()*0.15)
		switch d.rng.IntN(6) {
		case 0:
			fmt.Fprintf(&b, "- write: {path: /workspace/note-%d, content: 'n %d'}\n", d.n, d.rng.IntN(1000))
		case 1:
			fmt.Fprintf(&b, "- parallel:\n  - bash: |-\n      %ssleep %s\n  - bash: |-\n      %strue\n", mark, pause,
				mark)
		case 2:
			fmt.Fprintf(&b, "- bash: |-\n    sleep %s; %strue\n- read: /workspace/effects\n", pause, mark)
		default:
			fmt.Fprintf(&b, "- bash: |-\n    %ssleep %s\n", mark, pause)
		}
	}
	d.n++
	fmt.Fprintf(&b, "- say: message %d done\n", d.n)
	return b.String()
}

// say sends one message until the server has acknowledged it or the log shows it. The text is unique, so that a
// message whose answer was lost can be recognised.
func (d *driver) say(ctx context.Context, script string) error {
	text := fmt.Sprintf("# %d\n%s", len(d.rec.acked), script)
	for {
		events, err := d.c.Send(ctx, string(d.id), client.UserMessage(text))
		if err == nil && len(events) == 1 {
			d.rec.acked = append(d.rec.acked, outboard.EventID(events[0].ID))
			return nil
		}
		if err := d.passing(ctx, err); err != nil {
			return fmt.Errorf("sending: %w", err)
		}
		if id, err := d.find(ctx, text); err != nil {
			return fmt.Errorf("looking for a message: %w", err)
		} else if id != "" {
			d.rec.acked = append(d.rec.acked, id)
			return nil
		}
	}
}

// passing waits out an error that a killed server explains, and returns any other.
func (d *driver) passing(ctx context.Context, err error) error {
	_, broken := errors.AsType[*client.TransportError](err)
	if !broken && outboard.KindOf(err) != outboard.Unavailable && outboard.KindOf(err) != outboard.Internal {
		return err
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(50 * time.Millisecond): // the server is being started again; there is nothing to await it by
		return nil
	}
}

// find looks for a message by its text among all events, queued ones included.
func (d *driver) find(ctx context.Context, text string) (outboard.EventID, error) {
	for {
		id, err := d.search(ctx, text)
		if err == nil {
			return id, nil
		}
		if err := d.passing(ctx, err); err != nil {
			return "", err
		}
	}
}

func (d *driver) search(ctx context.Context, text string) (outboard.EventID, error) {
	for e, err := range d.c.Events(ctx, string(d.id), client.EventQuery{Types: []string{"user.message"}}) {
		if err != nil {
			return "", err
		}
		var m struct{ Content []client.Content }
		if err := e.Decode(&m); err != nil {
			return "", err
		}
		if client.Text(m.Content) == text {
			return outboard.EventID(e.ID), nil
		}
	}
	return "", nil
}

// rest returns when everything sent so far has been processed and the session is idle; it gives the text of the
// last tool result.
func (d *driver) rest(ctx context.Context) (string, error) {
	for {
		text, err := d.follow(ctx)
		if err == nil {
			return text, nil
		}
		if err := d.passing(ctx, err); err != nil {
			return "", fmt.Errorf("following: %w", err)
		}
	}
}

func (d *driver) follow(ctx context.Context) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	open := map[outboard.EventID]bool{}
	for _, id := range d.rec.acked {
		open[id] = true
	}
	var result string
	for e, err := range d.c.Follow(ctx, string(d.id), client.FollowOptions{Past: true}) {
		if err != nil {
			return "", err
		}
		switch e.Type {
		case "user.message":
			delete(open, outboard.EventID(e.ID))
		case "agent.tool_result":
			var r struct{ Content []client.Content }
			if err := e.Decode(&r); err != nil {
				return "", err
			}
			result = client.Text(r.Content)
		case "session.status_idle":
			if len(open) == 0 {
				return result, nil
			}
		}
	}
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	return "", &client.TransportError{URL: d.c.URL(), Err: errors.New("the stream ended")}
}
