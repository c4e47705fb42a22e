package llm

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"

	"github.com/outboard-dev/outboard"
)

// Labels in front of what is not the user's own text but has to travel as such. They say who speaks.
const (
	labelNote    = "[outboard] Note: "
	labelSystem  = "[outboard] System message: "
	labelSummary = "[outboard] Summary of the conversation so far:\n"
	labelOrphan  = "[outboard] Result of an earlier tool call:\n"
)

// noResult is what the model is told about a call whose result is missing; the wires refuse a call without one.
const noResult = "[outboard] No result of this call was recorded."

// entry is one message of the conversation as all wires want it: assistant and user alternate, and every call of
// an assistant entry has its result at the beginning of the user entry after it.
type entry struct {
	assistant *outboard.Message // nil: a user entry
	results   []outboard.ToolResult
	said      []segment
}

// segment is what one message of a user entry says.
type segment struct {
	role    string // user, system, note, summary or tool (a result without its call)
	label   string
	content []outboard.Content
}

// entries puts a history into the form all wires want.
func entries(history []*outboard.Message) []entry {
	var out []entry
	user := func() *entry {
		if len(out) == 0 || out[len(out)-1].assistant != nil {
			out = append(out, entry{})
		}
		return &out[len(out)-1]
	}
	open := map[string]bool{} // calls of the last assistant entry without a result so far
	for _, m := range history {
		switch m.Role {
		case "assistant":
			if len(m.Raw) == 0 && m.RawBlob == nil && len(m.Content) == 0 && len(m.Uses) == 0 {
				continue // an interrupted response that had said nothing
			}
			closeCalls(out, open)
			if u := user(); len(u.results)+len(u.said) == 0 { // two responses in a row, or one before any message
				u.said = []segment{{"note", labelNote, []outboard.Content{outboard.Text("the conversation goes on.")}}}
			}
			out = append(out, entry{assistant: m}, entry{})
			for _, u := range m.Uses {
				open[u.ID] = true
			}
		case "tool":
			for _, r := range m.Results {
				if open[r.ToolUseID] {
					delete(open, r.ToolUseID)
					user().results = append(user().results, r)
					continue
				}
				user().said = append(user().said, segment{"tool", labelOrphan, r.Content})
			}
		default:
			user().said = append(user().said, segment{m.Role, labelOf(m.Role), m.Content})
		}
	}
	closeCalls(out, open)
	if n := len(out); n > 0 && out[n-1].assistant == nil && len(out[n-1].results)+len(out[n-1].said) == 0 {
		out = out[:n-1]
	}
	return out
}

// closeCalls gives every call of the last assistant entry that has no result one that says so.
func closeCalls(out []entry, open map[string]bool) {
	if len(open) == 0 {
		return
	}
	for i := len(out) - 1; i > 0; i-- {
		if a := out[i-1].assistant; a != nil {
			for _, u := range a.Uses {
				if open[u.ID] {
					out[i].results = append(out[i].results, outboard.ToolResult{ToolUseID: u.ID, Call: u.Call,
						IsError: true,
						Content: []outboard.Content{outboard.Text(noResult)}})
				}
			}
			break
		}
	}
	clear(open)
}

func labelOf(role string) string {
	switch role {
	case "note":
		return labelNote
	case "system":
		return labelSystem
	case "summary":
		return labelSummary
	}
	return ""
}

// replays reports whether m can go back as it came: it is from this very provider, over this very wire.
func (e *endpoint) replays(m *outboard.Message) bool {
	name, _, _ := strings.Cut(m.Model, "/")
	return m.Provider == e.info.Provider && (m.Model == "" || name == e.provider.Name)
}

// part is a block of content with its bytes at hand.
type part struct {
	kind    string // "text", "image", "pdf", "document" (plain text) or "search_result"
	text    string // of text, document; the source of a search result
	media   string // of image
	data    string // base64 of image, pdf
	url     string // instead of data
	title   string
	context string
	parts   []string // of a search result
	cite    bool
}

// load makes parts of content, fetching what is kept as blobs. Blocks that would be empty are left out: the
// wires refuse them.
func load(ctx context.Context, req Request, content []outboard.Content) ([]part, error) {
	var out []part
	for _, c := range content {
		p, err := loadPart(ctx, req, c)
		if err != nil {
			return nil, err
		}
		if p.kind == "text" && strings.TrimSpace(p.text) == "" {
			continue
		}
		out = append(out, p)
	}
	return out, nil
}

func loadPart(ctx context.Context, req Request, c outboard.Content) (part, error) {
	p := part{title: c.Title, context: c.Context, cite: c.Citations}
	switch {
	case c.Type == "text":
		text, err := contentText(ctx, req, c)
		return part{kind: "text", text: text}, err
	case c.Type == "search_result":
		p.kind, p.text = "search_result", c.Text
		for _, s := range c.Parts {
			text, err := contentText(ctx, req, s)
			if err != nil {
				return p, err
			}
			p.parts = append(p.parts, text)
		}
		return p, nil
	case c.Source == nil || c.Type != "image" && c.Type != "document":
		return part{kind: "text", text: fmt.Sprintf("[outboard] A block of type %q is not shown.", c.Type)}, nil
	case c.Source.Type == "file":
		return part{kind: "text", text: fmt.Sprintf("[outboard] The %s is file %s, which is not shown here.", c.Type,
			c.Source.File)}, nil
	}
	return loadSource(ctx, req, c.Type, c.Source, p)
}

