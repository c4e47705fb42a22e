package api_test

import (
	"net/http"
	"testing"
)

// Fails if a session cannot be made, sent to, read, and archived through the wire.
func TestWalk(t *testing.T) {
	b := newBench(t)
	id := b.session()
	if got := b.ok("GET", "/v1/sessions/"+id, nil).str("status"); got != "idle" {
		t.Errorf("status of a fresh session: %q", got)
	}
	sent := b.ok("POST", "/v1/sessions/"+id+"/events", send(message("hello")))
	if sent.str("data.0.type") != "user.message" || sent.str("data.0.content.0.text") != "hello" {
		t.Errorf("echo: %s", sent.body)
	}
	if got := b.ok("GET", "/v1/sessions/"+id, nil).str("status"); got != "running" {
		t.Errorf("status with a message waiting: %q", got)
	}
	list := b.ok("GET", "/v1/sessions/"+id+"/events", nil)
	if list.str("data.0.id") != sent.str("data.0.id") || list.get("data.0.processed_at") != nil {
		t.Errorf("queued event in the list: %s", list.body)
	}
	b.refused(http.StatusBadRequest, "running", "POST", "/v1/sessions/"+id+"/archive", nil)
}
