//go:build linux

package e2b

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// exchange is what a program on a port does with a request that asks whether to send its body.
type exchange struct {
	what       string
	ask        string // the header's line
	late       bool   // it says so only when the body is there
	first      string // what it says before it has the body
	body       bool   // the client sends one when it may
	hundreds   int
	status     int
	bodyInside string // what the program got
}

// If this fails, a client that asks whether to send its body (Expect: 100-continue) is told so twice, or before
// the program has agreed; or a program that refuses is sent the body all the same.
func TestBodyThatIsAskedFor(t *testing.T) {
	r, patient := newRig(t), newRig(t)
	patient.srv.ports.ExpectContinueTimeout = time.Minute // so that no program here is late on a busy machine
	const agree, refuse = "HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 417 Expectation Failed\r\nContent-Length: " +
		"0\r\nConnection: close\r\n\r\n"
	for _, c := range []exchange{
		{"agrees", "Expect: 100-continue\r\n", false, agree, true, 1, 200, "hello"},
		{"agrees late", "Expect: 100-continue\r\n", true, agree, true, 1, 200, "hello"},
		{"agrees twice", "Expect: 100-continue\r\n", false, agree + agree, true, 1, 200, "hello"},
		{"never heard of it", "Expect: 100-continue\r\n", false, "", true, 1, 200, "hello"},
		{"refuses", "Expect: 100-continue\r\n", false, refuse, false, 0, 417, ""},
		{"was not asked", "", false, agree, true, 1, 200, "hello"},
	} {
		t.Run(c.what, func(t *testing.T) {
			if c.first != "" && !c.late {
				c.run(t, patient)
				return
			}
			c.run(t, r)
		})
	}
}

func (c *exchange) run(t *testing.T, r *rig) {
	program, err := net.Listen("tcp", "127.0.0.1:0") // a plain process here
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	inside := make(chan string, 1)
	go func() { inside <- c.serve(program) }()
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: %d-%s.localhost\r\n%sConnection: close\r\nContent-Length: 5\r\n\r\n",
		program.Addr().(*net.TCPAddr).Port, r.box.SandboxID, c.ask)
	if c.ask == "" {
		fmt.Fprint(conn, "hello")
	}
	status, hundreds, from := 100, -1, bufio.NewReader(conn)
	for ; status == 100; hundreds++ {
		res, err := http.ReadResponse(from, nil)
		if err != nil {
			t.Fatalf("after %d of 100: %v", hundreds+1, err)
		}
		if status = res.StatusCode; status == 100 && hundreds < 0 && c.ask != "" {
			fmt.Fprint(conn, "hello")
		}
	}
	if hundreds != c.hundreds || status != c.status {
		t.Errorf("%d times 100, and %d; want %d, and %d", hundreds, status, c.hundreds, c.status)
	}
	if got := <-inside; got != c.bodyInside {
		t.Errorf("the program was sent %q; want %q", got, c.bodyInside)
	}
}

// serve answers one request, and returns the body that it was sent.
func (c *exchange) serve(l net.Listener) string {
	conn, err := l.Accept()
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	from := bufio.NewReader(conn)
	for line := ""; line != "\r\n"; {
		if line, err = from.ReadString('\n'); err != nil {
			return err.Error()
		}
	}
	if c.late {
		if _, err := from.Peek(5); err != nil {
			return err.Error()
		}
	}
	fmt.Fprint(conn, c.first)
	if !c.body {
		rest, _ := io.ReadAll(from) // until the proxy hangs up
		return string(rest)
	}
	body := make([]byte, 5)
	if _, err := io.ReadFull(from, body); err != nil {
		return err.Error()
	}
	fmt.Fprint(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
	return string(body)
}
