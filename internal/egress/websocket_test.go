package egress_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
)

// head sends the head of a request for /ws to a.test inside, and returns the connection with the answer to it.
func (r *rig) head(t *testing.T, method, head string) (net.Conn, *bufio.Reader, *http.Response) {
	t.Helper()
	c, err := r.dial(portOf(r.plain))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(15 * time.Second))
	fmt.Fprintf(c, "%s /ws HTTP/1.1\r\nHost: a.test:%d\r\n%s", method, portOf(r.plain), head)
	in := bufio.NewReader(c)
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c, in, resp
}

// tunnelling serves /ws: whoever asks for a change of protocol gets it, and an echo of frames.
func tunnelling(r *rig, answer string) {
	r.mux.HandleFunc("/ws", func(w http.ResponseWriter, q *http.Request) {
		if q.Header.Get("Upgrade") == "" {
			fmt.Fprint(w, "plain")
			return
		}
		c, buf, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		fmt.Fprint(c, answer)
		for b := make([]byte, 100); ; {
			n, err := (texts{buf}).Read(b)
			if err != nil {
				return
			}
			fmt.Fprint(c, frame(string(b[:n])))
		}
	})
}

// Broken if a connection can change to a protocol in which nobody judges what is asked for, or to a WebSocket
// where no rule says so.
func TestUpgradesAreRefused(t *testing.T) {
	get := outboard.NetRule{Host: "a.test", Port: -1, Methods: []string{"GET"}}
	sockets := get
	sockets.WebSocket = true
	key := "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
	change := func(to, more string) string {
		return "Connection: Upgrade\r\nUpgrade: " + to + "\r\n" + more + "\r\n"
	}
	for name, c := range map[string]struct {
		rule   outboard.NetRule
		method string
		head   string
		status int
	}{
		"a WebSocket that a rule allows": {sockets, "GET", opening, 101},
		"no rule speaks of WebSockets":   {get, "GET", opening, 403},
		"no change at all":               {get, "GET", "\r\n", 200},
		"HTTP/2":                         {sockets, "GET", "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n", 403},
		"the settings of HTTP/2 alone":   {sockets, "GET", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n", 403},
		"HTTP/2 beside a WebSocket": {sockets, "GET", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n" + opening,
			403},
		"both in one":                  {sockets, "GET", change("websocket, h2c", key), 403},
		"both in two":                  {sockets, "GET", change("websocket\r\nUpgrade: h2c", key), 403},
		"a version of it":              {sockets, "GET", change("websocket/13", key), 403},
		"another one":                  {sockets, "GET", change("foo", key), 403},
		"TCP":                          {sockets, "GET", change("tcp", key), 403},
		"TLS":                          {sockets, "GET", change("TLS/1.0", key), 403},
		"nothing":                      {sockets, "GET", change("", key), 403},
		"a connection that names none": {sockets, "GET", "Upgrade: websocket\r\n" + key + "\r\n", 403},
		"one that names more": {sockets, "GET", "Connection: Upgrade, X-Other\r\nUpgrade: websocket\r\n" +
			key + "\r\n", 403},
		"a connection alone": {sockets, "GET", "Connection: Upgrade\r\n\r\n", 403},
		"no key":             {sockets, "GET", change("websocket", "Sec-WebSocket-Version: 13\r\n"), 403},
		"a key that is none": {sockets, "GET", change("websocket", "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eHg=\r\n"), 403},
		"two keys":           {sockets, "GET", change("websocket", key+"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"), 403},
		"an old version": {sockets, "GET", change("websocket", strings.Replace(key, "13", "8", 1)),
			403},
		"another method": {anyPort("a.test"), "POST", opening, 403},
		"a body": {sockets, "GET", strings.TrimSuffix(opening, "\r\n") +
			"Content-Length: 2\r\n\r\nxx", 403},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, rules(c.rule))
			tunnelling(r, opened)
			conn, in, resp := r.head(t, c.method, c.head)
			arrived := r.hits.Load()
			if resp.StatusCode != c.status || (arrived == 1) != (c.status < 300) {
				t.Fatalf("%d, and %d arrived", resp.StatusCode, arrived)
			}
			if c.status == 101 {
				fmt.Fprint(conn, masks("hello"))
				got := make([]byte, 7)
				if _, err := io.ReadFull(in, got); err != nil || string(got) != frame("hello") {
					t.Errorf("%q, %v", got, err)
				}
			}
			list := r.audit(t)
			if len(list) != 1 || (list[0].Decision == outboard.Allowed) != (c.status < 300) ||
				strings.Contains(string(list[0].Detail), `"websocket":true`) != (c.status == 101 ||
					c.rule.Methods != nil && !c.rule.WebSocket && c.head == opening) {
				t.Errorf("%+v", list)
			}
		})
	}
}

// Broken if a request for another protocol passes by the way of clients that know of the proxy, or in a tunnel.
func TestUpgradesByEveryWay(t *testing.T) {
	r := newRig(t, rules(outboard.NetRule{Host: "a.test", Port: -1}))
	tunnelling(r, opened)
	for _, proxy := range []bool{false, true} {
		for _, url := range []string{r.http("a.test", "/ws"), r.https("a.test", "/ws")} {
			if strings.HasPrefix(url, "https") {
				continue // HTTP/2: it has no upgrades
			}
			for to, want := range map[string]int{"h2c": 403, "websocket": 403, "": 200} {
				h := http.Header{}
				if to != "" {
					h = http.Header{"Connection": {"Upgrade"}, "Upgrade": {to}, "Sec-Websocket-Version": {"13"},
						"Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="}}
				}
				if code, body := do(t, r.client(proxy), "GET", url, h); code != want {
					t.Errorf("proxy %v, %s to %q: %d %s, want %d", proxy, url, to, code, body, want)
				}
			}
		}
	}
	c := r.wire(t, portOf(r.secure), true)
	c.say("GET /ws", "Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
	if resp, _ := c.hear("GET"); resp.StatusCode != 403 {
		t.Errorf("over TLS: %s", resp.Status)
	}
	if n := r.hits.Load(); n != 2 {
		t.Errorf("%d requests arrived, want the two controls", n)
	}
}

