package egress

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// errForeign ends a request whose body has a key of the client's own, and errUnread one in which such a key
// could not be seen.
var (
	errForeign = errors.New("the body has a key of its own where this host's placeholder belongs")
	errUnread  = errors.New("the body is of a form in which a key of its own could not be seen, and this host has a " +
		"placeholder")
	errMethod = errors.New("the body names a method to be taken for, with which no rule lets this sandbox reach it")
	errBlind  = errors.New("the body is of a form in which a method to be taken for could not be seen, and rules " +
		"for this host name methods")
)

// maxMember bounds a name or a value that is looked at in a body. A longer name is none of those that hold keys,
// and a longer value is looked at as far as that.
const maxMember = 4 << 10

// guards reports whether a request's host has a placeholder, in whose place no other key may be sent.
func (inj *Injection) guards() bool { return len(inj.RefuseBody) > 0 && len(inj.Replace) > 0 }

// looks reports whether bodies are looked at.
func (inj *Injection) looks() bool { return inj.guards() || inj.override != nil }

// unread is why a body in which something could not be seen is not sent.
func (inj *Injection) unread() error {
	if inj.guards() {
		return errUnread
	}
	return errBlind
}

// hasFields reports whether servers could look for parameters in a body of some content types: a form, one in
// parts, or JSON.
func hasFields(types []string) bool {
	return slices.ContainsFunc(types, func(s string) bool {
		s = strings.ToLower(s)
		return strings.Contains(s, "form") || strings.Contains(s, "multipart/") || strings.Contains(s, "json")
	})
}

// format is what a client calls its body.
type format struct {
	other    bool // nobody looks at it
	form     bool
	boundary string // of a body in parts; "" = it is none
	coding   string // how it is compressed; "" = it is not
	framing  framing
	messages string // how its messages are compressed that say they are
	places   *places
}

// formatOf returns what a request's body is called. Of names that servers may read in several ways it takes
// none: such a request is refused where the body must be looked at.
func (p *port) formatOf(r *http.Request, inj *Injection) (f format, no *refusal) {
	if !inj.looks() || r.Body == nil || r.Body == http.NoBody {
		return f, nil
	}
	unread := func(what string) (format, *refusal) {
		no := unsent(inj.unread())
		return format{}, refuse(http.StatusUnsupportedMediaType, no.rule, "%s: %s", what, no.reason)
	}
	if !inj.guards() && !hasFields(r.Header.Values("Content-Type")) {
		return format{other: true}, nil
	}
	if f.coding = codingOf(r.Header); f.coding != "" && !slices.Contains(codings, f.coding) {
		return unread("it is encoded as " + strconv.Quote(clip(f.coding)) + ", and gzip, deflate and zstd can be read")
	}
	types := r.Header.Values("Content-Type")
	if len(types) > 1 {
		return unread("it has several content types")
	}
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil { // of a broken type servers take what comes before its parameters
		kind, _, _ = strings.Cut(strings.Join(types, ""), ";")
		kind = strings.ToLower(strings.TrimSpace(kind))
	}
	f.form = kind == "application/x-www-form-urlencoded"
	if strings.HasPrefix(kind, "multipart/") {
		if f.boundary = params["boundary"]; err != nil || f.boundary == "" || len(f.boundary) > maxBoundary {
			return unread("its content type has no boundary that is one")
		}
	}
	bad := false
	if !inj.guards() { // messages have no parameters
		return f, nil
	}
	if f.framing, bad = framingOf(kind); bad {
		return unread("it is gRPC in base64")
	}
	if f.framing == unframed {
		return f, nil
	}
	if f.messages, bad = messageCoding(r.Header); bad {
		return unread("its messages are encoded in a way other than gzip, deflate and zstd")
	}
	f.places = p.places
	return f, nil
}

// guarded looks at the body of a request to a host that has a placeholder, while it is sent: the members of a
// JSON text, or the fields of a form, under names by which keys are sent. What holds a key that is not the
// placeholder is not sent, and ends the request. Only such a value waits until it is whole, of at most maxMember
// bytes; everything else passes as it comes. Of a body in parts each is looked at, and messages are where
// protocol buffers are. Other formats pass as they are.
type guarded struct {
	io.ReadCloser
	inj   *Injection
	form  bool
	parts *parts // of a body in parts; nil = it is none

	begun bool   // the first byte that is no space has come
	other bool   // the format is none that is known
	state byte   // of JSON: 0 outside of a string, '"' in one, '\\' behind a backslash of one
	text  []byte // the string, or the form's field, that is being read
	long  bool   // it is longer than what is looked at
	name  string // of the member whose value comes next, "" = none that holds keys
	ended string // the last string that ended, a name if a colon follows
	wait  []byte // of a value that holds a key perhaps: read, not yet passed on
	out   []byte // to be passed on
	err   error
}

// guard puts the look at a body in its place, where the injection wants one. A compressed one was looked at before.
func guard(body io.ReadCloser, inj *Injection, f format) io.ReadCloser {
	if !inj.looks() || f.coding != "" || f.other {
		return body
	}
	if f.framing != unframed {
		return &messages{ReadCloser: body, inj: inj, how: f.framing, coding: f.messages, places: f.places}
	}
	g := &guarded{ReadCloser: body, inj: inj, form: f.form}
	if f.boundary != "" {
		g.parts = newParts(f.boundary)
	}
	return g
}

