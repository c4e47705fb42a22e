package harness

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/outboard-dev/outboard"
)

// leastPart is the shortest that the parts of a transcript are cut to. Where that is not enough, the oldest are
// left out.
const leastPart = 200

// transcript tells a conversation as text of about so many bytes at most: of its parts the longest are cut, in
// their middle.
func (l *loop) transcript(ctx context.Context, history []*outboard.Message, size int) (string, error) {
	var parts []string
	for _, m := range history {
		more, err := l.parts(ctx, m)
		if err != nil {
			return "", err
		}
		parts = append(parts, more...)
	}
	most := share(parts, size)
	skip := 0
	if most < leastPart {
		most = leastPart
		skip = max(0, len(parts)-size/leastPart)
	}
	out := []string{"[outboard] The conversation so far, as a transcript, because it is too long for you as it is. " +
		"Long parts are cut."}
	if skip > 0 {
		out = append(out, fmt.Sprintf("[outboard] The oldest %d parts are left out.", skip))
	}
	for _, p := range parts[skip:] {
		out = append(out, middleOut(p, most))
	}
	return strings.Join(out, "\n\n"), nil
}

// share returns the length to cut the longest of parts to, for all of them to have size bytes.
func share(parts []string, size int) int {
	lens := make([]int, len(parts))
	for i, p := range parts {
		lens[i] = len(p)
	}
	slices.Sort(lens)
	for i, n := range lens {
		if each := size / (len(lens) - i); n > each {
			return each
		}
		size -= n
	}
	return max(leastPart, slices.Max(append(lens, 0))) // they fit as they are
}

// middleOut cuts a text to its beginning and its end.
func middleOut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	head, tail := s[:most/2], s[len(s)-most/2:]
	return strings.ToValidUTF8(head, "") + fmt.Sprintf("\n[outboard] %d bytes are left out here.\n",
		len(s)-len(head)-len(tail)) +
		strings.ToValidUTF8(tail, "")
}

// parts is a message as the parts of a transcript: what was said, each call and each result.
func (l *loop) parts(ctx context.Context, m *outboard.Message) ([]string, error) {
	var out []string
	add := func(who string, content []outboard.Content) error {
		text, err := l.told(ctx, content)
		if text != "" {
			out = append(out, who+": "+text)
		}
		return err
	}
	if err := add(m.Role, m.Content); err != nil {
		return nil, err
	}
	for _, u := range m.Uses {
		input := []byte(u.Input)
		if u.Blob != nil {
			var err error
			if input, err = l.t.Load(ctx, *u.Blob); err != nil {
				return nil, err
			}
		}
		out = append(out, fmt.Sprintf("%s called %s: %s", m.Role, u.Name, input))
	}
	for _, r := range m.Results {
		if err := add("result", r.Content); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// told is content as text.
func (l *loop) told(ctx context.Context, content []outboard.Content) (string, error) {
	var out []string
	for _, c := range content {
		switch {
		case c.Blob != nil:
			b, err := l.t.Load(ctx, *c.Blob)
			if err != nil {
				return "", err
			}
			out = append(out, string(b))
		case c.Source != nil:
			out = append(out, fmt.Sprintf("[outboard] A block of type %q is not shown.", c.Type))
		default:
			out = append(out, c.Text)
		}
		more, err := l.told(ctx, c.Parts)
		if err != nil {
			return "", err
		}
		if more != "" {
			out = append(out, more)
		}
	}
	return strings.Join(out, "\n"), nil
}
