package tool

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	_ "image/gif" // what DecodeConfig knows
	_ "image/jpeg"
	_ "image/png"
)

// MaxSide bounds the sides of a picture in pixels: providers refuse the whole conversation for a larger one.
const MaxSide = 8000

// Measure returns the size in pixels of a picture, by its head alone. An error is fit for the model.
func Measure(media string, b []byte) (width, height int, err error) {
	if media == "image/webp" {
		width, height, err = webp(b)
	} else {
		var c image.Config
		c, _, err = image.DecodeConfig(bytes.NewReader(b))
		width, height = c.Width, c.Height
	}
	switch {
	case err != nil:
		return 0, 0, fmt.Errorf("is damaged: it begins as %s and cannot be read as one (%w)", media, err)
	case width < 1 || height < 1:
		return 0, 0, errors.New("is an empty picture")
	case width > MaxSide || height > MaxSide:
		return 0, 0, fmt.Errorf("is a picture of %d x %d pixels, and a model takes at most %d on a side: make a "+
			"smaller copy of it", width, height, MaxSide)
	}
	return width, height, nil
}

var errWebP = errors.New("no WebP header")

// webp reads the size from the first chunk of a WebP file, of which there are three kinds.
func webp(b []byte) (width, height int, err error) {
	if len(b) < 30 {
		return 0, 0, errWebP
	}
	u16 := func(at int) int { return int(binary.LittleEndian.Uint16(b[at:])) }
	u24 := func(at int) int { return int(b[at]) | int(b[at+1])<<8 | int(b[at+2])<<16 }
	switch string(b[12:16]) {
	case "VP8 ":
		if string(b[23:26]) != "\x9d\x01\x2a" {
			return 0, 0, errWebP
		}
		return u16(26) & 0x3fff, u16(28) & 0x3fff, nil
	case "VP8L":
		if b[20] != 0x2f {
			return 0, 0, errWebP
		}
		bits := binary.LittleEndian.Uint32(b[21:])
		return int(bits&0x3fff) + 1, int(bits>>14&0x3fff) + 1, nil
	case "VP8X":
		return u24(24) + 1, u24(27) + 1, nil
	}
	return 0, 0, errWebP
}
