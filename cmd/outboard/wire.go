package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/audit"
	"github.com/outboard-dev/outboard/internal/blob"
	"github.com/outboard-dev/outboard/internal/config"
	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/e2b"
	"github.com/outboard-dev/outboard/internal/egress"
	"github.com/outboard-dev/outboard/internal/fleet"
	"github.com/outboard-dev/outboard/internal/harness"
	"github.com/outboard-dev/outboard/internal/live"
	"github.com/outboard-dev/outboard/internal/llm"
	"github.com/outboard-dev/outboard/internal/netrule"
	"github.com/outboard-dev/outboard/internal/notify"
	"github.com/outboard-dev/outboard/internal/policy"
	"github.com/outboard-dev/outboard/internal/runner"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
	"github.com/outboard-dev/outboard/internal/sshd"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/tool"
	"github.com/outboard-dev/outboard/internal/vault"
)

// The server's own time limits.
const (
	// closeTimeout bounds how long open requests may go on after the server stopped accepting.
	closeTimeout = 5 * time.Second
	// readHeaderTimeout and idleTimeout bound connections that say nothing.
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	// maxHeader bounds a request's headers.
	maxHeader = 64 << 10
)

// serverConfig says what one server process does.
type serverConfig struct {
	Data   string         // data directory
	Config *config.Config // its db, llm
	Env    func(string) string
	Logger *slog.Logger

	TrustClock bool // see store.Config

	Serve bool          // answer HTTP
	Work  bool          // run sessions
	Slots int           // sessions run at a time, 0 = the runner's default
	Grace time.Duration // for turns to come to their next step at the end, 0 = the runner's default

	Listen string // host:port
	E2B    string // host:port of the E2B API, "" = none
	// E2BDomain is what the host names of boxes end in; see e2b.Config.
	E2BDomain string
	// E2BPublicPorts: see e2b.Config.
	E2BPublicPorts bool
	SSH            string   // host:port of the SSH server, "" = none
	Hosts          []string // names this server may be called by
	TLS            *tls.Config

	// Resolve looks names up for what egress, registries and their issuers are dialled by; see outbound.Guard.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
}

// server is every part of one process, started.
type server struct {
	cfg     serverConfig
	log     *slog.Logger
	store   *store.Store
	witness *audit.Witness
	blob    blob.Store
	spool   *blob.Spool
	models  *llm.Registry
	policy  *policy.Engine
	notify  *notify.Notifier // nil without a webhook
	killer  *killer
	host    string
	live    live.Hub
	vault   *vault.Keeper
	egress  *egress.Gateway
	fleet   *fleet.Fleet
	control *control.Control
	runner  *runner.Runner
	http    *http.Server
	ln      net.Listener
	e2b     *e2b.Server
	e2bHTTP *http.Server
	sshd    *sshd.Server // nil without --ssh
	serving sync.WaitGroup
	active  activity   // of the API
	failed  chan error // capacity 1: what made serving end, if it was not Stop
	cut     context.CancelFunc

	url        string
	e2bURL     string
	sshAddr    string // where SSH connections are taken, and sshPrint the fingerprint of the key that they see
	sshPrint   string
	newHostKey bool         // this start made that key
	newKey     bool         // this start made the admin key
	sandbox    error        // why no sandbox can be made here, nil when it can
	close      func() error // what the sandbox provider made ahead
	caps       sandbox.Capabilities
	choice     *sandbox.Choice // nil when no sandbox can be made
}

