package egress

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/outboard-dev/outboard"
)

// segment is a value as it stands in a path: it begins no segment of its own, and none of dots.
func segment(value string) string {
	return strings.ReplaceAll(url.PathEscape(value), "..", "%2E%2E")
}

// misplaced refuses a request that carries a placeholder where that is not replaced, so that its server would
// see it. Bodies may speak of placeholders.
func misplaced(r *http.Request, list []Placeholder) *refusal {
	for _, ph := range list {
		in := func(s string) bool {
			plain, err := url.QueryUnescape(s)
			return ph.Placeholder != "" && (strings.Contains(s, ph.Placeholder) || err == nil &&
				strings.Contains(plain, ph.Placeholder))
		}
		where, key := "", ""
		escaped := func(s string) bool { return in(s) && !strings.Contains(s, ph.Placeholder) }
		switch {
		case !ph.Path && in(r.URL.EscapedPath()):
			where, key = "path", "path"
		case !ph.Query && in(r.URL.RawQuery):
			where, key = "query", "query"
		case !ph.Header && carries(&http.Request{URL: new(url.URL), Header: r.Header}, []string{ph.Placeholder}):
			where, key = "headers", "header"
		case escaped(r.URL.EscapedPath()), escaped(r.URL.RawQuery):
			return refuse(http.StatusForbidden, "credentials",
				"it carries the placeholder of %s in another spelling, which would not be replaced", ph.Name).
				withHint("send the value of the variable as it is, without percent escapes")
		default:
			continue
		}
		return refuse(http.StatusForbidden, "credentials", "it carries the placeholder of %s in its %s, where that "+
			"is not replaced: the server would not know it",
			ph.Name, where).withHint("a person can let it be: injection_location of the credential, %s: true", key)
	}
	return nil
}

// carries reports whether any of the values is in a request's headers or query, Basic authorization included.
func carries(r *http.Request, values []string) bool {
	if len(values) == 0 {
		return false
	}
	in := func(s string) bool {
		return slices.ContainsFunc(values, func(v string) bool { return v != "" && strings.Contains(s, v) })
	}
	query, err := url.QueryUnescape(r.URL.RawQuery)
	if in(r.URL.RawQuery) || err == nil && in(query) || in(r.URL.Path) {
		return true
	}
	for _, vs := range r.Header {
		for _, v := range vs {
			if in(v) {
				return true
			}
			if _, pair, ok := basic(v); ok && in(pair) {
				return true
			}
		}
	}
	return false
}

// basic decodes the value of an Authorization header of that kind.
func basic(v string) (scheme, pair string, ok bool) {
	scheme, text, found := strings.Cut(v, " ")
	if !found || !strings.EqualFold(scheme, "Basic") {
		return "", "", false
	}
	b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	return scheme, string(b), err == nil
}

// inject puts credentials into a request that is about to be sent: what the client said in their place is gone,
// not joined.
func inject(out *http.Request, inj *Injection, scrub *scrubber) {
	for _, name := range inj.Strip {
		if vs := slices.DeleteFunc(out.Header.Values(name),
			func(v string) bool { return !inj.stands(v) }); len(vs) > 0 {
			out.Header[http.CanonicalHeaderKey(name)] = vs
		} else {
			out.Header.Del(name)
		}
	}
	if len(inj.StripQuery) > 0 {
		out.URL.RawQuery = stripQuery(out.URL.RawQuery, inj)
	}
	for _, ph := range inj.Replace {
		replace(out, ph)
	}
	for name, value := range inj.Set {
		out.Header.Set(name, value)
	}
	if scrub.active() {
		// What comes back must be readable: whole, not compressed.
		out.Header.Set("Accept-Encoding", "identity")
		for _, name := range []string{"Range", "If-Range", "X-Ms-Range", "A-Im"} {
			out.Header.Del(name)
		}
	}
}

// stands reports whether a header's value holds a placeholder of this request, and beside it nothing that could
// be a key of somebody else's: an allowed host with an account of an attacker's own is a way out for data.
func (inj *Injection) stands(v string) bool {
	if _, pair, ok := basic(v); ok {
		v = pair
	}
	return inj.standsIn(v, func(ph *Placeholder) bool { return ph.Header })
}

// standsIn is stands for the placeholders that are replaced somewhere.
func (inj *Injection) standsIn(v string, there func(*Placeholder) bool) bool {
	for i := range inj.Replace {
		if ph := &inj.Replace[i]; there(ph) && ph.Placeholder != "" && strings.Contains(v, ph.Placeholder) {
			return !slices.ContainsFunc(strings.FieldsFunc(strings.ReplaceAll(v, ph.Placeholder, " "), notOfKeys),
				func(word string) bool { return len(word) >= minKey })
		}
	}
	return false
}

// notOfKeys reports whether a character ends a word that could be a key.
func notOfKeys(c rune) bool { return strings.ContainsRune(" ,;:=@.\"\t", c) }

