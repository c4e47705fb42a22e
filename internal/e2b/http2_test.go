//go:build linux

package e2b

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// echo is a program that serves gRPC on a port: it answers each message with it, and says first that it is
// there. It tells of calls that end without their client's having said all.
func echo(t *testing.T, secure bool) (*httptest.Server, <-chan struct{}) {
	t.Helper()
	left := make(chan struct{}, 16)
	program := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 || r.Header.Get("Te") != "trailers" {
			http.Error(w, fmt.Sprintf("%s, TE %q", r.Proto, r.Header.Get("Te")), http.StatusHTTPVersionNotSupported)
			return
		}
		w.Header().Set("Content-Type", "application/grpc")
		rc := http.NewResponseController(w)
		w.WriteHeader(http.StatusOK)
		if err := rc.Flush(); err != nil {
			return
		}
		status := "0"
		for {
			m, err := readMessage(r.Body)
			if err == io.EOF {
				break
			}
			if err != nil {
				left <- struct{}{}
				return
			}
			if string(m) == "fail" {
				status = "9"
				break
			}
			if _, err := w.Write(frameOf(string(m))); err != nil || rc.Flush() != nil {
				return
			}
		}
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", status) // not announced, as most programs do
	}))
	if program.EnableHTTP2 = secure; secure {
		program.StartTLS()
	} else {
		program.Config.Protocols = new(http.Protocols)
		program.Config.Protocols.SetUnencryptedHTTP2(true)
		program.Start()
	}
	t.Cleanup(func() { program.CloseClientConnections(); program.Close() })
	return program, left
}

func frameOf(text string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(text))), text...)
}

func readMessage(r io.Reader) ([]byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint32(head[1:]))
	_, err := io.ReadFull(r, b)
	return b, err
}

// chat is a call of a client of gRPC.
type chat struct {
	t    *testing.T
	send *io.PipeWriter
	res  *http.Response
}

// dial begins a call, and has the head of its answer before it says anything.
func dial(t *testing.T, ctx context.Context, client *http.Client, base, host string) *chat {
	t.Helper()
	r, w := io.Pipe()
	req, err := http.NewRequestWithContext(ctx, "POST", base+"/echo.Echo/Chat", r)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host
	req.Header.Set("Content-Type", "application/grpc+proto")
	req.Header.Set("Te", "trailers")
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close(); res.Body.Close() })
	if res.StatusCode != 200 || res.ProtoMajor != 2 {
		b, _ := io.ReadAll(res.Body)
		t.Fatalf("the call is answered with %d over %s: %s", res.StatusCode, res.Proto, b)
	}
	return &chat{t, w, res}
}

// say sends a message and returns the answer.
func (c *chat) say(text string) (string, error) {
	if _, err := c.send.Write(frameOf(text)); err != nil {
		return "", err
	}
	b, err := readMessage(c.res.Body)
	return string(b), err
}

// doors are a server over plain HTTP and one over TLS.
func doors(t *testing.T, s *Server) map[string]string {
	t.Helper()
	pair := httptest.NewTLSServer(nil)
	pair.Close()
	out := map[string]string{}
	for _, scheme := range []string{"http", "https"} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		out[scheme] = scheme + "://" + ln.Addr().String()
		if scheme == "https" {
			ln = tls.NewListener(ln, TLSConfig(&tls.Config{Certificates: pair.TLS.Certificates}))
		}
		srv := &http.Server{Handler: s}
		Speak(srv)
		go srv.Serve(ln)
		t.Cleanup(func() { srv.Close() })
	}
	return out
}

// speaking is a client of HTTP/2 alone, which takes every certificate and sends a host's name with TLS.
func speaking(t *testing.T, host string, http2 bool) *http.Client {
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: host},
		Protocols: new(http.Protocols)}
	tr.Protocols.SetHTTP2(http2)
	tr.Protocols.SetUnencryptedHTTP2(http2)
	tr.Protocols.SetHTTP1(!http2)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: time.Minute}
}

