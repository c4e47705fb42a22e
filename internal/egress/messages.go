package egress

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
)

// Why a message of a guarded body is not sent, besides errForeign and errUnread.
var (
	errLong = errors.New("a message of the body has more than 4 MiB, and must be looked at whole: this host has a " +
		"placeholder")
	errBusy = errors.New("too many long messages of this sandbox are under way to hosts with a placeholder; try again")
)

// unsent is the refusal of a request whose body may not be sent.
func unsent(err error) *refusal {
	status, rule := 0, "credentials"
	switch {
	case errors.Is(err, errForeign), errors.Is(err, errUnread):
		status = http.StatusForbidden
	case errors.Is(err, errMethod), errors.Is(err, errBlind):
		status, rule = http.StatusForbidden, "method"
	case errors.Is(err, errLong):
		status = http.StatusRequestEntityTooLarge
	case errors.Is(err, errBusy):
		status = http.StatusServiceUnavailable
	default:
		return nil
	}
	return refuse(status, rule, "%v", err)
}

// framing is how messages lie in a body.
type framing byte

const (
	unframed framing = iota
	framed           // each behind five bytes: gRPC, gRPC-Web, and streams of Connect
	single           // the body is one
)

// framingOf returns how the messages of a content type lie in a body, and whether they cannot be read.
func framingOf(kind string) (how framing, unread bool) {
	base, _, _ := strings.Cut(kind, "+")
	switch base {
	case "application/grpc-web-text":
		return unframed, true // base64, with an end anywhere
	case "application/grpc", "application/grpc-web", "application/connect":
		return framed, false
	case "application/proto", "application/protobuf", "application/x-protobuf", "application/vnd.google.protobuf":
		return single, false
	}
	return unframed, false
}

// messageCoding returns how the messages of a body are compressed that say they are ("" when none may be), and
// whether that cannot be read.
func messageCoding(h http.Header) (coding string, unread bool) {
	list := slices.Concat(h.Values("Grpc-Encoding"), h.Values("Connect-Content-Encoding"))
	if len(list) == 0 {
		return "", false
	}
	coding = strings.ToLower(strings.TrimSpace(list[0]))
	if coding == "identity" {
		coding = ""
	}
	return coding, len(list) > 1 || coding != "" && !slices.Contains(codings, coding)
}

// places bound what messages of one sandbox are held, and unpacked, at once.
type places struct {
	long   chan struct{} // capacity maxCodedAtOnce; one token per message longer than maxHeld
	unpack chan struct{} // capacity maxCodedAtOnce; one token per message that is unpacked
}

func newPlaces() *places {
	return &places{long: make(chan struct{}, maxCodedAtOnce), unpack: make(chan struct{}, maxCodedAtOnce)}
}

// take takes what a message of a size needs to be held. It does not wait: those that have a place could be
// waiting for bytes behind this message, on the same connection.
func (p *places) take(size int64) (release func(), err error) {
	switch {
	case size > maxCoded:
		return nil, errLong
	case size <= maxHeld:
		return func() {}, nil
	}
	select {
	case p.long <- struct{}{}:
		return func() { <-p.long }, nil
	default:
		return nil, errBusy
	}
}

// messages is a body of protocol buffers on its way to a host that has a placeholder. Their fields have no
// names, so keys of a client's own are known by how they begin. Each message is held until it is whole and
// looked at, then sent as it came: a server does nothing with a part of one either.
type messages struct {
	io.ReadCloser
	inj    *Injection
	how    framing
	coding string
	places *places
	out    []byte
	err    error
}

// Read returns what may be sent.
func (m *messages) Read(b []byte) (int, error) {
	for len(m.out) == 0 {
		if m.err != nil {
			return 0, m.err
		}
		if len(b) == 0 {
			return 0, nil
		}
		m.out, m.err = m.next()
	}
	n := copy(b, m.out)
	m.out = m.out[n:]
	return n, nil
}

// next reads a message, and returns it as it came.
func (m *messages) next() ([]byte, error) {
	if m.how == single {
		return m.only()
	}
	const head, compressed = 5, 1
	raw := make([]byte, head)
	if _, err := io.ReadFull(m.ReadCloser, raw); err != nil {
		return nil, err // a part of a head is no message
	}
	size := int64(binary.BigEndian.Uint32(raw[1:]))
	release, err := m.places.take(size)
	if err != nil {
		return nil, err
	}
	defer release()
	var text bytes.Buffer // grows with what comes, not with what was said
	if _, err := io.CopyN(&text, m.ReadCloser, size); err != nil {
		return nil, orUnexpected(err)
	}
	raw = append(raw, text.Bytes()...)
	if raw[0]&compressed == 0 {
		return orNothing(raw, look(raw[head:], m.inj))
	}
	return orNothing(raw, m.unpacked(raw[head:]))
}

