//go:build linux

package e2b

import (
	"bytes"
	"encoding/binary"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

// If this fails, a stream writes to its answer after its handler has returned: that ends the server, or gets into another's answer.
func TestStreamEndsWithItsHandler(t *testing.T) {
	const ping = `{"event":{"keepalive":{}}}`
	synctest.Test(t, func(t *testing.T) {
		body := []byte("{}")
		r := httptest.NewRequest("POST", "/process.Process/Start", bytes.NewReader(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)))
		r.Header.Set("Content-Type", "application/connect+json")
		r.Header.Set("Keepalive-Ping-Interval", "1")
		w := httptest.NewRecorder()
		(&visit{Request: r, w: w}).stream(func(c *call) error {
			c.keepAlive(eventOut{event{KeepAlive: &struct{}{}}})
			time.Sleep(3500 * time.Millisecond) // a process without output
			return nil
		})
		if n := bytes.Count(w.Body.Bytes(), []byte(ping)); n != 3 {
			t.Errorf("%d keepalives within three and a half intervals: %q", n, w.Body)
		}
		before := w.Body.String()
		time.Sleep(time.Minute)
		synctest.Wait()
		if w.Body.String() != before {
			t.Errorf("after the end the stream went on: %q", w.Body)
		}
	})
}

// If this fails, a watcher that nobody asks fills the server's memory with names, or forgets what a client has yet to ask for.
func TestWatchedIsBounded(t *testing.T) {
	w := &watcher{}
	w.add(fsEvent{Name: "first", Type: eventTypes["create"]})
	for range 2000 {
		w.add(fsEvent{Name: strings.Repeat("n", 4000), Type: eventTypes["create"]})
	}
	kept := 0
	for _, e := range w.events {
		kept += len(e)
	}
	if kept > maxWatched || kept < maxWatched/2 || string(w.events[0]) != `{"name":"first","type":"EVENT_TYPE_CREATE"}` {
		t.Errorf("%d events with %d bytes are kept, the first is %s", len(w.events), kept, w.events[0])
	}
}

// If this fails, a sandbox is said to have what it has not.
func TestDefaultsAreTheProvider(t *testing.T) {
	if defaultMemoryMB != native.DefaultMemory>>20 || defaultCPUs != native.DefaultCPUs {
		t.Errorf("said: %d CPUs and %d MB; given: %d and %d", defaultCPUs, defaultMemoryMB, native.DefaultCPUs, native.DefaultMemory>>20)
	}
}
