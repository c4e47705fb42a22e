package e2b

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
)

// upgrade is the way to a client whose connection becomes that of another protocol, a WebSocket for the most
// part. Where the end of the box cuts it off, the client is not told that all has been said.
type upgrade struct {
	http.ResponseWriter
	cut atomic.Bool // the box's end broke off, and was not ended by the program
}

// Unwrap is for http.ResponseController.
func (u *upgrade) Unwrap() http.ResponseWriter { return u.ResponseWriter }

// Hijack implements http.Hijacker.
func (u *upgrade) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, brw, err := http.NewResponseController(u.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	early, err := brw.Peek(brw.Reader.Buffered())
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return &upgradedClient{conn, bytes.Clone(early), u}, brw, nil
}

// watch looks at how the box's end of an upgraded connection ends.
func (u *upgrade) watch(res *http.Response) error {
	if conn, ok := res.Body.(io.ReadWriteCloser); ok && res.StatusCode == http.StatusSwitchingProtocols {
		res.Body = &upgradedPort{conn, u}
	}
	return nil
}

// upgradedPort is the box's end.
type upgradedPort struct {
	io.ReadWriteCloser
	u *upgrade
}

// Read notes an end that is none of the program's.
func (p *upgradedPort) Read(b []byte) (int, error) {
	n, err := p.ReadWriteCloser.Read(b)
	if err != nil && err != io.EOF {
		p.u.cut.Store(true)
	}
	return n, err
}

// CloseWrite tells the program that its client has said all.
func (p *upgradedPort) CloseWrite() error { return closeWrite(p.ReadWriteCloser) }

// upgradedClient is the client's end.
type upgradedClient struct {
	net.Conn
	early []byte // came with the request; the reader that has it ends the request's context with what the client says
	u     *upgrade
}

// Read implements io.Reader.
func (c *upgradedClient) Read(b []byte) (int, error) {
	if len(c.early) > 0 {
		n := copy(b, c.early)
		c.early = c.early[n:]
		return n, nil
	}
	return c.Conn.Read(b)
}

// CloseWrite tells the client that the program has said all.
func (c *upgradedClient) CloseWrite() error { return closeWrite(c.Conn) }

// Close ends the connection; one that was cut off with a reset, and under TLS without the word that it is over.
func (c *upgradedClient) Close() error {
	conn := c.Conn
	if !c.u.cut.Load() {
		return conn.Close()
	}
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	if t, ok := conn.(*net.TCPConn); ok {
		_ = t.SetLinger(0) // a dead connection is closed below
	}
	return conn.Close()
}

func closeWrite(conn any) error {
	if c, ok := conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return errors.ErrUnsupported
}
