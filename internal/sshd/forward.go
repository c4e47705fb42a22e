package sshd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/crypto/ssh"

	"github.com/outboard-dev/outboard/internal/control"
)

// loopback are the names under which a client may mean the sandbox itself.
var loopback = []string{"localhost", "127.0.0.1", "::1"}

// portOf reads which port of the sandbox is meant.
func portOf(data []byte) (uint16, bool) {
	var to struct {
		Host string
		Port uint32
		From string
		Via  uint32
	}
	err := ssh.Unmarshal(data, &to)
	return uint16(to.Port), err == nil && slices.Contains(loopback, to.Host) && to.Port > 0 && to.Port < 1<<16
}

// forward connects a channel to a port of the sandbox's own loopback (ssh -L). Elsewhere goes nothing: from the
// sandbox the network is policy's, and from this server nobody's.
func (c *conn) forward(ctx context.Context, n ssh.NewChannel) {
	number, ok := portOf(n.ExtraData())
	if !ok {
		n.Reject(ssh.Prohibited, "only ports of the sandbox itself can be forwarded to: localhost:PORT")
		return
	}
	if err := c.visit.Record(ctx, "ssh.forward", map[string]string{"port": strconv.Itoa(int(number))}); err != nil {
		n.Reject(ssh.ConnectionFailed, told(err))
		return
	}
	m, release, err := c.visit.Sandbox(ctx)
	if err != nil {
		n.Reject(ssh.ConnectionFailed, told(err))
		return
	}
	defer release()
	port, err := m.DialPort(ctx, number)
	if err != nil {
		text := told(err)
		if r, refused := errors.AsType[*control.Refusal](err); refused && r.Code == "denied" {
			text = r.Message
		} else if refused {
			text = fmt.Sprintf("nothing listens on port %d of the sandbox", number)
		}
		n.Reject(ssh.ConnectionFailed, text)
		return
	}
	defer port.Close()
	ch, reqs, err := n.Accept()
	if err != nil {
		return
	}
	stop := context.AfterFunc(ctx, func() { port.Close(); ch.Close() })
	defer stop()
	var both sync.WaitGroup
	both.Go(func() { // ends with the channel
		ssh.DiscardRequests(reqs)
		port.Close()
	})
	both.Go(func() {
		_, _ = io.Copy(port, ch) // either end may go at any time
		if half, ok := port.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite() // the client has said all, and may wait for the answer
		}
	})
	_, _ = io.Copy(ch, port)
	ch.CloseWrite()
	ch.Close()
	both.Wait()
}
