//go:build linux

package runner

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"image"
	"image/png"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/llm"
)

// If this fails, a model cannot look at a picture that it made, or gets its bytes as text; or one that no
// provider takes goes into the log.
func TestReadShowsPictures(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.start(nil)
	draw := func(w, h int) string {
		var b bytes.Buffer
		if err := png.Encode(&b, image.NewGray(image.Rect(0, 0, w, h))); err != nil {
			t.Fatal(err)
		}
		return base64.StdEncoding.EncodeToString(b.Bytes())
	}
	put := func(name, data string) string { return "- bash: echo " + data + " | base64 -d > " + name }
	id := r.steps(put("a.png", draw(3, 2)), put("wide.png", draw(8001, 1)), put("cut.png", draw(3, 2)[:16]),
		"- bash: printf '%%PDF-1.4 x' > a.pdf; printf 'a\\0b' > a.bin", "- read: a.png", "- read: a.pdf", "- read: wide.png", "- read: cut.png", "- read: a.bin", "- say: done")
	r.rests(id, "end_turn")
	out := r.outcomes(id)[4:]
	for i, want := range []struct{ kind, media, text string }{{"image", "image/png", "3 x 2 pixels"},
		{"document", "application/pdf", "application/pdf, 10 bytes"}} {
		c := out[i].Content
		if len(c) != 2 || c[1].Type != want.kind || c[1].Source.MediaType != want.media || c[1].Source.Blob == nil ||
			!strings.Contains(c[0].Text, want.text) {
			t.Fatalf("%s: %+v", want.kind, c)
		}
		if b, err := (&turn{Runner: &Runner{cfg: r.config()}}).Load(t.Context(), *c[1].Source.Blob); err != nil ||
			len(b) == 0 {
			t.Errorf("its content: %d bytes, %v", len(b), err)
		}
	}
	for i, want := range []string{"8001 x 1 pixels", "is damaged", "is not text: it has NUL bytes"} {
		if f := out[2+i]; f.Outcome != outboard.OutcomeError || len(f.Content) != 1 ||
			!strings.Contains(finalText(f), want) {
			t.Errorf("%q: %s %q", want, f.Outcome, finalText(f))
		}
	}
}

// webp is the beginning of a WebP file whose first chunk is of a kind, with data and room up to where a picture
// would begin.
func webp(kind string, data []byte) string {
	b := append([]byte("RIFF\x00\x00\x00\x00WEBP"+kind+"\x00\x00\x00\x00"), data...)
	b = append(b, make([]byte, 30)...)
	binary.LittleEndian.PutUint32(b[4:], uint32(len(b)-8))
	binary.LittleEndian.PutUint32(b[16:], uint32(len(b)-20))
	return base64.StdEncoding.EncodeToString(b)
}

// If this fails, a model is told a wrong size of a WebP picture of one of its three kinds, or gets one that no
// provider takes.
func TestReadMeasuresWebP(t *testing.T) {
	r := newRig(t, llm.Config{})
	r.start(nil)
	le := binary.LittleEndian
	lossless := func(w, h uint32) []byte { return le.AppendUint32([]byte{0x2f}, w-1|(h-1)<<14) }
	lossy := func(w, h uint16) []byte { // the upper two bits of each are a scale
		return le.AppendUint16(le.AppendUint16([]byte{0, 0, 0, 0x9d, 0x01, 0x2a}, w|1<<14), h|2<<14)
	}
	extended := func(w, h uint32) []byte {
		b := le.AppendUint32(make([]byte, 4), w-1)
		return le.AppendUint32(b[:7], h-1)[:10]
	}
	files := []struct{ data, want string }{
		{webp("VP8L", lossless(1234, 77)), "image/webp, 1234 x 77 pixels"}, {webp("VP8 ", lossy(640, 480)),
			"image/webp, 640 x 480 pixels"},
		{webp("VP8X", extended(7000, 300)), "image/webp, 7000 x 300 pixels"}, {webp("VP8L", lossless(16000, 2)),
			"16000 x 2 pixels"}, {webp("VP8X", extended(70000, 3)), "70000 x 3 pixels"},
		{webp("VP8 ", lossy(0, 5)), "empty picture"}, {webp("VP8 ", make([]byte, 10)),
			"is damaged"}, {webp("VP8L", make([]byte, 5)), "is damaged"}, {webp("VP9 ", nil), "is damaged"},
		{base64.StdEncoding.EncodeToString([]byte("RIFF\x04\x00\x00\x00WEBP")), "is damaged"},
	}
	var steps []string
	for _, f := range files {
		steps = append(steps, "- bash: echo "+f.data+" | base64 -d > a.webp", "- read: a.webp")
	}
	id := r.steps(append(steps, "- say: done")...)
	r.rests(id, "end_turn")
	for i, f := range r.outcomes(id) {
		if i%2 == 0 {
			continue
		}
		good := i/2 < 3
		if want := files[i/2].want; !strings.Contains(finalText(f), want) ||
			good != (f.Outcome == outboard.OutcomeOK) || good != (len(f.Content) == 2 && f.Content[1].Type == "image") {
			t.Errorf("%q: %s %q with %d blocks", want, f.Outcome, finalText(f), len(f.Content))
		}
	}
}
