package server

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/audit"
	"github.com/outboard-dev/outboard/internal/blob"
	"github.com/outboard-dev/outboard/internal/config"
	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/egress"
	"github.com/outboard-dev/outboard/internal/fleet"
	"github.com/outboard-dev/outboard/internal/harness"
	"github.com/outboard-dev/outboard/internal/live"
	"github.com/outboard-dev/outboard/internal/llm"
	"github.com/outboard-dev/outboard/internal/netrule"
	"github.com/outboard-dev/outboard/internal/policy"
	"github.com/outboard-dev/outboard/internal/runner"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/outboard-dev/outboard/internal/tool"
	"github.com/outboard-dev/outboard/internal/vault"
)

// Config says what one server process does. Data and Config are needed; the zero value of the rest is a server
// that neither answers nor works.
type Config struct {
	Data   string              // data directory
	Config *config.Config      // its db, llm, policy, egress and so on; addresses are below
	Env    func(string) string // the environment that Config names variables of; nil = an empty one
	Logger *slog.Logger        // nil = none

	TrustClock bool // see store.Config

	Work  bool          // run sessions
	Slots int           // sessions run at a time, 0 = the runner's default
	Grace time.Duration // for turns to come to their next step at the end, 0 = the runner's default

	// What doors.Open needs. It is here because a server records settings that lower protection, such as an
	// address beyond this machine without TLS.

	Serve  bool   // answer HTTP
	Listen string // host:port
	E2B    string // host:port of the E2B API, "" = none
	// E2BDomain is what the host names of boxes end in; see e2b.Config.
	E2BDomain string
	// E2BPublicPorts: see e2b.Config.
	E2BPublicPorts bool
	SSH            string   // host:port of the SSH server, "" = none
	Hosts          []string // names this server may be called by
	TLS            *tls.Config

	// Claim looks at the database before anything is read from it or written to it. Its error ends Start. nil =
	// any will do.
	Claim func(context.Context, *store.Store) error
	// AdminKey sees to it that a new database has an operator's key, before anything answers. nil = nobody is
	// let in by one.
	AdminKey func(context.Context, *control.Control) error

	// Guest is the guest program, "" = the one that FindGuest finds.
	Guest string
	// Provider makes the sandboxes. The caller closes it after Stop. nil = what this host can isolate.
	Provider sandbox.Provider
	// Resolve looks names up for what egress, registries and their issuers are dialled by; see outbound.Guard.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	// Fetch bounds web_fetch; the zero value reaches public addresses only.
	Fetch tool.FetcherConfig
	// Login is how people sign in, nil = as Config says.
	Login *control.LoginConfig
}

// Server is every part of one process, started. Its exported fields are set by Start and do not change.
type Server struct {
	Store    *store.Store
	Witness  *audit.Witness
	Blob     blob.Store
	Live     *live.Hub
	Vault    *vault.Keeper
	Fleet    *fleet.Fleet
	Control  *control.Control
	Provider sandbox.Provider // what makes the sandboxes, nil when none can be made

	Problem      error // why no sandbox can be made here, nil when it can
	Capabilities sandbox.Capabilities

	cfg    Config
	log    *slog.Logger
	host   string
	spool  *blob.Spool
	models *llm.Registry
	policy *policy.Engine
	killer *killer
	egress *egress.Gateway // nil when sandboxes have no network to guard
	choice *sandbox.Choice // nil when Config.Provider is the one provider, or there is none
	runner *runner.Runner  // nil until the server works

	stop sync.Once
	undo []func() // what Stop does after the runner, last first
}

// Start brings every part up, in the order they depend on each other. When one fails, those before it are stopped.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	s := &Server{cfg: cfg, log: cfg.Logger, Live: new(live.Hub)}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.cfg.Env == nil {
		s.cfg.Env = func(string) string { return "" }
	}
	if err := s.start(ctx); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// later has Stop call f.
func (s *Server) later(f func()) { s.undo = append(s.undo, f) }