// unpacked looks at a compressed message.
func (m *messages) unpacked(b []byte) error {
	if m.coding == "" {
		return errUnread
	}
	m.places.unpack <- struct{}{} // who has one waits for nothing
	defer func() { <-m.places.unpack }()
	rest := bytes.NewReader(b)
	r, err := decoder(m.coding, rest)
	if err != nil {
		return errUnread
	}
	defer r.Close()
	plain, err := io.ReadAll(io.LimitReader(r, maxCoded+1))
	switch {
	case len(plain) > maxCoded:
		return errLong
	case err != nil || rest.Len() > 0 && m.coding == "deflate":
		return errUnread
	}
	return look(plain, m.inj)
}

// only reads a body that is one message.
func (m *messages) only() ([]byte, error) {
	release, err := m.places.take(maxCoded)
	if err != nil {
		return nil, err
	}
	defer release()
	all, err := io.ReadAll(io.LimitReader(m.ReadCloser, maxCoded+1))
	switch {
	case err != nil:
		return nil, err
	case len(all) > maxCoded:
		return nil, errLong
	}
	if err := look(all, m.inj); err != nil {
		return nil, err
	}
	return all, io.EOF
}

func orUnexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

func orNothing(b []byte, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	return b, nil
}

// look returns why a message may not be sent: a key of the client's own in its text, or as one of its fields.
func look(b []byte, inj *Injection) error {
	for _, ph := range inj.Replace {
		if ph.Placeholder != "" && bytes.Contains(b, []byte(ph.Placeholder)) {
			b = bytes.ReplaceAll(b, []byte(ph.Placeholder), bytes.Repeat([]byte{' '}, len(ph.Placeholder)))
		}
	}
	if hasKey(b, inj.RefuseShapes) {
		return errForeign
	}
	w := walk{inj: inj, left: jsonFactor*len(b) + maxMember}
	if w.json(b); w.err == nil {
		w.message(b, 0)
	}
	return w.err
}

// hasKey reports whether a text has a key as a word of its own.
func hasKey(b []byte, shapes []string) bool {
	for _, shape := range shapes {
		for at := 0; ; at++ {
			i := bytes.Index(b[at:], []byte(shape))
			if i < 0 {
				break
			}
			if at += i; (at == 0 || !ofKey(b[at-1]) && b[at-1] != '+' && b[at-1] != '/') && isKey(b[at:], shape) {
				return true
			}
		}
	}
	return false
}

// isKey reports whether a text begins with a key: a shape, and behind it a word that is long enough, with a digit.
func isKey(b []byte, shape string) bool {
	if !bytes.HasPrefix(b, []byte(shape)) {
		return false
	}
	b = b[len(shape):]
	n := 0
	for n < len(b) && ofKey(b[n]) {
		n++
	}
	return n >= minKey && bytes.ContainsAny(b[:n], "0123456789")
}

func ofKey(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c == '-' || c == '_'
}

// walk goes through the fields of a message. Nothing says which of them are texts and which are messages in
// turn, so that each is looked at as both: of a text that is read as a message, hardly a field would begin as a
// key does.
type walk struct {
	inj  *Injection
	left int // bytes that may still be looked at as JSON, over all depths
	err  error
}

// message looks at the fields of what may be a message, as far as it is one.
func (w *walk) message(b []byte, depth int) {
	if depth > maxDepth {
		w.err = errUnread
		return
	}
	for len(b) > 0 && w.err == nil {
		tag, n := binary.Uvarint(b)
		if n <= 0 || tag>>3 == 0 {
			return
		}
		b = b[n:]
		size := uint64(0)
		switch tag & 7 {
		case 0:
			if _, n = binary.Uvarint(b); n <= 0 {
				return
			}
			size = uint64(n)
		case 1:
			size = 8
		case 2:
			if size, n = binary.Uvarint(b); n <= 0 || size > uint64(len(b)-n) {
				return
			}
			b = b[n:]
			w.field(b[:size], depth)
		case 3, 4: // a group begins or ends: its fields are those that follow
		case 5:
			size = 4
		default:
			return
		}
		if size > uint64(len(b)) {
			return
		}
		b = b[size:]
	}
}

// field looks at a text, or at a message in a message.
func (w *walk) field(b []byte, depth int) {
	if slices.ContainsFunc(w.inj.RefuseShapes, func(s string) bool { return isKey(b, s) }) {
		w.err = errForeign
		return
	}
	if len(b) > 0 && (b[0] == '{' || b[0] == '[') {
		w.json(b)
	}
	if w.err == nil {
		w.message(b, depth+1)
	}
}

// json looks at what may be JSON as at a body of it.
func (w *walk) json(b []byte) {
	if w.left -= len(b); w.left < 0 { // one in another, again and again
		w.err = errUnread
		return
	}
	g := &guarded{inj: w.inj}
	for _, c := range b {
		if g.take(c); g.err != nil {
			break
		}
		g.out = g.out[:0]
	}
	if g.err == nil {
		g.end()
	}
	w.err = g.err
}
