package control

import (
	"bytes"
	"context"
	"encoding/base64"
	"io"
	"net/url"
	"strings"

	"github.com/outboard-dev/outboard"
)

// spillSteps are the sizes above which a block moves to blob, tried in turn until an event's payload fits in the log.
var spillSteps = []int{outboard.MaxInlineContent, 4 << 10, 256}

// spillAll makes events of payloads, with large content moved to blob. They go into a session of org.
func (c *Control) spillAll(ctx context.Context, org outboard.OrgID, thread outboard.ThreadID,
	ps []outboard.Payload) ([]outboard.Event, error) {
	var out []outboard.Event
	seen := &pictures{left: decodedPixels}
	for _, p := range ps {
		ev, err := c.spillEvent(ctx, org, thread, p, seen)
		if err != nil {
			return nil, err
		}
		out = append(out, ev)
	}
	return out, nil
}

// spillEvent checks the content of an input and makes its event.
func (c *Control) spillEvent(ctx context.Context, org outboard.OrgID, thread outboard.ThreadID, p outboard.Payload,
	seen *pictures) (outboard.Event, error) {
	blocks := contentOf(p)
	if blocks == nil {
		return outboard.NewEvent(thread, p), nil
	}
	for i := range *blocks {
		if err := c.checkBlock(ctx, org, &(*blocks)[i], seen); err != nil {
			return outboard.Event{}, err
		}
	}
	for _, step := range spillSteps {
		for i := range *blocks {
			if err := c.spillBlock(ctx, &(*blocks)[i], step); err != nil {
				return outboard.Event{}, err
			}
		}
		if ev := outboard.NewEvent(thread, p); len(ev.Data) <= outboard.MaxEventData {
			return ev, nil
		}
	}
	return outboard.Event{}, outboard.Errorf(outboard.TooLarge,
		"an event has more than %d bytes besides its large blocks", outboard.MaxEventData).
		WithHint("use fewer, larger blocks")
}

// contentOf returns the blocks of an input, nil for one without.
func contentOf(p outboard.Payload) *[]outboard.Content {
	switch p := p.(type) {
	case *outboard.InputMessage:
		return &p.Content
	case *outboard.InputSystem:
		return &p.Content
	case *outboard.InputToolResult:
		return &p.Content
	}
	return nil
}

// checkBlock validates what the wire layer cannot: files that exist, base64 that decodes, pictures and URLs that a
// model provider takes.
func (c *Control) checkBlock(ctx context.Context, org outboard.OrgID, b *outboard.Content, seen *pictures) error {
	s := b.Source
	if s == nil {
		return nil
	}
	switch s.Type {
	case "base64":
		data, err := base64.StdEncoding.Strict().DecodeString(s.Data)
		if err != nil {
			return invalid("data of the %s is not base64: %v", b.Type, err)
		}
		if b.Type == "image" {
			return seen.checkImage(s, data)
		}
		return length("media_type of the "+b.Type, s.MediaType, 1, maxMIME)
	case "url":
		u, err := url.Parse(s.URL)
		if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
			return invalid("url of the %s must be an http(s) URL, not %s", b.Type, quote(s.URL))
		}
	case "file":
		f, err := c.fileOf(ctx, org, s.File)
		if err != nil && outboard.KindOf(err) != outboard.NotFound {
			return err
		}
		if err != nil || c.expired(f) {
			return invalid("there is no file %s for the %s", quote(string(s.File)), b.Type)
		}
		s.Blob, s.MediaType = &f.Blob, f.MediaType // the bytes stay reachable when the file is deleted later
		if b.Type == "image" {
			if err := checkPictureSize(f.Blob.Size); err != nil {
				return err
			}
			data, err := c.Load(ctx, f.Blob)
			if err != nil {
				return err
			}
			return seen.checkImage(s, data)
		}
	}
	return nil
}

// spillBlock moves the text or data of a block to blob when it is larger than step.
func (c *Control) spillBlock(ctx context.Context, b *outboard.Content, step int) error {
	for i := range b.Parts {
		if err := c.spillBlock(ctx, &b.Parts[i], step); err != nil {
			return err
		}
	}
	if b.Type == "text" && len(b.Text) > step {
		ref, err := c.put(ctx, strings.NewReader(b.Text))
		if err != nil {
			return err
		}
		b.Text, b.Blob = "", &ref
	}
	s := b.Source
	if s == nil || len(s.Data) <= step || s.Type != "base64" && s.Type != "text" {
		return nil
	}
	data := []byte(s.Data)
	if s.Type == "base64" {
		var err error
		if data, err = base64.StdEncoding.DecodeString(s.Data); err != nil {
			return invalid("data of the %s is not base64: %v", b.Type, err)
		}
	}
	ref, err := c.put(ctx, bytes.NewReader(data))
	if err != nil {
		return err
	}
	s.Type, s.Encoding, s.Data, s.Blob = "blob", s.Type, "", &ref
	return nil
}

func (c *Control) put(ctx context.Context, r io.Reader) (outboard.BlobRef, error) {
	ref, err := c.blob.Put(ctx, r, outboard.MaxBody)
	if err != nil {
		return ref, outboard.Errorf(outboard.KindOf(err), "storing content: %w", err)
	}
	return ref, nil
}

// Load returns the bytes of content that was moved to blob. It is for readers of events that Follow, Events or
// Waiting gave.
func (c *Control) Load(ctx context.Context, ref outboard.BlobRef) ([]byte, error) {
	if ref.Size > outboard.MaxBody {
		return nil, outboard.Errorf(outboard.TooLarge, "content %s has %d bytes", ref.Digest, ref.Size)
	}
	r, err := c.blob.Open(ctx, ref)
	if err != nil {
		return nil, outboard.Errorf(outboard.KindOf(err), "opening content %s: %w", ref.Digest, err)
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, outboard.MaxBody+1))
	if err != nil {
		return nil, outboard.Errorf(outboard.KindOf(err), "reading content %s: %w", ref.Digest, err)
	}
	return b, nil
}
