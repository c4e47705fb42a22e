package egress

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
)

// Answers in which a secret could hide.
var (
	errScrub  = errors.New("the answer is encoded although a credential was sent and plain text was asked for")
	errRanges = errors.New("the answer is in pieces although a credential was sent and the whole was asked for")
)

// scrubber looks for secrets in answers and covers them with as many asterisks, so that no length changes. It is
// a second line: an API can return a secret in a form that nobody looks for. What keeps secrets in is that they
// go only where they belong.
type scrubber struct{ needles [][]byte }

func newScrubber(secrets []string) *scrubber {
	s := new(scrubber)
	for _, secret := range secrets {
		if len(secret) >= MinScrub {
			s.needles = append(s.needles, forms(secret)...)
		}
	}
	// The longest first: a shorter one inside it must not leave the rest.
	slices.SortFunc(s.needles, func(a, b []byte) int { return len(b) - len(a) })
	s.needles = slices.CompactFunc(s.needles, bytes.Equal)
	return s
}

func (s *scrubber) active() bool { return len(s.needles) > 0 }

// forms are the spellings of a secret that are looked for.
func forms(secret string) [][]byte {
	raw := []byte(secret)
	out := [][]byte{raw}
	add := func(b string) {
		if len(b) >= MinScrub {
			out = append(out, []byte(b))
		}
	}
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		// inside a longer text the secret begins at any of three places; cut what depends on its neighbours
		for lead := range 3 {
			text := enc.EncodeToString(append(make([]byte, lead), raw...))
			text = text[(lead*8+5)/6:]
			if rest := (lead + len(raw)) % 3; rest != 0 {
				text = text[:len(text)-1]
			}
			add(text)
		}
	}
	h := hex.EncodeToString(raw)
	add(h)
	add(strings.ToUpper(h))
	add(url.QueryEscape(secret))
	add(url.PathEscape(secret))
	var all strings.Builder
	for _, c := range raw {
		fmt.Fprintf(&all, "%%%02X", c)
	}
	add(all.String())
	add(strings.ToLower(all.String()))
	if j, err := json.Marshal(secret); err == nil {
		add(string(j[1 : len(j)-1]))
	}
	return out
}

// response covers secrets in an answer's headers and body.
func (s *scrubber) response(resp *http.Response) error {
	s.headers(resp.Header)
	s.headers(resp.Trailer) // their names are told before the body
	if rw, ok := resp.Body.(io.ReadWriteCloser); ok && resp.StatusCode == http.StatusSwitchingProtocols {
		resp.Body = &upgraded{ReadWriteCloser: rw, in: s.frames(rw)}
		return nil
	}
	if !s.active() {
		return nil
	}
	if e := resp.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return errScrub
	}
	if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); kind == "multipart/byteranges" {
		return errRanges // its borders could be put into a secret
	}
	resp.Body = trailing{s.stream(resp.Body), resp, s}
	return nil
}

// errInterim ends an exchange with a server that sends no answer, only interim ones.
var errInterim = errors.New("the server keeps sending interim answers")

// interims returns a request whose interim answers (1xx) are covered, and bounded in number. Whoever relays them
// is told after this.
func (s *scrubber) interims(r *http.Request) *http.Request {
	n := 0
	return r.WithContext(httptrace.WithClientTrace(r.Context(),
		&httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
			if n++; n == maxInterim+1 {
				effectOf(r.Context()).cancel(errInterim) // an error from here is not heeded: the relay's own hook decides
			}
			s.headers(http.Header(h))
			return nil
		}}))
}

// headers covers secrets in the names and values of headers. Names, and hosts in values, come back in another
// case than they were sent in, so case is nothing here.
func (s *scrubber) headers(h http.Header) {
	if !s.active() {
		return
	}
	for name, vs := range h {
		for i, v := range vs {
			vs[i] = s.cover(v)
		}
		if covered := s.cover(name); covered != name {
			delete(h, name)
			h[covered] = append(h[covered], vs...)
		}
	}
}

