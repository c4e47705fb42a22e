package guest

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// MaxMedia bounds a picture or a document that a read gives to a model: providers take no more of one.
const MaxMedia = 5 << 20

// mediaMark begins the answer of a read that found a picture or a document. Lines of text have a number in front.
const mediaMark = "media "

// MediaType returns what a file is that models can look at, by how it begins; "" for any other.
func MediaType(head []byte) string {
	for _, m := range []struct{ magic, media string }{
		{"\x89PNG\r\n\x1a\n", "image/png"}, {"\xff\xd8\xff", "image/jpeg"}, {"GIF87a", "image/gif"}, {"GIF89a",
			"image/gif"},
		{"%PDF-", "application/pdf"},
	} {
		if bytes.HasPrefix(head, []byte(m.magic)) {
			return m.media
		}
	}
	if len(head) >= 12 && string(head[:4]) == "RIFF" && string(head[8:12]) == "WEBP" {
		return "image/webp"
	}
	return ""
}

// MediaLine is the answer of a read to a file that a model can look at: what it is, its size and the SHA-256 of
// its content. The content is more than a result holds, so the host reads it by the call's path.
func MediaLine(media string, size int64, sum []byte) []byte {
	return fmt.Appendf(nil, "%s%s %d %x", mediaMark, media, size, sum)
}

// ParseMediaLine reads a MediaLine; ok says whether output is one.
func ParseMediaLine(output []byte) (media string, size int64, sum string, ok bool) {
	rest, ok := strings.CutPrefix(string(output[:min(len(output), 200)]), mediaMark)
	f := strings.Fields(rest)
	if !ok || len(f) != 3 {
		return "", 0, "", false
	}
	size, err := strconv.ParseInt(f[1], 10, 64)
	raw, bad := hex.DecodeString(f[2])
	return f[0], size, f[2], err == nil && bad == nil && len(raw) == 32 && size >= 0 && size <= MaxMedia
}
