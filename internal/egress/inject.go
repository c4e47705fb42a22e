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

// inject puts credentials into a request that is about to be sent: what the client said in their place is gone, not joined.
func inject(out *http.Request, inj *Injection, scrub *scrubber) {
	for _, name := range inj.Strip {
		if vs := slices.DeleteFunc(out.Header.Values(name), func(v string) bool { return !inj.stands(v) }); len(vs) > 0 {
			out.Header[http.CanonicalHeaderKey(name)] = vs
		} else {
			out.Header.Del(name)
		}
	}
	if len(inj.StripQuery) > 0 {
		out.URL.RawQuery = stripQuery(out.URL.RawQuery, inj.StripQuery)
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

// stands reports whether a header's value holds a placeholder of this request, and beside it nothing that could be a key of somebody
// else's: an allowed host with an account of an attacker's own is a way out for data.
func (inj *Injection) stands(v string) bool {
	if _, pair, ok := basic(v); ok {
		v = pair
	}
	for _, ph := range inj.Replace {
		if ph.Header && ph.Placeholder != "" && strings.Contains(v, ph.Placeholder) {
			return !slices.ContainsFunc(strings.FieldsFunc(strings.ReplaceAll(v, ph.Placeholder, " "), notOfKeys), func(word string) bool { return len(word) >= minKey })
		}
	}
	return false
}

// notOfKeys reports whether a character ends a word that could be a key.
func notOfKeys(c rune) bool { return strings.ContainsRune(" ,;:=@.\"\t", c) }

// stripQuery removes parameters by name, however the name is escaped, and leaves the rest as it was. Some servers end parameters by a
// semicolon too.
func stripQuery(query string, names []string) string {
	var kept strings.Builder
	for sep, first := "", true; ; {
		end := strings.IndexAny(query+"&", "&;")
		name, _, _ := strings.Cut(query[:end], "=")
		if plain, err := url.QueryUnescape(name); err == nil {
			name = plain
		}
		if !slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, name) }) {
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
				if scheme, pair, ok := basic(v); ok && name == "Authorization" && strings.Contains(pair, ph.Placeholder) {
					pair = strings.ReplaceAll(pair, ph.Placeholder, ph.Value)
					vs[i] = scheme + " " + base64.StdEncoding.EncodeToString([]byte(pair))
					continue
				}
				vs[i] = strings.ReplaceAll(v, ph.Placeholder, ph.Value)
			}
		}
	}
	if ph.Query {
		out.URL.RawQuery = strings.ReplaceAll(out.URL.RawQuery, ph.Placeholder, url.QueryEscape(ph.Value))
	}
	if ph.Body && out.Body != nil && out.Body != http.NoBody {
		replaceBody(out, ph)
	}
}

// replaceBody is replace for the body. What is short is replaced at once, so that its length is known: not every server takes a body of
// unknown length.
func replaceBody(out *http.Request, ph Placeholder) {
	begin := &beginning{ReadCloser: out.Body}
	kind, _, _ := mime.ParseMediaType(out.Header.Get("Content-Type"))
	with := func([]byte) []byte { return []byte(begin.spell(kind, ph.Value)) }
	length := out.ContentLength
	out.Body, out.ContentLength = &stream{src: begin, edit: editor{needles: [][]byte{[]byte(ph.Placeholder)}, with: with}}, -1
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
	s := &SignRequest{Method: out.Method, URL: out.URL.String(), Header: out.Header, Held: out.Body == nil || out.Body == http.NoBody}
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