// cover covers secrets in a text of one line, in whatever case.
func (s *scrubber) cover(text string) string {
	low := lowered([]byte(text))
	b := []byte(text)
	for _, needle := range s.needles {
		needle = lowered(needle)
		for at := 0; ; at += len(needle) {
			i := bytes.Index(low[at:], needle)
			if i < 0 {
				break
			}
			at += i
			copy(b[at:], stars(needle))
			copy(low[at:], stars(needle))
		}
	}
	return string(b)
}

// lowered is b with the letters of ASCII in lower case: no length changes.
func lowered(b []byte) []byte {
	out := bytes.Clone(b)
	for i, c := range out {
		if c >= 'A' && c <= 'Z' {
			out[i] = c + 'a' - 'A'
		}
	}
	return out
}

func (s *scrubber) stream(src io.ReadCloser) *stream {
	return &stream{src: src, edit: editor{needles: s.needles, with: stars}}
}

func stars(b []byte) []byte { return bytes.Repeat([]byte{'*'}, len(b)) }

func (s *scrubber) frames(src io.ReadCloser) *frames {
	return &frames{src: src, edit: editor{needles: s.needles, with: stars}}
}

// upgraded is a connection that has switched protocols.
type upgraded struct {
	io.ReadWriteCloser
	in io.Reader
}

// Read returns covered bytes.
func (u *upgraded) Read(b []byte) (int, error) { return u.in.Read(b) }

// CloseWrite passes the end of what the client says on.
func (u *upgraded) CloseWrite() error { return closeWrite(u.ReadWriteCloser) }

// trailing covers the trailers, which are there once the body has ended.
type trailing struct {
	*stream
	resp *http.Response
	s    *scrubber
}

// Read returns covered bytes.
func (t trailing) Read(b []byte) (int, error) {
	n, err := t.stream.Read(b)
	if err == io.EOF {
		t.s.headers(t.resp.Trailer)
	}
	return n, err
}

// editor replaces needles in a text that comes in pieces.
type editor struct {
	needles [][]byte
	with    func([]byte) []byte
}

// all replaces in a whole text.
func (e *editor) all(b []byte) []byte {
	for _, n := range e.needles {
		if bytes.Contains(b, n) {
			b = bytes.ReplaceAll(b, n, e.with(n))
		}
	}
	return b
}

// hold is how many bytes at the end of b could be the beginning of a needle.
func (e *editor) hold(b []byte) int {
	most := 0
	for _, n := range e.needles {
		for k := min(len(n)-1, len(b)); k > most; k-- {
			if b[len(b)-k] == n[0] && bytes.HasPrefix(n, b[len(b)-k:]) {
				most = k
				break
			}
		}
	}
	return most
}

// stream edits what is read through it. It holds back only what could be the beginning of a needle, so that
// events arrive when they are sent.
type stream struct {
	src  io.ReadCloser
	edit editor
	buf  []byte // read, not yet known to be complete
	out  []byte // ready
	err  error  // of src
}

// Read returns edited bytes.
func (s *stream) Read(b []byte) (int, error) {
	for len(s.out) == 0 {
		if s.err != nil {
			return 0, s.err
		}
		if len(b) == 0 {
			return 0, nil
		}
		have := len(s.buf)
		s.buf = slices.Grow(s.buf, 32<<10)
		n, err := s.src.Read(s.buf[have : have+32<<10])
		s.buf, s.err = s.buf[:have+n], err
		text := s.edit.all(s.buf)
		keep := 0
		if err == nil {
			keep = s.edit.hold(text)
		}
		s.out = bytes.Clone(text[:len(text)-keep])
		s.buf = append(s.buf[:0], text[len(text)-keep:]...)
	}
	n := copy(b, s.out)
	s.out = s.out[n:]
	return n, nil
}

// Close closes the source.
func (s *stream) Close() error { return s.src.Close() }
