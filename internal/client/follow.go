package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"time"

	"github.com/outboard-dev/outboard"
)

const (
	// maxLine bounds one line of a stream; the largest event the wire may carry is one line.
	maxLine = 40 << 20
	// silence is how long a stream may say nothing, keepalives included, before it counts as dead. Servers send
	// one at least every 30 s.
	silence = 90 * time.Second
	// patience is how long Follow looks for a server that went away.
	patience = 30 * time.Second
	// callOutput is the type of a frame about the output of a running call. It is no event: it has no id and no
	// place in the log.
	callOutput = "outboard.call.output"
)

// FollowOptions says what Follow yields.
type FollowOptions struct {
	After time.Time // only events processed later
	Own   bool      // Outboard's own event types as well
	Past  bool      // history first; false: from now on
	// Live, when set, is given the text of messages while the model writes them, between the events and on the
	// same goroutine. It is best effort: the beginning of a message, as much of it as came in time, and then the
	// whole message as an event.
	Live func(Piece)
	// Line, when set together with Own, is given the newest line of the output of tool calls that run, in the same way.
	Line func(Line)
}

// Line is the newest line of what a running tool call has written. Call is the id of its agent.tool_use event.
type Line struct {
	Call string `json:"tool_use_id"`
	Text string `json:"line"`
}

// Piece is some of a message that is still being written. Event is the id its event will have.
type Piece struct {
	Event string
	Start bool // it begins; Text is empty
	Text  string
}

// Follow yields a session's processed events, each once and in order, past and future, until ctx ends or the
// session is deleted. A lost connection is made again and what was missed is read from the history; after
// patience without a server it gives up with a TransportError. Events still queued are left out: they come when
// they are processed.
func (c *Client) Follow(ctx context.Context, id string, opt FollowOptions) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		f := follower{c: c, id: id, opt: opt, last: opt.After, yield: yield}
		var down time.Time // since when the server is away
		wait := firstWait
		for {
			err := f.once(ctx)
			switch {
			case f.done || ctx.Err() != nil:
				return
			case err != nil && !retryable(err):
				yield(Event{}, err)
				return
			case f.progress:
				down, wait, f.progress = time.Time{}, firstWait, false
			case down.IsZero():
				down = time.Now()
			case time.Since(down) > patience:
				yield(Event{}, err)
				return
			}
			f.opt.Past = true
			if sleep(ctx, wait) != nil {
				return
			}
			wait = min(2*wait, 2*time.Second)
		}
	}
}

type follower struct {
	c        *Client
	id       string
	opt      FollowOptions
	last     time.Time // of the newest event yielded: times are unique and increasing
	yield    func(Event, error) bool
	progress bool // the server answered
	done     bool // the consumer or the session has ended it
}

// once opens the stream first and reads the history second, so that nothing falls between them.
func (f *follower) once(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	q := url.Values{}
	if f.opt.Own {
		q.Set("include[]", "outboard")
	}
	if f.opt.Live != nil {
		q.Add("event_deltas[]", "agent.message")
	}
	if f.opt.Own && f.opt.Line != nil {
		q.Add("event_deltas[]", callOutput)
	}
	resp, err := f.c.once(ctx, http.MethodGet, "/v1/sessions/"+url.PathEscape(f.id)+"/events/stream", q, nil, "")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	f.progress = true
	if f.opt.Past {
		eq := EventQuery{Own: f.opt.Own}
		if !f.last.IsZero() {
			eq.After = f.last.UTC().Format(time.RFC3339Nano)
		}
		for ev, err := range f.c.Events(ctx, f.id, eq) {
			if err != nil {
				return err
			}
			if f.emit(ev); f.done {
				return nil
			}
		}
	}
	return f.read(ctx, cancel, resp.Body)
}

// read passes on what the stream says until it ends.
func (f *follower) read(ctx context.Context, cancel context.CancelCauseFunc, body io.Reader) error {
	dead := time.AfterFunc(silence, func() { cancel(errSilent) })
	defer dead.Stop()
	for data, err := range frames(body) {
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			return &TransportError{f.c.URL(), err}
		}
		dead.Reset(silence)
		if data == nil {
			continue // a comment: the server is there
		}
		var ev Event
		if err := json.Unmarshal(data, &ev); err != nil {
			return &TransportError{f.c.URL(), fmt.Errorf("reading the stream: %w", err)}
		}
		switch ev.Type {
		case "error":
			return streamError(ev)
		case "event_start", "event_delta":
			if err := f.piece(ev); err != nil {
				return &TransportError{f.c.URL(), fmt.Errorf("reading the stream: %w", err)}
			}
			continue
		case callOutput:
			var l Line
			if err := ev.Decode(&l); err != nil {
				return &TransportError{f.c.URL(), fmt.Errorf("reading the stream: %w", err)}
			}
			if f.opt.Line != nil {
				f.opt.Line(l)
			}
			continue
		}
		if f.emit(ev); f.done {
			return nil
		}
	}
	return &TransportError{f.c.URL(), io.ErrUnexpectedEOF}
}

var errSilent = errors.New("the stream went silent")

func (f *follower) emit(ev Event) {
	if !ev.ProcessedAt.After(f.last) { // or still queued
		return
	}
	f.last = ev.ProcessedAt
	if !f.yield(ev, nil) || ev.Type == "session.deleted" {
		f.done = true
	}
}

// piece passes on what a model is writing.
func (f *follower) piece(ev Event) error {
	var p struct {
		Event struct {
			ID   string `json:"id"`
			Type string `json:"type"`
		} `json:"event"`
		EventID string `json:"event_id"`
		Delta   struct {
			Content struct {
				Text string `json:"text"`
			} `json:"content"`
		} `json:"delta"`
	}
	if err := ev.Decode(&p); err != nil {
		return err
	}
	switch {
	case f.opt.Live == nil:
	case ev.Type == "event_delta":
		f.opt.Live(Piece{Event: p.EventID, Text: p.Delta.Content.Text})
	case p.Event.Type == "agent.message":
		f.opt.Live(Piece{Event: p.Event.ID, Start: true})
	}
	return nil
}

// streamError is an error the server put into the stream.
func streamError(ev Event) error {
	var body struct {
		Error struct {
			Type    string `json:"type"`
			Message string `json:"message"`
		} `json:"error"`
	}
	if err := ev.Decode(&body); err != nil || body.Error.Message == "" {
		return outboard.Errorf(outboard.Unavailable, "the stream ended with an error")
	}
	kind := outboard.Unavailable
	if body.Error.Type == "not_found_error" {
		kind = outboard.NotFound
	}
	return outboard.Errorf(kind, "%s", body.Error.Message)
}

// frames yields the data of each server-sent event, and nil for each comment.
func frames(r io.Reader) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		s := bufio.NewScanner(r)
		s.Buffer(make([]byte, 64<<10), maxLine)
		var data []byte
		for s.Scan() {
			line := s.Bytes()
			switch {
			case len(line) == 0:
				if data != nil && !yield(data, nil) {
					return
				}
				data = nil
			case line[0] == ':':
				if !yield(nil, nil) {
					return
				}
			case bytes.HasPrefix(line, []byte("data:")):
				if data != nil {
					data = append(data, '\n')
				}
				data = append(data, bytes.TrimPrefix(line[5:], []byte(" "))...)
			}
		}
		if err := s.Err(); err != nil {
			yield(nil, err)
		}
	}
}

func jsonInto(b []byte, v any) error {
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("decoding an answer: %w", err)
	}
	return nil
}
