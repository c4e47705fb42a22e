package guest

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
)

// Hit is one line of what a search found: a path, and behind it what grep found there.
type Hit struct {
	Path string
	Text string // such as ":12:text"; "" of glob
}

// RenderHits is the answer of a search as the model reads it.
func RenderHits(found []Hit, notes string) []byte {
	var b bytes.Buffer
	if len(found) == 0 {
		b.WriteString("no matches")
		if notes != "" {
			b.WriteByte('\n')
		}
	}
	for _, h := range found {
		b.WriteString(h.Path + h.Text + "\n")
	}
	b.WriteString(notes)
	return b.Bytes()
}

// encodeHits is the answer of a search whose hits the host judges: of each the path, a NUL, the rest and a line
// feed, then the notes behind a NUL. Paths have no NUL but may have line feeds; what follows has no line feed.
func encodeHits(found []Hit, notes string) []byte {
	var b bytes.Buffer
	for _, h := range found {
		b.WriteString(h.Path + "\x00" + h.Text + "\n")
	}
	b.WriteString("\x00" + notes)
	return b.Bytes()
}

// ParseHits reads the answer of a search whose hits the host judges. ok is false for what is none.
func ParseHits(b []byte) (found []Hit, notes string, ok bool) {
	rest := string(b)
	for {
		path, after, whole := strings.Cut(rest, "\x00")
		if !whole {
			return nil, "", false
		}
		if path == "" {
			return found, after, true
		}
		text, next, whole := strings.Cut(after, "\n")
		if !whole {
			return nil, "", false
		}
		found, rest = append(found, Hit{path, text}), next
	}
}

// SplitPattern cuts an absolute pattern before its first component with a special character: where it searches,
// and for what.
func SplitPattern(p string) (dir, pattern string) {
	parts := strings.Split(p, "/")
	i := slices.IndexFunc(parts, func(c string) bool { return strings.ContainsAny(c, `*?[{\`) })
	if i < 0 {
		i = len(parts) - 1
	}
	return cmp.Or(strings.Join(parts[:i], "/"), "/"), strings.Join(parts[i:], "/")
}
