package guest

import (
	"context"
	"encoding/json"
	"path"
	"slices"
)

// base is where tools begin and relative names lead from.
func (s *server) base() string {
	if dir := s.begin.Load(); dir != nil {
		return *dir
	}
	return s.cfg.Workspace
}

// beginIn says where tools begin. What they write elsewhere than in the saved directories is lost with the
// machine, so they do not begin there.
func (s *server) beginIn(_ context.Context, durable <-chan struct{}, c Start, k *sink) outcome {
	var in struct {
		Dir string `json:"dir"`
	}
	if err := json.Unmarshal(c.Input, &in); err != nil {
		return refused(k, "settle: unreadable input: %v", err)
	}
	saved := slices.ContainsFunc(s.cfg.Roots, func(root string) bool { _, ok := below(in.Dir, root); return ok })
	if !saved || path.Clean(in.Dir) != in.Dir {
		return refused(k, "settle: %q is not in a saved directory", in.Dir)
	}
	<-durable
	s.begin.Store(&in.Dir)
	return outcome{Cause: causeExited}
}
