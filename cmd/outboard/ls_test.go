package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard/internal/client"
)

// Broken if a list of many sessions waits for each of them by itself, is out of order, or fails for one that is
// deleted meanwhile.
func TestManySessionsAreLookedAtTogether(t *testing.T) {
	var all sync.WaitGroup // the first looks end together
	all.Add(looks)
	var mu sync.Mutex
	looked := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		looked++
		n := looked
		mu.Unlock()
		if n <= looks {
			all.Done()
			all.Wait()
		}
		if strings.Contains(r.URL.Path, "sesn_7/") {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"type":"error","error":{"type":"not_found_error","message":"there is no such session"}}`)
			return
		}
		fmt.Fprint(w, `{"data":[],"next_page":null}`)
	}))
	defer srv.Close()
	c, err := client.New(client.Config{URL: srv.URL, Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	var list []client.Session
	for i := range 3 * looks {
		list = append(list, client.Session{ID: fmt.Sprintf("sesn_%d", i), Status: "idle"})
	}
	watch := time.AfterFunc(time.Minute, func() { panic("they wait for each other") })
	defer watch.Stop()
	lines, err := describeSessions(t.Context(), c, list)
	if err != nil || len(lines) != len(list)-1 {
		t.Fatalf("%d lines, %v", len(lines), err)
	}
	for i, l := range lines {
		if want := fmt.Sprintf("sesn_%d", i+min(1, i/7)); l.ID != want || l.State != "idle" {
			t.Errorf("line %d is of %s, %s; want %s", i, l.ID, l.State, want)
		}
	}
}
