package api

import (
	"encoding/json"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// sessionOwn is what Outboard adds to a session for those who ask.
type sessionOwn struct {
	ParentID *string  `json:"parent_id"`     // the session it was forked from; null for one that was not
	ForkedAt *int64   `json:"forked_at_seq"` // the last event they share
	Seq      int64    `json:"seq"`           // of its last event
	Owner    ownerOut `json:"owner"`
}

// ownerOut is whose a session is: the key that made it and, where that is a person's, the person.
type ownerOut struct {
	UserID *string `json:"user_id"`
	KeyID  *string `json:"key_id"`
	Name   string  `json:"name"` // of the key, as it was then
}

// addOwn fills in what a session shows besides the wire.
func (s *server) addOwn(r *request, v control.Session, out *sessionOut) error {
	parent, seq, err := s.ctl.Parent(r.Context(), r.by, v.ID)
	if err != nil {
		return err
	}
	owner := v.Config.Owner
	out.Outboard = &sessionOwn{Seq: v.Head, Owner: ownerOut{textOrNull(string(owner.User)),
		textOrNull(string(owner.Key)), owner.Name}}
	if parent != "" {
		out.Outboard.ParentID, out.Outboard.ForkedAt = new(string(parent)), &seq
	}
	return nil
}

// showOwn is showSession, with Outboard's part when include[]=outboard asks for it.
func (s *server) showOwn(r *request, v control.Session) (any, error) {
	out := s.showSession(v)
	own, err := r.own()
	if err == nil && own {
		err = s.addOwn(r, v, &out)
	}
	return out, err
}

// optional reads a JSON body into v, or leaves v as it is when there is none.
func (r *request) optional(v any) error {
	b, err := r.body()
	if err != nil || strings.TrimSpace(string(b)) == "" {
		return err
	}
	if err := control.CheckJSON(b); err != nil {
		return err
	}
	return object("", b, v)
}

type forkIn struct {
	Seq      *int64            `json:"seq"`
	Count    *int              `json:"count"`
	Title    *string           `json:"title"`
	Metadata map[string]string `json:"metadata"`
	VaultIDs []string          `json:"vault_ids"`
	Prompt   string            `json:"prompt"`
}

type forkOut struct {
	listOut[sessionOut]
	Seq int64 `json:"seq"` // the position they share: the last settled one up to the one asked for
}

// forkSession makes sessions that share this one's log up to a position.
func (s *server) forkSession(r *request) (any, error) {
	var in forkIn
	if err := r.optional(&in); err != nil {
		return nil, err
	}
	q := control.ForkRequest{Title: in.Title, Metadata: in.Metadata, VaultIDs: in.VaultIDs, Prompt: in.Prompt}
	if in.Seq != nil {
		if q.Seq = *in.Seq; q.Seq < 1 {
			return nil, bad("seq: must be an integer from 1, not %d", q.Seq)
		}
	}
	if in.Count != nil {
		if q.Count = *in.Count; q.Count < 1 {
			return nil, bad("count: must be 1 to %d, not %d", outboard.MaxForks, q.Count)
		}
	}
	made, seq, err := s.ctl.Fork(r.Context(), r.by, outboard.SessionID(r.PathValue("session")), q)
	if err != nil {
		return nil, err
	}
	out := forkOut{listOut[sessionOut]{Data: []sessionOut{}}, seq}
	for _, v := range made {
		o := s.showSession(v)
		if err := s.addOwn(r, v, &o); err != nil {
			return nil, err
		}
		out.Data = append(out.Data, o)
	}
	return out, nil
}

type rewindIn struct {
	Seq          json.RawMessage        `json:"seq"`
	Checkpoint   *outboard.CheckpointID `json:"checkpoint_id"`
	Conversation *bool                  `json:"conversation"`
	Machine      *bool                  `json:"machine"`
}

type rewindOut struct {
	Type    string     `json:"type"`
	Seq     int64      `json:"seq"` // where it went back to
	Session sessionOut `json:"session"`
}

// rewindSession takes a session back: both its conversation and its machine, or what is named.
func (s *server) rewindSession(r *request) (any, error) {
	var in rewindIn
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	var q control.RewindRequest
	if err := rewindTo(&in, &q); err != nil {
		return nil, err
	}
	both := in.Conversation == nil && in.Machine == nil
	q.Conversation, q.Machine = both && in.Checkpoint == nil, both
	if in.Conversation != nil {
		q.Conversation = *in.Conversation
	}
	if in.Machine != nil {
		q.Machine = *in.Machine
	}
	v, seq, err := s.ctl.Rewind(r.Context(), r.by, outboard.SessionID(r.PathValue("session")), q)
	if err != nil {
		return nil, err
	}
	out := rewindOut{"session_rewound", seq, s.showSession(v)}
	return out, s.addOwn(r, v, &out.Session)
}
