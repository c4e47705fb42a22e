//go:build linux

package guest

import (
	"strings"
	"testing"
)

// TestShellNoise: models would read about a terminal that no command of theirs asked for, or lose output of
// their commands that looks like it.
func TestShellNoise(t *testing.T) {
	const noise = "bash: [71: 2 (255)] tcsetattr: Inappropriate ioctl for device\n"
	for in, want := range map[string]string{
		noise:                 "",
		"y" + noise + "x\n":   "yx\n",
		noise + noise + "end": "end",
		// another shell's
		"bash: [7: 1 (255)] tcsetattr: Inappropriate ioctl for device\n": "bash: [7: 1 (255)] tcsetattr: Inappropriate ioctl for device\n",
		"bash: [71":                                   "bash: [71",
		"bash: [71: other\n" + noise:                  "bash: [71: other\n",
		"bash: bash: [71" + noise:                     "bash: bash: [71",
		"bash: [71" + strings.Repeat("a", 2*maxNoise): "bash: [71" + strings.Repeat("a", 2*maxNoise),
		strings.TrimSuffix(noise, "\n"):               strings.TrimSuffix(noise, "\n"),
		strings.TrimSuffix(noise, "\n") + noise[:9]:   strings.TrimSuffix(noise, "\n") + noise[:9],
	} {
		for piece := 1; piece <= len(in); piece++ {
			var got strings.Builder
			c := newShellNoise(&got, 71)
			for rest := in; rest != ""; rest = rest[min(piece, len(rest)):] {
				part := []byte(rest[:min(piece, len(rest))])
				if n, err := c.Write(part); n != len(part) || err != nil {
					t.Fatalf("Write: %d, %v", n, err)
				}
				clear(part) // as a buffer that is used again
			}
			if c.flush(); got.String() != want {
				t.Fatalf("%q in pieces of %d: %q, want %q", in, piece, got.String(), want)
			}
		}
	}
}
