package llm

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const testKey = "sk-test-0123456789"

// server is a model server on loopback. It keeps what it is sent, and answers each request with the next reply.
type server struct {
	*httptest.Server
	mu      sync.Mutex
	bodies  [][]byte
	headers []http.Header
	paths   []string
	replies []http.HandlerFunc
}

func newServer(t *testing.T, replies ...http.HandlerFunc) *server {
	t.Helper()
	s := &server{replies: replies}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("reading a request: %v", err)
		}
		s.mu.Lock()
		n := len(s.bodies)
		s.bodies = append(s.bodies, b)
		s.headers = append(s.headers, r.Header.Clone())
		s.paths = append(s.paths, r.Method+" "+r.URL.RequestURI())
		s.mu.Unlock()
		if n >= len(s.replies) {
			t.Errorf("request %d came unasked for", n+1)
			w.WriteHeader(http.StatusTeapot)
			return
		}
		s.replies[n](w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// body returns what request n (from 0) sent.
func (s *server) body(n int) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bodies[n]
}

// stream answers with events: each is the JSON of one, "name: JSON" for a named one, or a raw line starting with ":".
func stream(events ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		send(w, events...)
	}
}

func send(w http.ResponseWriter, events ...string) {
	for _, e := range events {
		switch {
		case strings.HasPrefix(e, ":"):
			fmt.Fprintf(w, "%s\n\n", e)
		case strings.HasPrefix(e, "{") && strings.Contains(e, `"type"`):
			o, _ := parseObject([]byte(e))
			fmt.Fprintf(w, "event: %s\ndata: %s\n\n", cmp.Or(o.text("type"), "broken"), e)
		default:
			fmt.Fprintf(w, "data: %s\n\n", e)
		}
		w.(http.Flusher).Flush()
	}
}

// status answers with an error.
func status(code int, body string, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		if w.Header().Get("Content-Type") == "" {
			w.Header().Set("Content-Type", "application/json")
		}
		w.WriteHeader(code)
		fmt.Fprint(w, body)
	}
}

// hang sends events, and then nothing until the client goes away.
func hang(events ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		stream(events...)(w, r)
		<-r.Context().Done()
	}
}

// wires are the wires under test: how a whole small answer looks on each.
var wires = []struct {
	kind    string
	model   string
	hello   []string // says "Hello there." and ends
	partial []string // the beginning of it, with some text
	more    string   // one more piece of text
}{
	{TypeAnthropic, "claude-sonnet-5", []string{
		`{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","content":[],"model":"m","usage":{"input_tokens":7,"output_tokens":1}}}`,
		`{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`,
		`{"type":"ping"}`,
		`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello "}}`,
		`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"there."}}`,
		`{"type":"content_block_stop","index":0}`,
		`{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":5}}`,
		`{"type":"message_stop"}`}, nil,
		`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"and on "}}`},
	{TypeResponses, "gpt-5", []string{
		`{"type":"response.created","response":{"id":"resp_1"}}`,
		`{"type":"response.output_text.delta","item_id":"msg_1","output_index":0,"content_index":0,"delta":"Hello "}`,
		`{"type":"response.output_text.delta","item_id":"msg_1","output_index":0,"content_index":0,"delta":"there."}`,
		`{"type":"response.output_item.done","output_index":0,"item":{"type":"message","id":"msg_1","role":"assistant","content":[{"type":"output_text","text":"Hello there."}]}}`,
		`{"type":"response.completed","response":{"id":"resp_1","status":"completed","usage":{"input_tokens":7,"output_tokens":5,"total_tokens":12}}}`}, nil,
		`{"type":"response.output_text.delta","item_id":"msg_1","output_index":0,"content_index":0,"delta":"and on "}`},
	{TypeChat, "llama", []string{
		`{"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}`,
		`{"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"Hello "}}]}`,
		`{"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"there."}}]}`,
		`{"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`,
		`{"id":"c","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5,"total_tokens":12}}`,
		`[DONE]`}, nil,
		`{"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"and on "}}]}`},
}

func init() {
	for i := range wires {
		n := map[string]int{TypeAnthropic: 4, TypeResponses: 2, TypeChat: 2}[wires[i].kind]
		wires[i].partial = wires[i].hello[:n]
	}
}

