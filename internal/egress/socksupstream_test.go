package egress_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/egress"
	"github.com/outboard-dev/outboard/internal/store"
)

const (
	proxyName, proxyWord = "client", "pass-0f-the-proxy"
	out, outToo          = "93.184.216.34", "93.184.216.35"
)

// socksProxy is a SOCKS5 proxy of a client's: a whole one, behind which public addresses are the rig's servers
// on loopback.
type socksProxy struct {
	net.Listener
	password string          // "" = it asks for none
	refuses  map[string]byte // addresses, with what it says
	bad      func(net.Conn)  // speaks in its place

	mu    sync.Mutex
	asked []string // addresses
	auth  []string
	run   sync.WaitGroup
}

func newProxy(t *testing.T, password string) *socksProxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &socksProxy{Listener: l, password: password, refuses: map[string]byte{}}
	p.run.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.run.Go(func() {
				defer c.Close()
				if bad := p.badly(); bad != nil {
					bad(c)
					return
				}
				if err := p.serve(c); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
					t.Logf("the proxy: %v", err)
				}
			})
		}
	})
	t.Cleanup(func() { l.Close() })
	return p
}

func (p *socksProxy) badly() func(net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bad
}

func (p *socksProxy) speaks(bad func(net.Conn)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bad = bad
}

// took returns what it was asked for since the last time.
func (p *socksProxy) took() (asked, auth []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	asked, auth = p.asked, p.auth
	p.asked, p.auth = nil, nil
	return asked, auth
}

func (p *socksProxy) login(c net.Conn) error {
	head := make([]byte, 2)
	if _, err := io.ReadFull(c, head); err != nil {
		return err
	}
	methods := make([]byte, head[1])
	if _, err := io.ReadFull(c, methods); err != nil {
		return err
	}
	if p.password == "" {
		_, err := c.Write([]byte{5, 0})
		return err
	}
	if methods[0] != 2 {
		c.Write([]byte{5, 0xff})
		return errors.New("no password was offered")
	}
	c.Write([]byte{5, 2})
	words := make([]string, 2)
	if _, err := io.ReadFull(c, head[:1]); err != nil {
		return err
	}
	for i := range words {
		if _, err := io.ReadFull(c, head[:1]); err != nil {
			return err
		}
		b := make([]byte, head[0])
		if _, err := io.ReadFull(c, b); err != nil {
			return err
		}
		words[i] = string(b)
	}
	p.mu.Lock()
	p.auth = append(p.auth, strings.Join(words, ":"))
	p.mu.Unlock()
	if words[0] != proxyName || words[1] != p.password {
		c.Write([]byte{1, 1})
		return errors.New("the password is wrong")
	}
	_, err := c.Write([]byte{1, 0})
	return err
}

func (p *socksProxy) serve(c net.Conn) error {
	if err := p.login(c); err != nil {
		return err
	}
	head := make([]byte, 4)
	if _, err := io.ReadFull(c, head); err != nil {
		return err
	}
	size := map[byte]int{1: 4, 4: 16}[head[3]]
	if size == 0 {
		return fmt.Errorf("it was asked for an address of type %d", head[3])
	}
	b := make([]byte, size+2)
	if _, err := io.ReadFull(c, b); err != nil {
		return err
	}
	addr, _ := netip.AddrFromSlice(b[:size])
	port := binary.BigEndian.Uint16(b[size:])
	p.mu.Lock()
	p.asked = append(p.asked, netip.AddrPortFrom(addr, port).String())
	no := p.refuses[addr.String()]
	p.mu.Unlock()
	if no != 0 {
		_, err := c.Write([]byte{5, no, 0, 1, 0, 0, 0, 0, 0, 0})
		return err
	}
	to, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err
	}
	defer to.Close()
	c.Write(append([]byte{5, 0, 0, 3, 4}, "here\x04\x38"...)) // an answer with a name
	p.run.Go(func() { io.Copy(to, c); to.(*net.TCPConn).CloseWrite() })
	_, err = io.Copy(c, to)
	return err
}

