package store

import (
	"path/filepath"
	"testing"

	"github.com/outboard-dev/outboard"
)

// A full disk must be reported as such, leave the log as it was, and stop being an error once there is space.
func TestFullDisk(t *testing.T) {
	s, err := Open(t.Context(), Config{Path: filepath.Join(t.TempDir(), "full.db")})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	h, err := s.CreateSession(t.Context(), outboard.Header{ID: "sesn_1", Thread: "sthr_1"}, outboard.SessionConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.write.ExecContext(t.Context(), "PRAGMA max_page_count = 60"); err != nil {
		t.Fatal(err)
	}
	say := func() error {
		_, err := s.Append(t.Context(), h.ID, 0, Any, outboard.NewEvent("", &outboard.AgentMessage{
			Content: []outboard.Content{outboard.Text(string(make([]byte, 10_000)))}}))
		return err
	}
	n := 0
	for err = say(); err == nil && n < 100; err = say() {
		n++
	}
	if outboard.KindOf(err) != outboard.Unavailable {
		t.Fatalf("after %d events: %v", n, err)
	}
	t.Log(err)
	if got, err := s.Session(t.Context(), h.ID); err != nil || got.Head != int64(n) {
		t.Fatalf("the head is %d, %v, want %d", got.Head, err, n)
	}
	if _, err := s.write.ExecContext(t.Context(), "PRAGMA max_page_count = 10000"); err != nil {
		t.Fatal(err)
	}
	if err := say(); err != nil {
		t.Fatalf("with space again: %v", err)
	}
}
