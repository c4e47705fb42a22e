package egress_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/egress"
	"github.com/outboard-dev/outboard/internal/outbound"
	"github.com/outboard-dev/outboard/internal/store"
)

// loopback is a sandbox's network without the sandbox: what connects to it says first, in one byte pair, which
// port it means.
type loopback struct {
	net.Listener
	closed chan struct{}
}

func (l *loopback) Listen(context.Context, outboard.SandboxID, []byte) (net.Listener, error) {
	select {
	case <-l.closed:
		return nil, outboard.Errorf(outboard.NotFound, "gone")
	default:
		return l, nil
	}
}

// Accept reads the port that the client means.
func (l *loopback) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	var b [2]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return nil, err
	}
	return &meant{c, int(b[0])<<8 | int(b[1])}, nil
}

type meant struct {
	net.Conn
	port int
}

// CloseWrite closes one direction, as a sandbox's own connections can.
func (m *meant) CloseWrite() error { return m.Conn.(*net.TCPConn).CloseWrite() }

func (m *meant) LocalAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(198, 18, 0, 1), Port: m.port} }

// rig is a gateway, a sandbox's network, and servers on loopback under the names that end in .test.
type rig struct {
	store   *store.Store
	gateway *egress.Gateway
	id      outboard.SandboxID
	session outboard.SessionID
	inside  string         // address of the sandbox's network
	roots   *x509.CertPool // what a client inside trusts
	world   *testCA        // who signs for servers

	secure, plain *httptest.Server
	mux           *http.ServeMux
	hits          atomic.Int64
	mu            sync.Mutex
	names         map[string][]string
	lookups       map[string]bool
}

// asked reports whether a name was looked up.
func (r *rig) asked(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lookups[name]
}

type option func(*egress.Config, *outboard.SessionConfig)

func rules(list ...outboard.NetRule) option {
	return func(_ *egress.Config, s *outboard.SessionConfig) { s.Env.Networking.Rules = list }
}

func newRig(t testing.TB, options ...option) *rig {
	t.Helper()
	r := &rig{mux: http.NewServeMux(), names: map[string][]string{},
		id:      outboard.NewID[outboard.SandboxID](outboard.PrefixSandbox),
		session: outboard.NewID[outboard.SessionID](outboard.PrefixSession)}
	handler := http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		r.hits.Add(1)
		r.mux.ServeHTTP(w, q)
	})
	r.plain = httptest.NewUnstartedServer(handler)
	r.plain.Config.Protocols = new(http.Protocols)
	r.plain.Config.Protocols.SetHTTP1(true)
	r.plain.Config.Protocols.SetUnencryptedHTTP2(true)
	r.plain.Start()
	t.Cleanup(r.plain.Close)
	ca := newCA(t)
	r.world = ca
	r.secure = httptest.NewUnstartedServer(handler)
	r.secure.EnableHTTP2 = true
	r.secure.TLS = &tls.Config{GetCertificate: ca.leaf}
	r.secure.StartTLS()
	t.Cleanup(r.secure.Close)
	r.store = openStore(t)
	r.open(t, options...)
	return r
}

// again is a gateway of another server, or of the same one after a restart, with a sandbox of the same session.
func (r *rig) again(t testing.TB, options ...option) *rig {
	t.Helper()
	n := &rig{mux: r.mux, names: map[string][]string{}, id: outboard.NewID[outboard.SandboxID](outboard.PrefixSandbox),
		session: r.session,
		store:   r.store, world: r.world, secure: r.secure, plain: r.plain}
	n.open(t, options...)
	return n
}

// open starts the gateway.
func (r *rig) open(t testing.TB, options ...option) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	net := &loopback{l, make(chan struct{})}
	t.Cleanup(func() { close(net.closed); l.Close() })
	r.inside = l.Addr().String()
	cfg := egress.Config{Store: r.store, Provider: net, Dir: t.TempDir(), Roots: r.world.pool,
		Guard: r.guard()}
	session := outboard.SessionConfig{Env: outboard.EnvConfig{Networking: outboard.Networking{Mode: "limited"}}}
	for _, o := range options {
		o(&cfg, &session)
	}
	if r.gateway, err = egress.New(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.gateway.Stop)
	pem, err := r.gateway.Prepare(r.id)
	if err != nil {
		t.Fatal(err)
	}
	r.roots = x509.NewCertPool()
	r.roots.AppendCertsFromPEM(pem)
	if session.Owner.Name != ofBox {
		r.gateway.Attach(r.id, r.session, session)
	}
}

