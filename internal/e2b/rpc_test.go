//go:build linux

package e2b

import (
	"bytes"
	"encoding/binary"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
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
