package doors

import (
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

const (
	// bodyPause is how long a client may send nothing of a body that it has announced.
	bodyPause = time.Minute
	// bodyRest is how long it may take for the rest of one that nobody reads any more: a request that was refused.
	bodyRest = 5 * time.Second
	// programPause is bodyPause of a body for a program in a sandbox, which may be a conversation of its own.
	programPause = 10 * time.Minute
)

// Patient bounds the wait for bodies. A server has a time for the whole of one, which is none for an upload of
// gigabytes, and without it waits for ever, also for what is left of the request of somebody who has no key.
func Patient(next http.Handler, pause, rest time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == nil || r.Body == http.NoBody {
			next.ServeHTTP(w, r)
			return
		}
		b := &awaited{ReadCloser: r.Body, conn: http.NewResponseController(w), pause: pause}
		r.Body = b
		b.extend() // an answer that begins before the body was read waits for that, too
		next.ServeHTTP(w, r)
		if !b.over.Swap(true) {
			// the server reads on, and takes it back for the next request
			_ = b.conn.SetReadDeadline(time.Now().Add(rest))
		}
	})
}

// awaited is a body that must go on. A proxy may read it beside the handler.
type awaited struct {
	io.ReadCloser
	conn  *http.ResponseController
	pause time.Duration
	over  atomic.Bool
}

// Read waits no longer than the pause. Once the body has ended nothing is waited for: the handler may last.
func (a *awaited) Read(p []byte) (int, error) {
	if a.over.Load() {
		return a.ReadCloser.Read(p)
	}
	a.extend()
	n, err := a.ReadCloser.Read(p)
	if err == io.EOF {
		a.over.Store(true)
		_ = a.conn.SetReadDeadline(time.Time{})
	}
	return n, err
}

func (a *awaited) extend() {
	_ = a.conn.SetReadDeadline(time.Now().Add(a.pause)) // a dead connection fails below
}
