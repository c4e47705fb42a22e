package main

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
func (s *server) listenE2B(ctx, base context.Context) error {
	if s.cfg.E2B == "" {
		return nil
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", s.cfg.E2B)
	if err != nil {
		return outboard.Errorf(outboard.Unavailable, "listening on %s for the E2B API: %w", s.cfg.E2B, err).
			WithHint("choose another address with --e2b, or --e2b off")
	}
	scheme := "http"
	if s.cfg.TLS != nil {
		ln, scheme = tls.NewListener(ln, e2b.TLSConfig(s.cfg.TLS)), "https"
	}
	s.e2bURL = scheme + "://" + ln.Addr().String()
	s.e2b = e2b.New(e2b.Config{Control: s.control, Logger: s.log, Domain: s.cfg.E2BDomain, PublicPorts: s.cfg.E2BPublicPorts})
	s.e2bHTTP = &http.Server{Handler: patientE2B(s.e2b), ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug), BaseContext: func(net.Listener) context.Context { return base }}
	e2b.Speak(s.e2bHTTP)
	serving := s.e2bHTTP // Stop may be called before the goroutine runs
	s.serving.Go(func() {
		if err := serving.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			s.fail(fmt.Errorf("serving the E2B API: %w", err))
		}
	})
	return nil
}

// patientE2B bounds the wait for bodies.
func patientE2B(next http.Handler) http.Handler {
	ours, theirs := patient(next, bodyPause, bodyRest), patient(next, programPause, bodyRest)
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
func (s *server) portNames() (scheme, domain string) {
	if s.e2bURL == "" {
		return "", ""
	}
	scheme, addr, _ := strings.Cut(s.e2bURL, "://")
	if s.cfg.E2BDomain != "" {
		return scheme, s.cfg.E2BDomain
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", ""
	}
	return scheme, "localhost:" + port
}

// stopE2B ends the E2B API; the context of its streams has ended.
func (s *server) stopE2B(ctx context.Context) {
	if s.e2bHTTP == nil {
		return
	}
	if err := s.e2bHTTP.Shutdown(ctx); err != nil {
		s.e2bHTTP.Close()
	}
	s.e2b.Close()
	s.e2bHTTP = nil
}

// fail reports what made serving end; only the first report counts.
func (s *server) fail(err error) {
	select {
	case s.failed <- err:
	default:
	}
}
