package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
)

// serve starts a server and returns a client of it.
func serve(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	c, err := New(Config{URL: s.URL, Key: "obk_test", UserAgent: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// A client that takes any address would send its key to it.
func TestNewRefusesOddAddresses(t *testing.T) {
	for _, u := range []string{"", "localhost:7070", "ftp://x", "http://", "http://user:pw@host", "://",
		"http://example.org", "http://10.0.0.1:7070"} {
		if _, err := New(Config{URL: u}); outboard.KindOf(err) != outboard.Invalid {
			t.Errorf("New(%q): %v", u, err)
		}
	}
	for _, cfg := range []Config{{URL: "https://host/"}, {URL: "http://[::1]:1"}, {URL: "http://localhost:1"},
		{URL: "http://10.0.0.1:1", Insecure: true}} {
		if _, err := New(cfg); err != nil {
			t.Errorf("a good address: %v", err)
		}
	}
}

// An error must arrive with its kind, code and hint, or commands exit with the wrong code and say nothing useful.
func TestErrors(t *testing.T) {
	status, body := 0, ""
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		io.WriteString(w, body)
	})
	for s, kind := range map[int]outboard.Kind{400: outboard.Invalid, 401: outboard.Unauthenticated,
		403: outboard.Denied, 404: outboard.NotFound,
		409: outboard.Conflict, 413: outboard.TooLarge, 500: outboard.Internal, 501: outboard.Unimplemented} {
		status = s
		body = `{"type":"error","error":{"type":"x_error","message":"it is so","details":{"error_code":"the_code","hint":"do that"}}}`
		_, err := c.Session(t.Context(), "sesn_01x")
		e, ok := errors.AsType[*outboard.Error](err)
		if !ok || e.Kind != kind || e.Message != "it is so" || e.Hint != "do that" || e.Code != "the_code" {
			t.Errorf("status %d: %#v", s, err)
		}
	}
	for s, b := range map[int]string{404: "<html>not an Outboard server</html>", 302: "", 200: "garbage"} {
		status, body = s, b
		_, err := c.Session(t.Context(), "sesn_01x")
		if _, ok := errors.AsType[*TransportError](err); !ok {
			t.Errorf("status %d with %q: %v", s, b, err)
		}
	}
}

// A read is worth another try on a server that restarts; a write that is sent twice happens twice.
func TestRetries(t *testing.T) {
	var n atomic.Int64
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1) < 3 {
			panic(http.ErrAbortHandler)
		}
		io.WriteString(w, `{"id":"sesn_01x","data":[]}`)
	})
	if s, err := c.Session(t.Context(), "sesn_01x"); err != nil || s.ID != "sesn_01x" {
		t.Errorf("after two broken connections: %+v, %v", s, err)
	}
	n.Store(0)
	if _, err := c.Send(t.Context(), "sesn_01x", UserMessage("hi")); err == nil || n.Load() != 1 {
		t.Errorf("a write was sent %d times, %v", n.Load(), err)
	}
}

// A redirect that is followed carries the key to another server.
func TestRedirectsAreNotFollowed(t *testing.T) {
	var asked atomic.Bool
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Store(true) }))
	defer other.Close()
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
	})
	if _, err := c.Session(t.Context(), "sesn_01x"); err == nil || asked.Load() {
		t.Errorf("followed: %v, %v", asked.Load(), err)
	}
}

// An upload that is buffered or truncated loses work.
func TestUpload(t *testing.T) {
	want := bytes.Repeat([]byte("0123456789"), 1<<17)
	var got []byte
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		f, h, err := r.FormFile("file")
		if err != nil || h.Filename != "w.tar" || r.Header.Get("Authorization") != "Bearer obk_test" {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		got, _ = io.ReadAll(f)
		io.WriteString(w, `{"id":"file_01x"}`)
	})
	f, err := c.Upload(t.Context(), "w.tar", bytes.NewReader(want))
	if err != nil || f.ID != "file_01x" || !bytes.Equal(got, want) {
		t.Errorf("upload: %+v, %v, %d bytes", f, err, len(got))
	}
	broken := errors.New("the disk is gone")
	if _, err := c.Upload(t.Context(), "w.tar", io.MultiReader(strings.NewReader("x"), failing{broken})); err == nil {
		t.Error("a broken source looked like a whole upload")
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// event is a processed event n microseconds after the beginning.
func event(n int) string {
	at := time.Date(2026, 1, 1, 0, 0, 0, n*1000, time.UTC).Format("2006-01-02T15:04:05.000000Z")
	return fmt.Sprintf(`{"id":"sevt_%d","type":"agent.message","processed_at":%q}`, n, at)
}

// Whoever watches a session must see every event once and in order, although the connection breaks, the history
// overlaps the stream, and queued inputs show up early.
func TestFollowAcrossBrokenConnections(t *testing.T) {
	const all = 9
	var streams atomic.Int64
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/stream") {
			n := int(streams.Add(1))
			io.WriteString(w, ": connected\n\n")
			for i := max(1, 3*n-3); i <= 3*n && i <= all; i++ { // overlaps what was sent before
				fmt.Fprintf(w, "event: message\ndata: %s\n\n", event(i))
			}
			if n > 3 {
				fmt.Fprintf(w, "event: message\ndata: {\"id\":\"d\",\"type\":\"session.deleted\",\"processed_at\":\"2027-01-01T00:00:00Z\"}\n\n")
			}
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
		var data []string
		have := min(all, 3*int(streams.Load())) // what has happened so far
		for i := 1; i <= have; i++ {
			data = append(data, event(i))
		}
		data = append(data, `{"id":"sevt_q","type":"user.message","processed_at":null}`)
		fmt.Fprintf(w, `{"data":[%s],"next_page":null}`, strings.Join(data, ","))
	})
	var got []string
	for ev, err := range c.Follow(t.Context(), "sesn_01x", FollowOptions{Past: true}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, ev.ID)
	}
	want := []string{"sevt_1", "sevt_2", "sevt_3", "sevt_4", "sevt_5", "sevt_6", "sevt_7", "sevt_8", "sevt_9", "d"}
	if !slices.Equal(got, want) {
		t.Errorf("followed %v, want %v", got, want)
	}
}

