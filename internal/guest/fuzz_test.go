package guest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard/internal/guest/form"
)

// If this fails, bytes from the other side of a sandbox's border crash this one, or are read as something they are not.
func FuzzReadFrame(f *testing.F) {
	f.Add(appendFrame(nil, frame{kind: kindRequest, id: 1, head: helloHead}))
	f.Add(appendFrame(nil, frame{kind: kindRequest, id: 2, head: newHead(opStart, &Start{Key: "k", Op: "exec"}, false),
		body: []byte(`{"argv":["x"]}`)}))
	f.Add(appendFrame(nil, frame{kind: kindData, id: 7, body: []byte("data")}))
	f.Add([]byte{0, 0, 0, 0})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 1, 2, 3})
	f.Add([]byte{0, 0, 0, 9, 2, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bufio.NewReader(bytes.NewReader(data))
		var again []byte
		for {
			fr, err := readFrame(r)
			if err != nil {
				break
			}
			again = appendFrame(again, fr)
		}
		if !bytes.HasPrefix(data, again) {
			t.Errorf("%x was read as %x", data, again)
		}
	})
}

// hostile is a guest that answers with given bytes, whatever it is asked.
func hostile(t testing.TB, answer func(conn net.Conn)) *Client {
	t.Helper()
	here, there := net.Pipe()
	var wg sync.WaitGroup
	wg.Go(func() { io.Copy(io.Discard, there) })
	wg.Go(func() { answer(there) })
	c := NewClient(here)
	t.Cleanup(func() {
		c.Close()
		there.Close()
		wg.Wait()
	})
	return c
}

// If this fails, a sandbox that was taken over crashes its host, or holds it up.
func FuzzClient(f *testing.F) {
	res := func(id uint32, head []byte, body []byte) []byte {
		return appendFrame(nil, frame{kind: kindResponse, id: id, head: head, body: body})
	}
	none := form.Encode(form.None{})
	done := form.Encode(&Result{Key: "k", State: StateDone, Cause: causeExited, ExitCode: new(int)})
	f.Add(res(1, fmt.Appendf(nil, `{"version":%d}`, ProtocolVersion), nil))
	f.Add(res(1, []byte(`{"version":`), nil))
	f.Add(res(2, done, []byte("out")))
	f.Add(res(2, done[:len(done)-1], nil))
	f.Add(res(2, append(done, 0), nil))
	f.Add(res(2, []byte(`{"key":"k","state":"done","exit_code":0}`), []byte("out"))) // of another version
	f.Add(res(3, form.Encode(&Saved{Changed: true, Bytes: -1}), nil))
	f.Add(res(6, form.Encode(&ProcessExit{Code: -1, Signal: 9}), nil))
	f.Add(res(99, none, nil))
	f.Add(appendFrame(nil, frame{kind: kindLine, id: 3, body: []byte("a line")}))
	f.Add(appendFrame(nil, frame{kind: kindData, id: 3, body: []byte("tar")}))
	f.Add(appendFrame(nil, frame{kind: kindCredit, id: 4}))
	f.Add(appendFrame(nil, frame{kind: kindFailure, id: 3, head: form.Encode(&Error{Code: Fenced})}))
	f.Add(appendFrame(appendFrame(nil, frame{kind: kindEnd, id: 5}), frame{kind: kindResponse, id: 5, head: none}))
	f.Fuzz(func(t *testing.T, data []byte) {
		c := hostile(t, func(conn net.Conn) {
			conn.Write(data)
			conn.Close()
		})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var wg sync.WaitGroup
		for _, op := range []func() error{
			func() error { _, err := c.Hello(ctx); return err },
			func() error { _, err := c.Start(ctx, Start{Key: "k"}); return err },
			func() error { _, err := c.Save(ctx, Save{Next: "n"}, io.Discard); return err },
			func() error { return c.Load(ctx, "l", bytes.NewReader(make([]byte, 200_000))) },
			func() error { _, err := c.Processes(ctx); return err },
			func() error {
				_, _, err := c.StartProcess(ctx, ProcessStart{Argv: []string{"x"}},
					func(ProcessEvent) error { return nil })
				return err
			},
			func() error { return c.Watch(ctx, FileRef{Path: "/x"}, true, func(Change) error { return nil }) },
			func() error {
				conn, err := c.DialPort(ctx, 80)
				if err == nil {
					conn.Close()
				}
				return err
			},
			func() error { _, err := c.List(ctx, "/x"); return err },
			func() error { return c.Get(ctx, "/x", io.Discard) },
			func() error { _, err := c.Follow(ctx, "k", 1, func(string) {}); return err },
		} {
			wg.Go(func() {
				if err := op(); errors.Is(err, context.DeadlineExceeded) {
					t.Error("held up")
				}
			})
		}
		wg.Wait()
	})
}

