package api_test

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"strings"
	"testing"
	"time"
)

// picture is a picture of a size, in one of the formats that the standard library writes.
func picture(t *testing.T, format string, width, height int) []byte {
	t.Helper()
	var buf bytes.Buffer
	img := image.NewPaletted(image.Rect(0, 0, width, height), color.Palette{color.Black, color.White})
	err := map[string]func() error{"png": func() error { return png.Encode(&buf, img) },
		"jpeg": func() error { return jpeg.Encode(&buf, img, nil) },
		"gif":  func() error { return gif.Encode(&buf, img, nil) }}[format]()
	if err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// webp is the head of a WebP of a size, lossless, and some bytes.
func webp(width, height uint32) []byte {
	b := binary.LittleEndian.AppendUint32([]byte("RIFF"), 30)
	b = binary.LittleEndian.AppendUint32(append(b, "WEBPVP8L"...), 18)
	b = append(b, 0x2f)
	b = binary.LittleEndian.AppendUint32(b, width-1|(height-1)<<14)
	return append(b, make([]byte, 13)...)
}

// bomb is a PNG of some thousand bytes and many pixels, whose data is of no pixel.
func bomb(t *testing.T, width, height uint32) []byte {
	t.Helper()
	b := picture(t, "png", 1, 1)
	binary.BigEndian.PutUint32(b[16:], width)
	binary.BigEndian.PutUint32(b[20:], height)
	binary.BigEndian.PutUint32(b[29:], crc32.ChecksumIEEE(b[12:29]))
	return b
}

func imageBlock(kind string, b []byte) map[string]any {
	return map[string]any{"type": "image", "source": map[string]any{"type": "base64", "media_type": kind,
		"data": base64.StdEncoding.EncodeToString(b)}}
}

// Fails if a picture is taken that a provider refuses, which would fail every later message of the session, or one is
// refused that it takes.
func TestPictures(t *testing.T) {
	b := newBench(t)
	agent, env, id := b.agent(), b.environment(), b.session()
	events := "/v1/sessions/" + id + "/events"
	good := picture(t, "png", 40, 30)
	noise := make([]byte, 5<<20+1)
	copy(noise, good)
	flipped := bytes.Clone(good)
	flipped[len(flipped)-20] ^= 1
	for name, c := range map[string]struct {
		kind, word string
		b          []byte
	}{
		"over 5 MB":    {"image/png", "5242881 bytes, and at most 5242880", noise},
		"too wide":     {"image/png", "8001 x 1 pixels, and at most 8000", picture(t, "png", 8001, 1)},
		"too high":     {"image/gif", "1 x 8001 pixels", picture(t, "gif", 1, 8001)},
		"a wide WebP":  {"image/webp", "16000 x 2 pixels", webp(16000, 2)},
		"another type": {"image/jpeg", `"image/jpeg", and its bytes are image/png`, good},
		"no such type": {"image/bmp", "its bytes are image/png", good},
		"text": {"image/png", "no PNG, JPEG, GIF or WebP",
			[]byte("<svg xmlns='http://www.w3.org/2000/svg'/>")},
		"cut":             {"image/png", "cannot be decoded", good[:len(good)-30]},
		"only its head":   {"image/png", "cannot be decoded", good[:40]},
		"a flipped bit":   {"image/png", "cannot be decoded", flipped},
		"a cut JPEG":      {"image/jpeg", "cannot be decoded", picture(t, "jpeg", 40, 30)[:200]},
		"a cut GIF":       {"image/gif", "cannot be decoded", picture(t, "gif", 40, 30)[:30]},
		"a cut WebP":      {"image/webp", "cannot be decoded", webp(40, 30)[:34]},
		"no pixels":       {"image/png", "cannot be decoded", bomb(t, 0, 5)},
		"a cut large one": {"image/png", "cannot be decoded", picture(t, "png", 7000, 7000)[:200]},
	} {
		block := imageBlock(c.kind, c.b)
		b.refused(400, c.word, "POST", events, send(map[string]any{"type": "user.message", "content": []any{block}}))
		b.refused(400, c.word, "POST", "/v1/sessions", map[string]any{"agent": agent, "environment_id": env,
			"initial_events": []any{map[string]any{"type": "user.message", "content": []any{block}}}})
		file := b.upload("file", "p."+strings.TrimPrefix(c.kind, "image/")+":"+string(c.b)).str("id")
		asFile := map[string]any{"type": "image", "source": map[string]any{"type": "file", "file_id": file}}
		if r := b.do("POST", events,
			send(map[string]any{"type": "user.message", "content": []any{asFile}})); r.status != 400 {
			t.Errorf("%s as a file: %d %s", name, r.status, r.body)
		}
	}
	for kind, p := range map[string][]byte{"image/png": good, "image/jpeg": picture(t, "jpeg", 40, 30),
		"image/gif": picture(t, "gif", 40, 30), "image/webp": webp(40, 30),
		"IMAGE/PNG": picture(t, "png", 8000, 8000)} { // the control
		b.ok("POST", events, send(map[string]any{"type": "user.message", "content": []any{imageBlock(kind, p)}}))
	}
	unsaid := b.upload("file", "shot:"+string(good)).str("id") // its type is not known before its bytes are
	b.ok("POST", events, send(map[string]any{"type": "user.message",
		"content": []any{map[string]any{"type": "image", "source": map[string]any{"type": "file",
			"file_id": unsaid}}}}))
}

// Fails if pictures that are small to send and large to decode hold the server.
func TestPictureBombs(t *testing.T) {
	b := newBench(t)
	events := "/v1/sessions/" + b.session() + "/events"
	large := picture(t, "png", 3000, 3000)
	var blocks []any
	for range 500 {
		blocks = append(blocks, imageBlock("image/png", large))
	}
	began := time.Now()
	b.ok("POST", events, send(map[string]any{"type": "user.message", "content": blocks}))
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("500 pictures of 9 million pixels took %v", took)
	}
}