// loadSource fills in an image or a document.
func loadSource(ctx context.Context, req Request, kind string, s *outboard.Source, p part) (part, error) {
	p.media, p.url = s.MediaType, s.URL
	encoding := s.Type
	switch s.Type {
	case "base64", "text":
		p.data = s.Data
	case "blob":
		if s.Blob == nil {
			return p, outboard.Errorf(outboard.Internal, "loading a %s: its blob is not named", kind)
		}
		b, err := loadBlob(ctx, req, *s.Blob)
		if err != nil {
			return p, err
		}
		encoding = cmp.Or(s.Encoding, "base64")
		p.data = string(b)
		if encoding == "base64" {
			p.data = base64.StdEncoding.EncodeToString(b)
		}
	}
	switch {
	case kind == "image":
		p.kind, p.media = "image", cmp.Or(p.media, "image/png")
	case encoding == "text":
		p.kind, p.text, p.data = "document", p.data, ""
	case strings.HasPrefix(p.media, "text/"):
		b, err := base64.StdEncoding.DecodeString(p.data)
		if err != nil {
			return p, outboard.Errorf(outboard.Invalid, "reading a document: %w", err)
		}
		p.kind, p.text, p.data = "document", string(b), ""
	default:
		p.kind = "pdf"
	}
	return p, nil
}

// plain is a part as text, for wires that have no block of its kind.
func (p part) plain() string {
	switch p.kind {
	case "text":
		return p.text
	case "document":
		return strings.TrimLeft(fmt.Sprintf("%s\n%s\n\n%s", p.title, p.context, p.text), "\n")
	case "search_result":
		return fmt.Sprintf("%s\n%s\n\n%s", p.title, p.text, strings.Join(p.parts, "\n"))
	}
	return fmt.Sprintf("[outboard] A %s is not shown: this model takes none here. %s", p.kind, p.url)
}

// dataURL is an image or a PDF as a URL that holds it, or its own URL.
func (p part) dataURL() string {
	if p.url != "" {
		return p.url
	}
	return "data:" + cmp.Or(p.media, "application/pdf") + ";base64," + p.data
}

// filename is a name for wires that want one.
func (p part) filename() string { return cmp.Or(p.title, "document.pdf") }

// parts loads a segment, with its label in front.
func (s segment) parts(ctx context.Context, req Request) ([]part, error) {
	parts, err := load(ctx, req, s.content)
	if err != nil || s.label == "" {
		return parts, err
	}
	if len(parts) > 0 && parts[0].kind == "text" {
		parts[0].text = s.label + parts[0].text
		return parts, nil
	}
	return append([]part{{kind: "text", text: s.label}}, parts...), nil
}

// useInput returns a call's arguments as an object, wherever they are kept.
func useInput(ctx context.Context, req Request, u outboard.ToolUse) ([]byte, error) {
	if u.Blob != nil {
		b, err := loadBlob(ctx, req, *u.Blob)
		return asObject(b), err
	}
	if len(u.Input) == 0 {
		return []byte("{}"), nil
	}
	return asObject(bytes.TrimSpace(u.Input)), nil
}

var idRE = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// safeID is a call's id that every wire takes. Ids of one provider may be too long or too odd for another.
func safeID(id string) string {
	if idRE.MatchString(id) {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return "call_" + hex.EncodeToString(sum[:16])
}

// maxCallID bounds the ids of calls that are kept as they came. The wires' own have up to 64 characters, but
// gateways put a model's signed reasoning into theirs and want it back.
const maxCallID = 16 << 10

// callIDs gives each call of a response the id that its result goes back under: its own, which has to be one,
// and no other call's of the conversation. Providers refuse the whole conversation otherwise.
type callIDs struct {
	turn int // number of the response in the conversation
	n    int // number of the call in the response
	used map[string]bool
}

func newCallIDs(history []*outboard.Message) *callIDs {
	c := &callIDs{turn: 1, used: map[string]bool{}}
	for _, m := range history {
		if m.Role == "assistant" {
			c.turn++
		}
		for _, u := range m.Uses {
			c.used[u.ID] = true
		}
	}
	return c
}

// take returns the id of the next call, which came with the id own. It is another one where that cannot be it.
func (c *callIDs) take(own string) string {
	c.n++
	id := own
	for n := c.n; id == "" || len(id) > maxCallID || c.used[id]; n++ {
		id = fmt.Sprintf("call_%d_%d", c.turn, n)
	}
	c.used[id] = true
	return id
}

var toolNameRE = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)

// noName stands for the name of a call that has none.
const noName = "unnamed_tool"

// safeName is a call's name as it goes back to a model. A model can call what no tool is named, or nothing at
// all, and reads so as the call's result; but providers refuse the whole conversation over a name that is none
// of theirs.
func safeName(name string) string {
	if toolNameRE.MatchString(name) {
		return name
	}
	safe := []byte(name[:min(len(name), 64)])
	for i, c := range safe {
		if !toolNameRE.Match([]byte{c}) {
			safe[i] = '_'
		}
	}
	return cmp.Or(string(safe), noName)
}

// onlyText joins parts, if all of them can be told as text.
func onlyText(parts []part) (text string, ok bool) {
	var out []string
	for _, p := range parts {
		if p.kind == "image" || p.kind == "pdf" {
			return "", false
		}
		out = append(out, p.plain())
	}
	return strings.Join(out, "\n"), true
}

// markError says in words that a result is an error, for wires without a flag for it.
func markError(parts []part, isError bool) []part {
	if !isError {
		return parts
	}
	return append([]part{{kind: "text", text: "[outboard] The tool reported an error:"}}, parts...)
}
