package api

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// maxDeltaKinds bounds event_deltas[]. Managed Agents wire.
const maxDeltaKinds = 100

// stream answers GET .../events/stream: the session's events from now on, as server-sent events. With
// include[]=outboard, after_seq=N begins behind that position of the log instead.
func (s *server) stream(r *request) (any, error) {
	v, err := s.ctl.Session(r.Context(), r.by, outboard.SessionID(r.PathValue("session")))
	if err != nil {
		return nil, err
	}
	if err := primary(r, &v); err != nil {
		return nil, err
	}
	own, err := r.own()
	if err != nil {
		return nil, err
	}
	known := []string{string(outboard.TypeAgentMessage), string(outboard.TypeAgentThinking)}
	if own {
		known = append(known, string(control.CallOutput))
	}
	kinds, err := r.list("event_deltas", maxDeltaKinds, known...)
	if err != nil {
		return nil, err
	}
	after, err := r.afterSeq(own, v.Head)
	if err != nil {
		return nil, err
	}
	done, err := s.ctl.OpenStream(r.Context(), r.by.In())
	if err != nil {
		return nil, err
	}
	defer done()
	src := &logSource{ctl: s.ctl, by: r.by, id: v.ID, head: v.Head}
	if after == v.Head {
		src.total = v.Header
	} else if src.total, err = s.ctl.UsageAt(r.Context(), v.ID, after); err != nil {
		return nil, err
	}
	st := &streamer{s: s, w: r.w, rc: http.NewResponseController(r.w), v: v, by: r.by, src: src, after: after,
		seen: after,
		tr:   &translator{src: src, thread: v.Thread, agent: v.Config.Agent.Name, own: own}, previews: newPreviews(kinds)}
	st.run(r.Context())
	return nil, nil
}

// afterSeq reads where a stream begins.
func (r *request) afterSeq(own bool, head int64) (int64, error) {
	text := r.query.Get("after_seq")
	if text == "" {
		return head, nil
	}
	if !own {
		return 0, bad("after_seq: needs include[]=outboard")
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > head {
		return 0, bad("after_seq: must be 0 to %d, the session's last event, not %q", head, clip(text))
	}
	return n, nil
}

// streamer writes one connection. All writes happen on the handler's goroutine; one other goroutine reads the log.
type streamer struct {
	s        *server
	w        http.ResponseWriter
	rc       *http.ResponseController
	v        control.Session
	by       outboard.Caller
	src      *logSource
	tr       *translator
	after    int64
	seen     int64 // the last event of the log that was written, or had nothing to show
	previews *previews
	held     *control.Delta // comes after an event of the log that has not been written yet; nil = none
	buf      bytes.Buffer
}

// logItem is what the reading goroutine hands over.
type logItem struct {
	e   outboard.Event
	err error
}

// run writes until the client goes away, the session ends, or the server stops.
func (st *streamer) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	var deltas <-chan control.Delta
	if st.previews.wanted() {
		deltas = st.s.ctl.Deltas(ctx, st.by, st.v.ID)
	}
	items := make(chan logItem) // unbuffered: a slow client slows its reader down; closed by the reader
	wg.Go(func() {
		defer close(items)
		for e, err := range st.s.ctl.Follow(ctx, st.by, st.v.ID, st.after) {
			select {
			case items <- logItem{e, err}:
			case <-ctx.Done():
				return
			}
		}
	})
	wg.Go(func() { st.s.ctl.While(ctx, cancel, st.by) })
	h := st.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Accel-Buffering", "no") // for proxies that would hold events back
	st.w.WriteHeader(http.StatusOK)
	if !st.write(": connected\n\n") {
		return
	}
	st.pump(ctx, items, deltas)
}

// pump is the connection's loop.
func (st *streamer) pump(ctx context.Context, items <-chan logItem, deltas <-chan control.Delta) {
	if st.v.Phase == outboard.PhaseTerminated && st.after >= st.v.Head {
		return // nothing will ever follow
	}
	tick := time.NewTicker(st.s.keepalive)
	defer tick.Stop()
	for {
		ok := true
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			ok = st.write(":keepalive\n\n")
		case d, open := <-st.next(deltas):
			if !open {
				deltas = nil
				continue
			}
			ok = st.delta(d)
		case it, open := <-items:
			ok = open && st.published(deltas) && st.item(ctx, it) && st.release()
		}
		if !ok {
			return
		}
	}
}

