// Package outboardtest runs the whole server inside a test: a real store in a temporary SQLite
// file, the deterministic script model, sandboxes that are plain child processes, the runner, and
// the public API on a loopback port.
//
// Nothing is faked, but there is no isolation, so only tests can use it. Start reading at Start.
package outboardtest

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/api"
	"github.com/outboard-dev/outboard/internal/audit"
	"github.com/outboard-dev/outboard/internal/blob"
	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/fleet"
	"github.com/outboard-dev/outboard/internal/kill"
	"github.com/outboard-dev/outboard/internal/live"
	"github.com/outboard-dev/outboard/internal/llm"
	"github.com/outboard-dev/outboard/internal/outbound"
	"github.com/outboard-dev/outboard/internal/policy"
	"github.com/outboard-dev/outboard/internal/runner"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/tool"
	"github.com/outboard-dev/outboard/internal/vault"
)

// Options change what Start starts. The zero value is a complete server.
type Options struct {
	Dir       string              // data directory; "" = a new temporary one
	DB        string              // postgres://...; "" = SQLite in Dir
	Models    llm.Config          // besides the script model, which is always there
	Policy    policy.Config       // the operator's rules; Source is set here
	Judge     string              // model of the permission auto
	Fetch     tool.FetcherConfig  // of web_fetch; the zero value reaches public addresses only
	Provider  sandbox.Provider    // nil = plain child processes, without isolation
	Trusted   []string            // public keys of servers whose exports are imported
	Login     control.LoginConfig // how people sign in; the zero value lets nobody
	NoRunner  bool                // accept everything, run nothing
	Keepalive time.Duration       // of streams; 0 = the API's own
	Logger    *slog.Logger        // nil = the test's output
	API       func(*api.Config)   // last word on the API's configuration
}

// Server is a running server. Its parts are exported for tests that reach behind the API.
type Server struct {
	URL string
	Key string
	Dir string

	Store   *store.Store
	Blob    *blob.Dir
	Fleet   *fleet.Fleet
	Live    *live.Hub
	Control *control.Control
	Vault   *vault.Keeper
	Witness *audit.Witness // with the key that signs exports; it looks at the audit when it is asked to

	stop func()
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
	s, err := start(context.WithoutCancel(t.Context()), opt)
	if err != nil {
		t.Fatalf("starting a server: %v", err)
	}
	t.Cleanup(s.Stop)
	return s
}

// Stop stops the server as outboard serve does: streams first, then turns, then sandboxes, then the store. It may be called twice.
func (s *Server) Stop() { s.stop() }

// start puts the parts together. What was started is stopped again when a later part fails.
func start(ctx context.Context, opt Options) (*Server, error) {
	var undo []func()
	stop := sync.OnceFunc(func() {
		for i := len(undo) - 1; i >= 0; i-- {
			undo[i]()
		}
	})
	s := &Server{Dir: opt.Dir, Live: new(live.Hub), stop: stop}
	err := s.assemble(ctx, opt, func(f func()) { undo = append(undo, f) })
	if err != nil {
		stop()
		return nil, err
	}
	return s, nil
}

func (s *Server) assemble(ctx context.Context, opt Options, later func(func())) (err error) {
	if s.Store, err = store.Open(ctx, store.Config{Path: filepath.Join(opt.Dir, "outboard.db"), URL: opt.DB, Logger: opt.Logger}); err != nil {
		return err
	}
	later(func() { s.Store.Close() })
	if s.Blob, err = blob.NewDir(filepath.Join(opt.Dir, "blob")); err != nil {
		return err
	}
	s.Vault = vault.New(vault.Config{Store: s.Store, Wrappers: []vault.Wrapper{vault.KeyDir{Dir: filepath.Join(opt.Dir, "vault-keys")}},
		Mark: filepath.Join(opt.Dir, "vault.seq"), HTTP: vault.Client(&outbound.Guard{Private: outbound.Loopback}, nil), Logger: opt.Logger})
	opt.Models.Credential = s.Vault.Key
	if s.Witness, err = audit.OpenWitness(filepath.Join(opt.Dir, "audit"), opt.Logger, nil); err != nil {
		return err
	}
	models, err := llm.NewRegistry(opt.Models)
	if err != nil {
		return err
	}
	opt.Policy.Source, opt.Policy.Logger = s.Store, opt.Logger
	rules, err := policy.New(opt.Policy)
	if err != nil {
		return err
	}
	s.Fleet = fleet.New(fleet.Config{Environment: s.Vault.Environment, Store: s.Store, Blob: s.Blob, Provider: opt.Provider, Host: "test", Logger: opt.Logger,
		Dir: filepath.Join(opt.Dir, "locks")})
	if err := s.Fleet.Start(ctx); err != nil {
		return err
	}
	later(s.Fleet.Stop)
	sw := &killer{Switch: kill.New(kill.Config{Source: s.Store})}
	if !opt.NoRunner {
		r := runner.New(runner.Config{Store: s.Store, Blob: s.Blob, Fleet: s.Fleet, Models: models, Live: s.Live,
			Policy: rules, Kill: sw, Judge: opt.Judge, Fetcher: tool.NewFetcher(opt.Fetch), Logger: opt.Logger, Host: "test"})
		if err := r.Start(ctx); err != nil {
			return err
		}
		sw.runner = r
		later(r.Stop)
	}
	s.Control = control.New(control.Config{Store: s.Store, Blob: s.Blob, Fleet: s.Fleet, Models: models, Policy: rules, Live: s.Live, Vault: s.Vault, Kill: sw, Logger: opt.Logger, Login: opt.Login,
		Trusted: opt.Trusted, Audit: s.Witness})
	s.Control.Start()
	later(s.Control.Stop)
	made, err := s.Control.EnsureAdminKey(ctx, func(secret string) error { s.Key = secret; return nil })
	if err == nil && !made {
		err = errors.New("the data directory has an admin key already, which nobody can read back")
	}
	if err != nil {
		return err
	}
	return s.listen(ctx, opt, later)
}

// killer is the kill switch with the turns alone in its hands: machines and connections are the business of a whole server.
type killer struct {
	*kill.Switch
	runner *runner.Runner
}

// Enforce implements control.KillSwitch.
func (k *killer) Enforce(ctx context.Context) {
	k.Refresh(ctx)
	if k.runner != nil {
		k.runner.Recheck(ctx)
	}
}

// Left implements control.KillSwitch.
func (k *killer) Left(context.Context, outboard.Kill) (machines, flows int) { return 0, 0 }

// Keep implements control.KillSwitch.
func (k *killer) Keep(outboard.Kill) error {
	return outboard.Errorf(outboard.Unavailable, "this server has no data directory")
}

// Forget implements control.KillSwitch.
func (k *killer) Forget(outboard.KillID) error { return nil }

// listen serves the API on a free loopback port.
func (s *Server) listen(ctx context.Context, opt Options, later func(func())) error {
	cfg := api.Config{Control: s.Control, Logger: opt.Logger, Keepalive: opt.Keepalive}
	if opt.API != nil {
		opt.API(&cfg)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	base, cancel := context.WithCancel(ctx)
	srv := &http.Server{Handler: api.New(cfg), BaseContext: func(net.Listener) context.Context { return base },
		ErrorLog: slog.NewLogLogger(opt.Logger.Handler(), slog.LevelWarn)}
	var wg sync.WaitGroup
	wg.Go(func() { srv.Serve(l) }) // ends with Close
	later(func() {
		cancel() // ends streams
		srv.Close()
		wg.Wait()
	})
	s.URL = "http://" + l.Addr().String()
	return nil
}
