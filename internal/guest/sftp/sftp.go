//go:build linux

// Package sftp is the file server of an SSH session: version 3 of the SSH File Transfer Protocol
// (draft-ietf-secsh-filexfer-02), with the extensions of OpenSSH that its sftp and scp use.
//
// It runs inside a sandbox as a process of the sandbox's user. So it checks nothing itself: a
// client can do what any program of that user can do, and a client that breaks it has broken its
// own process. It never runs on the host. It is part of the guest and uses the standard library
// only.
//
// Start reading at Serve.
package sftp

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"syscall"
)

// Packet types.
const (
	fxInit, fxVersion                     = 1, 2
	fxOpen, fxClose, fxRead, fxWrite      = 3, 4, 5, 6
	fxLstat, fxFstat, fxSetstat           = 7, 8, 9
	fxFsetstat, fxOpendir, fxReaddir      = 10, 11, 12
	fxRemove, fxMkdir, fxRmdir            = 13, 14, 15
	fxRealpath, fxStat, fxRename          = 16, 17, 18
	fxReadlink, fxSymlink                 = 19, 20
	fxStatus, fxHandle, fxData            = 101, 102, 103
	fxName, fxAttrs                       = 104, 105
	fxExtended, fxExtendedReply      byte = 200, 201
)

// Status codes.
const (
	statusOK uint32 = iota
	statusEOF
	statusNoSuchFile
	statusDenied
	statusFailure
	statusBadMessage
	statusUnsupported uint32 = 8
)

// Limits of a session, as limits@openssh.com tells them.
const (
	maxPacket  = 256 << 10
	maxData    = maxPacket - 1<<10
	maxHandles = 1024
	// maxNames is how many entries of a directory one answer has: some 20 KB.
	maxNames = 100
)

// errPacket is a packet that is none. It ends the session, since what follows cannot be understood.
var errPacket = errors.New("sftp: malformed packet")

// server is one session.
type server struct {
	r       *bufio.Reader
	w       *bufio.Writer
	handles map[string]*handle
	next    int
}

// handle is an open file or directory.
type handle struct {
	f      *os.File
	append bool
}

// Serve answers one client until its input ends, which is no error. Relative paths begin at the working directory.
func Serve(r io.Reader, w io.Writer) error {
	s := &server{r: bufio.NewReaderSize(r, maxPacket), w: bufio.NewWriterSize(w, maxPacket),
		handles: map[string]*handle{}}
	defer s.close()
	for {
		if s.r.Buffered() == 0 { // nobody waits for an answer that lies here
			if err := s.w.Flush(); err != nil {
				return err
			}
		}
		p, err := s.read()
		if err == io.EOF {
			return s.w.Flush()
		}
		if err == nil {
			err = s.answer(p)
		}
		if err != nil {
			return errors.Join(err, s.w.Flush())
		}
	}
}

func (s *server) close() {
	for _, h := range s.handles {
		h.f.Close()
	}
}

// read returns the next packet without its length.
func (s *server) read() (packet, error) {
	var head [4]byte
	if _, err := io.ReadFull(s.r, head[:]); err != nil {
		return nil, err // io.EOF between packets is the end
	}
	n := binary.BigEndian.Uint32(head[:])
	if n < 1 || n > maxPacket {
		return nil, fmt.Errorf("%w: %d bytes", errPacket, n)
	}
	p := make(packet, n)
	if _, err := io.ReadFull(s.r, p); err != nil {
		return nil, fmt.Errorf("%w: cut short", errPacket)
	}
	return p, nil
}

// answer runs one request.
func (s *server) answer(p packet) error {
	kind := p.byte()
	if kind == fxInit {
		return s.send(reply{}.byte(fxVersion).u32(3).extensions())
	}
	if len(p) < 4 {
		return errPacket
	}
	id := p.u32()
	out, err := s.do(kind, id, &p)
	if err != nil {
		out = status(id, err)
	}
	return s.send(out)
}

func (s *server) send(b reply) error {
	var head [4]byte
	binary.BigEndian.PutUint32(head[:], uint32(len(b)))
	if _, err := s.w.Write(head[:]); err != nil {
		return err
	}
	_, err := s.w.Write(b)
	return err
}

// errBad is a request with arguments that are none, and errUnsupported one that is not known.
var (
	errBad         = errors.New("bad message")
	errUnsupported = errors.New("operation unsupported")
)

// status is the answer that is nothing but how it went.
func status(id uint32, err error) reply {
	code, text := statusOK, "success"
	if err != nil {
		code, text = statusFailure, err.Error()
		switch {
		case err == io.EOF:
			code, text = statusEOF, "end of file"
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ELOOP):
			code = statusNoSuchFile
		case errors.Is(err, fs.ErrPermission):
			code = statusDenied
		case errors.Is(err, errBad):
			code = statusBadMessage
		case errors.Is(err, errUnsupported):
			code = statusUnsupported
		}
	}
	return reply{}.byte(fxStatus).u32(id).u32(code).str(text).str("")
}

// open gives a file a handle.
func (s *server) open(f *os.File, appends bool) (string, error) {
	if len(s.handles) >= maxHandles {
		f.Close()
		return "", fmt.Errorf("%d files are open already", len(s.handles))
	}
	s.next++
	name := strconv.Itoa(s.next)
	s.handles[name] = &handle{f, appends}
	return name, nil
}

func (s *server) handle(name string) (*handle, error) {
	h := s.handles[name]
	if h == nil {
		return nil, errors.New("no such handle")
	}
	return h, nil
}
