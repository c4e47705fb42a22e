package control

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"image"
	"image/gif"
	"image/jpeg"
	"image/png"
	"slices"
	"strings"

	"github.com/outboard-dev/outboard"
)

// What no model provider takes. A picture that is refused there fails every later message of its session.
const (
	maxPicture     = 5 << 20 // bytes
	maxPictureSide = 8000    // pixels
)

// decodedPixels is how many pixels of the pictures of one request are decoded, to find what is broken within. A picture
// of a few bytes can have 64 million, so behind these only the structure of a picture is looked at.
const decodedPixels = 10_000_000

// pictureTypes are the types that providers take.
var pictureTypes = []string{"image/png", "image/jpeg", "image/gif", "image/webp"}

// pictures checks the pictures of one request.
type pictures struct{ left int64 }

// check refuses a picture that no provider takes, and returns its type. declared "" or application/octet-stream
// declares none.
func (p *pictures) check(declared string, b []byte) (string, error) {
	if err := checkPictureSize(int64(len(b))); err != nil {
		return "", err
	}
	kind, width, height, err := measure(b)
	if err != nil {
		return kind, invalid("the image cannot be decoded: %w", err).WithHint("send a whole PNG, JPEG, GIF or WebP")
	}
	if declared = strings.ToLower(declared); declared != "" && declared != "application/octet-stream" &&
		declared != kind {
		return kind, invalid("the image is said to be %s, and its bytes are %s", quote(declared), kind)
	}
	if width > maxPictureSide || height > maxPictureSide {
		return kind, invalid("the image has %d x %d pixels, and at most %d on a side are taken", width, height,
			maxPictureSide).WithHint("scale it down")
	}
	if width < 1 || height < 1 {
		return kind, invalid("the image has no pixels")
	}
	if n := int64(width) * int64(height); n <= p.left {
		p.left -= n
		err = decodePicture(kind, b)
	} else {
		err = walkPicture(kind, b)
	}
	if err != nil {
		return kind, invalid("the image cannot be decoded: %w", err).WithHint("send a whole PNG, JPEG, GIF or WebP")
	}
	return kind, nil
}

// checkPictureSize refuses a picture by its size alone.
func checkPictureSize(n int64) error {
	if n > maxPicture {
		return invalid("the image has %d bytes, and at most %d are taken (5 MB)", n, maxPicture).
			WithHint("make it smaller, or send it as a file resource of the session")
	}
	return nil
}

// measure tells what a picture is and how large, from its head.
func measure(b []byte) (kind string, width, height int, err error) {
	if len(b) >= 12 && string(b[:4]) == "RIFF" && string(b[8:12]) == "WEBP" {
		width, height, err = measureWebP(b)
		return "image/webp", width, height, err
	}
	cfg, format, err := image.DecodeConfig(bytes.NewReader(b))
	if errors.Is(err, image.ErrFormat) {
		return "", 0, 0, errors.New("it is no PNG, JPEG, GIF or WebP")
	}
	if kind = "image/" + format; err == nil && !slices.Contains(pictureTypes, kind) {
		err = errors.New("it is a " + format)
	}
	return kind, cfg.Width, cfg.Height, err
}

// measureWebP reads the size out of the first chunk, which is of one of three kinds.
func measureWebP(b []byte) (width, height int, err error) {
	short := errors.New("it ends too early")
	if len(b) < 30 {
		return 0, 0, short
	}
	switch data := b[20:]; string(b[12:16]) {
	case "VP8X":
		return 1 + int(data[4]) + int(data[5])<<8 + int(data[6])<<16, 1 + int(data[7]) + int(data[8])<<8 +
			int(data[9])<<16, nil
	case "VP8L":
		bits := binary.LittleEndian.Uint32(data[1:])
		if data[0] != 0x2f {
			return 0, 0, errors.New("its lossless part is none")
		}
		return 1 + int(bits&0x3fff), 1 + int(bits>>14&0x3fff), nil
	case "VP8 ":
		if data[3] != 0x9d || data[4] != 0x01 || data[5] != 0x2a {
			return 0, 0, errors.New("its first frame is none")
		}
		return int(binary.LittleEndian.Uint16(data[6:]) & 0x3fff), int(binary.LittleEndian.Uint16(data[8:]) & 0x3fff), nil
	}
	return 0, 0, errors.New("its first part is of no known kind")
}

// decodePicture decodes a picture of which the standard library has a decoder, as far as that goes.
func decodePicture(kind string, b []byte) (err error) {
	r := bytes.NewReader(b)
	switch kind {
	case "image/png":
		_, err = png.Decode(r)
	case "image/jpeg":
		_, err = jpeg.Decode(r)
	case "image/gif":
		_, err = gif.Decode(r)
	default:
		return walkPicture(kind, b)
	}
	_, rarePNG := errors.AsType[png.UnsupportedError](err)
	_, rareJPEG := errors.AsType[jpeg.UnsupportedError](err)
	if rarePNG || rareJPEG {
		return walkPicture(kind, b) // others can decode it
	}
	return err
}

// walkPicture follows a picture's structure to its end, in time that grows with its bytes alone.
func walkPicture(kind string, b []byte) error {
	short := errors.New("it ends too early")
	switch kind {
	case "image/png":
		for b = b[8:]; len(b) >= 12; {
			n := int64(binary.BigEndian.Uint32(b))
			if n > int64(len(b))-12 {
				return short
			}
			if crc32.ChecksumIEEE(b[4:8+n]) != binary.BigEndian.Uint32(b[8+n:]) {
				return errors.New("a checksum does not fit")
			}
			if string(b[4:8]) == "IEND" {
				return nil
			}
			b = b[12+n:]
		}
		return short
	case "image/jpeg":
		if bytes.LastIndex(b, []byte{0xff, 0xd9}) < 0 {
			return short
		}
	case "image/gif":
		if bytes.TrimRight(b, "\x00")[len(bytes.TrimRight(b, "\x00"))-1] != ';' {
			return short
		}
	case "image/webp":
		if n := int64(binary.LittleEndian.Uint32(b[4:])); n+8 > int64(len(b)) {
			return short
		}
	}
	return nil
}

// checkImage refuses the picture of a block whose bytes are at hand.
func (p *pictures) checkImage(s *outboard.Source, b []byte) error {
	kind, err := p.check(s.MediaType, b)
	if err == nil {
		s.MediaType = kind
	}
	return err
}