// remote returns a model on a server.
func remote(t *testing.T, kind, model string, s *server, change ...func(*Config)) Model {
	t.Helper()
	cfg := Config{Providers: []Provider{{Name: "test", Type: kind, BaseURL: s.URL,
		APIKey: Key{Secret: NewSecret(testKey)}}}}
	for _, f := range change {
		f(&cfg)
	}
	r, err := NewRegistry(cfg)
	if err != nil {
		t.Fatalf("making the registry: %v", err)
	}
	m, err := r.Resolve("test/" + model)
	if err != nil {
		t.Fatalf("resolving: %v", err)
	}
	return m
}

func hello() Request {
	return Request{History: []*outboard.Message{{Role: "user", Seq: 1,
		Content: []outboard.Content{outboard.Text("Hi.")}}}}
}

// mustFail generates, and returns the *Error it must fail with. It fails the test when that takes longer than a
// stream of these sizes can.
func mustFail(t *testing.T, m Model, emit func(Delta)) *Error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	resp, err := m.Generate(ctx, hello(), emit)
	e, ok := errors.AsType[*Error](err)
	if !ok {
		t.Fatalf("got %+v, %v; want an *Error", resp, err)
	}
	if strings.Contains(e.Error(), testKey) {
		t.Errorf("the message holds the key: %s", e.Error())
	}
	if !strings.HasPrefix(e.Message, "model test/") {
		t.Errorf("the message %q does not name the model", e.Message)
	}
	return e
}

// If this failed, a wire could not say hello: nothing else about it would work.
func TestWiresAnswer(t *testing.T) {
	for _, w := range wires {
		t.Run(w.kind, func(t *testing.T) {
			s := newServer(t, stream(w.hello...))
			m := remote(t, w.kind, w.model, s)
			var streamed string
			starts := 0
			resp, err := m.Generate(t.Context(), hello(), func(d Delta) {
				streamed += d.Text
				if d.Start {
					starts++
				}
			})
			if err != nil {
				t.Fatalf("generating: %v", err)
			}
			want(t, short(resp), "text Hello there. -> end_turn")
			if streamed != "Hello there." || starts != 1 {
				t.Errorf("streamed %q with %d starts", streamed, starts)
			}
			if resp.Usage != (outboard.Usage{Input: 7, Output: 5}) || resp.Provider != w.kind {
				t.Errorf("usage %+v of provider %s", resp.Usage, resp.Provider)
			}
			auth := s.headers[0].Get("Authorization") + s.headers[0].Get("X-Api-Key")
			if !strings.HasSuffix(auth, testKey) || len(s.bodies) != 1 {
				t.Errorf("%d requests, credentials %q", len(s.bodies), auth)
			}
			var body struct{ Stream bool }
			if json.Unmarshal(s.body(0), &body); !body.Stream {
				t.Errorf("the request asks for no stream: %s", s.body(0))
			}
		})
	}
}

