package egress

import (
	"bytes"
	"encoding/binary"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// wsFrame is a frame as a server sends it.
func wsFrame(fin bool, op byte, payload string) []byte {
	b := []byte{op, byte(len(payload))}
	if fin {
		b[0] |= 0x80
	}
	switch {
	case len(payload) > 0xffff:
		b = binary.BigEndian.AppendUint64([]byte{b[0], 127}, uint64(len(payload)))
	case len(payload) > 125:
		b = binary.BigEndian.AppendUint16([]byte{b[0], 126}, uint16(len(payload)))
	}
	return append(b, payload...)
}

// Broken if a secret passes because a message is split into frames, or if what is no secret arrives changed.
func TestWebSocketFramesAreCovered(t *testing.T) {
	const secret = "s3cret-value-of-the-vault"
	stars := strings.Repeat("*", len(secret))
	join := func(list ...[]byte) []byte { return bytes.Join(list, nil) }
	long := strings.Repeat("x", 70_000)
	for name, c := range map[string]struct{ in, want []byte }{
		"in one frame": {wsFrame(true, 1, "a "+secret+" b"), wsFrame(true, 1, "a "+stars+" b")},
		"over two frames": {join(wsFrame(false, 1, "a "+secret[:7]), wsFrame(true, 0, secret[7:]+" b")),
			join(wsFrame(false, 1, "a "+stars[:7]), wsFrame(true, 0, stars[7:]+" b"))},
		"over three frames, a ping between": {join(wsFrame(false, 1, secret[:7]), wsFrame(true, 9, "ping"),
			wsFrame(false, 0, secret[7:9]), wsFrame(true, 0, secret[9:])),
			join(wsFrame(false, 1, stars[:7]), wsFrame(true, 9, "ping"), wsFrame(false, 0, stars[7:9]),
				wsFrame(true, 0, stars[9:]))},
		"a byte per frame": {func() (b []byte) {
			for i := range secret {
				b = append(b, wsFrame(i == len(secret)-1, byte(1>>min(i, 1)), secret[i:i+1])...)
			}
			return b
		}(), func() (b []byte) {
			for i := range secret {
				b = append(b, wsFrame(i == len(secret)-1, byte(1>>min(i, 1)), "*")...)
			}
			return b
		}()},
		"behind a long frame": {join(wsFrame(false, 2, long+secret[:3]), wsFrame(true, 0, secret[3:])),
			join(wsFrame(false, 2, long+stars[:3]), wsFrame(true, 0, stars[3:]))},
		"the beginning of one": {join(wsFrame(true, 1, secret[:7]), wsFrame(true, 1, "b")),
			join(wsFrame(true, 1, secret[:7]), wsFrame(true, 1, "b"))},
		"none": {join(wsFrame(true, 1, ""), wsFrame(true, 1, long), wsFrame(true, 8, "")),
			join(wsFrame(true, 1, ""), wsFrame(true, 1, long), wsFrame(true, 8, ""))},
		"in a ping": {wsFrame(true, 9, secret), wsFrame(true, 9, stars)},
		"over two pings": {join(wsFrame(true, 9, "a "+secret[:9]), wsFrame(true, 9, secret[9:]+" b")),
			join(wsFrame(true, 9, "a "+stars[:9]), wsFrame(true, 9, stars[9:]+" b"))},
		"over a ping, a message, and the reason of an end": {join(wsFrame(true, 9, secret[:9]),
			wsFrame(true, 1, "text"), wsFrame(true, 8, "\x03\xe8"+secret[9:])),
			join(wsFrame(true, 9, stars[:9]), wsFrame(true, 1, "text"), wsFrame(true, 8, "\x03\xe8"+stars[9:]))},
		"a byte per ping": {perByte(secret, func(s string) []byte { return wsFrame(true, 9, s) }),
			perByte(secret[:3]+stars[3:], func(s string) []byte { return wsFrame(true, 9, s) })},
		"pings of other text": {join(wsFrame(true, 9, "12"+secret[:3]), wsFrame(true, 10, "3"),
			wsFrame(true, 9, secret[3:9]+"4")),
			join(wsFrame(true, 9, "12"+secret[:3]), wsFrame(true, 10, "3"), wsFrame(true, 9, secret[3:9]+"4"))},
		"cut short":              {wsFrame(true, 1, "abc")[:3], wsFrame(true, 1, "abc")[:3]},
		"half a head":            {wsFrame(true, 1, long)[:5], nil},
		"a ping that is cut off": {wsFrame(true, 9, secret+"..")[:2+len(secret)], nil},
	} {
		for way, reader := range map[string]func(io.Reader) io.Reader{"at once": func(r io.Reader) io.Reader { return r }, "byte by byte": iotest.OneByteReader} {
			f := newScrubber([]string{secret}).frames(io.NopCloser(reader(bytes.NewReader(c.in))))
			got, err := io.ReadAll(f)
			if err != nil || !bytes.Equal(got, c.want) {
				t.Errorf("%s, %s: %.200q, %v", name, way, got, err)
			}
		}
	}
}

// Broken if something else than the frames of a server reaches a client behind an upgrade: another protocol
// could be spoken there.
func TestNoFramesOfAServer(t *testing.T) {
	good := wsFrame(true, 1, "abc")
	for name, bad := range map[string][]byte{
		"text":                        []byte("HTTP/1.1 200 OK\r\n\r\n"),
		"a reserved bit":              {0xc1, 0},
		"a reserved code":             {0x83, 0},
		"a mask":                      {0x81, 0x80, 0, 0, 0, 0},
		"a ping in pieces":            {0x09, 0},
		"a ping that is too long":     {0x89, 126, 0, 126},
		"the rest of no message":      {0x80, 0},
		"a message in a message":      append(wsFrame(false, 1, "a"), wsFrame(true, 1, "b")...),
		"more than there can be":      {0x82, 127, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
		"a message behind the end":    append(wsFrame(true, 8, ""), wsFrame(true, 1, "x")...),
		"a second end behind the end": append(wsFrame(true, 8, ""), wsFrame(true, 8, "")...),
	} {
		got, err := io.ReadAll(newScrubber(nil).frames(io.NopCloser(bytes.NewReader(append(bytes.Clone(good),
			bad...)))))
		if err != errFrames || !bytes.HasPrefix(got, good) || bytes.HasSuffix(got, bad) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// perByte makes a frame of each byte of a text.
func perByte(text string, frame func(string) []byte) (b []byte) {
	for i := range text {
		b = append(b, frame(text[i:i+1])...)
	}
	return b
}

// Broken if a whole message waits for the next one because it ends as a secret begins: the other side would wait
// for an answer to it.
func TestWebSocketMessagesDoNotWait(t *testing.T) {
	const secret = "s3cret-value-of-the-vault"
	r, w := io.Pipe()
	f := newScrubber([]string{secret}).frames(r)
	message := wsFrame(true, 1, "say "+secret[:9])
	go func() { _, _ = w.Write(message) }()
	got := make([]byte, len(message))
	if _, err := io.ReadFull(f, got); err != nil || !bytes.Equal(got, message) {
		t.Errorf("%q, %v", got, err)
	}
	w.Close()
}