// If this fails, a program that serves gRPC on a port of a box is not reached, loses what follows its messages,
// or answers only when its client has said all; or its calls outlive their client, or the box.
func TestGRPCToPorts(t *testing.T) {
	r := newRig(t)
	var box sandboxOut
	if status := r.api("POST", "/sandboxes", `{"templateID":"base","autoPause":true,"autoResume":{"enabled":true}}`,
		&box); status != http.StatusCreated {
		t.Fatalf("a box that visits wake: %d", status)
	}
	program, left := echo(t, false)
	host := fmt.Sprintf("%d-%s.localhost", program.Listener.Addr().(*net.TCPAddr).Port, box.SandboxID)
	for scheme, base := range doors(t, r.srv) {
		client := speaking(t, host, true)
		for last, want := range map[string]string{"": "0", "fail": "9"} {
			c := dial(t, t.Context(), client, base, host)
			for _, text := range []string{"one", "", strings.Repeat("long ", 100_000)} {
				if got, err := c.say(text); got != text || err != nil {
					t.Fatalf("%s: it answers with %d bytes to %d: %v", scheme, len(got), len(text), err)
				}
			}
			if last != "" {
				if _, err := c.send.Write(frameOf(last)); err != nil {
					t.Fatal(err)
				}
			} else {
				c.send.Close()
			}
			if b, err := io.ReadAll(c.res.Body); len(b) > 0 || err != nil || c.res.Trailer.Get("Grpc-Status") != want {
				t.Errorf("%s: at the end %q, %v, and the trailers %v; want the status %s", scheme, b, err,
					c.res.Trailer, want)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		c := dial(t, ctx, client, base, host)
		cancel()
		if _, err := c.say("late"); err == nil {
			t.Errorf("%s: a call that was canceled is answered", scheme)
		}
		select {
		case <-left:
		case <-time.After(time.Minute):
			t.Errorf("%s: the program does not learn that its client went away", scheme)
		}
	}
	plain := doors(t, r.srv)["http"]
	for _, end := range []struct{ what, method, path string }{{"a pause", "POST", "/pause"},
		{"its end, after a visit woke it", "DELETE", ""}} {
		c := dial(t, t.Context(), speaking(t, host, true), plain, host)
		if got, err := c.say("control"); got != "control" {
			t.Fatalf("%s: %q, %v", end.what, got, err)
		}
		r.api(end.method, "/sandboxes/"+box.SandboxID+end.path, "", nil)
		if b, err := io.ReadAll(c.res.Body); err == nil || c.res.Trailer.Get("Grpc-Status") != "" {
			t.Errorf("%s: the call ends with %q, %v and the trailers %v", end.what, b, err, c.res.Trailer)
		}
	}
}

// If this fails, a program that serves gRPC over TLS of its own is not reached, though its box says that it does.
func TestGRPCToTLSPorts(t *testing.T) {
	r := newRig(t)
	program, _ := echo(t, true)
	port := program.Listener.Addr().(*net.TCPAddr).Port
	var box sandboxOut
	if status := r.api("POST", "/sandboxes", fmt.Sprintf(`{"templateID":"base","network":{"httpsPorts":[%d]}}`, port),
		&box); status != http.StatusCreated {
		t.Fatalf("a box with a TLS port: %d", status)
	}
	host := fmt.Sprintf("%d-%s.localhost", port, box.SandboxID)
	for scheme, base := range doors(t, r.srv) {
		c := dial(t, t.Context(), speaking(t, host, true), base, host)
		if got, err := c.say("one"); got != "one" {
			t.Errorf("%s: %q, %v", scheme, got, err)
		}
		c.send.Close()
		if b, err := io.ReadAll(c.res.Body); len(b) > 0 || err != nil || c.res.Trailer.Get("Grpc-Status") != "0" {
			t.Errorf("%s: at the end %q, %v, and the trailers %v", scheme, b, err, c.res.Trailer)
		}
	}
}

// If this fails, HTTP/2 breaks what is no gRPC: programs that speak HTTP/1.1, the API, clients that do not speak it.
func TestHTTP2BesideGRPC(t *testing.T) {
	r := newRig(t)
	program := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
		req *http.Request) {
		fmt.Fprint(w, req.Proto, " ", req.Host)
	}))
	defer program.Close()
	name := func(port int) string { return fmt.Sprintf("%d-%s.localhost", port, r.box.SandboxID) }
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := name(free.Addr().(*net.TCPAddr).Port)
	free.Close()
	open := name(program.Listener.Addr().(*net.TCPAddr).Port)
	for scheme, base := range doors(t, r.srv) {
		for _, c := range []struct {
			what, host, kind string
			http2            bool
			status           int
			text             string
		}{
			{"a program", open, "text/plain", true, 200, "HTTP/1.1 " + open},
			{"a program, over HTTP/1.1", open, "text/plain", false, 200, "HTTP/1.1 " + open},
			{"gRPC, over HTTP/1.1", open, "application/grpc", false, 200, "HTTP/1.1 " + open},
			{"gRPC-Web", open, "application/grpc-web+proto", true, 200, "HTTP/1.1 " + open},
			{"gRPC with what does not speak it", open, "application/grpc", true, 502, "did not answer"},
			{"gRPC where nothing listens", closed, "application/grpc", true, 502, "port is not open"},
			{"the agent", name(envdPort), "text/plain", true, 421, "only the ports"},
			{"the API", "api.localhost", "text/plain", false, 401, ""},
			{"the API over HTTP/2", "api.localhost", "text/plain", true, 421, "only the ports"},
		} {
			req, err := http.NewRequest("GET", base+"/sandboxes", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Host = c.host
			req.Header.Set("Content-Type", c.kind)
			offered := c.host
			if c.host == "api.localhost" && c.http2 {
				offered = open // a connection that it shares with a port's name
			}
			res, err := speaking(t, offered, c.http2).Do(req)
			if err != nil {
				t.Errorf("%s %s: %v", scheme, c.what, err)
				continue
			}
			b, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err != nil || res.StatusCode != c.status || !strings.Contains(string(b), c.text) {
				t.Errorf("%s %s: %d %s, %v; want %d %s", scheme, c.what, res.StatusCode, b, err, c.status, c.text)
			}
		}
		if scheme == "https" {
			if _, err := speaking(t, "api.localhost", true).Get(base); err == nil ||
				errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the API's name is offered HTTP/2: %v", err)
			}
		}
	}
}