// A watcher whose context ends must stop without an error, one whose session is gone must say so at once.
func TestFollowEnds(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "gone") {
			w.WriteHeader(404)
			io.WriteString(w, `{"error":{"type":"not_found_error","message":"there is no session"}}`)
			return
		}
		if strings.HasSuffix(r.URL.Path, "/stream") {
			io.WriteString(w, ": connected\n\n")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		}
		fmt.Fprintf(w, `{"data":[%s],"next_page":null}`, event(1))
	})
	ctx, cancel := context.WithCancel(t.Context())
	for ev, err := range c.Follow(ctx, "sesn_01x", FollowOptions{Past: true}) {
		if err != nil || ev.ID != "sevt_1" {
			t.Fatalf("%v, %v", ev.ID, err)
		}
		cancel()
	}
	cancel()
	n := 0
	for _, err := range c.Follow(t.Context(), "gone", FollowOptions{Past: true}) {
		if n++; outboard.KindOf(err) != outboard.NotFound {
			t.Errorf("a session that is gone: %v", err)
		}
	}
	if n != 1 {
		t.Errorf("%d answers", n)
	}
}

// An error inside a stream is the server's word, not an event.
func TestStreamError(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"not_found_error\",\"message\":\"deleted\"}}\n\n")
	})
	for _, err := range c.Follow(t.Context(), "sesn_01x", FollowOptions{}) {
		if outboard.KindOf(err) != outboard.NotFound || err.Error() != "deleted" {
			t.Errorf("%v", err)
		}
	}
}

// Whatever a server streams, reading it must end, keep lines whole, and never yield what was not data.
func FuzzFrames(f *testing.F) {
	for _, s := range []string{"", ": c\n\n", "data: {}\n\n", "data: a\ndata: b\n\n", "data:x\r\n\r\n",
		"event: m\ndata: 1\n", "\n\n\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for data, err := range frames(bytes.NewReader(b)) {
			if err != nil {
				return
			}
			if data != nil && !bytes.Contains(b, []byte("data:")) {
				t.Fatalf("data %q out of nothing", data)
			}
			var ev Event
			_ = json.Unmarshal(data, &ev)
		}
	})
}

// Text that comes while a message is written must reach who asked for it, and nobody else, and must not count as
// an event.
func TestFollowLive(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/stream") {
			io.WriteString(w, `{"data":[],"next_page":null}`)
			return
		}
		io.WriteString(w, ": connected\n\n")
		if r.URL.Query().Get("event_deltas[]") == "agent.message" {
			for _, f := range []string{`{"type":"event_start","event":{"type":"agent.thinking","id":"sevt_0"}}`,
				`{"type":"event_start","event":{"type":"agent.message","id":"sevt_1"}}`,
				`{"type":"event_delta","event_id":"sevt_1","delta":{"type":"content_delta","index":0,"content":{"type":"text","text":"hel"}}}`} {
				fmt.Fprintf(w, "event: message\ndata: %s\n\n", f)
			}
		}
		fmt.Fprintf(w, "event: message\ndata: %s\n\n", event(1))
		fmt.Fprint(w, "event: message\ndata: {\"id\":\"d\",\"type\":\"session.deleted\",\"processed_at\":\"2027-01-01T00:00:00Z\"}\n\n")
	})
	for _, live := range []bool{true, false} {
		var got []string
		opt := FollowOptions{Past: true}
		if live {
			opt.Live = func(p Piece) { got = append(got, fmt.Sprint(p.Event, p.Start, p.Text)) }
		}
		for ev, err := range c.Follow(t.Context(), "sesn_01x", opt) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, ev.ID)
		}
		want := []string{"sevt_1", "d"}
		if live {
			want = append([]string{"sevt_1true", "sevt_1falsehel"}, want...)
		}
		if !slices.Equal(got, want) {
			t.Errorf("live %v: %q, want %q", live, got, want)
		}
	}
}

// If this fails, the lines of running commands reach nobody, count as events, or are asked for where nobody takes them.
func TestFollowLines(t *testing.T) {
	var asked []string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/stream") {
			io.WriteString(w, `{"data":[],"next_page":null}`)
			return
		}
		asked = r.URL.Query()["event_deltas[]"]
		io.WriteString(w, ": connected\n\n")
		fmt.Fprint(w, "event: message\ndata: {\"type\":\"outboard.call.output\",\"tool_use_id\":\"sevt_9\",\"line\":\"linking\"}\n\n")
		fmt.Fprint(w, "event: message\ndata: {\"id\":\"d\",\"type\":\"session.deleted\",\"processed_at\":\"2027-01-01T00:00:00Z\"}\n\n")
	})
	for _, own := range []bool{true, false} {
		var got []string
		opt := FollowOptions{Past: true, Own: own, Live: func(Piece) {},
			Line: func(l Line) { got = append(got, l.Call+" "+l.Text) }}
		for ev, err := range c.Follow(t.Context(), "sesn_01x", opt) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, ev.ID)
		}
		if want := []string{"sevt_9 linking", "d"}; !slices.Equal(got, want) {
			t.Errorf("own %v: %q, want %q", own, got, want)
		}
		if slices.Contains(asked, callOutput) != own || !slices.Contains(asked, "agent.message") {
			t.Errorf("own %v: asked for %q", own, asked)
		}
	}
}
