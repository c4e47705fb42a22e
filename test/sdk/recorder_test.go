package sdk

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
)

// exchange is one request and its whole response.
type exchange struct {
	method, path string
	query        url.Values
	status       int
	contentType  string
	body         []byte
}

// recorder is a proxy that keeps what passes through it. Bodies are passed on as they arrive, so streams stay live.
type recorder struct {
	url string

	mu   sync.Mutex
	seen []*exchange
}

// record starts a proxy in front of the server.
func record(t *testing.T, target string) *recorder {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{}
	proxy := &httputil.ReverseProxy{
		FlushInterval: -1, // every write at once: server-sent events
		Rewrite:       func(p *httputil.ProxyRequest) { p.SetURL(u) },
		ModifyResponse: func(resp *http.Response) error {
			e := &exchange{method: resp.Request.Method, path: resp.Request.URL.Path, query: resp.Request.URL.Query(),
				status: resp.StatusCode, contentType: resp.Header.Get("Content-Type")}
			r.mu.Lock()
			r.seen = append(r.seen, e)
			r.mu.Unlock()
			resp.Body = &tee{rc: resp.Body, r: r, e: e}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusBadGateway)
		},
	}
	srv := httptest.NewServer(proxy)
	t.Cleanup(srv.Close)
	r.url = srv.URL
	return r
}

// tee copies what is read of a body into its exchange.
type tee struct {
	rc io.ReadCloser
	r  *recorder
	e  *exchange
}

func (b *tee) Read(p []byte) (int, error) {
	n, err := b.rc.Read(p)
	b.r.mu.Lock()
	b.e.body = append(b.e.body, p[:n]...)
	b.r.mu.Unlock()
	return n, err
}

func (b *tee) Close() error { return b.rc.Close() }

// check validates every response so far, and that the run exercised what a whole session needs.
func (r *recorder) check(t *testing.T, s *spec) {
	t.Helper()
	if documents, frames := r.validate(t, s); documents < 15 || frames < 30 {
		t.Errorf("only %d JSON responses and %d stream frames were recorded: the run was not a whole session",
			documents, frames)
	}
}

// validate validates every response so far, and returns how many there were.
func (r *recorder) validate(t *testing.T, s *spec) (documents, frames int) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.seen {
		switch {
		case strings.HasPrefix(e.contentType, "application/json"):
			documents++
			if err := s.validate(e); err != nil {
				t.Errorf("%s %s: status %d\n%s\ndoes not validate: %v", e.method, e.path, e.status, e.body, err)
			}
		case strings.HasPrefix(e.contentType, "text/event-stream"):
			for data := range sseData(e.body) {
				frames++
				if err := s.validate(&exchange{method: e.method, path: e.path, query: e.query, status: e.status,
					body: data}); err != nil {
					t.Errorf("%s: frame\n%s\ndoes not validate: %v", e.path, data, err)
				}
			}
		default:
			t.Errorf("%s %s: content type %q", e.method, e.path, e.contentType)
		}
	}
	t.Logf("%d JSON responses and %d stream frames validated", documents, frames)
	return documents, frames
}

// sseData yields the data of each whole frame.
func sseData(b []byte) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for frame := range bytes.SplitSeq(b, []byte("\n\n")) {
			for line := range bytes.SplitSeq(frame, []byte("\n")) {
				if data, ok := bytes.CutPrefix(line, []byte("data: ")); ok && !yield(data) {
					return
				}
			}
		}
	}
}