// next is where the next delta comes from: nowhere while one is held. What is produced meanwhile waits in the
// channel, and what does not fit is lost as it is for any slow reader.
func (st *streamer) next(deltas <-chan control.Delta) <-chan control.Delta {
	if st.held != nil {
		return nil
	}
	return deltas
}

// delta writes a delta, or holds it until the events before it have been written: a preview that came before the
// beginning of its own model request would belong, to a client that reads in order, to the request before.
func (st *streamer) delta(d control.Delta) bool {
	if d.After > st.seen {
		st.held = &d
		return true
	}
	m := st.previews.delta(d)
	return m == nil || st.frame(m)
}

// release writes the delta that is held, if everything before it has been written.
func (st *streamer) release() bool {
	if st.held == nil || st.held.After > st.seen {
		return true
	}
	d := *st.held
	st.held = nil
	return st.delta(d)
}

// published writes the deltas that have already arrived. The deltas of a message were published before the
// message was appended, so that a message which is about to be written never overtakes its own.
func (st *streamer) published(deltas <-chan control.Delta) bool {
	for n := len(deltas); n > 0 && st.held == nil; n-- {
		d, open := <-deltas
		if open && !st.delta(d) {
			return false
		}
	}
	return true
}

// item writes what one log event is on the wire; false ends the stream.
func (st *streamer) item(ctx context.Context, it logItem) bool {
	if it.err != nil {
		st.end(ctx, it.err)
		return false
	}
	if err := st.src.next(ctx, &it.e); err != nil {
		st.end(ctx, err)
		return false
	}
	ws, err := st.tr.events(ctx, &it.e)
	if err != nil {
		st.end(ctx, err)
		return false
	}
	st.previews.close(&it.e)
	for _, w := range ws {
		if !st.frame(w) {
			return false
		}
	}
	st.seen = it.e.Seq
	return it.e.Type != outboard.TypeSessionArchived
}

// end writes the last frame of a stream that cannot go on: the session was deleted, or reading failed.
func (st *streamer) end(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	if outboard.KindOf(err) == outboard.NotFound {
		st.frame(wireEvent{id: outboard.DeriveID[outboard.EventID](outboard.PrefixEvent, string(st.v.ID),
			"session.deleted"),
			kind: "session.deleted", at: st.s.now()})
		return
	}
	st.s.log.Error("stream failed", "request", requestID(ctx), "session", st.v.ID, "err", err)
	st.write(errorFrame(ctx, err))
}

// errorFrame is the last frame of a stream that fails.
func errorFrame(ctx context.Context, err error) string {
	body, _ := errorFor(err, requestID(ctx))
	b, err := json.Marshal(body)
	if err != nil {
		panic("api: encoding an error: " + err.Error()) // strings only
	}
	return "event: error\ndata: " + string(b) + "\n\n"
}

// frame writes one event. The SSE name is always message: clients skip frames without a name, and some skip
// names they do not know.
func (st *streamer) frame(v any) bool {
	st.buf.Reset()
	st.buf.WriteString("event: message\ndata: ")
	enc := json.NewEncoder(&st.buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil { // ends with the first of the two newlines
		st.s.log.Error("encoding an event", "session", st.v.ID, "err", err)
		return false
	}
	st.buf.WriteByte('\n')
	return st.write(st.buf.String())
}

// write sends text at once. A client that takes longer than the write timeout to read it is dropped: it can list
// what it missed.
func (st *streamer) write(text string) bool {
	if err := st.rc.SetWriteDeadline(time.Now().Add(st.s.writeTimeout)); err != nil && !isUnsupported(err) {
		return false
	}
	if _, err := st.w.Write([]byte(text)); err != nil {
		return false
	}
	return st.rc.Flush() == nil
}
