package api

import (
	"encoding/json"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// checkpointOut is a saved state of a session's workspace.
type checkpointOut struct {
	Type      string  `json:"type"`
	ID        string  `json:"id"`
	SessionID string  `json:"session_id"` // the session that made it: of a fork it may be an ancestor
	Seq       int64   `json:"seq"`
	CallID    *string `json:"call_id"`
	ParentID  *string `json:"parent_id"`  // null when it is whole in itself
	Size      int64   `json:"size_bytes"` // of what it adds to its parent
	Durable   bool    `json:"durable"`
	Lost      *string `json:"lost"`    // why it cannot be restored, or not on every host: thinned, host_lost, too_large
	Current   bool    `json:"current"` // what the next machine would start from
	CreatedAt string  `json:"created_at"`
}

// checkpointsOut is all of a session's. StoredBytes is there when it was asked for: it takes a look at what each
// is made of.
type checkpointsOut struct {
	listOut[checkpointOut]
	StoredBytes *int64       `json:"stored_bytes,omitempty"` // of all together, before compression
	Retention   retentionOut `json:"retention"`
}

// retentionOut says what of many checkpoints stays; 0 = no bound.
type retentionOut struct {
	Newest int   `json:"newest"` // all of these, and of older ones fewer
	Bytes  int64 `json:"max_bytes"`
}

func (s *server) listCheckpoints(r *request) (any, error) {
	sum, err := r.flag("stored")
	if err != nil {
		return nil, err
	}
	list, err := s.ctl.Checkpoints(r.Context(), r.by, outboard.SessionID(r.PathValue("session")))
	if err != nil {
		return nil, err
	}
	keep := s.ctl.Retention()
	out := checkpointsOut{Retention: retentionOut{keep.States, keep.Bytes}}
	out.Data = []checkpointOut{}
	if sum {
		n, err := s.ctl.StoredBytes(r.Context(), list)
		if err != nil {
			return nil, err
		}
		out.StoredBytes = &n
	}
	for _, k := range list {
		out.Data = append(out.Data, checkpointOut{Type: "checkpoint", ID: string(k.ID), SessionID: string(k.Session),
			Seq:    k.Seq,
			CallID: textOrNull(string(k.Call)), ParentID: textOrNull(string(k.Parent)), Size: k.Delta.Size, Durable: k.Durable,
			Lost: textOrNull(lost(&k.Checkpoint)), Current: k.Current, CreatedAt: stamp(k.CreatedAt)})
	}
	return out, nil
}

func lost(k *outboard.Checkpoint) string {
	switch {
	case k.Thinned():
		return "thinned"
	case k.TooLarge():
		return "too_large"
	case k.Lost() != nil:
		return "host_lost"
	}
	return ""
}

// changeOut is a path that differs between two checkpoints.
type changeOut struct {
	Path   string   `json:"path"`
	Change string   `json:"change"` // added, removed, changed
	Before *pathOut `json:"before"`
	After  *pathOut `json:"after"`
	Patch  string   `json:"patch,omitempty"`
}

type pathOut struct {
	Type string  `json:"type"` // file, dir, symlink, fifo
	Mode int64   `json:"mode"`
	Size int64   `json:"size_bytes"`
	Link *string `json:"link"`
}

type comparisonOut struct {
	From *string     `json:"from"` // null = the empty workspace
	To   *string     `json:"to"`
	Data []changeOut `json:"data"`
	More int         `json:"more"` // changes that were left out
}

func showPath(e *control.FileState) *pathOut {
	if e == nil {
		return nil
	}
	return &pathOut{e.Type, e.Mode, e.Size, textOrNull(e.Link)}
}

// compareCheckpoints answers what changed between two states of a session's workspace, each named by a
// checkpoint or a position.
func (s *server) compareCheckpoints(r *request) (any, error) {
	patch, err := r.flag("patch")
	if err != nil {
		return nil, err
	}
	cmp, err := s.ctl.CompareCheckpoints(r.Context(), r.by, outboard.SessionID(r.PathValue("session")),
		r.query.Get("from"), r.query.Get("to"), patch)
	if err != nil {
		return nil, err
	}
	out := comparisonOut{textOrNull(string(cmp.From)), textOrNull(string(cmp.To)), []changeOut{}, cmp.More}
	for _, ch := range cmp.Changes {
		kind := "changed"
		switch {
		case ch.Before == nil:
			kind = "added"
		case ch.After == nil:
			kind = "removed"
		}
		out.Data = append(out.Data, changeOut{ch.Path, kind, showPath(ch.Before), showPath(ch.After), ch.Patch})
	}
	return out, nil
}

// rewindTo reads where a rewind goes: seq, or for the machine alone a checkpoint.
func rewindTo(in *rewindIn, q *control.RewindRequest) error {
	if in.Checkpoint != nil {
		q.Checkpoint = *in.Checkpoint
		if in.Seq == nil {
			return nil
		}
	}
	if in.Seq == nil {
		return bad("seq: required, or checkpoint_id for the machine alone")
	}
	if err := json.Unmarshal(in.Seq, &q.Seq); err != nil || q.Seq < 1 {
		return bad("seq: must be an integer from 1")
	}
	return nil
}
