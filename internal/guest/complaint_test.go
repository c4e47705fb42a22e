//go:build linux

package guest

import (
	"strings"
	"testing"
)

// TestComplaints: models would read about a terminal that no command of theirs asked for, or lose output of their commands that looks
// like it.
func TestComplaints(t *testing.T) {
	const complaint = "bash: [71: 2 (255)] tcsetattr: Inappropriate ioctl for device\n"
	for in, want := range map[string]string{
		complaint:                     "",
		"y" + complaint + "x\n":       "yx\n",
		complaint + complaint + "end": "end",
		"bash: [7: 1 (255)] tcsetattr: Inappropriate ioctl for device\n": "bash: [7: 1 (255)] tcsetattr: Inappropriate ioctl for device\n", // another shell's
		"bash: [71":                                         "bash: [71",
		"bash: [71: other\n" + complaint:                    "bash: [71: other\n",
		"bash: bash: [71" + complaint:                       "bash: bash: [71",
		"bash: [71" + strings.Repeat("a", 2*maxComplaint):   "bash: [71" + strings.Repeat("a", 2*maxComplaint),
		strings.TrimSuffix(complaint, "\n"):                 strings.TrimSuffix(complaint, "\n"),
		strings.TrimSuffix(complaint, "\n") + complaint[:9]: strings.TrimSuffix(complaint, "\n") + complaint[:9],
	} {
		for piece := 1; piece <= len(in); piece++ {
			var got strings.Builder
			c := newComplaints(&got, 71)
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
