// Package outboardtest runs the whole server inside a test: what internal/server starts for everybody, with the
// deterministic script model, a temporary data directory and a loopback port. Nothing is faked. What is missing,
// unless a test gives a Native provider, is isolation, and with it the network of sandboxes, so only tests may
// use it.
package outboardtest

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard/internal/api"
	"github.com/outboard-dev/outboard/internal/config"
	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/llm"
	"github.com/outboard-dev/outboard/internal/policy"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/server"
	"github.com/outboard-dev/outboard/internal/tool"
)

// Options change what Start starts. The zero value is a complete server.
type Options struct {
	Dir       string              // data directory; "" = a new temporary one
	DB        string              // postgres://...; "" = SQLite in Dir
	Models    llm.Config          // besides the script model, which is always there
	Policy    policy.Config       // the operator's rules; Source is set here
	Judge     string              // model of the permission auto
	Fetch     tool.FetcherConfig  // of web_fetch; the zero value reaches public addresses only
	Egress    config.Egress       // what sandboxes and registries may reach
	Provider  sandbox.Provider    // nil = plain child processes, without isolation and network; see Native
	Trusted   []string            // public keys of servers whose exports are imported
	Login     control.LoginConfig // how people sign in; the zero value lets nobody
	NoRunner  bool                // accept everything, run nothing
	Keepalive time.Duration       // of streams; 0 = the API's own
	Logger    *slog.Logger        // nil = the test's output
	API       func(*api.Config)   // last word on the API's configuration
}

// Server is a running server, whose parts are exported for tests that reach behind the API.
type Server struct {
	*server.Server
	URL string // of the API
	Key string // the operator's
	Dir string // data directory

	close func() // the API
}

// Stop stops the server as outboard serve does: streams first, then turns, then sandboxes, then the store. It
// may be called twice.
func (s *Server) Stop() {
	s.close()
	s.Server.Stop()
}

// Start starts a server and stops it when the test ends. It fails the test when anything does not start.
func Start(t testing.TB, opt Options) *Server {
	t.Helper()
	if opt.Dir == "" {
		opt.Dir = t.TempDir()
	}
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	if opt.Provider == nil {
		opt.Provider = bare(t)
	}
	s := &Server{Dir: opt.Dir}
	ctx := context.WithoutCancel(t.Context())
	var err error
	if s.Server, err = server.Start(ctx, s.config(opt)); err != nil {
		t.Fatalf("starting a server: %v", err)
	}
	t.Cleanup(s.Server.Stop)
	if s.close, err = s.listen(opt); err != nil {
		t.Fatalf("starting the API: %v", err)
	}
	t.Cleanup(s.Stop)
	if opt.NoRunner { // timeouts of boxes are kept all the same
		if err := s.Fleet.Start(ctx); err != nil {
			t.Fatalf("starting the fleet: %v", err)
		}
	}
	return s
}

// config is what options mean to a server.
func (s *Server) config(opt Options) server.Config {
	rules := opt.Policy
	cfg := &config.Config{DB: opt.DB, LLM: opt.Models, Policy: config.Policy{Rules: rules.Operator, Taint: rules.Taint,
		Limits:          rules.Limits,
		ApprovalTimeout: rules.Timeout, Judge: opt.Judge}, Egress: opt.Egress}
	cfg.Exports.Trusted = opt.Trusted
	out := server.Config{Data: opt.Dir, Config: cfg, Logger: opt.Logger, Work: !opt.NoRunner,
		Provider: opt.Provider, Fetch: opt.Fetch, Login: &opt.Login,
		AdminKey: func(ctx context.Context, c *control.Control) error {
			made, err := c.EnsureAdminKey(ctx, func(secret string) error { s.Key = secret; return nil })
			if err == nil && !made {
				err = errors.New("the data directory has an admin key already, which nobody can read back")
			}
			return err
		}}
	return out
}

// listen serves the API on a free loopback port, and returns what ends that. The tests of doors start servers,
// so package server/doors cannot be used here.
func (s *Server) listen(opt Options) (stop func(), err error) {
	cfg := api.Config{Control: s.Control, Logger: opt.Logger, Keepalive: opt.Keepalive, Now: s.Store.Now}
	if opt.API != nil {
		opt.API(&cfg)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	base, cancel := context.WithCancel(context.Background())
	srv := &http.Server{Handler: api.New(cfg), BaseContext: func(net.Listener) context.Context { return base },
		ErrorLog: slog.NewLogLogger(opt.Logger.Handler(), slog.LevelWarn)}
	var wg sync.WaitGroup
	wg.Go(func() { srv.Serve(l) }) // ends with Close
	s.URL = "http://" + l.Addr().String()
	return func() {
		cancel() // ends streams
		srv.Close()
		wg.Wait()
	}, nil
}
