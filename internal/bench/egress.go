package bench

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/egress"
	"github.com/outboard-dev/outboard/internal/outbound"
	"github.com/outboard-dev/outboard/internal/policy"
	"github.com/outboard-dev/outboard/internal/server"
	"github.com/outboard-dev/outboard/internal/store"
)

// Bars of the gateway. The first is absolute: it is what a person waits for, on any machine.
const (
	egressAdded  = 500 // us that the gateway adds to the median of a kept-alive request
	egressBulk   = 0.5 // of the bytes per second
	auditBar     = 20  // us per record of 64 concurrent writers
	auditWriters = 64
	bulkSize     = 64 << 20
)

// egressClients are how many clients ask at once: a few, which mostly wait for records to become durable, and as
// many as keep the machine busy meanwhile.
var egressClients = []int{8, 64}

// EgressConfig says what `bench egress` measures.
type EgressConfig struct {
	Dir      string        // on the disk to measure
	Postgres string        // URL, for the audit's row on it; "" leaves that out
	N        int           // requests per row
	Span     time.Duration // how long each rate is measured

	// adjust changes the gateway and the session of what uses the rig; nil = nothing.
	adjust func(*store.Store, *egress.Config, *outboard.SessionConfig) error
}

// Egress measures requests over TLS to a server on loopback, by a client that connects directly and by the same
// client through the gateway: with TLS ended and begun again, rules, policies and a durable audit record for
// each. The sandbox is left out: what it adds is a loopback connection like the direct one.
func Egress(ctx context.Context, cfg EgressConfig) ([]Row, error) {
	cfg.adjust = func(st *store.Store, gc *egress.Config, _ *outboard.SessionConfig) error {
		engine, err := policy.New(policy.Config{Source: st})
		gc.Policy = server.NewGatePolicy(engine, st, nil)
		return err
	}
	r, err := newEgressRig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer r.close()
	var rows []Row
	for _, f := range []func(context.Context, *egressRig, EgressConfig) ([]Row, error){requestRow, rateRow, bulkRow,
		auditRows} {
		got, err := f(ctx, r, cfg)
		if err != nil {
			return rows, err
		}
		rows = append(rows, got...)
	}
	return rows, nil
}

// egressRig is a server, a gateway, and two ways to the server.
type egressRig struct {
	store   *store.Store
	server  *httptest.Server
	gateway *egress.Gateway
	session outboard.SessionID
	inside  net.Listener
	roots   *x509.CertPool
	undo    []func()
}

func (r *egressRig) close() {
	for i := len(r.undo) - 1; i >= 0; i-- {
		r.undo[i]()
	}
}

// meantPort is a connection of a sandbox to a port that the client named first.
type meantPort struct {
	net.Conn
	port int
}

// LocalAddr says what the client connected to.
func (m *meantPort) LocalAddr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(198, 18, 0, 1), Port: m.port}
}

// lobby is a sandbox's network without the sandbox: a client says which port it means before anything else.
type lobby struct{ net.Listener }

// Listen implements sandbox.Networked.
func (l lobby) Listen(context.Context, outboard.SandboxID, []byte) (net.Listener, error) {
	return l, nil
}

// Accept reads the port.
func (l lobby) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	var b [2]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &meantPort{c, int(b[0])<<8 | int(b[1])}, nil
}

const egressHost = "bench.test"

func newEgressRig(ctx context.Context, cfg EgressConfig) (_ *egressRig, err error) {
	r := &egressRig{}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	body := make([]byte, bulkSize)
	r.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path == "/bulk" {
			w.Header().Set("Content-Length", strconv.Itoa(len(body)))
			_, _ = w.Write(body)
			return
		}
		_, _ = io.WriteString(w, "ok")
		if sent := q.Header.Get("X-Bench"); sent != "" {
			fmt.Fprintf(w, "\nX-Bench: %d bytes", len(sent))
		}
	}))
	certificate, pool, err := egressCertificate(egressHost)
	if err != nil {
		return nil, err
	}
	r.server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	r.server.StartTLS()
	r.undo = append(r.undo, r.server.Close)
	if r.store, err = store.Open(ctx, store.Config{Path: filepath.Join(cfg.Dir, "egress.db")}); err != nil {
		return nil, err
	}
	r.undo = append(r.undo, func() { r.store.Close() })
	if r.inside, err = new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	r.undo = append(r.undo, func() { r.inside.Close() })
	gc := egress.Config{Store: r.store, Provider: lobby{r.inside}, Dir: filepath.Join(cfg.Dir, "egress"), Roots: pool,
		Guard: outbound.Guard{Private: outbound.Loopback, Resolve: func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
		}}}
	sc := outboard.SessionConfig{Env: outboard.EnvConfig{Networking: outboard.Networking{Mode: "limited",
		Rules:  []outboard.NetRule{{Host: egressHost, Port: -1}},
		Budget: outboard.NetBudget{Requests: 1 << 40, Bytes: 1 << 50, Hosts: 10}}}}
	if cfg.adjust != nil {
		if err := cfg.adjust(r.store, &gc, &sc); err != nil {
			return nil, err
		}
	}
	if r.gateway, err = egress.New(gc); err != nil {
		return nil, err
	}
	r.undo = append(r.undo, r.gateway.Stop)
	return r, r.attach(ctx, pool, sc)
}

