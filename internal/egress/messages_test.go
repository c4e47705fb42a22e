package egress

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"
)

// field is one of a message: a text, or a message in it.
func protoField(number int, value string) string {
	b := binary.AppendUvarint(nil, uint64(number)<<3|2)
	return string(binary.AppendUvarint(b, uint64(len(value)))) + value
}

// frame is a message as gRPC sends it.
func frame(flags byte, message string) string {
	return string(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(message)))) + message
}

func gzipped(text string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = io.WriteString(w, text)
	_ = w.Close()
	return b.String()
}

// Broken if a key of the client's own leaves in a message of gRPC, whole or in part, or if honest messages are
// changed or refused.
func TestForeignKeysInMessages(t *testing.T) {
	noise := make([]byte, 1<<20)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(noise)
	blob := base64.RawURLEncoding.EncodeToString(noise)
	bad := protoField(1, "name") + protoField(7, theirKey)
	nested := bad
	for range 20 {
		nested = protoField(3, "x") + protoField(2, nested)
	}
	deep := ""
	for range maxDepth + 2 {
		deep = protoField(2, deep)
	}
	for name, c := range map[string]struct {
		body   string
		coding string
		how    framing
		want   error
	}{
		"a field":    {frame(0, bad), "", framed, errForeign},
		"a long one": {frame(0, protoField(2, "ghp_"+strings.Repeat("a1", 200))), "", framed, errForeign},
		// the length is a digit
		"behind a letter":     {frame(0, "\x32\x33"+"sk-"+strings.Repeat("a1", 24)), "", framed, errForeign},
		"in a text":           {frame(0, protoField(1, "Bearer "+theirKey)), "", framed, errForeign},
		"far inside":          {frame(0, nested), "", framed, errForeign},
		"in JSON in a field":  {frame(0, protoField(1, `{"api_key":"`+theirKey+`"}`)), "", framed, errForeign},
		"JSON":                {frame(0, ` {"api_key":"`+theirKey+`"}`), "", framed, errForeign},
		"the second":          {frame(0, protoField(1, "a")) + frame(0, bad), "", framed, errForeign},
		"behind an empty one": {frame(0, "") + frame(0, bad), "", framed, errForeign},
		"compressed":          {frame(1, gzipped(bad)), "gzip", framed, errForeign},
		"of two in gzip":      {frame(1, gzipped(bad[:4])+gzipped(bad[4:])), "gzip", framed, errForeign},
		"beside ours": {frame(0, protoField(1, ourPlaceholder)+protoField(2, theirKey)), "", framed,
			errForeign},
		"alone":                 {bad, "", single, errForeign},
		"alone, as JSON":        {"\n" + `{"api_key":"` + theirKey + `"}`, "", single, errForeign},
		"in a group":            {frame(0, "\x0b"+bad+"\x0c"), "", framed, errForeign},
		"of a trailer":          {frame(0x80, "authorization: Bearer "+theirKey+"\r\n"), "", framed, errForeign},
		"said to be compressed": {frame(1, bad), "", framed, errUnread},
		"not what it says":      {frame(1, bad), "gzip", framed, errUnread},
		"cut inside":            {frame(1, gzipped(bad)[:20]), "gzip", framed, errUnread},
		"a bomb":                {frame(1, gzipped(strings.Repeat("\x00", 64<<20))), "gzip", framed, errLong},
		"too deep":              {frame(0, deep), "", framed, errUnread},
		"odd JSON": {frame(0, strings.Repeat(`{"a":`, 10)+protoField(1,
			strings.Repeat("{\x0a\x7f", 3000))), "", framed, nil},
		"too long":       {"\x00\x7f\xff\xff\xff" + bad, "", framed, errLong},
		"too long alone": {strings.Repeat("x", maxCoded+1), "", single, errLong},
		"no frames":      {`{"api_key":"` + theirKey + `"}`, "", framed, errLong},
		"cut":            {frame(0, bad)[:20], "", framed, io.ErrUnexpectedEOF},
		"the placeholder": {frame(0, protoField(1, ourPlaceholder)+protoField(2, "Bearer "+ourPlaceholder)), "",
			framed, nil},
		"a short word": {frame(0, protoField(1, "sk-learn")+protoField(2,
			"task-sk-and-1-more-things-to-do-here")), "", framed, nil},
		"words": {frame(0, protoField(1, "sk-is-the-beginning-of-a-long-word-without-any")), "", framed,
			nil},
		"noise":  {frame(0, protoField(1, string(noise))+protoField(2, "x")), "", framed, nil},
		"a blob": {frame(0, protoField(1, blob)), "", framed, nil},
		"many": {strings.Repeat(frame(0, protoField(1, "hello"))+frame(1, gzipped("hi")), 100), "gzip",
			framed, nil},
		"one alone":     {protoField(1, "hello"), "", single, nil},
		"nothing":       {"", "", framed, nil},
		"nothing alone": {"", "", single, nil},
	} {
		for way, reader := range map[string]func(io.Reader) io.Reader{"at once": func(r io.Reader) io.Reader { return r }, "byte by byte": iotest.OneByteReader} {
			f := format{framing: c.how, messages: c.coding, places: newPlaces()}
			got, err := io.ReadAll(guard(io.NopCloser(reader(strings.NewReader(c.body))), guarding(), f))
			if !errors.Is(err, c.want) {
				t.Errorf("%s, %s: %v, want %v", name, way, err, c.want)
			}
			if c.want == nil && string(got) != c.body {
				t.Errorf("%s, %s: %.100q", name, way, got)
			}
			if c.want != nil && (bytes.Contains(got, []byte("sk-att")) || bytes.Contains(got, []byte("a1a1")) ||
				bytes.Contains(got, []byte("\x1f\x8b"))) {
				t.Errorf("%s, %s: %.100q was sent", name, way, got)
			}
			if len(f.places.long)+len(f.places.unpack) != 0 {
				t.Errorf("%s, %s: places are kept", name, way)
			}
		}
	}
}

