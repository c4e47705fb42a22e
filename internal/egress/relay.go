package egress

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
)

// relay is forward for a request of a session. httputil.ReverseProxy makes a copy of everything, with contexts and closures around it, and
// asks about upgrades and trailers; of that a plain request needs nothing. The request is the caller's own and is changed as it stands.
func (p *port) relay(w *reply, r *http.Request, req *Request, inj *Injection, scrub *scrubber, out *upstream) {
	if r.ContentLength == 0 {
		r.Body = nil // so that it can be sent again on another connection
	}
	for name := range r.Header {
		if ofTheWay(name) {
			delete(r.Header, name)
		}
	}
	p.rewrite(r, *req, inj, scrub)
	resp, err := p.fetch(w, r, inj, scrub, out)
	if err != nil {
		p.failed(w, r, *req, err)
		return
	}
	line, _ := resp.Body.(*lineBody)
	effectOf(r.Context()).answered(resp)
	inj.refused(resp.StatusCode)
	hopless(resp.Header)
	if err := scrub.response(resp); err != nil {
		resp.Body.Close()
		p.failed(w, r, *req, err)
		return
	}
	w.header = resp.Header
	announced := len(resp.Trailer)
	if announced > 0 {
		w.header.Add("Trailer", strings.Join(slices.Collect(maps.Keys(resp.Trailer)), ", "))
	}
	w.WriteHeader(resp.StatusCode)
	if err := w.copy(resp, line); err != nil {
		w.broke(err)
	}
	resp.Body.Close()
	for name, values := range resp.Trailer {
		if len(resp.Trailer) != announced {
			name = http.TrailerPrefix + name
		}
		w.header[name] = append(w.header[name], values...)
	}
}

// errSwitched is what a server did that was asked for no other protocol.
var errSwitched = errors.New("the server switched protocols, which nobody asked for")

// fetch sends a request and returns the head of its answer.
func (p *port) fetch(w *reply, r *http.Request, inj *Injection, scrub *scrubber, out *upstream) (*http.Response, error) {
	if err := sign(r, inj); err != nil {
		return nil, err
	}
	resp, err := out.send(r, func(status int, header textproto.MIMEHeader) error {
		scrub.headers(http.Header(header))
		w.header = http.Header(header)
		w.WriteHeader(status)
		w.header = http.Header{}
		return nil
	})
	if err == nil && resp.StatusCode == http.StatusSwitchingProtocols {
		resp.Body.Close()
		return nil, errSwitched
	}
	return resp, err
}

// ofTheWay reports whether a header of a request is about the connection that it came by. That of an
// upgrade, or of anything else that is named in Connection, is in no plain request.
func ofTheWay(name string) bool {
	switch name {
	case "Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return true
	}
	return false
}

// hopless removes from an answer's header what is about the connection to its server.
func hopless(h http.Header) {
	for _, list := range h["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			h.Del(textproto.TrimString(name))
		}
	}
	for _, name := range [...]string{"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer",
		"Transfer-Encoding", "Upgrade"} {
		delete(h, name)
	}
}

// copy sends an answer's body. What comes as a stream is sent on as it comes: before anybody waits for more of it, it has left.
func (w *reply) copy(resp *http.Response, line *lineBody) error {
	streams := resp.ContentLength == -1
	kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	streams = streams || strings.EqualFold(strings.TrimSpace(kind), "text/event-stream")
	b := copies.Get()
	defer copies.Put(b)
	for {
		if streams && (line == nil || !line.ends()) {
			w.Flush()
		}
		n, err := resp.Body.Read(b)
		if n > 0 {
			if _, err := w.Write(b[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// ends reports whether what has been read from the server is the end of an answer in chunks, as far as can be seen: to read on waits for nobody.
func (b *lineBody) ends() bool {
	if b.over { // and the line is somebody else's
		return true
	}
	in := b.line.in
	have, _ := in.Peek(in.Buffered()) // cannot fail: it is buffered
	return bytes.HasSuffix(have, []byte("0\r\n\r\n"))
}
