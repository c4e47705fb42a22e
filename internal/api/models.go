package api

import (
	"slices"

	"github.com/outboard-dev/outboard"
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
		i := slices.IndexFunc(list, func(m control.Model) bool { return m.ID == id })
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
		out.Data = append(out.Data, showModel(m))
	}
	if n := len(out.Data); n > 0 {
		out.FirstID, out.LastID = &out.Data[0].ID, &out.Data[n-1].ID
	}
	return out, nil
}

func (s *server) getModel(r *request) (any, error) {
	list, err := s.ctl.Models(r.Context(), r.by)
	if err != nil {
		return nil, err
	}
	id := r.PathValue("model")
	i := slices.IndexFunc(list, func(m control.Model) bool { return m.ID == id })
	if i < 0 {
		return nil, outboard.Errorf(outboard.NotFound, "there is no model %q", clip(id))
	}
	return showModel(list[i]), nil
}
