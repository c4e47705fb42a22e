package uplink

import (
	"bytes"
	"strings"
	"testing"
	"testing/iotest"
)

// If this fails, a certificate is appended to the last line of the system's, which breaks both, or a part of a
// bundle is missing.
func TestCopyLines(t *testing.T) {
	long := strings.Repeat("line\n", copySize) // some times what is in memory at a time
	for in, want := range map[string]string{"": "", "a\n": "a\n", "a": "a\n", long: long, long + "b": long + "b\n"} {
		var out bytes.Buffer
		if err := copyLines(&out, strings.NewReader(in)); err != nil || out.String() != want {
			t.Errorf("of %d bytes: %d bytes, want %d, error %v", len(in), out.Len(), len(want), err)
		}
	}
	if err := copyLines(new(bytes.Buffer), iotest.TimeoutReader(strings.NewReader(long))); err != iotest.ErrTimeout {
		t.Errorf("of a file that cannot be read: %v", err)
	}
}

// If this fails, a bundle grows by the same certificate at every hand-over, or never gets a new one.
func TestContains(t *testing.T) {
	const text = "<certificate>"
	around := strings.Repeat("<cert", copySize/5+len(text))
	for shift := range 2 * len(text) { // over the end of what is in memory at a time
		before := around[:copySize-len(text)+shift-len(text)/2]
		for in, want := range map[string]bool{before + text + around: true, before + text: true, before +
			text[:len(text)-1] + around: false, before: false} {
			if got, err := contains(strings.NewReader(in), []byte(text)); err != nil || got != want {
				t.Errorf("shift %d, %d bytes: %v, want %v, error %v", shift, len(in), got, want, err)
			}
			if got, err := contains(iotest.HalfReader(strings.NewReader(in)), []byte(text)); err != nil || got != want {
				t.Errorf("shift %d, %d bytes in halves: %v, want %v, error %v", shift, len(in), got, want, err)
			}
		}
	}
	if _, err := contains(iotest.ErrReader(iotest.ErrTimeout), []byte(text)); err != iotest.ErrTimeout {
		t.Errorf("of a file that cannot be read: %v", err)
	}
}