// socksUpstreamRig is a rig whose box goes through a proxy that the operator has listed, to servers at a public
// address.
func socksUpstreamRig(t *testing.T, password string, change ...option) (*rig, *socksProxy, outboard.Box) {
	t.Helper()
	p := newProxy(t, password)
	list := func(c *egress.Config, s *outboard.SessionConfig) {
		c.Boxes, s.Owner.Name = outboard.Networking{Mode: "unrestricted"}, ofBox
		c.BoxProxies = []string{p.Addr().String()}
		c.ProxyPassword = func(_ context.Context, s egress.Subject, r egress.Request) (outboard.Secret, error) {
			if s.Box == "" || r.Scheme != "socks5" || r.Headers.Credential != "vcrd_of_box" ||
				fmt.Sprintf("%s:%d", r.Host, r.Port) != p.Addr().String() {
				return outboard.Secret{}, fmt.Errorf("asked for %+v", r)
			}
			return outboard.NewSecret(proxyWord), nil
		}
	}
	r := newRig(t, append([]option{list}, change...)...)
	b := outboard.Box{ID: outboard.NewBoxID(), Org: "org_boxes", Owner: "apikey_1", State: outboard.BoxRunning,
		CreatedAt: r.store.Now(), EndAt: r.store.Now(),
		Net: through(p, password), Headers: outboard.BoxHeaders{Credential: "vcrd_of_box"}}
	if err := r.store.AddBox(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	r.gateway.AttachBox(r.id, b)
	r.mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "here") })
	r.names["out.test"], r.names["two.test"] = []string{out}, []string{out, outToo}
	return r, p, b
}

func through(p *socksProxy, password string) outboard.BoxNetwork {
	n := outboard.BoxNetwork{Proxy: outboard.BoxProxy{Address: p.Addr().String()}}
	if password != "" {
		n.Proxy.Username, n.Proxy.Password = proxyName, true
	}
	return n
}