// If this fails, a peer that only sends and never reads, or claims what is not so, wins against the host.
func TestHostileGuest(t *testing.T) {
	forever := func(f frame) func(net.Conn) {
		return func(conn net.Conn) {
			b := appendFrame(nil, f)
			for {
				if _, err := conn.Write(b); err != nil {
					return
				}
			}
		}
	}
	once := func(frames ...frame) func(net.Conn) {
		return func(conn net.Conn) {
			for _, f := range frames {
				conn.Write(appendFrame(nil, f))
			}
		}
	}
	save := func(ctx context.Context, c *Client) error {
		_, err := c.Save(ctx, Save{Next: "n"}, io.Discard)
		return err
	}
	start := func(ctx context.Context, c *Client) error {
		_, err := c.Start(ctx, Start{Key: "k"})
		return err
	}
	list := func(ctx context.Context, c *Client) error {
		_, err := c.List(ctx, "/")
		return err
	}
	hello := func(ctx context.Context, c *Client) error {
		_, err := c.Hello(ctx)
		return err
	}
	done := func(key, state string) []byte { return form.Encode(&Result{Key: key, State: state}) }
	data := frame{kind: kindData, id: 1, body: make([]byte, chunkSize)}
	for name, c := range map[string]struct {
		answer func(net.Conn)
		op     func(context.Context, *Client) error
		want   error
	}{
		"silence":               {func(net.Conn) {}, start, context.DeadlineExceeded},
		"an endless tar":        {forever(data), save, ErrDisconnected}, // ends with the window that it ignores
		"endless data, no need": {forever(data), start, ErrDisconnected},
		"an endless list":       {forever(data), list, ErrDisconnected},
		"endless credit":        {forever(frame{kind: kindCredit, id: 1}), start, ErrDisconnected},
		"endless other answers": {forever(frame{kind: kindResponse, id: 9}), start, ErrDisconnected},
		"requests":              {once(frame{kind: kindRequest, id: 1}), start, ErrDisconnected},
		"data after the end": {once(frame{kind: kindEnd, id: 1}, frame{kind: kindData, id: 1}), start,
			ErrDisconnected},
		"an oversized chunk": {once(frame{kind: kindData, id: 1, body: make([]byte, chunkSize+1)}), save,
			ErrDisconnected},
		"garbage": {func(c net.Conn) { c.Write(bytes.Repeat([]byte("garbage!"), 100)) }, start,
			ErrDisconnected},
		"half a frame": {func(c net.Conn) { c.Write([]byte{0, 0, 1}); c.Close() }, start, ErrDisconnected},
		"no head":      {once(frame{kind: kindResponse, id: 1}), start, ErrDisconnected},
		"bad JSON":     {once(frame{kind: kindResponse, id: 1, head: []byte("{")}), hello, ErrDisconnected},
		"JSON": {once(frame{kind: kindResponse, id: 1, head: []byte(`{"key":"k","state":"done"}`)}),
			start, ErrDisconnected},
		"half a message": {once(frame{kind: kindResponse, id: 1, head: done("k", StateDone)[:5]}), start,
			ErrDisconnected},
		"more than a message": {once(frame{kind: kindResponse, id: 1, head: append(done("k", StateDone), 0)}), start,
			ErrDisconnected},
		"another call's result": {once(frame{kind: kindResponse, id: 1, head: done("x", StateDone)}), start,
			ErrDisconnected},
		"an unheard-of state": {once(frame{kind: kindResponse, id: 1, head: done("k", "happy")}), start,
			ErrDisconnected},
		"a list of garbage": {once(data, frame{kind: kindResponse, id: 1, head: form.Encode(form.None{})}), list,
			ErrDisconnected},
		"a hang-up":             {func(c net.Conn) { c.Close() }, start, ErrDisconnected},
		"an unreadable refusal": {once(frame{kind: kindFailure, id: 1, head: []byte("x")}), start, nil},
		"a tar of another size": {once(data, frame{kind: kindResponse, id: 1,
			head: form.Encode(&Saved{Changed: true, Bytes: 7})}), save, nil},
		"a change without a tar": {once(frame{kind: kindResponse, id: 1, head: form.Encode(&Saved{Changed: true})}),
			save, nil},
	} {
		t.Run(name, func(t *testing.T) {
			patience := time.Minute
			if c.want == context.DeadlineExceeded { // the others end before, however slow the machine is
				patience = 200 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			err := c.op(ctx, hostile(t, c.answer))
			if err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

// If this fails, a guest that does not read blocks a caller beyond its context, or for good.
func TestGuestThatDoesNotRead(t *testing.T) {
	here, there := net.Pipe()
	defer there.Close()
	c := NewClient(here)
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Start(ctx, Start{Key: "k"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Start: %v", err)
	}
	half := make([]byte, 7)
	done := make(chan error, 1)
	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	go func() {
		_, err := c.Start(ctx, Start{Key: "k"})
		done <- err
	}()
	if _, err := io.ReadFull(there, half); err != nil { // nothing of the first request is in the way
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a cut frame: %v", err)
	}
	if _, err := c.Wait(t.Context(), "k", 1); !errors.Is(err, ErrDisconnected) {
		t.Errorf("after a cut frame: %v", err)
	}
}

// If this fails, callers that give up take the connection of the others with them.
func TestGivingUpIsCheap(t *testing.T) {
	c, _ := newGuestConn(t)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			ctx := gone
			if i%2 == 0 {
				var stop context.CancelFunc
				ctx, stop = context.WithTimeout(t.Context(), time.Duration(i)*20*time.Microsecond)
				defer stop()
			}
			c.Wait(ctx, "k", 1)
			c.Save(ctx, Save{Next: "n"}, io.Discard)
			c.Load(ctx, "n", bytes.NewReader(make([]byte, 300_000)))
		})
	}
	wg.Wait()
	if err := c.Get(t.Context(), "/x", failing{}); err == nil || errors.Is(err, ErrDisconnected) {
		t.Errorf("a writer that fails: %v", err)
	}
	if _, err := c.Hello(t.Context()); err != nil {
		t.Errorf("after many gave up: %v", err)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("disk full") }

// newGuestConn is a client of a server without a sandbox: it answers hello, sends much for get, and never ends
// anything else.
func newGuestConn(t *testing.T) (*Client, net.Conn) {
	t.Helper()
	here, there := net.Pipe()
	var wg sync.WaitGroup
	wg.Go(func() { answerAll(t.Context(), there) })
	c := NewClient(here)
	t.Cleanup(func() {
		c.Close()
		there.Close()
		wg.Wait()
	})
	return c, there
}

func answerAll(ctx context.Context, conn net.Conn) {
	w, r := newWire(conn), bufio.NewReader(conn)
	for {
		f, err := readFrame(r)
		if err != nil {
			return
		}
		switch {
		case f.kind != kindRequest:
		case bytes.Contains(f.head, []byte(opHello)):
			w.send(ctx, frame{kind: kindResponse, id: f.id, head: fmt.Appendf(nil, `{"version":%d}`, ProtocolVersion)})
		case bytes.Contains(f.head, []byte(opGet)):
			for range window {
				w.send(ctx, frame{kind: kindData, id: f.id, body: make([]byte, chunkSize)})
			}
		}
	}
}