// ofBox as an owner's name leaves it to the test to attach the sandbox.
const ofBox = "box"

func (r *rig) guard() outbound.Guard {
	return outbound.Guard{Resolve: r.resolve, Private: outbound.Loopback}
}

func openStore(t testing.TB) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), store.Config{Path: t.TempDir() + "/db"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func (r *rig) resolve(_ context.Context, host string) ([]netip.Addr, error) {
	name := strings.TrimSuffix(host, ".")
	r.mu.Lock()
	list, ok := r.names[name]
	if r.lookups == nil {
		r.lookups = map[string]bool{}
	}
	r.lookups[name] = true
	r.mu.Unlock()
	if !ok && strings.HasSuffix(name, ".test") {
		list, ok = []string{"127.0.0.1"}, true
	}
	if !ok {
		return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
	}
	var out []netip.Addr
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out, nil
}

func portOf(s *httptest.Server) int {
	u, _ := url.Parse(s.URL)
	n, _ := strconv.Atoi(u.Port())
	return n
}

// https and http are addresses of the servers under a name.
func (r *rig) https(host, path string) string {
	return fmt.Sprintf("https://%s:%d%s", host, portOf(r.secure), path)
}

func (r *rig) http(host, path string) string {
	return fmt.Sprintf("http://%s:%d%s", host, portOf(r.plain), path)
}

// dial connects inside, to a port.
func (r *rig) dial(port int) (net.Conn, error) {
	c, err := net.Dial("tcp", r.inside)
	if err == nil {
		_, err = c.Write([]byte{byte(port >> 8), byte(port)})
	}
	return c, err
}

// client is a program inside: one that knows of the proxy, or one that connects to what names resolve to.
func (r *rig) client(proxy bool) *http.Client {
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: r.roots}, ForceAttemptHTTP2: true,
		DisableCompression: true}
	tr.DialContext = func(_ context.Context, _, addr string) (net.Conn, error) {
		_, p, _ := net.SplitHostPort(addr)
		n, _ := strconv.Atoi(p)
		return r.dial(n)
	}
	if proxy {
		tr.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: "127.0.0.1:3128"})
	}
	return &http.Client{Transport: tr, Timeout: 20 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// get makes a request inside and returns status and body; an error is status 0.
func get(t testing.TB, c *http.Client, url string) (int, string) {
	t.Helper()
	return do(t, c, "GET", url, nil)
}

func do(t testing.TB, c *http.Client, method, url string, header http.Header) (int, string) {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(q.Header, header)
	resp, err := c.Do(q)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(b)
}

// audit returns the session's records, oldest first.
func (r *rig) audit(t testing.TB) []outboard.AuditRecord {
	t.Helper()
	list, err := r.store.AuditRecords(t.Context(), store.AuditQuery{Actor: string(r.session), Limit: 10000})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// opening are the headers that open a WebSocket, and opened is the answer of a server to them.
const (
	opening = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " +
		"dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
	opened = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: " +
		"Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
)

// frame is a whole short text message of a server, and masks one of a client.
func frame(text string) string { return string([]byte{0x81, byte(len(text))}) + text }
func masks(text string) string {
	return string([]byte{0x81, byte(0x80 | len(text)), 0, 0, 0, 0}) + text
}

// texts reads what short messages say, of a server or with a mask of zeros of a client.
type texts struct{ in io.Reader }

// Read returns one message, or its beginning.
func (m texts) Read(b []byte) (int, error) {
	var head [6]byte
	if _, err := io.ReadFull(m.in, head[:2]); err != nil {
		return 0, err
	}
	if head[1]&0x80 != 0 {
		if _, err := io.ReadFull(m.in, head[2:]); err != nil {
			return 0, err
		}
	}
	text := make([]byte, head[1]&0x7f)
	if _, err := io.ReadFull(m.in, text); err != nil {
		return 0, err
	}
	if len(text) > len(b) {
		return 0, io.ErrShortBuffer
	}
	return copy(b, text), nil
}
