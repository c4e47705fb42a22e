package api

import (
	"encoding/json"
	"slices"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// decodeResource reads one resource to attach: so far only files.
func decodeResource(path string, raw json.RawMessage) (control.ResourceRequest, error) {
	kind, err := unionType(path, raw)
	if err != nil {
		return control.ResourceRequest{}, err
	}
	switch kind {
	case "file":
		var in struct {
			Type  string          `json:"type"`
			File  outboard.FileID `json:"file_id" need:"yes"`
			Mount field[string]   `json:"mount_path"`
		}
		err := object(path, raw, &in)
		if err == nil && in.Mount.set && !in.Mount.null && in.Mount.v == "" {
			err = bad("%s.mount_path: must not be empty", path)
		}
		return control.ResourceRequest{File: in.File, MountPath: in.Mount.v}, err
	case "github_repository", "memory_store":
		return control.ResourceRequest{}, outboard.Errorf(outboard.Unimplemented,
			"%s: resources of type %s are not built yet", path, kind)
	}
	return control.ResourceRequest{}, bad("%s.type: must be file, github_repository or memory_store, not %q", path,
		clip(kind))
}

func (s *server) listResources(r *request) (any, error) {
	id := outboard.SessionID(r.PathValue("session"))
	list, err := s.ctl.Resources(r.Context(), r.by, id)
	if err != nil {
		return nil, err
	}
	name := "resources of " + string(id)
	limit, err := r.limit(eventPage, eventPage)
	if err != nil {
		return nil, err
	}
	cur, err := parseCursor(r.query.Get("page"), name, "")
	if err != nil {
		return nil, err
	}
	if cur.After != "" {
		i := slices.IndexFunc(list, func(v outboard.Resource) bool { return string(v.ID) == cur.After })
		list = list[i+1:] // the whole list again when the row is gone: rather twice than never
	}
	var next *string
	if len(list) > limit {
		list = list[:limit]
		next = cursor{List: name, After: string(list[limit-1].ID)}.token()
	}
	return listOut[resourceOut]{showResources(list), next}, nil
}

func (s *server) addResource(r *request) (any, error) {
	b, err := r.body()
	if err == nil {
		err = control.CheckJSON(b)
	}
	if err != nil {
		return nil, err
	}
	in, err := decodeResource("the request body", b)
	if err != nil {
		return nil, err
	}
	v, err := s.ctl.AddResource(r.Context(), r.by, outboard.SessionID(r.PathValue("session")), in)
	if err != nil {
		return nil, err
	}
	return showResource(v), nil
}

func (s *server) resource(r *request) (outboard.Resource, error) {
	return s.ctl.Resource(r.Context(), r.by, outboard.SessionID(r.PathValue("session")),
		outboard.ResourceID(r.PathValue("resource")))
}

func (s *server) getResource(r *request) (any, error) {
	v, err := s.resource(r)
	if err != nil {
		return nil, err
	}
	return showResource(v), nil
}

// updateResource can only rotate a repository's token, and there are no repositories yet.
func (s *server) updateResource(r *request) (any, error) {
	b, err := r.body()
	if err == nil && len(b) > 0 {
		err = control.CheckJSON(b)
	}
	if err != nil {
		return nil, err
	}
	v, err := s.resource(r)
	if err != nil {
		return nil, err
	}
	return nil, bad("resource %s is a %s and has nothing to update", v.ID, v.Kind)
}

func (s *server) deleteResource(r *request) (any, error) {
	id := outboard.ResourceID(r.PathValue("resource"))
	if err := s.ctl.DeleteResource(r.Context(), r.by, outboard.SessionID(r.PathValue("session")), id); err != nil {
		return nil, err
	}
	return deletedOut{string(id), "session_resource_deleted"}, nil
}