// If this failed, an overloaded or broken provider would be retried wrongly, or the user would not learn what it said.
func TestWiresReportErrors(t *testing.T) {
	for _, w := range wires {
		for _, c := range []struct {
			name   string
			reply  http.HandlerFunc
			want   Error
			detail string
		}{
			{"rate limit", status(429, `{"error":{"type":"rate_limit_error","message":"slow down please"}}`,
				"Retry-After", "7", "Request-Id", "req_9"),
				Error{Type: RateLimited, Status: 429, Retryable: true,
					RetryAfter: 7 * time.Second}, "slow down please (request req_9)"},
			{"rate limit in ms", status(429, `{}`, "Retry-After-Ms", "1500", "Retry-After", "7"),
				Error{Type: RateLimited, Status: 429, Retryable: true, RetryAfter: 1500 * time.Millisecond}, "429"},
			{"overloaded", status(529, `{"error":{"type":"overloaded_error","message":"Overloaded"}}`),
				Error{Type: Overloaded, Status: 529, Retryable: true}, "overloaded_error: Overloaded"},
			{"no quota", status(429,
				`{"error":{"code":"insufficient_quota","type":"insufficient_quota","message":"pay"}}`),
				Error{Type: Billing, Status: 429}, ""},
			{"unauthorized", status(401, `{"error":{"type":"authentication_error","message":"bad key `+testKey+`"}}`),
				Error{Type: Failed, Status: 401}, "bad key [secret]"},
			{"bad request", status(400,
				`{"error":{"type":"invalid_request_error","message":"no\u001b[31m\nsuch field"}}`),
				Error{Type: Failed, Status: 400}, "no [31m such field"},
			{"too long", status(400,
				`{"error":{"type":"invalid_request_error","message":"prompt is too long: 210000 tokens > 200000 maximum"}}`),
				Error{Type: Failed, Status: 400, TooLong: true}, "210000 tokens"},
			{"too long, by code",
				status(400, `{"error":{"code":"context_length_exceeded","type":"context_length_exceeded","message":"no"}}`),
				Error{Type: Failed, Status: 400, TooLong: true}, "no"},
			{"too long for the response",
				status(400, `{"error":{"message":"This model's maximum context length is 8192 tokens. However, you requested 9000 tokens."}}`),
				Error{Type: Failed, Status: 400, TooLong: true}, "9000"},
			{"too large", status(413, `<html>`), Error{Type: Failed, Status: 413, TooLong: true}, "413"},
			{"told not to retry", status(500, `oops`, "X-Should-Retry", "false"), Error{Type: Failed, Status: 500},
				"oops"},
			{"bad gateway", status(502, `<html>`+strings.Repeat("x", 2000), "Content-Type", "text/html"),
				Error{Type: Failed, Status: 502, Retryable: true}, "..."},
			{"redirect", status(302, ``, "Location", "http://192.0.2.1/"), Error{Type: Failed, Status: 302},
				"redirects are not followed"},
			{"web page", status(200, `<html>`, "Content-Type", "text/html"), Error{Type: Failed, Status: 200},
				"text/html instead of an event stream"},
		} {
			t.Run(w.kind+"/"+c.name, func(t *testing.T) {
				m := remote(t, w.kind, w.model, newServer(t, c.reply))
				e := mustFail(t, m, nil)
				got := *e
				got.Message, got.Err = "", nil
				if got != c.want {
					t.Errorf("got %+v, want %+v (%s)", got, c.want, e.Message)
				}
				if !strings.Contains(e.Message, c.detail) || len(e.Message) > maxMessage+100 {
					t.Errorf("message %q lacks %q, or is long", e.Message, c.detail)
				}
			})
		}
	}
}

// If this failed, a broken, silent or endless stream would hang a session, or pass for a whole answer.
func TestWiresSurviveBadStreams(t *testing.T) {
	endless := func(more string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for r.Context().Err() == nil {
				send(w, more)
			}
		}
	}
	abort := func(events []string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			stream(events...)(w, r)
			panic(http.ErrAbortHandler) // cuts the connection
		}
	}
	// long enough for a loaded machine to send what comes before
	quick := func(c *Config) { c.IdleTimeout = time.Second }
	small := func(c *Config) { c.MaxResponse = 64 << 10 }
	for _, w := range wires {
		startless := append([]string{w.hello[0]}, w.hello[1:len(w.partial)]...)
		for _, c := range []struct {
			name      string
			reply     http.HandlerFunc
			change    func(*Config)
			detail    string
			retryable bool
			emitted   bool
		}{
			{"cut", abort(w.partial), nil, "connection failed", true, true},
			{"truncated", stream(w.partial...), nil, "ended before the response was complete", true, true},
			{"empty", stream(), nil, "ended before the response was complete", true, false},
			{"silent from the start", hang(), quick, "the server sent nothing for 1s", true, false},
			{"silent in the middle", hang(w.partial...), quick, "the server sent nothing for 1s", true, true},
			{"endless", func(rw http.ResponseWriter, r *http.Request) {
				stream(startless...)(rw, r)
				endless(w.more)(rw, r)
			}, small, "the response is larger than 65536 bytes", false, true},
			{"endless line", func(rw http.ResponseWriter, r *http.Request) {
				rw.Header().Set("Content-Type", "text/event-stream")
				for r.Context().Err() == nil {
					fmt.Fprint(rw, "data: "+strings.Repeat("x", 4096))
				}
			}, small, "the response is larger than 65536 bytes", false, false},
			{"not JSON", stream(append(append([]string{}, w.partial...), "{\"type\":\"x\" oops")...), nil,
				"the stream is broken", false, true},
			{"error event", stream(append(append([]string{}, w.partial...),
				`{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`)...), nil, "529 overloaded_error: Overloaded", true, true},
		} {
			t.Run(w.kind+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				if c.change == nil {
					c.change = func(*Config) {}
				}
				m := remote(t, w.kind, w.model, newServer(t, c.reply), c.change)
				e := mustFail(t, m, func(Delta) {})
				if !strings.Contains(e.Message, c.detail) || e.Retryable != c.retryable || e.Emitted != c.emitted {
					t.Errorf("got %q retryable %v emitted %v; want %q %v %v", e.Message, e.Retryable, e.Emitted,
						c.detail, c.retryable, c.emitted)
				}
			})
		}
	}
}

