//go:build linux

package e2b

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

// If this fails, a stream writes to its answer after its handler has returned: that ends the server, or gets
// into another's answer.
func TestStreamEndsWithItsHandler(t *testing.T) {
	const ping = `{"event":{"keepalive":{}}}`
	synctest.Test(t, func(t *testing.T) {
		body := []byte("{}")
		r := httptest.NewRequest("POST", "/process.Process/Start",
			bytes.NewReader(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)))
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

// If this fails, a stream that the end of the server cuts short looks whole to who reads it.
func TestStreamIsCutWithTheServer(t *testing.T) {
	base, end := context.WithCancel(t.Context())
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		(&visit{Request: r, w: w}).stream(func(c *call) error {
			if err := c.send(eventOut{event{Start: &startEvent{7}}}); err != nil {
				return err
			}
			if r.URL.Path == "/ends" {
				return nil
			}
			<-r.Context().Done()
			return r.Context().Err()
		})
	}))
	srv.Config.BaseContext = func(net.Listener) context.Context { return base }
	srv.Start()
	defer srv.Close()
	defer end()
	open := func(path string) *http.Response {
		t.Helper()
		resp, err := http.Post(srv.URL+path, "application/connect+json", strings.NewReader("\x00\x00\x00\x00\x02{}"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		return resp
	}
	// the control
	if b, err := io.ReadAll(open("/ends").Body); err != nil || !bytes.HasSuffix(b, []byte("\x02\x00\x00\x00\x02{}")) {
		t.Errorf("one that ends: %q, %v", b, err)
	}
	cut := open("/lasts")
	end()
	if b, err := io.ReadAll(cut.Body); err == nil || !bytes.Contains(b, []byte(`"pid":7`)) {
		t.Errorf("one that was cut short: %q, %v", b, err)
	}
}

// If this fails, watchers that nobody asks fill the server's memory with names, forget what a client has yet to
// ask for, or leave those of another owner without room.
func TestWatchersAreBounded(t *testing.T) {
	var ws watchers
	ws.init()
	watch := func(owner string) *watcher { return &watcher{owner: owner, cancel: func() {}} }
	w := watch("key_a")
	if !ws.add("first", w) {
		t.Fatal("no room for the first watcher")
	}
	ws.keep(w, fsEvent{Name: "first", Type: eventTypes["create"]})
	fill := func(w *watcher) {
		for range 2 * maxWatched / 4000 {
			ws.keep(w, fsEvent{Name: strings.Repeat("n", 4000), Type: eventTypes["create"]})
		}
	}
	if fill(w); w.bytes > maxWatched || w.bytes < maxWatched/2 ||
		string(w.events[0]) != `{"name":"first","type":"EVENT_TYPE_CREATE"}` {
		t.Errorf("%d events with %d bytes are kept, the first is %s", len(w.events), w.bytes, w.events[0])
	}
	for n := range maxWatchers {
		id, more := fmt.Sprint("more", n), watch("key_a")
		if ok := ws.add(id, more); ok != (n < maxWatchers-1) {
			t.Fatalf("watcher %d of one owner: %v", n+2, ok)
		}
		if n < 2*maxHeld/maxWatched {
			fill(more)
		}
	}
	if h := ws.held["key_a"]; h.bytes > maxHeld || h.bytes < maxHeld/2 {
		t.Errorf("%d bytes are kept for one owner", h.bytes)
	}
	other := watch("key_b")
	if !ws.add("other", other) {
		t.Error("another owner has no room for a watcher")
	}
	if fill(other); other.bytes < maxWatched/2 {
		t.Errorf("another owner has room for %d bytes", other.bytes)
	}
	held := ws.held["key_a"].bytes - w.bytes
	if n := len(ws.take(w)); n < 2 || ws.held["key_a"].bytes != held || len(ws.take(w)) != 0 {
		t.Errorf("taken: %d events, %d bytes left of %d", n, ws.held["key_a"].bytes, held)
	}
	for id, w := range ws.byID {
		ws.remove(id, w)
	}
	if len(ws.held) != 0 {
		t.Errorf("after all have gone: %v", ws.held)
	}
}

// If this fails, who waited too long for a sandbox is told that they gave up themselves.
func TestDeadlineIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := unary(httptest.NewRequest("POST", "/", nil))
		defer cancel()
		if err := explain(ctx, io.ErrUnexpectedEOF); !errors.Is(err, errGone) {
			t.Errorf("in time: %v", err)
		}
		<-ctx.Done()
		if e, ok := errors.AsType[*rpcError](explain(ctx, context.Cause(ctx))); !ok || e.Code != "deadline_exceeded" {
			t.Errorf("late: %v", e)
		}
		if e, ok := errors.AsType[*rpcError](explain(canceled(t), context.Canceled)); !ok || e.Code != "canceled" {
			t.Errorf("given up: %v", e)
		}
	})
}

func canceled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// If this fails, a sandbox is said to have what it has not.
func TestDefaultsAreTheProvider(t *testing.T) {
	if defaultMemoryMB != native.DefaultMemory>>20 || defaultCPUs != native.DefaultCPUs {
		t.Errorf("said: %d CPUs and %d MB; given: %d and %d", defaultCPUs, defaultMemoryMB, native.DefaultCPUs,
			native.DefaultMemory>>20)
	}
}
