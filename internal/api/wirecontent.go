package api

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

// Kinds of blocks each event takes.
var (
	userBlocks   = []string{"text", "image", "document"}
	resultBlocks = []string{"text", "image", "document", "search_result"}
	textBlocks   = []string{"text"}
)

// maxBlocks bounds the blocks of one event, against bodies of a million tiny ones.
const maxBlocks = 1000

// decodeContent reads the blocks of a client event.
func decodeContent(path string, raws []json.RawMessage, allowed []string) ([]outboard.Content, error) {
	if len(raws) > maxBlocks {
		return nil, bad("%s: at most %d blocks, not %d", path, maxBlocks, len(raws))
	}
	var out []outboard.Content
	for i, raw := range raws {
		c, err := decodeBlock(control.At(path, i), raw, allowed)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

func decodeBlock(path string, raw json.RawMessage, allowed []string) (c outboard.Content, err error) {
	kind, err := unionType(path, raw)
	if err != nil {
		return c, err
	}
	if !slices.Contains(allowed, kind) {
		return c, bad("%s.type: must be %s, not %q", path, strings.Join(allowed, ", "), clip(kind))
	}
	c.Type = kind
	switch kind {
	case "text":
		var in struct {
			Type string `json:"type"`
			Text string `json:"text" need:"yes"`
		}
		err = object(path, raw, &in)
		if c.Text = in.Text; err == nil && c.Text == "" {
			err = bad("%s.text: must not be empty", path)
		}
	case "image":
		var in struct {
			Type   string          `json:"type"`
			Source json.RawMessage `json:"source" need:"yes"`
		}
		if err = object(path, raw, &in); err == nil {
			c.Source, err = decodeSourceBlock(control.Join(path, "source"), in.Source, "base64", "url", "file")
		}
	case "document":
		var in struct {
			Type    string          `json:"type"`
			Source  json.RawMessage `json:"source" need:"yes"`
			Title   string          `json:"title"`
			Context string          `json:"context"`
		}
		if err = object(path, raw, &in); err == nil {
			c.Title, c.Context = in.Title, in.Context
			c.Source, err = decodeSourceBlock(control.Join(path, "source"), in.Source, "base64", "text", "url", "file")
		}
	case "search_result":
		err = decodeSearchResult(path, raw, &c)
	}
	return c, err
}

func decodeSearchResult(path string, raw json.RawMessage, c *outboard.Content) error {
	var in struct {
		Type      string            `json:"type"`
		Source    string            `json:"source" need:"yes"`
		Title     string            `json:"title" need:"yes"`
		Content   []json.RawMessage `json:"content" need:"yes"`
		Citations json.RawMessage   `json:"citations" need:"yes"`
	}
	if err := object(path, raw, &in); err != nil {
		return err
	}
	if in.Source == "" || in.Title == "" {
		return bad("%s: source and title must not be empty", path)
	}
	var cit struct {
		Enabled bool `json:"enabled" need:"yes"`
	}
	if err := object(control.Join(path, "citations"), in.Citations, &cit); err != nil {
		return err
	}
	parts, err := decodeContent(control.Join(path, "content"), in.Content, textBlocks)
	c.Text, c.Title, c.Parts, c.Citations = in.Source, in.Title, parts, cit.Enabled
	return err
}

// decodeSourceBlock reads where an image's or a document's bytes are.
func decodeSourceBlock(path string, raw json.RawMessage, allowed ...string) (*outboard.Source, error) {
	kind, err := unionType(path, raw)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(allowed, kind) {
		return nil, bad("%s.type: must be %s, not %q", path, strings.Join(allowed, ", "), clip(kind))
	}
	s := &outboard.Source{Type: kind}
	switch kind {
	case "url":
		var in struct {
			Type string `json:"type"`
			URL  string `json:"url" need:"yes"`
		}
		err = object(path, raw, &in)
		s.URL = in.URL
	case "file":
		var in struct {
			Type string          `json:"type"`
			File outboard.FileID `json:"file_id" need:"yes"`
		}
		err = object(path, raw, &in)
		s.File = in.File
	default:
		var in struct {
			Type      string `json:"type"`
			MediaType string `json:"media_type" need:"yes"`
			Data      string `json:"data" need:"yes"`
		}
		err = object(path, raw, &in)
		s.MediaType, s.Data = in.MediaType, in.Data
		if err == nil && s.Data == "" {
			err = bad("%s.data: must not be empty", path)
		}
		if err == nil && kind == "text" && s.MediaType != "text/plain" {
			err = bad("%s.media_type: must be text/plain, not %q", path, clip(s.MediaType))
		}
	}
	return s, err
}

// loader returns the bytes of content that was moved out of the log.
type loader func(ctx context.Context, ref outboard.BlobRef) ([]byte, error)

// showContent is blocks as the wire shows them, whole.
func showContent(ctx context.Context, load loader, blocks []outboard.Content) ([]any, error) {
	out := make([]any, 0, len(blocks))
	for i := range blocks {
		b, err := showBlock(ctx, load, &blocks[i])
		if err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	return out, nil
}

func showBlock(ctx context.Context, load loader, c *outboard.Content) (map[string]any, error) {
	m := map[string]any{"type": c.Type}
	switch c.Type {
	case "text":
		m["text"] = c.Text
		if c.Blob != nil {
			b, err := load(ctx, *c.Blob)
			if err != nil {
				return nil, err
			}
			m["text"] = string(b)
		}
	case "search_result":
		parts, err := showContent(ctx, load, c.Parts)
		if err != nil {
			return nil, err
		}
		m["source"], m["title"], m["content"] = c.Text, c.Title, parts
		m["citations"] = map[string]bool{"enabled": c.Citations}
	case "image", "document":
		src, err := showSource(ctx, load, c.Source)
		if err != nil {
			return nil, err
		}
		m["source"] = src
		if c.Title != "" {
			m["title"] = c.Title
		}
		if c.Context != "" {
			m["context"] = c.Context
		}
	}
	return m, nil
}

func showSource(ctx context.Context, load loader, s *outboard.Source) (map[string]any, error) {
	if s == nil {
		return nil, outboard.Errorf(outboard.Internal, "a block has no source")
	}
	switch s.Type {
	case "url":
		return map[string]any{"type": "url", "url": s.URL}, nil
	case "file":
		return map[string]any{"type": "file", "file_id": s.File}, nil
	case "blob":
		b, err := load(ctx, *s.Blob)
		if err != nil {
			return nil, err
		}
		data := string(b)
		if s.Encoding == "base64" {
			data = base64.StdEncoding.EncodeToString(b)
		}
		return map[string]any{"type": s.Encoding, "media_type": s.MediaType, "data": data}, nil
	}
	return map[string]any{"type": s.Type, "media_type": s.MediaType, "data": s.Data}, nil
}