// If this failed, an interrupt would let a response run on, and bill for it.
func TestCancelCutsTheStream(t *testing.T) {
	for _, w := range wires {
		t.Run(w.kind, func(t *testing.T) {
			gone := make(chan struct{})
			s := newServer(t, func(rw http.ResponseWriter, r *http.Request) {
				hang(w.partial...)(rw, r)
				close(gone)
			})
			stop := errors.New("interrupted")
			ctx, cancel := context.WithCancelCause(t.Context())
			_, err := remote(t, w.kind, w.model, s).Generate(ctx, hello(), func(d Delta) {
				if d.Text != "" {
					cancel(stop)
				}
			})
			if !errors.Is(err, stop) {
				t.Errorf("got %v, want the cause of the cancellation", err)
			}
			<-gone // the server sees the connection close
		})
	}
}

// If this failed, a dead endpoint would look like a bug of ours instead of a connection that may come back.
func TestDeadEndpoint(t *testing.T) {
	for _, w := range wires {
		s := newServer(t)
		m := remote(t, w.kind, w.model, s)
		s.Close()
		if e := mustFail(t, m, nil); e.Type != Failed || e.Status != 0 || !e.Retryable ||
			!strings.Contains(e.Message, "connection failed") {
			t.Errorf("%s: got %+v, want a retryable connection error", w.kind, e)
		}
	}
}

// golden compares text with a file.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("reading the golden file (make it with -update): %v", err)
	}
	if !bytes.Equal(have, got) {
		t.Errorf("%s differs; got\n%s", path, got)
	}
}

// pretty indents a JSON body.
func pretty(t *testing.T, body []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := json.Indent(&b, body, "", "  "); err != nil {
		t.Fatalf("the body is no JSON: %v\n%s", err, body)
	}
	b.WriteByte('\n')
	return b.Bytes()
}

// If this failed, the placeholder key of a server without authentication would be cut out of every word of its errors.
func TestPlaceholderKeyLeavesErrorsReadable(t *testing.T) {
	s := newServer(t, status(400, `{"error":{"type":"invalid_request_error","message":"no such key: k-1"}}`))
	m := remote(t, TypeChat, "m", s, func(c *Config) { c.Providers[0].APIKey = Key{Secret: NewSecret("k")} })
	if e := mustFail(t, m, nil); !strings.Contains(e.Message, "no such key: k-1") {
		t.Errorf("the message is %q", e.Message)
	}
}

// If this failed, a rotated key would not be used until a restart, a request would leave without its key, or an
// error would show it.
func TestKeyOfTheVault(t *testing.T) {
	for _, w := range wires {
		t.Run(w.kind, func(t *testing.T) {
			var got []string
			unauthorized := func(rw http.ResponseWriter, r *http.Request) {
				got = append(got, r.Header.Get("X-Api-Key")+r.Header.Get("Authorization"))
				status(401, `{"error":{"type":"authentication_error","message":"bad key vault-key-`+fmt.Sprint(len(got))+`"}}`)(rw, r)
			}
			s := newServer(t, unauthorized, unauthorized)
			n, refused := 0, error(nil)
			m := remote(t, w.kind, w.model, s, func(c *Config) {
				c.Providers[0].APIKey = Key{Credential: "box/key"}
				c.Credential = func(_ context.Context, ref, method, url string) (Secret, error) {
					if ref != "box/key" || method != "POST" || !strings.HasPrefix(url, s.URL) {
						t.Errorf("asked for %s to %s %s", ref, method, url)
					}
					n++
					return NewSecret(fmt.Sprintf("vault-key-%d", n)), refused
				}
			})
			for range 2 {
				if e := mustFail(t, m, nil); strings.Contains(e.Message, "vault-key") ||
					!strings.Contains(e.Message, "bad key [secret]") {
					t.Errorf("the message is %q", e.Message)
				}
			}
			want := []string{"vault-key-1", "vault-key-2"}
			if w.kind != TypeAnthropic {
				want = []string{"Bearer vault-key-1", "Bearer vault-key-2"}
			}
			if !slices.Equal(got, want) {
				t.Errorf("sent %q, want %q", got, want)
			}
			refused = outboard.Errorf(outboard.Unavailable, "the vault is locked")
			if e := mustFail(t, m, nil); !strings.Contains(e.Message, "locked") || len(got) != 2 {
				t.Errorf("with a locked vault: %q after %d requests", e.Message, len(got))
			}
		})
	}
}
