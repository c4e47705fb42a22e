package egress

import (
	"context"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
)

// WebSocket is the only protocol that a connection can switch to, because its frames can be looked at. Any other
// one would carry requests that nobody judges.

// webSocket reports whether a request opens a WebSocket. A request for another change of protocol, and a
// handshake that servers could read in two ways, are refused.
func webSocket(r *http.Request) (opens bool, no *refusal) {
	to, named := r.Header["Upgrade"], tokens(r.Header["Connection"])
	if len(to) == 0 && !slices.Contains(named, "upgrade") && !slices.Contains(named, "http2-settings") &&
		r.Header["Http2-Settings"] == nil {
		return false, nil
	}
	switch {
	case r.Header["Http2-Settings"] != nil || slices.Contains(named, "http2-settings"),
		len(to) != 1 || !strings.EqualFold(strings.TrimSpace(to[0]), "websocket"):
		return false, refuse(http.StatusForbidden, "upgrade",
			"it asks for a change of protocol, and a connection can change to WebSocket alone").
			withHint("send it without the header Upgrade; with curl: --http1.1")
	case !slices.Contains(named, "upgrade") || slices.ContainsFunc(named,
		func(s string) bool { return s != "upgrade" && s != "keep-alive" }):
		return false, badHandshake("its header Connection must name Upgrade and nothing else but keep-alive")
	case r.Method != http.MethodGet || r.ProtoMajor != 1 || r.ProtoMinor != 1 || r.ContentLength != 0 ||
		len(r.TransferEncoding) > 0:
		return false, badHandshake("it must be a GET of HTTP/1.1 without a body")
	case len(r.Header["Sec-Websocket-Version"]) != 1 || r.Header.Get("Sec-Websocket-Version") != "13":
		return false, badHandshake("its Sec-WebSocket-Version must be 13")
	}
	key, err := base64.StdEncoding.Strict().DecodeString(r.Header.Get("Sec-Websocket-Key"))
	if len(r.Header["Sec-Websocket-Key"]) != 1 || err != nil || len(key) != 16 {
		return false, badHandshake("its Sec-WebSocket-Key must be 16 bytes in base64")
	}
	return true, nil
}

func badHandshake(why string) *refusal {
	return refuse(http.StatusForbidden, "upgrade", "it is no handshake of a WebSocket: %s", why)
}

// tokens are the words of a header that is a list, in lower case.
func tokens(values []string) (out []string) {
	for _, v := range values {
		for word := range strings.SplitSeq(v, ",") {
			if word = strings.ToLower(strings.Trim(word, " \t")); word != "" {
				out = append(out, word)
			}
		}
	}
	return out
}

// errSwitched is the answer of a server that changed to a protocol that the request did not ask for.
var errSwitched = errors.New("the server switched protocols, which nobody asked for")

// errHandshake is a 101 that does not answer the request.
var errHandshake = errors.New("its server's answer does not open the WebSocket that was asked for")

// switched looks at an answer of 101, and makes what follows one of frames. asked is the request as it was sent.
// resp.Body is closed on an error.
func (p *port) switched(resp *http.Response, req Request, asked http.Header, inj *Injection) error {
	if resp.StatusCode != http.StatusSwitchingProtocols {
		return nil
	}
	rw, ok := resp.Body.(io.ReadWriteCloser)
	if !req.WebSocket || !ok {
		resp.Body.Close()
		return errSwitched
	}
	if !accepts(resp.Header, asked) {
		resp.Body.Close()
		return errHandshake
	}
	resp.Status = "101 " + http.StatusText(http.StatusSwitchingProtocols) // the server's own text would be sent on
	rw = &metered{ReadWriteCloser: rw, usage: p.usage, refused: p.cut(resp, req, "budget", http.StatusTooManyRequests)}
	resp.Body = &sending{ReadWriteCloser: rw, inj: inj, refused: p.cut(resp, req, "credentials", http.StatusForbidden)}
	return nil
}

// accepts reports whether the head of an answer opens the WebSocket that a request asked for, without
// extensions, in which frames could not be read.
func accepts(h, asked http.Header) bool {
	sum := sha1.Sum([]byte(asked.Get("Sec-Websocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) // RFC 6455
	one := func(name, want string) bool {
		return len(h[name]) == 1 && strings.EqualFold(strings.TrimSpace(h[name][0]), want)
	}
	said := h["Sec-Websocket-Protocol"]
	return one("Upgrade", "websocket") && slices.Equal(tokens(h["Connection"]), []string{"upgrade"}) &&
		h["Sec-Websocket-Extensions"] == nil &&
		len(h["Sec-Websocket-Accept"]) == 1 &&
		h.Get("Sec-Websocket-Accept") == base64.StdEncoding.EncodeToString(sum[:]) &&
		(len(said) == 0 || len(said) == 1 && slices.Contains(tokens(asked["Sec-Websocket-Protocol"]),
			strings.ToLower(said[0])))
}

// errFrames ends a WebSocket on which something else was said than frames.
var errFrames = errors.New("what was said on the WebSocket is no frame of one")

// frameHead is what the head of a frame says.
type frameHead struct {
	op     byte
	final  bool // it ends its message
	masked bool
	mask   [4]byte
	size   uint64 // of the payload
}

const (
	opContinued = 0x0
	opClose     = 0x8
	opControl   = 0x8 // this bit is set in control frames
)

// parseFrame reads the head that b begins with. n is its length, 0 when more must come. Reserved bits and codes
// stand for extensions, which nobody has agreed on.
func parseFrame(b []byte) (h frameHead, n int, err error) {
	if len(b) == 0 {
		return h, 0, nil
	}
	if h.op, h.final = b[0]&0x0f, b[0]&0x80 != 0; b[0]&0x70 != 0 || h.op > 2 && h.op < 8 || h.op > 10 {
		return h, 0, errFrames
	}
	if len(b) < 2 {
		return h, 0, nil
	}
	h.masked, h.size = b[1]&0x80 != 0, uint64(b[1]&0x7f)
	if h.op&opControl != 0 && (!h.final || h.size > 125) {
		return h, 0, errFrames
	}
	n = 2 + map[uint64]int{126: 2, 127: 8}[h.size]
	end := n
	if h.masked {
		end += len(h.mask)
	}
	if len(b) < end {
		return h, 0, nil
	}
	switch n {
	case 4:
		h.size = uint64(binary.BigEndian.Uint16(b[2:]))
	case 10:
		h.size = binary.BigEndian.Uint64(b[2:])
	}
	copy(h.mask[:], b[n:end])
	if h.size>>63 != 0 {
		return h, 0, errFrames
	}
	return h, end, nil
}

// turns is where the frames of one side are: a message in several frames ends before the next begins, and
// nothing follows a close.
type turns struct{ open, closed bool }

// next takes one more frame.
func (t *turns) next(h frameHead) error {
	control := h.op&opControl != 0
	if t.closed || !control && t.open != (h.op == opContinued) {
		return errFrames
	}
	if control {
		t.closed = h.op == opClose
	} else {
		t.open = !h.final
	}
	return nil
}

// cut returns what records that a connection was ended for what its client sent.
func (p *port) cut(resp *http.Response, req Request, rule string, status int) func(why error) {
	ctx := context.WithoutCancel(resp.Request.Context()) // the record is written whoever has gone
	return func(why error) {
		if errors.Is(why, errFrames) {
			rule = "upgrade"
		}
		p.refused(ctx, req, rule, detail{Status: status, Reason: why.Error()})
		p.log(slog.LevelInfo, "connection ended", "host", req.Host, "why", why)
	}
}
