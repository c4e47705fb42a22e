package egress_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboard-dev/outboard/internal/egress"
)

// Broken if what was opened with a credential goes on after that was withdrawn, or is cut while the credential
// is as it was.
func TestStreamsEndWithTheirCredential(t *testing.T) {
	var withdrawn atomic.Bool
	still := func(context.Context) error {
		if withdrawn.Load() {
			return errors.New("the credential was withdrawn")
		}
		return nil
	}
	r := newRig(t, rules(anyPort("a.test")),
		credentials(fixed{host: "a.test", inj: egress.Injection{Names: []string{"n"}, AnyPath: true, Still: still}}))
	list := openStreams(t, r)
	if n := r.gateway.Recheck(); n != 0 {
		t.Fatalf("the control: %d of %d ended", n, len(list))
	}
	withdrawn.Store(true)
	if n := r.gateway.Recheck(); n != len(list) {
		t.Fatalf("%d of %d ended", n, len(list))
	}
	for _, s := range list {
		_, _ = io.Copy(io.Discard, s.in) // waits for the end
		select {
		case <-s.gone:
		case <-time.After(10 * time.Second):
			t.Errorf("%s: its server has it still", s.name)
		}
	}
}

// Broken if nobody learns that a server refuses what a request was sent with, whichever way it went, or is told
// so of another answer.
func TestRefusedCredentialIsTold(t *testing.T) {
	var told atomic.Int64
	r := newRig(t, rules(anyPort("a.test")),
		credentials(fixed{host: "a.test", inj: egress.Injection{Names: []string{"n"}, AnyPath: true,
			Refused: func() { told.Add(1) }}}))
	r.mux.HandleFunc("/{status}", func(w http.ResponseWriter, q *http.Request) {
		status, _ := strconv.Atoi(q.PathValue("status"))
		w.WriteHeader(status)
	})
	for proto, address := range map[string]func(host, path string) string{"HTTP/1.1": r.http, "HTTP/2": r.https} {
		for status, want := range map[string]int64{"200": 0, "403": 0, "404": 0, "401": 1} {
			told.Store(0)
			if got, body := get(t, r.client(false), address("a.test", "/"+status)); strconv.Itoa(got) != status ||
				told.Load() != want {
				t.Errorf("%s, %s: answered %d %q, told %d times", proto, status, got, body, told.Load())
			}
		}
	}
}
