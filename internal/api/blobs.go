package api

import "time"

func (s *server) pruneBlobs(r *request) (any, error) {
	var in struct {
		Unused int64 `json:"unused_seconds"`
		Dry    bool  `json:"dry_run"`
	}
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	p, err := s.ctl.PruneBlobs(r.Context(), r.by, time.Duration(in.Unused)*time.Second, in.Dry)
	if err != nil {
		return nil, err
	}
	return map[string]any{"type": "blobs_pruned", "removed": p.Removed, "size_bytes": p.Bytes, "kept": p.Kept,
		"dry_run": in.Dry}, nil
}
