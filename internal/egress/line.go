package egress

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"net/textproto"
	"time"
)

// line is a connection to a server for one request at a time. It belongs to the goroutine that has taken it.
type line struct {
	up     *upstream
	key    string
	under  net.Conn    // the socket
	silent func() bool // whether it is open, and nothing has come that was not read
	conn   net.Conn    // under, or TLS on it
	wire   *wire       // between the two; nil without TLS
	in     *bufio.Reader
	out    *bufio.Writer
	since  time.Time // when it became idle
	used   bool      // for a request before this one
	heard  bool      // something of an answer to this request has come
	room   int64     // bytes that may be read; bounds the head of an answer
}

// Read reads from the server, within bounds.
func (l *line) Read(b []byte) (int, error) {
	if l.room <= 0 {
		return 0, errTooLong
	}
	if int64(len(b)) > l.room {
		b = b[:l.room]
	}
	n, err := l.conn.Read(b)
	l.room -= int64(n)
	l.heard = l.heard || n > 0
	return n, err
}

// held reads a small body, so that it can be sent in one piece with its head.
func held(r *http.Request) ([]byte, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	defer r.Body.Close()
	b := make([]byte, r.ContentLength)
	if _, err := io.ReadFull(r.Body, b); err != nil {
		return nil, err
	}
	return b, nil
}

// past ends what a connection is waiting for.
var past = time.Unix(1, 0)

// send sends a request and waits for the head of its answer. The line goes back when the body has been read, and is closed where that
// does not happen, or on an error.
func (l *line) send(r *http.Request, body []byte, tell interim) (*http.Response, error) {
	ctx := r.Context()
	stop := context.AfterFunc(ctx, func() { _ = l.under.SetDeadline(past) })
	resp, err := l.talk(r, body, tell)
	if err != nil {
		stop()
		l.conn.Close()
		return nil, err
	}
	b := &lineBody{ReadCloser: resp.Body, line: l, stop: stop, ctx: ctx, keep: !resp.Close}
	resp.Body = b
	if b.ReadCloser == http.NoBody {
		b.finish(true)
		resp.Body = http.NoBody
	}
	return resp, nil
}

// maxInterim bounds the answers of 1xx before the answer.
const maxInterim = 5

func (l *line) talk(r *http.Request, body []byte, tell interim) (*http.Response, error) {
	l.heard, l.room = false, maxHeader
	if err := l.until(r.Context(), time.Now().Add(answerTimeout)); err != nil {
		return nil, err
	}
	q := *r
	q.Body = nil
	if body != nil {
		q.Body = io.NopCloser(bytes.NewReader(body))
	}
	if err := q.Write(l.out); err != nil {
		return nil, err
	}
	if err := l.out.Flush(); err != nil {
		return nil, err
	}
	for range maxInterim + 1 {
		resp, err := http.ReadResponse(l.in, r)
		switch {
		case err != nil:
			return nil, err
		case resp.StatusCode == http.StatusSwitchingProtocols:
			return nil, errSwitched
		case resp.StatusCode >= 200:
			l.room = math.MaxInt64
			return resp, l.until(r.Context(), time.Time{})
		}
		if tell != nil {
			if err := tell(resp.StatusCode, textproto.MIMEHeader(resp.Header)); err != nil {
				return nil, err
			}
		}
	}
	return nil, errors.New("the server keeps sending interim answers")
}

// until sets a deadline, but not over the one that an end of ctx has set.
func (l *line) until(ctx context.Context, t time.Time) error {
	_ = l.under.SetDeadline(t) // a dead socket fails when it is used
	return ctx.Err()
}

// lineBody is an answer's body; with its end the line is free.
type lineBody struct {
	io.ReadCloser
	line *line
	stop func() bool
	ctx  context.Context
	keep bool // the server does not close after this answer
	over bool
}

// Read reads the body.
func (b *lineBody) Read(p []byte) (int, error) {
	if b.over {
		return 0, io.EOF
	}
	n, err := b.ReadCloser.Read(p)
	if err == nil {
		return n, nil
	}
	if err != io.EOF && b.ctx.Err() != nil {
		err = b.ctx.Err()
	}
	b.finish(err == io.EOF)
	return n, err
}

// Close ends the exchange. A body that was not read to its end ends the line.
func (b *lineBody) Close() error {
	b.finish(false)
	return nil
}

// finish lets go of the line: whole says that the answer was read to its end and the next one may follow.
func (b *lineBody) finish(whole bool) {
	if b.over {
		return
	}
	b.over = true
	l := b.line
	if b.stop() && whole && b.keep && l.in.Buffered() == 0 && (l.wire == nil || !l.wire.spoken()) {
		l.up.keep(l)
		return
	}
	l.conn.Close()
}
