//go:build linux

package e2b

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"
)

// If this fails, a connection that has become another protocol's (a WebSocket) ends for its client as if the
// program had ended it, when it was the box that was paused or removed; or what a client says at once is lost.
func TestUpgradeIsCut(t *testing.T) {
	r := newRig(t)
	var box sandboxOut
	if status := r.api("POST", "/sandboxes", `{"templateID":"base","autoPause":true,"autoResume":{"enabled":true}}`,
		&box); status != http.StatusCreated {
		t.Fatalf("a box that visits wake: %d", status)
	}
	// a plain process here
	program := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		conn, brw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: lines\r\n\r\n")
		for {
			line, err := brw.ReadString('\n')
			if err != nil || line == "quit\n" {
				return
			}
			fmt.Fprint(conn, "echo ", line)
		}
	}))
	defer program.Close()
	port := program.Listener.Addr().(*net.TCPAddr).Port
	for _, c := range []struct {
		what string
		end  func(conn net.Conn)
		want error
	}{
		{"the program ends it", func(conn net.Conn) { fmt.Fprint(conn, "quit\n") }, io.EOF},
		{"the client has said all", func(conn net.Conn) { _ = conn.(*net.TCPConn).CloseWrite() }, io.EOF},
		{"a pause", func(net.Conn) { r.api("POST", "/sandboxes/"+box.SandboxID+"/pause", "", nil) },
			syscall.ECONNRESET},
		{"its end, after a visit woke it", func(net.Conn) { r.api("DELETE", "/sandboxes/"+box.SandboxID, "", nil) },
			syscall.ECONNRESET},
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %d-%s.localhost\r\nConnection: Upgrade\r\nUpgrade: "+
			"lines\r\n\r\nat once\n", port, box.SandboxID)
		from := bufio.NewReader(conn)
		res, err := http.ReadResponse(from, nil)
		if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("%s: upgrading: %v, %v", c.what, res, err)
		}
		fmt.Fprint(conn, "later\n")
		for _, want := range []string{"echo at once\n", "echo later\n"} {
			if got, err := from.ReadString('\n'); got != want {
				t.Fatalf("%s: the program says %q, %v; want %q", c.what, got, err, want)
			}
		}
		c.end(conn)
		if b, err := from.ReadByte(); !errors.Is(err, c.want) {
			t.Errorf("%s: it ends with %q, %v; want %v", c.what, b, err, c.want)
		}
	}
}
