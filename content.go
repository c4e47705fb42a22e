package outboard

import "encoding/json"

// Content is one block of a message or a tool result, in our own normalised form.
//
// Type is one of "text" (Text), "image" (Source), "document" (Source, Title, Context), "search_result" (Title, Text = source
// URL, Parts, Citations) or "redacted".
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
	Cost         Cost  `json:"cost,omitempty"` // at list price, as it was when the model answered; 0 where the model has none
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