// stripQuery removes parameters by name, however the name is escaped, unless they hold a placeholder, and leaves
// the rest as it was. Some servers end parameters by a semicolon too.
func stripQuery(query string, inj *Injection) string {
	var kept strings.Builder
	for sep, first := "", true; ; {
		end := strings.IndexAny(query+"&", "&;")
		name, value := pair(query[:end])
		if !slices.ContainsFunc(inj.StripQuery, func(n string) bool { return strings.EqualFold(n, name) }) ||
			inj.standsIn(value, func(ph *Placeholder) bool { return ph.Query }) {
			if !first {
				kept.WriteString(sep)
			}
			kept.WriteString(query[:end])
			first = false
		}
		if end == len(query) {
			return kept.String()
		}
		sep, query = query[end:end+1], query[end+1:]
	}
}

// replace puts one value in the place of its placeholder, in the surfaces it is for.
func replace(out *http.Request, ph Placeholder) {
	if ph.Placeholder == "" {
		return
	}
	if ph.Header {
		for name, vs := range out.Header {
			for i, v := range vs {
				if scheme, pair, ok := basic(v); ok && name == "Authorization" &&
					strings.Contains(pair, ph.Placeholder) {
					pair = strings.ReplaceAll(pair, ph.Placeholder, ph.Value)
					vs[i] = scheme + " " + base64.StdEncoding.EncodeToString([]byte(pair))
					continue
				}
				vs[i] = strings.ReplaceAll(v, ph.Placeholder, ph.Value)
			}
		}
	}
	if path := out.URL.EscapedPath(); ph.Path && strings.Contains(path, ph.Placeholder) {
		out.URL.RawPath = strings.ReplaceAll(path, ph.Placeholder, segment(ph.Value))
		out.URL.Path, _ = url.PathUnescape(out.URL.RawPath) // cannot fail: it was escaped here
	}
	if ph.Query {
		out.URL.RawQuery = strings.ReplaceAll(out.URL.RawQuery, ph.Placeholder, url.QueryEscape(ph.Value))
	}
	if ph.Body && out.Body != nil && out.Body != http.NoBody {
		replaceBody(out, ph)
	}
}

// replaceBody is replace for the body. What is short is replaced at once, so that its length is known: not every
// server takes a body of unknown length.
func replaceBody(out *http.Request, ph Placeholder) {
	begin := &beginning{ReadCloser: out.Body}
	kind, _, _ := mime.ParseMediaType(out.Header.Get("Content-Type"))
	with := func([]byte) []byte { return []byte(begin.spell(kind, ph.Value)) }
	length := out.ContentLength
	out.Body, out.ContentLength = &stream{src: begin, edit: editor{needles: [][]byte{[]byte(ph.Placeholder)},
		with: with}}, -1
	out.Header.Del("Content-Length")
	if length <= 0 || length > maxHeld {
		return
	}
	all, err := io.ReadAll(out.Body)
	if err != nil { // which comes again after what was read
		out.Body = readCloser{io.MultiReader(bytes.NewReader(all), out.Body), begin}
		return
	}
	out.Body, out.ContentLength = readCloser{bytes.NewReader(all), begin}, int64(len(all))
}

// beginning remembers the first byte of a body that is no space.
type beginning struct {
	io.ReadCloser
	first byte
}

// Read reads the body.
func (b *beginning) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.first == 0 {
		if text := bytes.TrimLeft(p[:n], " \t\r\n"); len(text) > 0 {
			b.first = text[0]
		}
	}
	return n, err
}

// spell writes a value as it must stand in a body: in a string of JSON, whatever the client calls that, or in a form.
func (b *beginning) spell(kind, value string) string {
	switch {
	case b.first == '{' || b.first == '[':
		text, _ := json.Marshal(value) // cannot fail: it is a string
		return string(text[1 : len(text)-1])
	case kind == "application/x-www-form-urlencoded":
		return url.QueryEscape(value)
	}
	return value
}

// sign lets the injection's signer finish a request.
func sign(out *http.Request, inj *Injection) error {
	if inj.Sign == nil {
		return nil
	}
	s := &SignRequest{Method: out.Method, URL: out.URL.String(), Header: out.Header, Held: out.Body == nil ||
		out.Body == http.NoBody}
	if !s.Held && out.ContentLength >= 0 && out.ContentLength <= MaxSigned {
		body, err := io.ReadAll(io.LimitReader(out.Body, MaxSigned+1))
		if err != nil {
			return fmt.Errorf("reading a body to sign: %w", err)
		}
		s.Body, s.Held = body, true
		out.Body = readCloser{bytes.NewReader(body), out.Body}
	}
	if err := inj.Sign(out.Context(), s); err != nil {
		if errors.Is(err, context.Canceled) {
			return err
		}
		return outboard.Errorf(outboard.Denied, "signing: %w", err)
	}
	u, err := url.Parse(s.URL)
	if err != nil || u.Scheme != out.URL.Scheme || u.Host != out.URL.Host || u.EscapedPath() != out.URL.EscapedPath() {
		return outboard.Errorf(outboard.Denied, "signing: the signer changed where the request goes")
	}
	out.URL.RawQuery = u.RawQuery
	return nil
}

type readCloser struct {
	io.Reader
	io.Closer
}
