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

// Fails if archiving the primary thread of a session that is archived, and with it the thread, is refused.
func TestArchivePrimaryThread(t *testing.T) {
	b := newBench(t)
	id := b.session()
	thread := "/v1/sessions/" + id + "/threads/" + b.ok("GET", "/v1/sessions/"+id+"/threads", nil).str("data.0.id")
	b.refused(http.StatusBadRequest, "primary", "POST", thread+"/archive", nil)
	if got := b.ok("GET", thread, nil); got.get("archived_at") != nil {
		t.Errorf("a refusal archived the thread: %s", got.body)
	}
	b.ok("POST", "/v1/sessions/"+id+"/archive", nil)
	if got := b.ok("POST", thread+"/archive", nil); got.str("status") != "terminated" || got.str("archived_at") == "" {
		t.Errorf("the thread of an archived session: %s", got.body)
	}
}