// attach gives the gateway a sandbox of a session that may reach the server.
func (r *egressRig) attach(ctx context.Context, pool *x509.CertPool, sc outboard.SessionConfig) error {
	h := outboard.Header{ID: outboard.NewID[outboard.SessionID](outboard.PrefixSession),
		Thread: outboard.NewID[outboard.ThreadID](outboard.PrefixThread),
		Phase:  outboard.PhaseIdle}
	h, err := r.store.CreateSession(ctx, h, sc, outboard.NewEvent(h.Thread, &outboard.SessionCreated{Config: sc}))
	if err != nil {
		return err
	}
	id := outboard.NewID[outboard.SandboxID](outboard.PrefixSandbox)
	pem, err := r.gateway.Prepare(id)
	if err != nil {
		return err
	}
	r.roots = pool.Clone()
	r.roots.AppendCertsFromPEM(pem)
	r.gateway.Attach(id, h.ID, sc)
	r.session = h.ID
	return nil
}

// port is the server's.
func (r *egressRig) port() int { return r.server.Listener.Addr().(*net.TCPAddr).Port }

// client is one that keeps its connections, directly or through the gateway.
func (r *egressRig) client(through bool) *http.Client {
	address := r.server.Listener.Addr().String()
	port := r.server.Listener.Addr().(*net.TCPAddr).Port
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: r.roots},
		MaxIdleConnsPerHost: slices.Max(egressClients), DisableCompression: true}
	tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		if !through {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}
		c, err := new(net.Dialer).DialContext(ctx, "tcp", r.inside.Addr().String())
		if err == nil {
			_, err = c.Write([]byte{byte(port >> 8), byte(port)})
		}
		return c, err
	}
	return &http.Client{Transport: tr}
}

func (r *egressRig) url(path string) string {
	u := url.URL{Scheme: "https", Host: net.JoinHostPort(egressHost,
		strconv.Itoa(r.server.Listener.Addr().(*net.TCPAddr).Port)), Path: path}
	return u.String()
}

// once makes a request and returns how many bytes came.
func (r *egressRig) once(ctx context.Context, c *http.Client, path string) (int64, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url(path), nil)
	if err != nil {
		return 0, err
	}
	resp, err := c.Do(q)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("the answer was %s", resp.Status)
	}
	return n, err
}

// requestRow measures one client, direct and through the gateway in turns, so that both see the same machine.
func requestRow(ctx context.Context, r *egressRig, cfg EgressConfig) ([]Row, error) {
	var samples [2][]time.Duration
	clients := [2]*http.Client{r.client(false), r.client(true)}
	for i := range cfg.N + 1 {
		for way, c := range clients {
			begin := time.Now()
			if _, err := r.once(ctx, c, "/"); err != nil {
				return nil, err
			}
			if i > 0 { // the first connects
				samples[way] = append(samples[way], time.Since(begin))
			}
		}
	}
	sync, err := SyncFloor(cfg.Dir, 200)
	if err != nil {
		return nil, err
	}
	row := Latency("egress/request", samples[1], quantile(samples[0], 0.5))
	row.Bar, row.OK = fmt.Sprintf("<= %d us more", egressAdded), row.P50-row.Floor <= egressAdded
	row.Note = fmt.Sprintf("floor is the same client direct; %.0f us more, of which a durable record takes an "+
		"fdatasync: %.0f us", row.P50-row.Floor,
		micros(quantile(sync, 0.5)))
	return []Row{row}, nil
}

// rateRounds is how many times the direct clients and those of the gateway take turns.
const rateRounds = 6

