package doors

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboard-dev/outboard/internal/config"
	"github.com/outboard-dev/outboard/internal/server"
)

// piped is a listener of connections in memory, so that a bubble's time passes while they wait.
type piped struct{ conns chan net.Conn }

func (p piped) Accept() (net.Conn, error) {
	c, ok := <-p.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (p piped) Close() error   { return nil }
func (p piped) Addr() net.Addr { return &net.TCPAddr{} }

// Broken if a client that sends a part of a body keeps a connection for ever, whether somebody reads it or not;
// or one that goes on, or whose handler lasts, is cut off.
func TestBodiesThatDoNotGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := piped{make(chan net.Conn)}
		srv := &http.Server{Handler: Patient(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/refused" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			b, err := io.ReadAll(r.Body)
			select {
			case <-r.Context().Done():
			case <-time.After(2 * bodyPause): // a handler that lasts is not ended by what its body had to keep to
			}
			fmt.Fprint(w, len(b), err == nil, r.Context().Err() == nil)
		}), bodyPause, bodyRest)}
		go func() { _ = srv.Serve(l) }()
		dial := func() net.Conn {
			here, there := net.Pipe()
			l.conns <- there
			return here
		}
		for path, want := range map[string]string{"/refused": "401", "/read": "5 false false"} {
			c := dial()
			fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nhello", path)
			began := time.Now()
			got, err := io.ReadAll(c)
			if lasted := time.Since(began); err != nil || !strings.Contains(string(got), want) || lasted > 4*bodyPause {
				t.Errorf("%s: %q, %v after %v, want %q and the end", path, got, err, lasted, want)
			}
		}
		body, feed := io.Pipe()
		go func() {
			for range 5 {
				time.Sleep(bodyPause / 2) // of the bubble: a slow client, which goes on for longer than a pause
				_, _ = feed.Write([]byte("more."))
			}
			feed.Close()
		}()
		client := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn,
			error) {
			return dial(), nil
		}}}
		resp, err := client.Post("http://x/read", "text/plain", body)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(resp.Body); err != nil || string(got) != "25 true true" {
			t.Errorf("the control: %q, %v", got, err)
		}
		resp.Body.Close()
		client.CloseIdleConnections()
		close(l.conns) // Close waits for Serve
		srv.Close()
	})
}

// Broken if an address of the server keeps the connection of who sends a part of a body and then nothing.
func TestNoDoorWaitsForABody(t *testing.T) {
	t.Parallel()
	cfg := server.Config{Data: filepath.Join(t.TempDir(), "server"), Config: &config.Config{},
		Env:   func(string) string { return "" },
		Serve: true, Listen: "127.0.0.1:0", E2B: "127.0.0.1:0"}
	srv, err := server.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Stop)
	s, err := Open(t.Context(), srv, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	for _, door := range []struct{ name, url, head, want string }{
		{"the API", s.URL, "POST /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\n", " 401 "},
		{"E2B's API", s.E2BURL, "POST /sandboxes HTTP/1.1\r\nHost: 127.0.0.1\r\n", " 401 "},
		{"files of a box", s.E2BURL, "POST /files?path=x HTTP/1.1\r\nHost: 127.0.0.1\r\nE2b-Sandbox-Id: " +
			"boxa\r\nE2b-Sandbox-Port: 49983\r\n", " 502 "},
		{"a port of a box", s.E2BURL, "POST / HTTP/1.1\r\nHost: 8000-boxa.localhost\r\n", " 502 "},
	} {
		t.Run(door.name, func(t *testing.T) {
			t.Parallel()
			// the first is the control
			for _, body := range []string{"Content-Length: 5\r\nConnection: close\r\n\r\nhello",
				"Content-Length: 100000\r\n\r\nhello"} {
				c, err := net.Dial("tcp", strings.TrimPrefix(door.url, "http://"))
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(4 * bodyRest))
				if _, err := io.WriteString(c, door.head+body); err != nil {
					t.Fatal(err)
				}
				if got, err := io.ReadAll(c); err != nil || !strings.Contains(string(got), door.want) {
					t.Errorf("%q: %q, %v; want%sand the end", body, got, err, door.want)
				}
			}
		})
	}
}