// Broken if what a box is allowed does not go through its proxy, if the proxy is told a name or an address that
// was not checked, if what is denied reaches it, or if the record does not say that it was used.
func TestSocksUpstream(t *testing.T) {
	for _, password := range []string{"", proxyWord} {
		r, p, b := socksUpstreamRig(t, password)
		for _, proxy := range []bool{false, true} {
			c := r.client(proxy)
			for _, url := range []string{r.http("out.test", "/x"), r.https("out.test", "/x")} {
				if status, text := get(t, c, url); status != 200 || text != "here" {
					t.Errorf("%s: %d %s", url, status, text)
				}
				c.CloseIdleConnections()
			}
		}
		asked, auth := p.took()
		if len(asked) == 0 || (password != "") != (len(auth) > 0) {
			t.Errorf("asked for %v with %v", asked, auth)
		}
		for _, a := range asked {
			if !strings.HasPrefix(a, out+":") {
				t.Errorf("the proxy was asked for %s", a)
			}
		}
		n := through(p, password)
		n.Closed, n.Allow = true, []string{"out.test"}
		r.setBox(t, b.ID, n)
		if status, text := get(t, r.client(false), r.http("two.test", "/x")); status != 403 ||
			!strings.Contains(text, "no rule lets") || r.asked("two.test") {
			t.Errorf("what is denied: %d %s", status, text)
		}
		if asked, _ := p.took(); len(asked) > 0 {
			t.Errorf("and the proxy was asked for %v", asked)
		}
		r.setBox(t, b.ID, outboard.BoxNetwork{})
		r.names["out.test"] = []string{"127.0.0.1"}
		if status, text := get(t, r.client(false), r.http("out.test", "/x")); status != 200 {
			t.Errorf("without a proxy, at once: %d %s", status, text)
		}
		if asked, _ := p.took(); len(asked) > 0 {
			t.Errorf("and the proxy was asked for %v", asked)
		}
		via := map[string]int{}
		list, err := r.store.AuditRecords(t.Context(), store.AuditQuery{Actor: string(b.ID), Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range list {
			var d struct {
				Proxy string `json:"proxy"`
			}
			if err := json.Unmarshal(a.Detail, &d); err != nil || strings.Contains(string(a.Detail), proxyWord) {
				t.Errorf("%s, %v", a.Detail, err)
			}
			via[a.Decision+" "+d.Proxy]++
		}
		address := p.Addr().String()
		if via["allow "+address] != 4 || via["deny "] != 1 || via["allow "] != 1 {
			t.Errorf("on record: %v", via)
		}
	}
}

// Broken if a server that does not answer keeps the proxy from being asked for its other address, or if a
// refusal does not.
func TestSocksUpstreamOtherAddress(t *testing.T) {
	r, p, _ := socksUpstreamRig(t, "")
	p.refuses[out] = 4
	if status, text := get(t, r.client(false), r.http("two.test", "/x")); status != 200 {
		t.Errorf("%d %s", status, text)
	}
	if asked, _ := p.took(); len(asked) != 2 || !strings.HasPrefix(asked[1], outToo) {
		t.Errorf("asked for %v", asked)
	}
	p.refuses[out] = 2
	r.gateway.Detach(r.id)
	r, p, _ = socksUpstreamRig(t, "")
	p.refuses[out] = 2
	if status, text := get(t, r.client(false), r.http("two.test", "/x")); status != 502 ||
		!strings.Contains(text, "its rules do not allow it") {
		t.Errorf("%d %s", status, text)
	}
	if asked, _ := p.took(); len(asked) != 1 {
		t.Errorf("asked for %v", asked)
	}
}

// Broken if a proxy that is not there, refuses or does not speak the protocol is passed by, or is not told from
// a server that is not there.
func TestBrokenSocksUpstream(t *testing.T) {
	r, p, b := socksUpstreamRig(t, proxyWord)
	says := func(text string) func(net.Conn) {
		return func(c net.Conn) {
			io.ReadFull(c, make([]byte, 3))
			io.WriteString(c, text)
			io.Copy(io.Discard, c)
		}
	}
	refused := func(code byte) func(net.Conn) {
		return says("\x05\x02\x01\x00\x05" + string(code) + "\x00\x01\x00\x00\x00\x00\x00\x00")
	}
	for what, c := range map[string]struct {
		bad  func(net.Conn)
		word string
	}{
		"an HTTP server":   {says("HTTP/1.1 400 Bad Request\r\n\r\n"), "does not speak SOCKS5"},
		"version 4":        {says("\x04\x5a"), "does not speak SOCKS5"},
		"another method":   {says("\x05\x00"), "does not speak SOCKS5"},
		"no method":        {says("\x05\xff"), "does not take the name and password"},
		"a wrong password": {says("\x05\x02\x01\x01"), "does not take the name and password"},
		"closed at once":   {func(net.Conn) {}, "broke off"},
		"closed later": {func(c net.Conn) {
			io.ReadFull(c, make([]byte, 3))
			io.WriteString(c,
				"\x05\x02\x01\x00\x05\x00")
		}, "broke off"},
		"an odd address": {says("\x05\x02\x01\x00\x05\x00\x00\x09\x00"), "does not speak SOCKS5"},
		"unreachable":    {refused(3), "the network cannot be reached"},
		"a code of none": {refused(77), "it answered 77"},
		"its rules":      {refused(2), "its rules do not allow it"},
		"the control":    {nil, ""},
	} {
		p.speaks(c.bad)
		hits := r.hits.Load()
		for _, url := range []string{r.http("out.test", "/x"), r.https("out.test", "/x")} {
			status, text := get(t, r.client(false), url)
			if c.bad == nil && status != 200 || c.bad != nil && (status != 502 || !strings.Contains(text, c.word)) {
				t.Errorf("%s: %s: %d %s", what, url, status, text)
			}
			if strings.Contains(text, p.Addr().String()) || strings.Contains(text, proxyWord) {
				t.Errorf("%s: the sandbox is told of the proxy: %s", what, text)
			}
		}
		if through := r.hits.Load() - hits; (through > 0) != (c.bad == nil) {
			t.Errorf("%s: %d requests reached the server", what, through)
		}
		r.setBox(t, b.ID, outboard.BoxNetwork{Closed: true}) // no connection is kept
		get(t, r.client(false), r.http("out.test", "/x"))
		r.setBox(t, b.ID, through(p, proxyWord))
	}
	p.Close()
	if status, text := get(t, r.client(false), r.http("out.test", "/x")); status != 502 ||
		!strings.Contains(text, "could not be reached") {
		t.Errorf("a proxy that is away: %d %s", status, text)
	}
}

// Broken if a box's proxy is a way to what no request reaches: the operator's network, metadata, what is private
// behind the proxy; or if one goes out without the password that it should have.
func TestSocksUpstreamReachesNothingElse(t *testing.T) {
	r, p, b := socksUpstreamRig(t, proxyWord)
	r.names["inside.test"], r.names["meta.test"], r.names["proxy.test"] = []string{"127.0.0.1"}, []string{"169.254.169.254"}, []string{"169.254.169.254"}
	for host, why := range map[string]string{"inside.test": "not on the public internet",
		"meta.test": "not on the public internet", "127.0.0.1": "not on the public internet"} {
		if status, text := get(t, r.client(false), r.http(host, "/x")); status != 403 || !strings.Contains(text, why) {
			t.Errorf("%s: %d %s", host, status, text)
		}
	}
	if asked, _ := p.took(); len(asked) > 0 {
		t.Errorf("the proxy was asked for %v", asked)
	}
	_, port, _ := net.SplitHostPort(p.Addr().String())
	check := func(what, address string, status int, word string) {
		t.Helper()
		n := through(p, proxyWord)
		n.Proxy.Address = address
		r.setBox(t, b.ID, n)
		if got, text := get(t, r.client(false), r.http("out.test", "/x")); got != status ||
			!strings.Contains(text, word) {
			t.Errorf("%s: %d %s, want %d", what, got, text, status)
		}
	}
	check("the control", p.Addr().String(), 200, "here")
	check("no address", "nowhere", 403, "does not let sandboxes")
	check("metadata", "proxy.test:80", 403, "not at an address that may be reached")
	check("no such name", "none.example:"+port, 502, "its name could not be resolved")

	bound, q, _ := socksUpstreamRig(t, "", func(c *egress.Config, _ *outboard.SessionConfig) {
		c.Boxes, c.BoxProxies = outboard.Networking{Mode: "limited",
			Rules: []outboard.NetRule{{Host: "out.test", Port: -1}}}, nil
	})
	if status, text := get(t, bound.client(false), bound.http("out.test", "/x")); status != 403 ||
		!strings.Contains(text, "does not let sandboxes") {
		t.Errorf("a proxy that the operator has not listed: %d %s", status, text)
	}
	private, _, _ := socksUpstreamRig(t, "",
		func(c *egress.Config, _ *outboard.SessionConfig) { c.BoxProxies, c.Guard.Private = nil, nil })
	if status, text := get(t, private.client(false), private.http("out.test", "/x")); status != 403 ||
		!strings.Contains(text, "not at an address") {
		t.Errorf("a private one: %d %s", status, text)
	}
	if asked, _ := q.took(); len(asked) > 0 {
		t.Errorf("it was asked for %v", asked)
	}
	lost, l, box := socksUpstreamRig(t, proxyWord)
	if _, err := lost.store.ChangeBox(t.Context(), box.ID,
		func(b *outboard.Box) error { b.Headers = outboard.BoxHeaders{}; return nil }); err != nil {
		t.Fatal(err)
	}
	if status, text := get(t, lost.client(false), lost.http("out.test", "/x")); status != 503 ||
		!strings.Contains(text, "set the sandbox's network again") {
		t.Errorf("a fork: %d %s", status, text)
	}
	if asked, auth := l.took(); len(asked)+len(auth) > 0 {
		t.Errorf("it was asked for %v with %v", asked, auth)
	}
}