// rateRow measures requests per second of several clients, and of many, direct and through the gateway in turns.
func rateRow(ctx context.Context, r *egressRig, cfg EgressConfig) ([]Row, error) {
	var rows []Row
	for _, n := range egressClients {
		clients := [2]*http.Client{r.client(false), r.client(true)}
		var rates [2]float64
		var samples [2][]time.Duration
		for range rateRounds {
			for way, c := range clients {
				got, rate, err := crowd(cfg.Span/rateRounds, n, func() error {
					_, err := r.once(ctx, c, "/")
					return err
				})
				if err != nil {
					return nil, err
				}
				samples[way], rates[way] = append(samples[way], got...), rates[way]+rate/rateRounds
			}
		}
		for _, c := range clients {
			c.CloseIdleConnections()
		}
		rows = append(rows, Rate(fmt.Sprintf("egress/rate/%d", n), rates[1], rates[0], samples[1]))
	}
	return rows, nil
}

// bulkRow measures large answers.
func bulkRow(ctx context.Context, r *egressRig, _ EgressConfig) ([]Row, error) {
	var rates [2][]time.Duration
	clients := [2]*http.Client{r.client(false), r.client(true)}
	for i := range 12 {
		for way, c := range clients {
			begin := time.Now()
			if _, err := r.once(ctx, c, "/bulk"); err != nil {
				return nil, err
			}
			if i > 0 {
				rates[way] = append(rates[way], time.Since(begin))
			}
		}
	}
	speed := func(way int) float64 { return bulkSize / 1e6 / quantile(rates[way], 0.5).Seconds() }
	row := Row{Name: "egress/bulk", Unit: "MB/s", N: len(rates[1]), P50: round(speed(1)), Floor: round(speed(0)),
		Ratio: ratio(speed(1), speed(0)), OK: true,
		Note: "floor is the same client direct"}
	return []Row{row.AtLeast(egressBulk)}, nil
}

// auditRows measure records of many writers at the same time, on each database.
func auditRows(ctx context.Context, r *egressRig, cfg EgressConfig) ([]Row, error) {
	row, err := auditRow(ctx, "sqlite", r.store, cfg)
	if err != nil || cfg.Postgres == "" {
		return []Row{row}, err
	}
	st, err := store.Open(ctx, store.Config{URL: cfg.Postgres})
	if err != nil {
		return []Row{row}, err
	}
	defer st.Close()
	second, err := auditRow(ctx, "postgres", st, cfg)
	return []Row{row, second}, err
}

func auditRow(ctx context.Context, dialect string, st *store.Store, cfg EgressConfig) (Row, error) {
	record := outboard.AuditRecord{Actor: "sesn_bench", Action: egress.ActionRequest,
		Resource: "GET https://bench.test/some/path", Decision: outboard.Allowed,
		Rule: "allowed_hosts", Detail: outboard.Raw(`{"sandbox":"sbx_bench","query_bytes":12}`)}
	samples, rate, err := crowd(cfg.Span, auditWriters, func() error { return st.Audit(ctx, record) })
	if err != nil {
		return Row{}, err
	}
	floor, err := SyncFloor(cfg.Dir, 200)
	if err != nil {
		return Row{}, err
	}
	row := Row{Name: fmt.Sprintf("audit/%s/%d", dialect, auditWriters), Unit: "us", N: len(samples),
		P50: round(1e6 / rate), P99: micros(quantile(samples, 0.99)),
		Floor: micros(quantile(floor, 0.5)), Bar: fmt.Sprintf("<= %d us",
			auditBar), Note: "p50 is the time per record, p99 what a writer waits, floor an fdatasync"}
	row.Ratio, row.OK = ratio(row.P50, row.Floor), row.P50 <= auditBar
	return row, nil
}

// crowd runs do from n goroutines for a span, and gives latencies and the total rate.
func crowd(span time.Duration, n int, do func() error) (samples []time.Duration, rate float64, err error) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	start := time.Now()
	for range n {
		wg.Go(func() {
			var mine []time.Duration
			for time.Since(start) < span {
				begin := time.Now()
				if e := do(); e != nil {
					mu.Lock()
					err = e
					mu.Unlock()
					return
				}
				mine = append(mine, time.Since(begin))
			}
			mu.Lock()
			defer mu.Unlock()
			samples = append(samples, mine...)
		})
	}
	wg.Wait()
	return samples, float64(len(samples)) / time.Since(start).Seconds(), err
}
