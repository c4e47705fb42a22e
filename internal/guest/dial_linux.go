package guest

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"
)

// dialTimeout bounds connecting to a port of our own machine.
const dialTimeout = 5 * time.Second

// dial connects the exchange to a port on the loopback, until the program there closes or the host gives up.
func (s *server) dial(ctx context.Context, h requestHead, st *stream) error {
	var a dialArg
	if err := decode(h.Arg, &a); err != nil {
		return err
	}
	if err := checkPort(a.Port); err != nil {
		return err
	}
	conn, err := dialLoopback(ctx, a.Port)
	if err != nil {
		return &Error{Code: NotFound, Message: fmt.Sprintf("nothing listens on port %d: %v", a.Port, err)}
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	var in sync.WaitGroup
	defer in.Wait()
	defer cancel()
	defer stop()
	defer conn.Close()
	if err := st.send(ctx, []byte{1}); err != nil {
		return err
	}
	in.Go(func() {
		for {
			b, err := st.recv(ctx)
			if err == io.EOF {
				_ = conn.CloseWrite() // a program that has gone needs no telling
			}
			if err == nil {
				_, err = conn.Write(b)
			}
			if err != nil {
				return
			}
		}
	})
	buf := make([]byte, chunkSize)
	for {
		n, err := conn.Read(buf)
		if n > 0 {
			if err := st.send(ctx, buf[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			return st.end(ctx)
		}
	}
}

func dialLoopback(ctx context.Context, port uint16) (*net.TCPConn, error) {
	d := net.Dialer{Timeout: dialTimeout}
	var first error
	for _, host := range []string{"127.0.0.1", "::1"} {
		conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
		if err == nil {
			return conn.(*net.TCPConn), nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}
