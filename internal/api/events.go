package api

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// eventPage is the page size of events, threads and resources: default and most.
const eventPage = 1000

// primary refuses a thread path that names any other thread than the session's only one.
func primary(r *request, v *control.Session) error {
	if t := r.PathValue("thread"); t != "" && t != string(v.Thread) {
		return outboard.Errorf(outboard.NotFound, "there is no thread %q", clip(t))
	}
	return nil
}

// own reports whether the client asks for Outboard's own events.
func (r *request) own() (bool, error) {
	include, err := r.list("include", 10, "outboard")
	return slices.Contains(include, "outboard"), err
}

// positive reads an integer parameter from 1.
func (r *request) positive(name string) (int, error) {
	s := r.query.Get(name)
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 1 {
		return 0, bad("%s: must be an integer from 1, not %q", name, clip(s))
	}
	return int(n), nil
}

func (s *server) sendEvents(r *request) (any, error) {
	var in struct {
		Events []json.RawMessage `json:"events" need:"yes"`
	}
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	if len(in.Events) > outboard.MaxSendEvents {
		return nil, bad("events: at most %d, not %d", outboard.MaxSendEvents, len(in.Events))
	}
	ps, err := decodeEvents("events", in.Events)
	if err != nil {
		return nil, err
	}
	id := outboard.SessionID(r.PathValue("session"))
	sent, err := s.ctl.Send(r.Context(), r.by, id, ps)
	if err != nil {
		return nil, err
	}
	return s.showSent(r, id, sent)
}

// showSent echoes accepted events. What waits has no processed_at yet.
func (s *server) showSent(r *request, id outboard.SessionID, sent []outboard.Event) (any, error) {
	tr := &translator{src: &logSource{ctl: s.ctl, by: r.by, id: id}}
	out := []wireEvent{}
	for i := range sent {
		w, err := tr.queued(r.Context(), &sent[i], true)
		if err != nil {
			return nil, err
		}
		out = append(out, w)
	}
	return map[string]any{"data": out}, nil
}

// eventQuery reads the parameters of an event list.
func (r *request) eventQuery(list string) (q eventQuery, cur cursor, own bool, err error) {
	order, err := r.oneOf("order", "asc", "desc")
	if err != nil {
		return q, cur, false, err
	}
	q.desc = order == "desc"
	if cur, err = parseCursor(r.query.Get("page"), list, order); err != nil {
		return q, cur, false, err
	}
	if own, err = r.own(); err != nil {
		return q, cur, false, err
	}
	if q.limit, err = r.limit(eventPage, eventPage); err != nil {
		return q, cur, false, err
	}
	if q.types, err = r.list("types", 100); err != nil {
		return q, cur, false, err
	}
	for _, t := range q.types {
		name, mine := strings.CutPrefix(t, ownPrefix)
		if _, ok := shownAs[t]; !ok && !(own && mine && slices.Contains(ownTypes, outboard.EventType(name))) {
			return q, cur, false, bad("types[]: %q is not an event type that is kept", clip(t))
		}
	}
	if q.time, err = r.between(); err != nil {
		return q, cur, false, err
	}
	return q, cur, own, cur.within(q.time)
}

func (s *server) listEvents(r *request) (any, error) {
	v, err := s.ctl.Session(r.Context(), r.by, outboard.SessionID(r.PathValue("session")))
	if err != nil {
		return nil, err
	}
	if err := primary(r, &v); err != nil {
		return nil, err
	}
	q, cur, own, err := r.eventQuery("events of " + string(v.ID))
	if err != nil {
		return nil, err
	}
	src := &logSource{ctl: s.ctl, by: r.by, id: v.ID, head: v.Head}
	tr := &translator{src: src, thread: v.Thread, agent: v.Config.Agent.Name, own: own}
	l := &lister{ctl: s.ctl, by: r.by, id: v.ID, src: src, tr: tr, q: q, pos: cur}
	list, next, err := l.list(r.Context())
	if err != nil {
		return nil, err
	}
	if src.total.Head > 0 {
		s.ctl.Accounted(v.ID, src.total)
	}
	out := listOut[wireEvent]{Data: some(list)}
	if next != nil {
		out.NextPage = next.token()
	}
	return out, nil
}

func (s *server) listThreads(r *request) (any, error) {
	v, err := s.ctl.Session(r.Context(), r.by, outboard.SessionID(r.PathValue("session")))
	if err != nil {
		return nil, err
	}
	if _, err := r.limit(eventPage, eventPage); err != nil {
		return nil, err
	}
	if _, err := parseCursor(r.query.Get("page"), "threads of "+string(v.ID), ""); err != nil {
		return nil, err
	}
	want, err := r.list("statuses", len(statuses)*2, statuses...)
	if err != nil {
		return nil, err
	}
	out := listOut[threadOut]{Data: []threadOut{}}
	if t := s.showThread(v); len(want) == 0 || slices.Contains(want, t.Status) {
		out.Data = append(out.Data, t)
	}
	return out, nil
}

func (s *server) getThread(r *request) (any, error) {
	v, err := s.ctl.Session(r.Context(), r.by, outboard.SessionID(r.PathValue("session")))
	if err != nil {
		return nil, err
	}
	if err := primary(r, &v); err != nil {
		return nil, err
	}
	return s.showThread(v), nil
}

// archiveThread refuses: threads are archived one by one while their session goes on, but for the primary one,
// which ends with it. Archiving it as well is so asked for already where the session is, and answered with the
// thread.
func (s *server) archiveThread(r *request) (any, error) {
	if err := r.empty(); err != nil {
		return nil, err
	}
	v, err := s.ctl.Session(r.Context(), r.by, outboard.SessionID(r.PathValue("session")))
	if err != nil {
		return nil, err
	}
	if err := primary(r, &v); err != nil {
		return nil, err
	}
	if v.ArchivedAt.IsZero() {
		return nil, bad("thread %s is the primary one of its session and cannot be archived by itself", v.Thread).
			WithHint("POST /v1/sessions/%s/archive archives the session with it", v.ID)
	}
	return s.showThread(v), nil
}
