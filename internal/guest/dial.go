package guest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
)

// opDial is the operation of a connection to a port inside. The guest's first byte says that it is up, then both streams are the
// connection's.
const opDial = "dial"

// dialArg is its argument.
type dialArg struct {
	Port uint16 `json:"port"`
}

// DialPort connects to a TCP port on the sandbox's own loopback. NotFound when nothing listens there. ctx bounds connecting only;
// Close ends the connection, both ways at once.
func (c *Client) DialPort(ctx context.Context, port uint16) (net.Conn, error) {
	x, err := c.open()
	if err != nil {
		return nil, c.translate(err)
	}
	if err := c.dial(ctx, x, port); err != nil {
		c.abandon(x)
		return nil, c.translate(err)
	}
	here, there := net.Pipe()
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c.wg.Go(func() { // from the guest
		defer cancel()
		defer c.abandon(x)
		defer here.Close()
		for {
			b, err := x.recv(run)
			if err != nil {
				return
			}
			if _, err := here.Write(b); err != nil {
				return
			}
		}
	})
	c.wg.Go(func() { // to the guest
		defer cancel()
		buf := make([]byte, chunkSize)
		for {
			n, err := here.Read(buf)
			if n > 0 && x.send(run, buf[:n]) != nil || err != nil {
				return
			}
		}
	})
	return there, nil
}

// dial sends the request and waits for the connection.
func (c *Client) dial(ctx context.Context, x *exchange, port uint16) error {
	arg, err := json.Marshal(dialArg{port})
	if err != nil {
		return err
	}
	head, err := json.Marshal(requestHead{Op: opDial, Arg: arg, More: true})
	if err != nil {
		return err
	}
	if err := c.w.send(ctx, frame{kind: kindRequest, id: x.id, head: head}); err != nil {
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
