// Package doors is where a server answers: the API and the bridge protocol at one address, the E2B API at
// another, and SSH. It owns the listeners, with their limits on headers, bodies and idle connections, and knows
// when somebody last wanted something.
//
// It is apart from internal/server because the tests of a door run a whole server, and start the door
// themselves: package server must not import what they test. It decides nothing: every request goes through
// control.
package doors

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/api"
	"github.com/outboard-dev/outboard/internal/bridge"
	"github.com/outboard-dev/outboard/internal/e2b"
	"github.com/outboard-dev/outboard/internal/server"
	"github.com/outboard-dev/outboard/internal/sshd"
)

// The limits of what listens.
const (
	// closeTimeout bounds how long open requests may go on after the server stopped accepting.
	closeTimeout = 5 * time.Second
	// readHeaderTimeout and idleTimeout bound connections that say nothing.
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	// maxHeader bounds a request's headers.
	maxHeader = 64 << 10
)

// Doors are the open doors of one server. The exported fields are set by Open and do not change.
type Doors struct {
	URL    string // where the API answers
	E2BURL string // "" = nowhere
	SSH    SSHDoor

	server  *server.Server
	cfg     server.Config
	log     *slog.Logger
	http    *http.Server
	e2b     *e2b.Server
	e2bHTTP *http.Server
	sshd    *sshd.Server // nil without an address for it
	serving sync.WaitGroup
	active  activity   // of the API
	failed  chan error // capacity 1: what made serving end, if it was not Close
	cut     context.CancelFunc
	closing sync.Once
}

// Open opens the doors that a configuration names of a server that was started with it. When one cannot be
// opened, those before it are closed.
func Open(ctx context.Context, s *server.Server, cfg server.Config) (*Doors, error) {
	d := &Doors{server: s, cfg: cfg, log: cfg.Logger, failed: make(chan error, 1)}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	if !cfg.Serve {
		return d, nil
	}
	if err := d.listen(ctx); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// Failed receives what made serving end by itself, at most once.
func (d *Doors) Failed() <-chan error { return d.failed }

// Close stops accepting, ends streams, and waits for requests that are being answered. It may be called twice.
// The server is stopped afterwards.
func (d *Doors) Close() {
	d.closing.Do(func() {
		if d.http == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		d.cut() // streams end when their context does
		if err := d.http.Shutdown(ctx); err != nil {
			d.http.Close()
		}
		d.stopE2B(ctx)
		d.stopSSH()
		d.serving.Wait()
	})
}

// listen starts answering requests.
func (d *Doors) listen(ctx context.Context) error {
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", d.cfg.Listen)
	if err != nil {
		return outboard.Errorf(outboard.Unavailable, "listening on %s: %w", d.cfg.Listen, err).
			WithHint("choose another address with --listen, or :0 for any port")
	}
	scheme := "http"
	if d.cfg.TLS != nil {
		ln, scheme = tls.NewListener(ln, d.cfg.TLS), "https"
	}
	d.URL = scheme + "://" + ln.Addr().String()
	base, cut := context.WithCancel(context.WithoutCancel(ctx))
	d.cut = cut
	d.http = &http.Server{
		Handler:           d.active.watch(d.handler()),
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(d.log.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return base },
	}
	serving := d.http // Close may be called before the goroutine runs
	d.serving.Go(func() {
		if err := serving.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			d.fail(fmt.Errorf("serving: %w", err))
		}
	})
	if err := d.listenSSH(ctx); err != nil {
		return err
	}
	return d.listenE2B(ctx, base)
}

// handler is everything that answers at the server's address: the API, and below a prefix the bridge protocol.
func (d *Doors) handler() http.Handler {
	main := api.New(api.Config{Control: d.server.Control, Logger: d.log, Hosts: d.cfg.Hosts, Now: d.server.Store.Now})
	side := bridge.New(bridge.Config{Control: d.server.Control, Logger: d.log, Ports: d.portNames})
	return Patient(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, bridge.Prefix+"/") {
			side.ServeHTTP(w, r)
			return
		}
		main.ServeHTTP(w, r)
	}), bodyPause, bodyRest)
}
