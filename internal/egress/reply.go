package egress

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"time"
)

// reply is the answer to one request of a session. Nothing is added to what the handler says but the frame of the body and the date.
type reply struct {
	conn   net.Conn // that out writes to
	out    *bufio.Writer
	header http.Header
	head   bool // the answer is to a HEAD

	status   int      // 0 = not written
	bare     bool     // it has no body
	left     int64    // of a body of known length
	chunked  bool     // the length is not known
	trailers []string // that were announced
	err      error    // of the first write that failed
}

var errShort = errors.New("the answer is shorter than it said")

// Header implements http.ResponseWriter.
func (w *reply) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter. Interim answers are sent at once.
func (w *reply) WriteHeader(status int) {
	if w.status != 0 {
		return
	}
	if status < 200 {
		w.start(status)
		w.fields()
		w.text("\r\n")
		w.Flush()
		return
	}
	w.status = status
	w.bare = w.head || status == http.StatusNoContent || status == http.StatusNotModified
	w.announce()
	w.header.Del("Connection")
	w.header.Del("Transfer-Encoding")
	w.left = -1
	if n, err := strconv.ParseUint(w.header.Get("Content-Length"), 10, 63); err == nil && len(w.header["Content-Length"]) == 1 && status != http.StatusNoContent {
		w.left = int64(n)
	} else {
		w.header.Del("Content-Length")
	}
	w.chunked = w.left < 0 && !w.bare
	w.start(status)
	w.fields()
	if w.header["Date"] == nil {
		w.text("Date: " + time.Now().UTC().Format(http.TimeFormat) + "\r\n")
	}
	if w.chunked {
		w.text("Transfer-Encoding: chunked\r\n")
	}
	w.text("\r\n")
}

// announce notes the trailers: their names are in the head, their values follow the body.
func (w *reply) announce() {
	for _, list := range w.header["Trailer"] {
		for name := range strings.SplitSeq(list, ",") {
			w.trailers = append(w.trailers, textproto.CanonicalMIMEHeaderKey(textproto.TrimString(name)))
		}
	}
}

func (w *reply) start(status int) {
	text := http.StatusText(status)
	if text == "" {
		text = "status code " + strconv.Itoa(status)
	}
	w.text("HTTP/1.1 " + strconv.Itoa(status) + " " + text + "\r\n")
}

// fields writes the header's lines.
func (w *reply) fields() {
	var later map[string]bool
	for _, name := range w.trailers {
		if later == nil {
			later = map[string]bool{}
		}
		later[name] = true
	}
	for name := range w.header {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			if later == nil {
				later = map[string]bool{}
			}
			later[name] = true
		}
	}
	if w.err == nil {
		w.err = w.header.WriteSubset(w.out, later)
	}
}

func (w *reply) text(s string) {
	if w.err == nil {
		_, w.err = w.out.WriteString(s)
	}
}

// Write implements http.ResponseWriter.
func (w *reply) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	switch {
	case w.err != nil:
		return 0, w.err
	case w.bare:
		return 0, http.ErrBodyNotAllowed
	case len(b) == 0:
		return 0, nil
	case w.chunked:
		w.text(strconv.FormatInt(int64(len(b)), 16) + "\r\n")
		n := w.bytes(b)
		w.text("\r\n")
		return n, w.err
	case int64(len(b)) > w.left:
		return 0, http.ErrContentLength
	}
	w.left -= int64(len(b))
	return w.bytes(b), w.err
}

func (w *reply) bytes(b []byte) (n int) {
	if w.err == nil {
		n, w.err = w.out.Write(b)
	}
	return n
}

// Flush implements http.Flusher.
func (w *reply) Flush() { _ = w.FlushError() }

// FlushError sends what there is.
func (w *reply) FlushError() error {
	if w.err == nil {
		w.err = w.out.Flush()
	}
	return w.err
}

// broke notes that the rest of the answer does not come. The client has what came, and sees from the connection's end that it is not all.
func (w *reply) broke(err error) {
	if w.Flush(); w.err == nil {
		w.err = err
	}
}

// SetWriteDeadline is for http.ResponseController.
func (w *reply) SetWriteDeadline(t time.Time) error { return w.conn.SetWriteDeadline(t) }

// finish ends the answer. After an error the connection is of no use.
func (w *reply) finish() error {
	if w.status == 0 {
		w.header.Set("Content-Length", "0")
		w.WriteHeader(http.StatusOK)
	}
	if w.chunked {
		w.text("0\r\n")
		if w.err == nil {
			w.err = w.trailer().Write(w.out)
		}
		w.text("\r\n")
	} else if w.left > 0 && !w.bare {
		w.err = errors.Join(w.err, errShort)
	}
	return w.FlushError()
}

// trailer is what follows the body.
func (w *reply) trailer() http.Header {
	out := http.Header{}
	for _, name := range w.trailers {
		if vs := w.header[name]; vs != nil {
			out[name] = vs
		}
	}
	for name, vs := range w.header {
		if rest, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			out[rest] = vs
		}
	}
	return out
}

var _ io.Writer = (*reply)(nil)
