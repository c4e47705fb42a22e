package fleet

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// If this fails, a client of one box fills the server's memory with what it says to the box's log.
func TestBoxLogIsBounded(t *testing.T) {
	l := &liveBox{}
	for range 3 * MaxBoxLog {
		l.note(time.Now(), "process started", map[string]string{"cmd": strings.Repeat("ü", maxBoxField),
			"user": "user"})
	}
	kept := 0
	for _, line := range l.log {
		kept += len(line.Fields["cmd"])
		if cmd := line.Fields["cmd"]; !strings.HasPrefix(cmd, "üüü") || !utf8.ValidString(cmd) ||
			line.Fields["user"] != "user" {
			t.Fatalf("a line is %q", line.Fields)
		}
	}
	if len(l.log) != MaxBoxLog || kept > MaxBoxLog*(maxBoxField+4) {
		t.Errorf("%d lines with %d bytes of commands are kept", len(l.log), kept)
	}
}
