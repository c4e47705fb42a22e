package api

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"github.com/outboard-dev/outboard/internal/control"
)

// modelListOut is paged the old way: by the ids at its ends.
type modelListOut struct {
	Data    []modelInfoOut `json:"data"`
	HasMore bool           `json:"has_more"`
	FirstID *string        `json:"first_id"`
	LastID  *string        `json:"last_id"`
}

func (s *server) listModels(r *request) (any, error) {
	limit, err := r.limit(otherPage, maxOtherPage)
	if err != nil {
		return nil, err
	}
	list, err := s.ctl.Models(r.Context(), r.by)
	if err != nil {
		return nil, err
	}
	find := func(name string) (int, error) {
		id := r.query.Get(name)
		i := slices.IndexFunc(list, func(m control.Model) bool { return cmp.Or(m.Alias, m.ID) == id })
		if id != "" && i < 0 {
			return 0, bad("%s: there is no model %q", name, clip(id))
		}
		return i, nil
	}
	after, err := find("after_id")
	if err != nil {
		return nil, err
	}
	before, err := find("before_id")
	if err != nil {
		return nil, err
	}
	out := modelListOut{Data: []modelInfoOut{}}
	from, to := after+1, len(list)
	if before >= 0 {
		to = max(from, before)
		from = max(from, to-limit)
		out.HasMore = from > after+1
	} else if to-from > limit {
		to, out.HasMore = from+limit, true
	}
	for _, m := range list[from:to] {
		out.Data = append(out.Data, r.showModel(m))
	}
	if n := len(out.Data); n > 0 {
		out.FirstID, out.LastID = &out.Data[0].ID, &out.Data[n-1].ID
	}
	return out, nil
}

// getModel resolves an alias as well: what it answers is the model itself.
func (s *server) getModel(r *request) (any, error) {
	m, err := s.ctl.Model(r.Context(), r.by, r.PathValue("model"))
	if err != nil {
		return nil, err
	}
	return r.showModel(m), nil
}

// showModel describes a configured model. When it was created is not known here; the wire wants a time all the same.
func (r *request) showModel(m control.Model) modelInfoOut {
	out := modelInfoOut{Type: "model", ID: m.ID, DisplayName: m.ID, CreatedAt: stamp(time.Unix(0, 0)),
		Lifecycle: "active",
		MaxInput:  m.Context, MaxOutput: m.Output}
	if m.Alias != "" {
		out.ID, out.DisplayName = m.Alias, m.Alias+" ("+m.ID+")"
	}
	if r.query.Get("beta") == "true" {
		out.Fallback = json.RawMessage("null")
	}
	return out
}
