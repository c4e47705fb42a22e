package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
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

// Broken if a client that sends a part of a body keeps a connection for ever, whether somebody reads it or not; or one that goes on, or whose
// handler lasts, is cut off.
func TestBodiesThatDoNotGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := piped{make(chan net.Conn)}
		srv := &http.Server{Handler: patient(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
		client := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return dial(), nil }}}
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