// startServer brings every part up, in the order they depend on each other. When one fails, those before it are
// stopped.
func startServer(ctx context.Context, cfg serverConfig) (*server, error) {
	s := &server{cfg: cfg, log: cfg.Logger, failed: make(chan error, 1)}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if err := s.start(ctx); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

func (s *server) start(ctx context.Context) error {
	if err := os.MkdirAll(s.cfg.Data, 0o700); err != nil {
		return dataError(s.cfg.Data, err)
	}
	if err := s.openState(ctx); err != nil {
		return err
	}
	s.killer.Refresh(ctx) // before anything can have an effect
	host := hostName(s.cfg.Data)
	if err := s.openSandboxes(host); err != nil {
		return err
	}
	s.host = host
	people, err := s.loginConfig()
	if err != nil {
		return err
	}
	for _, k := range s.cfg.Config.Exports.Trusted {
		if err := audit.CheckKey(k); err != nil {
			return outboard.Errorf(outboard.Invalid, "configuring exports.trusted: %w", err)
		}
	}
	guard, err := s.guard()
	if err != nil {
		return err
	}
	s.control = control.New(control.Config{Store: s.store, Blob: s.blob, Spool: s.spool, Fleet: s.fleet, Models: s.models, Policy: s.policy, Live: &s.live, Vault: s.vault, Directories: s.cfg.Config.Images.Directories, Kill: s.killer, Audit: s.witness, Logger: s.log, Isolation: s.able, Login: people,
		Trusted: s.cfg.Config.Exports.Trusted, Reachable: func(ctx context.Context, address string) error { _, err := guard.Lookup(ctx, address); return err },
		Bounds: s.bounds(), Boxes: s.cfg.Config.Egress.Boxes.Bound(), BoxProxies: s.cfg.Config.Egress.Boxes.Proxies})
	made, err := s.ensureKey(ctx)
	if err != nil {
		return err
	}
	s.newKey = made
	s.control.Start()
	s.killer.Start()
	if err := s.control.AuditSettings(ctx, s.cfg.lowered()); err != nil {
		s.log.Error("settings that lower protection were not recorded", "err", err)
	}
	if err := s.openWebhook(); err != nil {
		return err
	}
	if s.cfg.Work {
		if err := s.Work(ctx); err != nil {
			return err
		}
	}
	if s.cfg.Serve {
		return s.listen(ctx)
	}
	return nil
}

// reserveBytes are kept beside the database for removals on a full disk. A deleted session takes some kilobytes
// of them until its rows go.
const reserveBytes = 16 << 20

// openState opens what outlives the process, the models and the rules.
func (s *server) openState(ctx context.Context) (err error) {
	if err := checkDatabase(s.cfg.Data, s.cfg.Config.DB); err != nil {
		return err
	}
	s.store, err = store.Open(ctx, store.Config{Path: sqlitePath(s.cfg.Data), URL: s.cfg.Config.DB, Logger: s.log, TrustClock: s.cfg.TrustClock,
		Reserve: reserveBytes})
	if err != nil {
		return err
	}
	if err := claimDatabase(ctx, s.cfg.Data, s.cfg.Config.DB, s.store); err != nil {
		return err
	}
	if err := s.openAudit(ctx); err != nil {
		return err
	}
	if address := s.cfg.Config.Blob; address != "" {
		s.blob, err = blob.NewS3(ctx, address, filepath.Join(s.cfg.Data, "spool"))
	} else if s.blob, err = blob.NewDir(filepath.Join(s.cfg.Data, "blobs")); err != nil {
		err = dataError(s.cfg.Data, err)
	}
	if err != nil {
		return err
	}
	if s.spool, err = blob.NewSpool(filepath.Join(s.cfg.Data, "spool")); err != nil {
		return dataError(s.cfg.Data, err)
	}
	s.openKill()
	if err = s.openVault(); err != nil {
		return err
	}
	models := s.cfg.Config.LLM
	models.Credential = s.vault.Key
	if s.models, err = llm.NewRegistry(models); err != nil {
		return err
	}
	rules := s.cfg.Config.Policy.Engine()
	rules.Source, rules.Logger, rules.Now = s.store, s.log, s.store.Now
	s.policy, err = policy.New(rules)
	return err
}

// openSandboxes makes the fleet; its reaper starts with the work, so a process without any leaves garbage to
// others. A host that can isolate nothing still serves: only tool calls fail there, with the reason.
func (s *server) openSandboxes(host string) error {
	var provider sandbox.Provider
	guest, err := findGuest(s.cfg.Env)
	if err == nil {
		var p *native.Provider
		p, err = native.New(native.Config{Dir: filepath.Join(s.cfg.Data, "sandboxes"), Guest: guest, Ahead: s.cfg.Config.Sandbox.Places(),
			Warm: s.cfg.Config.Sandbox.Guests(), Reserve: s.cfg.Config.Sandbox.Reserve(), Logger: s.log})
		if err == nil {
			s.close = p.Close
			s.choice = sandbox.NewChoice(p, []string{"namespace"}, isolations(s.cfg, guest, s.log)...)
			provider, s.caps = s.choice, p.Capabilities()
		}
	}
	s.sandbox = err
	locks := filepath.Join(s.cfg.Data, "locks")
	if err := os.MkdirAll(locks, 0o700); err != nil {
		return dataError(s.cfg.Data, err)
	}
	network, err := s.openEgress(provider)
	if err != nil {
		return err
	}
	images, err := s.openImages()
	if err != nil {
		return err
	}
	s.fleet = fleet.New(fleet.Config{Store: s.store, Blob: s.blob, Provider: provider, Host: host, Dir: locks, Logger: s.log,
		Environment: s.vault.Environment, Login: s.registryLogin, BoxGone: s.boxGone, Network: network, BoxesOffline: s.cfg.Config.Egress.Boxes.Networking == "none", Images: images, Mirrors: s.cfg.Config.Images.Mirrors, Lifecycle: s.cfg.Config.Sandbox.Lifecycle(),
		Bound: func(want outboard.Networking) outboard.Networking {
			n, _ := netrule.Narrow(s.cfg.Config.Egress.Boxes.Bound(), want)
			return n
		},
		OrgShare:    s.cfg.Config.Limits.OrganizationPercent,
		MaxPerOwner: s.cfg.Config.Sandbox.MaxPerOwner, RestEvery: s.cfg.Config.Sandbox.Rests(),
		Retention: fleet.Retention{States: s.cfg.Config.Limits.States(), Bytes: s.cfg.Config.Limits.CheckpointBytes}})
	return nil
}

// bounds are what organizations share. Files are kept on this host's disk, or in a bucket, which has no size.
func (s *server) bounds() control.Bounds {
	l := s.cfg.Config.Limits
	b := control.Bounds{OrgPercent: l.OrganizationPercent, Streams: l.Streams, Files: l.Files, FileBytes: l.FileBytes}
	if _, local := s.blob.(*blob.Dir); local && b.FileBytes == 0 {
		b.FileBytes = diskSize(filepath.Join(s.cfg.Data, "blobs"))
	}
	return b
}

// able says whether sandboxes of an environment can be made.
func (s *server) able(env outboard.EnvConfig) error {
	if s.choice == nil {
		return nil // what no sandbox can be made for is refused by each session, with the reason
	}
	return s.choice.Check(sandbox.Spec{Isolation: env.Isolation, Limits: env.Limits, Build: env.Installs() || fleet.IsBase(env.Rootfs)})
}

// Work starts claiming sessions, if this process does not yet. Leases of processes of this host that were killed
// are given up first, so that their sessions need not wait for the leases to run out.
func (s *server) Work(ctx context.Context) error {
	if s.runner != nil {
		return nil
	}
	if s.sandbox == nil {
		if err := s.fleet.Start(ctx); err != nil {
			return err
		}
	}
	if err := releaseDead(ctx, s.store, s.log); err != nil {
		return err
	}
	if err := s.vault.SweepBoxes(ctx); err != nil { // a locked vault keeps no session from being worked on
		s.log.Warn("sealed headers of boxes that are gone stay", "err", err)
	}
	limits := s.cfg.Config.Limits
	s.runner = runner.New(runner.Config{Harness: &harness.Builtin{Now: s.store.Now, Patience: limits.ModelPatience, MaxCalls: limits.ModelCalls}, Store: s.store, Blob: s.blob, Fleet: s.fleet, Models: s.models, Live: &s.live,
		Policy: s.policy, Kill: s.killer, Judge: s.cfg.Config.Policy.Judge, Fetcher: tool.NewFetcher(tool.FetcherConfig{}), Logger: s.log, Host: workerHost(s.host), Slots: s.cfg.Slots, OrgPercent: limits.OrganizationPercent, Grace: s.cfg.Grace})
	s.killer.works(s.runner)
	return s.runner.Start(ctx)
}

// listen starts answering requests.
func (s *server) listen(ctx context.Context) error {
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", s.cfg.Listen)
	if err != nil {
		return outboard.Errorf(outboard.Unavailable, "listening on %s: %w", s.cfg.Listen, err).WithHint("choose another address with --listen, or :0 for any port")
	}
	scheme := "http"
	if s.cfg.TLS != nil {
		ln, scheme = tls.NewListener(ln, s.cfg.TLS), "https"
	}
	s.ln, s.url = ln, scheme+"://"+ln.Addr().String()
	base, cut := context.WithCancel(context.WithoutCancel(ctx))
	s.cut = cut
	s.http = &http.Server{
		Handler:           s.active.watch(s.doors()),
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return base },
	}
	serving := s.http // Stop may be called before the goroutine runs
	s.serving.Go(func() {
		if err := serving.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			s.fail(fmt.Errorf("serving: %w", err))
		}
	})
	if err := s.listenSSH(ctx); err != nil {
		return err
	}
	return s.listenE2B(ctx, base)
}

