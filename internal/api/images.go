package api

import (
	"net/http"
	"time"

	"github.com/outboard-dev/outboard/internal/control"
)

// Images: what sandboxes begin with, as this host has it. Outboard's own resource. An image is named in queries
// and bodies, not in paths, since names have slashes.

type imageOut struct {
	Type     string `json:"type"` // "image"
	Name     string `json:"name"`
	Digest   string `json:"digest"`
	Layers   int    `json:"layers"`
	Bytes    int64  `json:"size_bytes"` // unpacked
	Present  bool   `json:"present"`    // false: pulled again when it is used
	Imported bool   `json:"imported"`
	PulledAt string `json:"pulled_at"`
	UsedAt   string `json:"used_at"`
}

func showImage(i control.Image) imageOut {
	return imageOut{Type: "image", Name: i.Name, Digest: i.Digest, Layers: len(i.Layers), Bytes: i.Bytes,
		Present: i.Present, Imported: i.Imported,
		PulledAt: i.PulledAt.Format(time.RFC3339), UsedAt: i.UsedAt.Format(time.RFC3339)}
}

func (s *server) listImages(r *request) (any, error) {
	list, err := s.ctl.Images(r.Context(), r.by)
	if err != nil {
		return nil, err
	}
	data := []imageOut{}
	for _, i := range list {
		data = append(data, showImage(i))
	}
	return map[string]any{"data": data, "next_page": nil}, nil
}

func (s *server) pullImage(r *request) (any, error) {
	var in struct {
		Name string `json:"name"`
	}
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	i, err := s.ctl.PullImage(r.Context(), r.by, in.Name)
	if err != nil {
		return nil, err
	}
	return showImage(i), nil
}

// importImage takes an archive as the request's body.
func (s *server) importImage(r *request) (any, error) {
	i, err := s.ctl.ImportImage(r.Context(), r.by, r.query.Get("name"),
		http.MaxBytesReader(r.w, r.Body, control.MaxImageUpload))
	if err != nil {
		return nil, err
	}
	return showImage(i), nil
}

func (s *server) removeImage(r *request) (any, error) {
	name := r.query.Get("name")
	if err := s.ctl.RemoveImage(r.Context(), r.by, name); err != nil {
		return nil, err
	}
	return map[string]any{"type": "image_deleted", "name": name}, nil
}

func (s *server) pruneImages(r *request) (any, error) {
	var in struct {
		Unused int64 `json:"unused_seconds"`
	}
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	p, err := s.ctl.PruneImages(r.Context(), r.by, time.Duration(in.Unused)*time.Second)
	if err != nil {
		return nil, err
	}
	return map[string]any{"type": "images_pruned", "layers": p.Layers, "size_bytes": p.Bytes}, nil
}
