package egress

import (
	"bytes"
	"io"
)

// frames covers secrets in the messages of a WebSocket as a server sends them: not masked and, since extensions
// are taken out of the request, not compressed. Covering changes no length, so the heads of frames stay what
// they are; only payload is looked at, and what could be the beginning of a secret waits for the next frame of
// the same message. Control frames pass between and never wait, since a ping wants its answer now: their
// payloads are looked at as one more text, in which what only begins like a secret is covered too. The first
// byte that is of no frame ends the connection, and what is no whole frame head is not passed on.
type frames struct {
	src   io.ReadCloser
	edit  editor
	raw   []byte // read, not yet taken apart
	left  uint64 // payload of the current frame that has not come
	last  bool   // the current frame ends its message
	text  []byte // payload of the message that waits
	head  []mark // heads and control frames that belong between it
	said  []byte // the end of the payloads of control frames so far, as they came
	out   []byte // ready
	err   error  // of src, or errFrames
	turns turns
}

// maxMarks bounds the frames that wait for the rest of a message: an honest server sends few between two parts of one.
const maxMarks = 4096

// mark is what stands before a byte of frames.text.
type mark struct {
	at    int
	bytes []byte
}

// Read returns covered bytes.
func (f *frames) Read(b []byte) (int, error) {
	for len(f.out) == 0 {
		if f.err != nil {
			return 0, f.err
		}
		if len(b) == 0 {
			return 0, nil
		}
		have := len(f.raw)
		f.raw = append(f.raw, make([]byte, 32<<10)...)
		n, err := f.src.Read(f.raw[have:])
		f.raw, f.err = f.raw[:have+n], err
		if wrong := f.take(); wrong != nil {
			f.err = wrong
		}
		if f.err != nil { // nothing more comes: what waits is no secret
			f.text = f.edit.all(f.text)
			f.release(len(f.text))
			f.raw = nil
		}
	}
	n := copy(b, f.out)
	f.out = f.out[n:]
	return n, nil
}

// take takes apart what has come.
func (f *frames) take() error {
	for len(f.raw) > 0 {
		if f.left == 0 {
			n, err := f.begin()
			if err != nil {
				return err
			}
			if n == 0 {
				break // it is not whole
			}
			head := f.edit.all(append([]byte(nil), f.raw[:n]...))
			f.control(f.raw[0], head)
			f.head = append(f.head, mark{len(f.text), head})
			f.raw = f.raw[n:]
		}
		n := int(min(f.left, uint64(len(f.raw))))
		f.text = append(f.text, f.raw[:n]...)
		f.raw, f.left = f.raw[n:], f.left-uint64(n)
		if f.left == 0 && f.last {
			f.text = f.edit.all(f.text)
			f.release(len(f.text))
		}
	}
	f.raw = append([]byte(nil), f.raw...)
	f.text = f.edit.all(f.text)
	hold := f.edit.hold(f.text)
	if len(f.head) > maxMarks {
		hold = 0
	}
	f.release(len(f.text) - hold)
	return nil
}

// minPart is how many bytes of a secret's beginning, at the end of a control frame's payload, are taken for one
// that goes on in the next.
const minPart = 4

// control covers what control frames hold together of a secret. frame is a whole one whose first byte was first,
// or the head of another.
func (f *frames) control(first byte, frame []byte) {
	if first&opControl == 0 || len(f.edit.needles) == 0 {
		return
	}
	payload := frame[2:]
	if first&0x0f == opClose {
		payload = payload[min(2, len(payload)):] // behind the status
	}
	text := append(bytes.Clone(f.said), payload...)
	copy(payload, f.edit.all(bytes.Clone(text))[len(f.said):])
	if n := f.edit.hold(text); n >= minPart {
		n = min(n, len(payload))
		copy(payload[len(payload)-n:], stars(payload[len(payload)-n:]))
	}
	longest := len(f.edit.needles[0]) // they are sorted
	f.said = text[max(0, len(text)-longest+1):]
}

// begin reads the head of a frame, or a whole control frame, and returns its length, or 0 when more must come.
func (f *frames) begin() (int, error) {
	h, n, err := parseFrame(f.raw)
	if err != nil || n == 0 {
		return 0, err
	}
	if h.masked { // no server masks
		return 0, errFrames
	}
	control := h.op&opControl != 0
	if control {
		if n += int(h.size); len(f.raw) < n {
			return 0, nil
		}
	}
	if err := f.turns.next(h); err != nil {
		return 0, err
	}
	if f.last = false; !control {
		f.left, f.last = h.size, h.final
	}
	return n, nil
}

// release makes the first n bytes of the message ready, with what stands between them.
func (f *frames) release(n int) {
	at := 0
	for len(f.head) > 0 && f.head[0].at <= n {
		m := f.head[0]
		if m.at == n && n < len(f.text) { // it stands before a byte that waits
			break
		}
		f.out = append(append(f.out, f.text[at:m.at]...), m.bytes...)
		at, f.head = m.at, f.head[1:]
	}
	f.out = append(f.out, f.text[at:n]...)
	f.text = append(f.text[:0], f.text[n:]...)
	for i := range f.head {
		f.head[i].at -= n
	}
}

// Close closes the source.
func (f *frames) Close() error { return f.src.Close() }
