package outboard

import (
	"encoding/json"
	"fmt"
	"slices"
)

// Content is one block of a message or a tool result, in our own normalised form.
//
// Type is one of "text" (Text), "image" (Source), "document" (Source, Title, Context), "search_result" (Title,
// Text = source URL, Parts, Citations) or "redacted".
type Content struct {
	Type      string    `json:"type"`
	Text      string    `json:"text,omitempty"`
	Source    *Source   `json:"source,omitempty"`
	Title     string    `json:"title,omitempty"`
	Context   string    `json:"context,omitempty"`
	Parts     []Content `json:"parts,omitempty"`
	Citations bool      `json:"citations,omitempty"`
	Blob      *BlobRef  `json:"blob,omitempty"` // set instead of Text when the text is over MaxInlineContent
}

// Source says where the bytes of an image or document are.
//
// Type is "base64" (MediaType, Data), "text" (MediaType, Data), "url" (URL), "file" (File) or "blob" (MediaType, Blob):
// control replaces large base64 and text data by a blob before the event is appended.
type Source struct {
	Type      string   `json:"type"`
	MediaType string   `json:"media_type,omitempty"`
	Data      string   `json:"data,omitempty"`
	URL       string   `json:"url,omitempty"`
	File      FileID   `json:"file,omitempty"`
	Blob      *BlobRef `json:"blob,omitempty"`
	Encoding  string   `json:"encoding,omitempty"` // of a blob: the source type it stands for, "base64" or "text"
}

// BlobRef names bytes in the blob store: the lower-case hex SHA-256 of the content, and its length.
type BlobRef struct {
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
}

// Text returns a text block.
func Text(s string) Content { return Content{Type: "text", Text: s} }

// PlainText joins the text of blocks, newline separated; other blocks are skipped.
func PlainText(blocks []Content) string {
	var out []byte
	for _, b := range blocks {
		if b.Type != "text" {
			continue
		}
		if len(out) > 0 {
			out = append(out, '\n')
		}
		out = append(out, b.Text...)
	}
	return string(out)
}

// Usage counts tokens the way the Managed Agents wire does: Input excludes cached tokens.
type Usage struct {
	Input        int64 `json:"input"`
	Output       int64 `json:"output"`
	CacheRead    int64 `json:"cache_read,omitempty"`
	CacheWrite5m int64 `json:"cache_write_5m,omitempty"`
	CacheWrite1h int64 `json:"cache_write_1h,omitempty"`
	// at list price, as it was when the model answered; 0 where the model has none
	Cost Cost `json:"cost,omitempty"`
}

// Tokens is how many there are of all kinds.
func (u Usage) Tokens() int64 {
	return u.Input + u.Output + u.CacheRead + u.CacheWrite5m + u.CacheWrite1h
}

// Add returns the sum of two usages.
func (u Usage) Add(v Usage) Usage {
	return Usage{u.Input + v.Input, u.Output + v.Output, u.CacheRead + v.CacheRead,
		u.CacheWrite5m + v.CacheWrite5m, u.CacheWrite1h + v.CacheWrite1h, u.Cost + v.Cost}
}

// Sub returns what is left of a usage without another one that is part of it.
func (u Usage) Sub(v Usage) Usage {
	return Usage{u.Input - v.Input, u.Output - v.Output, u.CacheRead - v.CacheRead,
		u.CacheWrite5m - v.CacheWrite5m, u.CacheWrite1h - v.CacheWrite1h, u.Cost - v.Cost}
}

// Raw is a JSON document that is stored and returned byte for byte.
type Raw = json.RawMessage

// textLeftOut is what a model reads where a picture or document was that its provider refused.
const textLeftOut = "[outboard] A %s was left out here: the model's provider refused it."

// media reports whether a block is a picture or document that is not text.
func (c *Content) media() bool {
	return c.Source != nil && (c.Type == "image" || c.Type == "document") && c.Source.Type != "text" &&
		c.Source.Encoding != "text"
}

// HasMedia reports whether a picture or document is in the conversation.
func (s *State) HasMedia() bool { return slices.ContainsFunc(s.History, (*Message).hasMedia) }

func (m *Message) hasMedia() bool {
	return hasMedia(m.Content) || slices.ContainsFunc(m.Results, func(r ToolResult) bool { return hasMedia(r.Content) })
}

func hasMedia(blocks []Content) bool {
	return slices.ContainsFunc(blocks, func(c Content) bool { return c.media() || hasMedia(c.Parts) })
}

// leaveOut replaces the pictures and documents since the last response by a line of text; where there are none
// there, all of them: the model may be another one by now.
func (s *State) leaveOut() {
	from := len(s.History)
	for from > 0 && s.History[from-1].Role != "assistant" {
		from--
	}
	if !slices.ContainsFunc(s.History[from:], (*Message).hasMedia) {
		from = 0
	}
	s.History, s.shared = slices.Clone(s.History), false
	for i, m := range s.History[from:] {
		if !m.hasMedia() {
			continue
		}
		n := *m
		n.Content, n.Results = withoutMedia(m.Content), slices.Clone(m.Results)
		for j := range n.Results {
			n.Results[j].Content = withoutMedia(n.Results[j].Content)
		}
		s.History[from+i] = &n
	}
}

func withoutMedia(blocks []Content) []Content {
	out := slices.Clone(blocks)
	for i := range out {
		if out[i].media() {
			out[i] = Text(fmt.Sprintf(textLeftOut, out[i].Type))
			continue
		}
		out[i].Parts = withoutMedia(out[i].Parts)
	}
	return out
}
