package egress

import (
	"bytes"
	"io"
	"testing"
	"testing/iotest"
)

// FuzzFrames: if it fails, bytes of a server that are no good WebSocket frames end the gateway, are added to, or
// carry a secret in one piece of payload, however they arrive.
func FuzzFrames(f *testing.F) {
	const secret = "s3cret-value"
	f.Add(wsFrame(true, 1, "a "+secret+" b"), byte(0))
	f.Add(append(wsFrame(false, 1, secret[:5]), wsFrame(true, 0, secret[5:])...), byte(3))
	f.Add([]byte("\x82\x7f\xff\xff\xff\xff\xff\xff\xff\xff"+secret), byte(1))
	f.Add([]byte("\x89\x7d"+secret), byte(1))
	f.Add([]byte("\xf1\x01"+secret+secret), byte(200))
	f.Fuzz(func(t *testing.T, in []byte, cut byte) {
		if len(in) > 4096 {
			return
		}
		for name, r := range map[string]io.Reader{"at once": bytes.NewReader(in),
			"in bytes": iotest.OneByteReader(bytes.NewReader(in)),
			"in halves": io.MultiReader(bytes.NewReader(in[:min(int(cut), len(in))]),
				bytes.NewReader(in[min(int(cut), len(in)):]))} {
			out, err := io.ReadAll(newScrubber([]string{secret}).frames(io.NopCloser(r)))
			if err != nil && err != errFrames || len(out) > len(in) {
				t.Fatalf("%s: %d bytes became %d, %v", name, len(in), len(out), err)
			}
			if bytes.Contains(wsPayload(out), []byte(secret)) {
				t.Fatalf("%s: the payload still has it: %q", name, out)
			}
		}
	})
}

// wsPayload is the payload of well-formed data frames at the beginning of b.
func wsPayload(b []byte) (out []byte) {
	for len(b) >= 2 && b[0]&0x70 == 0 && b[1]&0x80 == 0 && b[1] < 126 && b[0]&0x0f <= 2 && len(b) >= 2+int(b[1]) {
		n := 2 + int(b[1])
		out = append(out, b[2:n]...)
		if b[0]&0x80 != 0 { // the next message is another text
			out = append(out, 0)
		}
		b = b[n:]
	}
	return out
}
