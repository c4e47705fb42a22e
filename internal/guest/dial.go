package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/outboard-dev/outboard/internal/guest/uplink"
)

// opDial is the operation of a connection to a port inside. The guest's first byte says that it is up, then both
// streams are the connection's.
const opDial = "dial"

// dialArg is its argument.
type dialArg struct {
	Port uint16
}

// Reserved reports whether a port inside belongs to Outboard: nobody reaches it from outside, by any door.
func Reserved(port uint16) bool { return uplink.Owns(port) }

// checkPort refuses a port of Outboard's own. The host asks before it dials, and the guest again: either may be
// older than the other.
func checkPort(port uint16) error {
	if Reserved(port) {
		return &Error{Code: Denied, Message: fmt.Sprintf("port %d of the sandbox is Outboard's own way out, and is "+
			"not reached from outside", port)}
	}
	return nil
}

// DialPort connects to a TCP port on the sandbox's own loopback. NotFound when nothing listens there, Denied
// when the port is reserved. ctx bounds connecting only. Close ends the connection, both ways at once; the
// connection has CloseWrite, too, for what is sent to the port.
func (c *Client) DialPort(ctx context.Context, port uint16) (net.Conn, error) {
	if err := checkPort(port); err != nil {
		return nil, err
	}
	x, err := c.open(false)
	if err != nil {
		return nil, c.translate(err)
	}
	if err := c.dial(ctx, x, port); err != nil {
		c.abandon(x)
		return nil, c.translate(err)
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	said, hears := net.Pipe()
	told, tells := net.Pipe()
	p := &portConn{Conn: hears, tells: tells, cancel: cancel}
	c.wg.Go(func() { // from the guest
		defer c.abandon(x)
		defer said.Close()
		defer told.Close()
		defer cancel()
		for {
			b, err := x.recv(run)
			if err != nil {
				if err != io.EOF {
					p.broken.Store(&err)
				}
				return
			}
			if _, err := said.Write(b); err != nil {
				return
			}
		}
	})
	c.wg.Go(func() { // to the guest
		buf := make([]byte, chunkSize)
		for {
			n, err := told.Read(buf)
			if n > 0 && x.send(run, buf[:n]) != nil {
				cancel()
				return
			}
			if err != nil {
				_ = x.end(run) // nothing where the connection is over, which cancels run
				return
			}
		}
	})
	return p, nil
}

// portConn is a connection to a port: a pipe for each direction, so that one can end before the other, as with TCP.
type portConn struct {
	net.Conn // from the port
	tells    net.Conn
	cancel   context.CancelFunc
	broken   atomic.Pointer[error] // why it ended, if not by the program on the port
}

// Read reads what the port says. Only an end by the program on it is io.EOF: a stream that the end of the
// sandbox cut short must not look whole.
func (p *portConn) Read(b []byte) (int, error) {
	n, err := p.Conn.Read(b)
	if broken := p.broken.Load(); err == io.EOF && broken != nil {
		err = *broken
	}
	return n, err
}

// Write writes to the port.
func (p *portConn) Write(b []byte) (int, error) { return p.tells.Write(b) }

// CloseWrite tells the program on the port that nothing follows. What it still says can be read.
func (p *portConn) CloseWrite() error { return p.tells.Close() }

// Close ends both directions.
func (p *portConn) Close() error {
	p.cancel()
	return errors.Join(p.tells.Close(), p.Conn.Close())
}

// SetDeadline bounds both directions.
func (p *portConn) SetDeadline(t time.Time) error {
	return errors.Join(p.SetReadDeadline(t), p.SetWriteDeadline(t))
}

// SetWriteDeadline bounds what is written to the port.
func (p *portConn) SetWriteDeadline(t time.Time) error { return p.tells.SetWriteDeadline(t) }

// dial sends the request and waits for the connection.
func (c *Client) dial(ctx context.Context, x *exchange, port uint16) error {
	if err := c.w.send(ctx, frame{kind: kindRequest, id: x.id,
		head: newHead(opDial, &dialArg{port}, true)}); err != nil {
		return err
	}
	b, err := x.recv(ctx)
	switch {
	case err == io.EOF:
		select {
		case <-x.settled:
		case <-c.gone:
			return c.cause()
		}
		if x.answer.kind == kindFailure {
			return refusal(x.answer.head)
		}
		return fmt.Errorf("%w: a connection that was never up has ended", errFrame)
	case err == ErrDisconnected:
		return c.cause()
	case err != nil:
		return err
	case len(b) != 1:
		return c.garbage(fmt.Errorf("connection begins with %d bytes", len(b)))
	}
	return nil
}