// Stop ends everything: stop accepting, stop claiming and finish or release turns (which pauses their
// sandboxes), stop the reaper and the gateway, close the store. It may be called on a server that is half
// started, and twice.
func (s *server) Stop() {
	if s.http != nil {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		s.cut() // streams end when their context does
		if err := s.http.Shutdown(ctx); err != nil {
			s.http.Close()
		}
		s.stopE2B(ctx)
		s.stopSSH()
		cancel()
		s.serving.Wait()
		s.http = nil
	}
	if s.runner != nil {
		s.runner.Stop()
		s.runner = nil
	}
	if s.control != nil {
		s.control.Stop()
	}
	if s.killer != nil {
		s.killer.Stop()
	}
	if s.vault != nil {
		s.vault.Stop()
	}
	if s.notify != nil {
		s.notify.Stop()
		s.notify = nil
	}
	if s.fleet != nil {
		s.fleet.Stop()
		s.fleet = nil
	}
	if s.close != nil {
		if err := s.close(); err != nil {
			s.log.Warn("what was made ahead for sandboxes is left to the next start", "err", err)
		}
		s.close = nil
	}
	if s.egress != nil {
		s.egress.Stop()
		s.egress = nil
	}
	if s.witness != nil {
		s.witness.Stop()
		s.witness = nil
	}
	if s.store != nil {
		if err := s.store.Close(); err != nil {
			s.log.Error("closing the store failed", "err", err)
		}
		s.store = nil
	}
}

// dataError explains a data directory that cannot be used.
func dataError(dir string, err error) error {
	return outboard.Errorf(outboard.Unavailable, "using the data directory %s: %w", dir, err).
		WithHint("name another with --data or OUTBOARD_DATA")
}
