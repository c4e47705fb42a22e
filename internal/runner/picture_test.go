//go:build linux

package runner

import (
	"bytes"
	"encoding/base64"
	"image"
	"image/png"
	"strings"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/llm"
)

// If this fails, a model cannot look at a picture that it made, or gets its bytes as text; or one that no provider takes goes into the log.
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
	for i, want := range []struct{ kind, media, text string }{{"image", "image/png", "3 x 2 pixels"}, {"document", "application/pdf", "application/pdf, 10 bytes"}} {
		c := out[i].Content
		if len(c) != 2 || c[1].Type != want.kind || c[1].Source.MediaType != want.media || c[1].Source.Blob == nil || !strings.Contains(c[0].Text, want.text) {
			t.Fatalf("%s: %+v", want.kind, c)
		}
		if b, err := (&turn{Runner: &Runner{cfg: r.config()}}).Load(t.Context(), *c[1].Source.Blob); err != nil || len(b) == 0 {
			t.Errorf("its content: %d bytes, %v", len(b), err)
		}
	}
	for i, want := range []string{"8001 x 1 pixels", "is damaged", "is not text: it has NUL bytes"} {
		if f := out[2+i]; f.Outcome != outboard.OutcomeError || len(f.Content) != 1 || !strings.Contains(text(f), want) {
			t.Errorf("%q: %s %q", want, f.Outcome, text(f))
		}
	}
}
