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

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/e2b"
)

// listenE2B starts answering the E2B API.
func (d *Doors) listenE2B(ctx, base context.Context) error {
	if d.cfg.E2B == "" {
		return nil
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", d.cfg.E2B)
	if err != nil {
		return outboard.Errorf(outboard.Unavailable, "listening on %s for the E2B API: %w", d.cfg.E2B, err).
			WithHint("choose another address with --e2b, or --e2b off")
	}
	scheme := "http"
	if d.cfg.TLS != nil {
		ln, scheme = tls.NewListener(ln, e2b.TLSConfig(d.cfg.TLS)), "https"
	}
	d.E2BURL = scheme + "://" + ln.Addr().String()
	d.e2b = e2b.New(e2b.Config{Control: d.server.Control, Logger: d.log, Domain: d.cfg.E2BDomain,
		PublicPorts: d.cfg.E2BPublicPorts})
	d.e2bHTTP = &http.Server{Handler: patientE2B(d.e2b), ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(d.log.Handler(),
			slog.LevelDebug), BaseContext: func(net.Listener) context.Context { return base }}
	e2b.Speak(d.e2bHTTP)
	serving := d.e2bHTTP // Close may be called before the goroutine runs
	d.serving.Go(func() {
		if err := serving.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			d.fail(fmt.Errorf("serving the E2B API: %w", err))
		}
	})
	return nil
}

// patientE2B bounds the wait for bodies.
func patientE2B(next http.Handler) http.Handler {
	ours, theirs := Patient(next, bodyPause, bodyRest), Patient(next, programPause, bodyRest)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if e2b.Conversation(r) {
			next.ServeHTTP(w, r)
			return
		}
		if e2b.ForProgram(r) {
			theirs.ServeHTTP(w, r)
			return
		}
		ours.ServeHTTP(w, r)
	})
}

// portNames says what the names of boxes' ports end in; see bridge.Config.
func (d *Doors) portNames() (scheme, domain string) {
	if d.E2BURL == "" {
		return "", ""
	}
	scheme, addr, _ := strings.Cut(d.E2BURL, "://")
	if d.cfg.E2BDomain != "" {
		return scheme, d.cfg.E2BDomain
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", ""
	}
	return scheme, "localhost:" + port
}

// stopE2B ends the E2B API; the context of its streams has ended.
func (d *Doors) stopE2B(ctx context.Context) {
	if d.e2bHTTP == nil {
		return
	}
	if err := d.e2bHTTP.Shutdown(ctx); err != nil {
		d.e2bHTTP.Close()
	}
	d.e2b.Close()
	d.e2bHTTP = nil
}

// fail reports what made serving end; only the first report counts.
func (d *Doors) fail(err error) {
	select {
	case d.failed <- err:
	default:
	}
}