func (s *Server) start(ctx context.Context) error {
	if err := os.MkdirAll(s.cfg.Data, 0o700); err != nil {
		return DataError(s.cfg.Data, err)
	}
	if err := s.openState(ctx); err != nil {
		return err
	}
	s.killer.Refresh(ctx) // before anything can have an effect
	if err := s.openSandboxes(); err != nil {
		return err
	}
	if err := s.openControl(); err != nil {
		return err
	}
	if s.cfg.AdminKey != nil {
		if err := s.cfg.AdminKey(ctx, s.Control); err != nil {
			return err
		}
	}
	s.Control.Start()
	s.later(s.Control.Stop)
	s.killer.Start()
	s.later(s.killer.Stop)
	if err := s.Control.AuditSettings(ctx, s.cfg.lowered()); err != nil {
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
	return nil
}

// openControl makes what every door calls.
func (s *Server) openControl() error {
	cfg := s.cfg.Config
	people, err := s.loginConfig()
	if err != nil {
		return err
	}
	for _, k := range cfg.Exports.Trusted {
		if err := audit.CheckKey(k); err != nil {
			return outboard.Errorf(outboard.Invalid, "configuring exports.trusted: %w", err)
		}
	}
	guard, err := s.guard()
	if err != nil {
		return err
	}
	reachable := func(ctx context.Context, address string) error {
		_, err := guard.Lookup(ctx, address)
		return err
	}
	s.Control = control.New(control.Config{Store: s.Store, Blob: s.Blob, Spool: s.spool, Fleet: s.Fleet,
		Models: s.models,
		Policy: s.policy, Live: s.Live, Vault: s.Vault, Kill: s.killer, Audit: s.Witness, Logger: s.log, Isolation: s.able,
		Login: people, Trusted: cfg.Exports.Trusted, Directories: cfg.Images.Directories, Reachable: reachable,
		Bounds: s.bounds(), Boxes: cfg.Egress.Boxes.Bound(), BoxProxies: cfg.Egress.Boxes.Proxies})
	return nil
}

// reserveBytes are kept beside the database for removals on a full disk. A deleted session takes some kilobytes
// of them until its rows are gone.
const reserveBytes = 16 << 20

// openState opens what outlives the process, the models and the rules.
func (s *Server) openState(ctx context.Context) (err error) {
	s.Store, err = store.Open(ctx, store.Config{Path: SQLitePath(s.cfg.Data), URL: s.cfg.Config.DB, Logger: s.log,
		TrustClock: s.cfg.TrustClock,
		Reserve:    reserveBytes})
	if err != nil {
		return err
	}
	s.later(func() {
		if err := s.Store.Close(); err != nil {
			s.log.Error("closing the store failed", "err", err)
		}
	})
	if s.cfg.Claim != nil {
		if err := s.cfg.Claim(ctx, s.Store); err != nil {
			return err
		}
	}
	if err := s.openAudit(ctx); err != nil {
		return err
	}
	if address := s.cfg.Config.Blob; address != "" {
		s.Blob, err = blob.NewS3(ctx, address, filepath.Join(s.cfg.Data, "spool"))
	} else if s.Blob, err = blob.NewDir(filepath.Join(s.cfg.Data, "blobs")); err != nil {
		err = DataError(s.cfg.Data, err)
	}
	if err != nil {
		return err
	}
	if s.spool, err = blob.NewSpool(filepath.Join(s.cfg.Data, "spool")); err != nil {
		return DataError(s.cfg.Data, err)
	}
	s.openKill()
	if err = s.openVault(); err != nil {
		return err
	}
	s.later(s.Vault.Stop)
	models := s.cfg.Config.LLM
	models.Credential = s.Vault.Key
	if s.models, err = llm.NewRegistry(models); err != nil {
		return err
	}
	rules := s.cfg.Config.Policy.Engine()
	rules.Source, rules.Logger, rules.Now = s.Store, s.log, s.Store.Now
	s.policy, err = policy.New(rules)
	return err
}

// openProvider finds what makes the sandboxes. A host that can isolate nothing still serves: only tool calls
// fail there, with the reason.
func (s *Server) openProvider() {
	if s.cfg.Provider != nil {
		s.Provider, s.Capabilities = s.cfg.Provider, s.cfg.Provider.Capabilities()
		return
	}
	guest := s.cfg.Guest
	if guest == "" {
		if guest, s.Problem = FindGuest(s.cfg.Env); s.Problem != nil {
			return
		}
	}
	cfg := s.cfg.Config.Sandbox
	p, err := native.New(native.Config{Dir: SandboxDir(s.cfg.Data), Guest: guest, Ahead: cfg.Places(),
		Warm:    cfg.Guests(),
		Reserve: cfg.Reserve(), Logger: s.log})
	if s.Problem = err; err != nil {
		return
	}
	s.later(func() {
		if err := p.Close(); err != nil {
			s.log.Warn("what was made ahead for sandboxes is left to the next start", "err", err)
		}
	})
	s.choice = sandbox.NewChoice(p, []string{"namespace"}, isolations(s.cfg, guest, s.log)...)
	s.Provider, s.Capabilities = s.choice, p.Capabilities()
}

// openSandboxes makes the fleet; its reaper starts with the work, so a process without any leaves garbage to others.
func (s *Server) openSandboxes() error {
	s.openProvider()
	locks := filepath.Join(s.cfg.Data, "locks")
	if err := os.MkdirAll(locks, 0o700); err != nil {
		return DataError(s.cfg.Data, err)
	}
	network, err := s.openEgress(s.Provider)
	if err != nil {
		return err
	}
	images, err := s.openImages()
	if err != nil {
		return err
	}
	cfg := s.cfg.Config
	boxes := cfg.Egress.Boxes.Bound()
	s.host = HostName(s.cfg.Data)
	s.Fleet = fleet.New(fleet.Config{Store: s.Store, Blob: s.Blob, Provider: s.Provider, Host: s.host, Dir: locks,
		Logger:      s.log,
		Environment: s.Vault.Environment, Login: s.registryLogin, BoxGone: s.boxGone, Network: network,
		BoxesOffline: cfg.Egress.Boxes.Networking == "none", Images: images, Mirrors: cfg.Images.Mirrors,
		Lifecycle: cfg.Sandbox.Lifecycle(),
		Bound: func(want outboard.Networking) outboard.Networking {
			n, _ := netrule.Narrow(boxes, want)
			return n
		},
		OrgShare:    cfg.Limits.OrganizationPercent,
		MaxPerOwner: cfg.Sandbox.MaxPerOwner, RestEvery: cfg.Sandbox.Rests(),
		Retention: fleet.Retention{States: cfg.Limits.States(), Bytes: cfg.Limits.CheckpointBytes}})
	s.later(s.Fleet.Stop)
	return nil
}

// bounds are what organizations share. Files are kept on this host's disk, or in a bucket, which has no size.
func (s *Server) bounds() control.Bounds {
	l := s.cfg.Config.Limits
	b := control.Bounds{OrgPercent: l.OrganizationPercent, Streams: l.Streams, Files: l.Files, FileBytes: l.FileBytes}
	if _, local := s.Blob.(*blob.Dir); local && b.FileBytes == 0 {
		b.FileBytes = diskSize(filepath.Join(s.cfg.Data, "blobs"))
	}
	return b
}

// able says whether sandboxes of an environment can be made.
func (s *Server) able(env outboard.EnvConfig) error {
	if s.choice == nil {
		return nil // what no sandbox can be made for is refused by each session, with the reason
	}
	return s.choice.Check(sandbox.Spec{Isolation: env.Isolation, Limits: env.Limits, Build: env.Installs() ||
		fleet.IsBase(env.Rootfs)})
}

// Work starts claiming sessions, if this process does not yet. Leases of processes of this host that were killed
// are given up first, so that their sessions need not wait for the leases to run out.
func (s *Server) Work(ctx context.Context) error {
	if s.runner != nil {
		return nil
	}
	if s.Problem == nil {
		if err := s.Fleet.Start(ctx); err != nil {
			return err
		}
	}
	if err := releaseDead(ctx, s.Store, s.log); err != nil {
		return err
	}
	if err := s.Vault.SweepBoxes(ctx); err != nil { // a locked vault keeps no session from being worked on
		s.log.Warn("sealed headers of boxes that are gone stay", "err", err)
	}
	limits := s.cfg.Config.Limits
	s.runner = runner.New(runner.Config{
		Harness: &harness.Builtin{Now: s.Store.Now, Patience: limits.ModelPatience, MaxCalls: limits.ModelCalls},
		Store:   s.Store, Blob: s.Blob, Fleet: s.Fleet, Models: s.models, Live: s.Live, Policy: s.policy, Kill: s.killer,
		Judge: s.cfg.Config.Policy.Judge, Fetcher: tool.NewFetcher(s.cfg.Fetch), Logger: s.log, Host: workerHost(s.host),
		Slots: s.cfg.Slots, OrgPercent: limits.OrganizationPercent, Grace: s.cfg.Grace})
	s.killer.works(s.runner)
	return s.runner.Start(ctx)
}

// Busy reports whether this server has anything to do, now or at a time that is set.
func (s *Server) Busy(ctx context.Context) (bool, error) { return s.Store.Pending(ctx, s.host) }

// Stop ends everything: it stops claiming and finishes or releases turns (which pauses their sandboxes), stops
// the other parts, those first that use others, and closes the store. It may be called twice. Doors are closed
// before.
func (s *Server) Stop() {
	s.stop.Do(func() {
		if s.runner != nil {
			s.runner.Stop()
		}
		for _, f := range slices.Backward(s.undo) {
			f()
		}
	})
}

// DataError explains a data directory that cannot be used.
func DataError(dir string, err error) error {
	return outboard.Errorf(outboard.Unavailable, "using the data directory %s: %w", dir, err).
		WithHint("name another with --data or OUTBOARD_DATA")
}