// Broken if a message waits for the next one, or if long ones can be held without a bound, or for ever keep
// others of the same connection waiting.
func TestGuardedMessagesDoNotWait(t *testing.T) {
	r, w := io.Pipe()
	defer w.Close()
	f := format{framing: framed, places: newPlaces()}
	g := guard(r, guarding(), f)
	for _, part := range []string{frame(0, "one"), frame(0, ""), frame(0, strings.Repeat("x", maxHeld+1))} {
		go func() { _, _ = io.WriteString(w, part) }()
		got := make([]byte, len(part))
		if _, err := io.ReadFull(g, got); err != nil || string(got) != part {
			t.Errorf("%.20q: %.20q, %v", part, got, err)
		}
	}
	var others []*io.PipeWriter
	for range maxCodedAtOnce {
		r, w := io.Pipe()
		others = append(others, w)
		go func() { _, _ = io.Copy(io.Discard, guard(r, guarding(), f)) }()
		_, _ = io.WriteString(w, frame(0, strings.Repeat("x", maxHeld+1))[:100]) // its place is taken once this is read
		_, _ = io.WriteString(w, "x")
	}
	if _, err := io.ReadAll(guard(io.NopCloser(strings.NewReader(frame(0, strings.Repeat("x", maxHeld+1)))), guarding(),
		f)); !errors.Is(err, errBusy) {
		t.Errorf("one too many: %v", err)
	}
	if got, err := io.ReadAll(guard(io.NopCloser(strings.NewReader(frame(0, "short"))), guarding(), f)); err != nil ||
		string(got) != frame(0, "short") {
		t.Errorf("a short one beside them: %q, %v", got, err)
	}
	for _, w := range others {
		w.Close()
	}
}

// Broken if a message can end the gateway, or arrive changed, or one that was refused arrives.
func FuzzMessages(f *testing.F) {
	f.Add([]byte(frame(0, protoField(1, theirKey))), "")
	f.Add([]byte(frame(1, gzipped(protoField(1, "x")))+frame(0, "\x0a\x03{}\x0b")), "gzip")
	f.Fuzz(func(t *testing.T, body []byte, coding string) {
		for _, how := range []framing{framed, single} {
			m := format{framing: how, messages: map[bool]string{true: "gzip"}[coding == "gzip"], places: newPlaces()}
			got, err := io.ReadAll(guard(io.NopCloser(bytes.NewReader(body)), guarding(), m))
			if !bytes.HasPrefix(body, got) || err == nil && how == single && !bytes.Equal(got, body) {
				t.Fatalf("%q became %q, %v", body, got, err)
			}
		}
	})
}
