package control

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/store"
)

// uploadsDir is where file resources are mounted. Managed Agents wire.
const uploadsDir = "/mnt/session/uploads"

// Limits on a session's resources.
const (
	maxResources = 500 // Managed Agents wire: files of one session
	maxMountPath = 4096
)

// ResourceRequest attaches an uploaded file to a session. MountPath is rooted under the uploads directory; "" is
// the file's id.
type ResourceRequest struct {
	File      outboard.FileID
	MountPath string
}

// copyFiles gives the session its own copy of each file and fills cfg.Resources. undo removes the copies again.
func (c *Control) copyFiles(ctx context.Context, by outboard.Caller, id outboard.SessionID, rs []ResourceRequest,
	cfg *outboard.SessionConfig) (undo func() error, err error) {
	var made []outboard.FileID
	undo = func() error {
		var errs []error
		for _, f := range made {
			errs = append(errs, c.store.DeleteFile(context.WithoutCancel(ctx), f))
		}
		return errors.Join(errs...)
	}
	for _, r := range rs {
		res, file, err := c.resource(ctx, by, id, r, cfg.Resources)
		if err != nil {
			return nil, errors.Join(err, undo())
		}
		if err := c.keepFile(ctx, file); err != nil {
			return nil, errors.Join(outboard.Errorf(outboard.KindOf(err), "copying file %s: %w", r.File, err), undo())
		}
		made = append(made, file.ID)
		cfg.Resources = append(cfg.Resources, res)
	}
	if err := checkDefinition("resources", cfg.Resources); err != nil {
		return nil, errors.Join(err, undo())
	}
	return undo, nil
}

// resource checks one request against what the session has, and makes the resource and its copy of the file.
func (c *Control) resource(ctx context.Context, by outboard.Caller, id outboard.SessionID, r ResourceRequest,
	have []outboard.Resource) (outboard.Resource, outboard.File, error) {
	if len(have) >= maxResources {
		return outboard.Resource{}, outboard.File{}, invalid("a session has at most %d file resources", maxResources)
	}
	mount, err := mountPath(r)
	if err != nil {
		return outboard.Resource{}, outboard.File{}, err
	}
	for _, h := range have {
		if h.MountPath == mount || strings.HasPrefix(h.MountPath, mount+"/") ||
			strings.HasPrefix(mount, h.MountPath+"/") {
			return outboard.Resource{}, outboard.File{}, invalid("mount_path %s collides with %s", quote(mount),
				quote(h.MountPath))
		}
	}
	f, err := c.File(ctx, by, r.File)
	if err != nil {
		if outboard.KindOf(err) == outboard.NotFound {
			err = invalid("there is no file %s to attach", quote(string(r.File)))
		}
		return outboard.Resource{}, outboard.File{}, err
	}
	now := c.clock()
	f.ID, f.Session, f.Path, f.Downloadable = outboard.NewID[outboard.FileID](outboard.PrefixFile), id, "", false
	f.CreatedAt, f.ExpiresAt = now, time.Time{} // the session keeps its copy for as long as it lives
	res := outboard.Resource{ID: outboard.NewID[outboard.ResourceID](outboard.PrefixResource), Kind: "file", File: f.ID,
		Origin: r.File, MountPath: mount, CreatedAt: now, UpdatedAt: now}
	return res, f, nil
}

// mountPath roots a client's path under the uploads directory.
func mountPath(r ResourceRequest) (string, error) {
	p := r.MountPath
	if p == "" {
		p = string(r.File)
	}
	if len(p) > maxMountPath || strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return "", invalid("mount_path %s is longer than %d bytes or has control characters", quote(p), maxMountPath)
	}
	if slices.Contains(strings.Split(p, "/"), "..") {
		return "", invalid("mount_path %s must not contain ..", quote(p))
	}
	rel := strings.TrimPrefix(path.Clean("/"+p), uploadsDir+"/")
	rel = strings.TrimPrefix(rel, "/")
	if rel == "" || "/"+rel == uploadsDir {
		return "", invalid("mount_path %s names no file", quote(p))
	}
	return uploadsDir + "/" + rel, nil
}

// Resources returns the session's resources, in the order they were attached.
func (c *Control) Resources(ctx context.Context, by outboard.Caller,
	id outboard.SessionID) ([]outboard.Resource, error) {
	s, err := c.Session(ctx, by, id)
	return s.Config.Resources, err
}

// Resource returns one resource of a session.
func (c *Control) Resource(ctx context.Context, by outboard.Caller, id outboard.SessionID,
	rid outboard.ResourceID) (outboard.Resource, error) {
	list, err := c.Resources(ctx, by, id)
	if err != nil {
		return outboard.Resource{}, err
	}
	i := slices.IndexFunc(list, func(r outboard.Resource) bool { return r.ID == rid })
	if i < 0 {
		return outboard.Resource{}, notFound("resource", string(rid))
	}
	return list[i], nil
}

// AddResource attaches one more file. It is in the sandbox from the session's next turn on.
func (c *Control) AddResource(ctx context.Context, by outboard.Caller, id outboard.SessionID,
	r ResourceRequest) (outboard.Resource, error) {
	if err := requireDeveloper(by, scopeSessions); err != nil {
		return outboard.Resource{}, err
	}
	var added outboard.Resource
	_, err := c.edit(ctx, by, id, func(s *Session) (store.Commit, error) {
		res, file, err := c.resource(ctx, by, id, r, s.Config.Resources)
		if err != nil {
			return store.Commit{}, err
		}
		added = res
		if err := c.record(ctx, by, "session.add_resource", string(id)+" "+string(res.ID), res); err != nil {
			return store.Commit{}, err
		}
		s.Config.Resources = append(slices.Clone(s.Config.Resources), res)
		if err := checkDefinition("resources", s.Config.Resources); err != nil {
			return store.Commit{}, err
		}
		cm := resourceCommit(s)
		cm.Files = []outboard.File{file}
		return cm, nil
	})
	return added, err
}

// DeleteResource detaches a file and removes the session's copy of it.
func (c *Control) DeleteResource(ctx context.Context, by outboard.Caller, id outboard.SessionID,
	rid outboard.ResourceID) error {
	if err := requireDeveloper(by, scopeSessions); err != nil {
		return err
	}
	var file outboard.FileID
	_, err := c.edit(ctx, by, id, func(s *Session) (store.Commit, error) {
		i := slices.IndexFunc(s.Config.Resources, func(r outboard.Resource) bool { return r.ID == rid })
		if i < 0 {
			return store.Commit{}, notFound("resource", string(rid))
		}
		file = s.Config.Resources[i].File
		if err := c.record(ctx, by, "session.delete_resource", string(id)+" "+string(rid),
			s.Config.Resources[i]); err != nil {
			return store.Commit{}, err
		}
		s.Config.Resources = slices.Delete(slices.Clone(s.Config.Resources), i, i+1)
		return resourceCommit(s), nil
	})
	if err != nil {
		return err
	}
	if err := c.store.DeleteFile(ctx, file); err != nil && outboard.KindOf(err) != outboard.NotFound {
		return outboard.Errorf(outboard.KindOf(err), "removing file %s: %w", file, err)
	}
	return nil
}

func resourceCommit(s *Session) store.Commit {
	list := s.Config.Resources
	if list == nil {
		list = []outboard.Resource{}
	}
	return store.Commit{Events: []outboard.Event{outboard.NewEvent(s.Thread,
		&outboard.SessionUpdated{Resources: &list})}, Config: &s.Config}
}