// Read returns what may be sent.
func (g *guarded) Read(b []byte) (int, error) {
	for len(g.out) == 0 && g.err == nil {
		n, err := g.ReadCloser.Read(b)
		if g.other && err == nil {
			return n, nil
		}
		for _, c := range b[:n] {
			if g.take(c); g.err != nil {
				g.wait = nil
				break
			}
		}
		if err == io.EOF && g.err == nil {
			g.end()
		}
		if err != nil && g.err == nil {
			g.out, g.wait, g.err = append(g.out, g.wait...), nil, err
		}
		if n == 0 {
			break
		}
	}
	if len(g.out) == 0 {
		return 0, g.err
	}
	n := copy(b, g.out)
	g.out = g.out[n:]
	return n, nil
}

// early looks at a body of a known length that is short, and at a compressed one, before anything is sent.
func (p *port) early(ctx context.Context, r *http.Request, inj *Injection) *refusal {
	f, no := p.formatOf(r, inj)
	if no != nil {
		return no.withHint("send the body uncompressed, or as JSON or a form")
	}
	if f.coding != "" {
		return p.earlyCoded(ctx, r, inj, f)
	}
	body := guard(r.Body, inj, f)
	if body == r.Body || r.ContentLength <= 0 || r.ContentLength > maxHeld {
		return nil
	}
	all, err := io.ReadAll(body)
	if no := unsent(err); no != nil {
		return no
	}
	if err != nil {
		return refuse(http.StatusBadRequest, "form", "the body broke off")
	}
	r.Body = readCloser{bytes.NewReader(all), r.Body}
	return nil
}

// take looks at one byte.
func (g *guarded) take(c byte) {
	if g.parts != nil {
		g.takePart(c)
		return
	}
	if !g.begun && !strings.ContainsRune(" \t\r\n\ufeff", rune(c)) {
		g.begun = true
		g.other = !g.form && c != '{' && c != '[' && c != 0xef
		g.form = g.form && c != '{' && c != '['
	}
	switch {
	case g.other:
		g.out = append(g.out, c)
	case g.form:
		g.takeForm(c)
	default:
		g.takeJSON(c)
	}
}

// keep adds a byte to the string or field that is read.
func (g *guarded) keep(c byte) {
	if g.long = g.long || len(g.text) >= maxMember; !g.long {
		g.text = append(g.text, c)
	}
}

// takeForm holds a field until it has ended.
func (g *guarded) takeForm(c byte) {
	if c == '&' || c == ';' { // some servers end fields by either
		g.field()
		g.text, g.long = g.text[:0], false
		g.pass(c)
		return
	}
	if g.long { // it was looked at
		g.pass(c)
		return
	}
	g.keep(c)
	if g.wait = append(g.wait, c); g.long {
		g.field()
		g.pass()
	}
}

// field ends the request if the field that was read holds a foreign key.
func (g *guarded) field() {
	g.check(pair(string(g.text)))
}

// pass lets go of what waits, and of what comes behind it, unless it has ended the request.
func (g *guarded) pass(more ...byte) {
	if g.err != nil {
		return
	}
	g.out = append(append(g.out, g.wait...), more...)
	g.wait = g.wait[:0]
}

// takeJSON follows the strings of a JSON text: one before a colon is a name, and the one behind it its value.
func (g *guarded) takeJSON(c byte) {
	if g.name != "" && g.state != 0 {
		g.wait = append(g.wait, c)
	} else {
		g.out = append(g.out, c)
	}
	switch {
	case g.state == 0 && c == '"':
		g.state, g.text, g.long = '"', append(g.text[:0], '"'), false
	case g.state == 0:
		switch c {
		case ':':
			if g.name = ""; g.inj.minds(g.ended) {
				g.name = g.ended
			}
		case ',', '}':
			g.name = ""
		}
	case g.state == '\\':
		g.keep(c)
		g.state = '"'
	case c == '"':
		g.keep(c)
		g.state = 0
		g.string()
	default:
		g.keep(c)
		if c == '\\' {
			g.state = c
		}
		if g.long && g.name != "" {
			g.check(g.name, string(g.text))
			g.name = "" // the rest of it passes
			g.pass()
		}
	}
}

// end looks at what the body's end has cut.
func (g *guarded) end() {
	switch {
	case g.parts != nil:
		g.endParts()
	case g.other:
	case g.form:
		g.field()
	case g.name != "" && g.state != 0:
		g.check(g.name, string(g.text))
	}
}

// string ends a string.
func (g *guarded) string() {
	text := ""
	if g.long || json.Unmarshal(g.text, &text) != nil {
		text = string(g.text)
	}
	if g.ended = text; g.name != "" {
		g.check(g.name, text)
		g.pass()
	}
}

// holdsKeys reports whether keys are sent under a name.
func (inj *Injection) holdsKeys(name string) bool {
	return inj.guards() && slices.ContainsFunc(inj.RefuseBody,
		func(n string) bool { return strings.EqualFold(n, name) })
}

// minds reports whether the value under a name is looked at.
func (inj *Injection) minds(name string) bool {
	return inj.holdsKeys(name) || inj.override != nil && overrides(name)
}

// check ends the request if a value under a name by which keys are sent is one of the client's own, or names a
// method that may not be.
func (g *guarded) check(name, value string) {
	if g.inj.override != nil && overrides(name) && !g.inj.override(value) {
		g.err = errMethod
		return
	}
	if !g.inj.holdsKeys(name) {
		return
	}
	for _, ph := range g.inj.Replace {
		if ph.Placeholder != "" {
			value = strings.ReplaceAll(value, ph.Placeholder, " ")
		}
	}
	if slices.ContainsFunc(strings.FieldsFunc(value, notOfKeys),
		func(word string) bool { return len(word) >= minKey }) {
		g.err = errForeign
	}
}