// Broken if a server that does not answer the handshake as it must has its connection used all the same.
func TestHandshakesOfServers(t *testing.T) {
	for name, c := range map[string]struct {
		answer string
		status int
	}{
		"right":                {opened, 101},
		"another key":          {strings.Replace(opened, "s3pP", "AAAA", 1), 502},
		"no key":               {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", 502},
		"another protocol":     {strings.Replace(opened, "websocket", "h2c", 1), 502},
		"an extension":         {strings.TrimSuffix(opened, "\r\n") + "Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n", 502},
		"a protocol inside":    {strings.TrimSuffix(opened, "\r\n") + "Sec-WebSocket-Protocol: chat\r\n\r\n", 101},
		"one nobody asked for": {strings.TrimSuffix(opened, "\r\n") + "Sec-WebSocket-Protocol: other\r\n\r\n", 502},
		"its own words":        {strings.Replace(opened, "Switching Protocols", "Own Words", 1), 101},
	} {
		r := newRig(t, rules(anyPort("a.test")))
		tunnelling(r, c.answer)
		_, _, resp := r.head(t, "GET", "Sec-WebSocket-Protocol: soap, chat\r\n"+opening)
		if resp.StatusCode != c.status || strings.Contains(resp.Status, "Own") {
			t.Errorf("%s: %s, want %d", name, resp.Status, c.status)
		}
	}
	// One that switches without being asked.
	r := newRig(t, rules(anyPort("a.test")))
	r.mux.HandleFunc("/ws", func(w http.ResponseWriter, _ *http.Request) {
		if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
			fmt.Fprint(c, opened)
			c.Close()
		}
	})
	for _, way := range []string{"", "Connection: close\r\n"} {
		if _, _, resp := r.head(t, "GET", way+"\r\n"); resp.StatusCode != 502 {
			t.Errorf("unasked, %q: %s", way, resp.Status)
		}
	}
}

// Broken if something else than frames can be said behind a handshake: to the server, or by it.
func TestOnlyFramesBehindAHandshake(t *testing.T) {
	r := newRig(t, rules(anyPort("a.test")))
	heard := make(chan string, 1)
	r.mux.HandleFunc("/ws", func(w http.ResponseWriter, q *http.Request) {
		c, buf, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		fmt.Fprint(c, opened+frame("hello")+q.Header.Get("X-Say"))
		all, _ := io.ReadAll(buf)
		heard <- string(all)
	})
	const smuggled = "DELETE /all HTTP/1.1\r\nHost: a.test\r\n\r\n"
	conn, in, _ := r.head(t, "GET", opening)
	fmt.Fprint(conn, masks("one")+smuggled)
	if got := <-heard; strings.Contains(got, "DELETE") {
		t.Errorf("the server heard %q", got)
	}
	if all, _ := io.ReadAll(in); string(all) != frame("hello") {
		t.Errorf("the client heard %q", all)
	}
	conn, in, _ = r.head(t, "GET", "X-Say: HTTP/1.1 200 OK\r\n"+opening)
	if all, _ := io.ReadAll(in); string(all) != frame("hello") {
		t.Errorf("the client heard %q", all)
	}
	conn.Close()
	<-heard
	refused := 0
	for _, a := range r.audit(t) {
		if a.Decision == outboard.Refused && a.Rule == "upgrade" && strings.Contains(string(a.Detail), "no frame") {
			refused++
		}
	}
	if refused != 1 {
		t.Errorf("%d refusals are on record", refused)
	}
}

// Broken if a host that a person allowed is reached by WebSocket though nobody said so, or not though somebody
// did; or if the refusal does not name the command.
func TestAllowedWebSocket(t *testing.T) {
	r := newRig(t, rules())
	tunnelling(r, opened)
	allow := func(g outboard.NetGrant) {
		t.Helper()
		g.ID, g.Session, g.Host, g.Port = outboard.NewID[outboard.NetGrantID](outboard.PrefixNetGrant), r.session, "a.test", portOf(r.plain)
		g.Uses, g.CreatedAt = -1, time.Now()
		if err := r.store.AllowNet(t.Context(), g, outboard.Answer{}, nil); err != nil {
			t.Fatal(err)
		}
	}
	open := func() (status int, body string) {
		t.Helper()
		_, _, resp := r.head(t, "GET", opening)
		if resp.StatusCode == 101 {
			return 101, ""
		}
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Error(err)
		}
		return resp.StatusCode, string(b)
	}
	allow(outboard.NetGrant{})
	want := fmt.Sprintf("outboard net allow %s a.test:%d --websocket", r.session, portOf(r.plain))
	if status, body := open(); status != 403 || !strings.Contains(body, want) {
		t.Errorf("an allow that does not speak of WebSockets: %d %s", status, body)
	}
	allow(outboard.NetGrant{WebSocket: true})
	if status, body := open(); status != 101 {
		t.Errorf("an allow of WebSockets: %d %s", status, body)
	}
}
