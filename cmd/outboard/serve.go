package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/config"
	"github.com/outboard-dev/outboard/internal/server"
	"github.com/outboard-dev/outboard/internal/store"
	"github.com/spf13/cobra"
)

type serveOptions struct {
	listen   string
	db       string
	config   string
	role     string
	cert     string
	key      string
	insecure bool
	e2b      string
	domain   string
	ssh      string
	hosts    []string
	slots    int
	clock    bool
	level    string

	idle       time.Duration
	background bool // left behind by a command; see background.go
}

func newServe(a *app) *cobra.Command {
	o := serveOptions{role: "all"}
	cmd := &cobra.Command{Use: "serve", Short: "Run the server", Args: exactArgs(),
		Long: "Run the server: the API, and the workers that run sessions.\n\n" +
			"The first start makes an admin key and writes it to admin.key in the data directory. Several servers on one\n" +
			"data directory, or on one --db, share the work.",
		RunE: func(cmd *cobra.Command, _ []string) error { return runServe(cmd.Context(), a, &o) }}
	f := cmd.Flags()
	f.StringVar(&o.listen, "listen", "",
		"address; without a host 127.0.0.1, port 0 for any (default "+defaultListen+")")
	f.StringVar(&o.e2b, "e2b", "", "address of the E2B API, or off (default 127.0.0.1, 100 ports above --listen)")
	f.StringVar(&o.domain, "e2b-domain", "", "what the host names PORT-SANDBOX.DOMAIN of sandboxes end in (default "+
		"localhost and the port)")
	f.StringVar(&o.ssh, "ssh", "", "address of the SSH server, which may lie beyond this machine: SSH encrypts by "+
		"itself (default off)")
	f.StringVar(&o.db, "db", "", "PostgreSQL, postgres://... (default SQLite in the data directory)")
	f.StringVar(&o.config, "config", "", "configuration file (default config.yaml in the data directory)")
	f.StringVar(&o.role, "role", o.role, "all, api (only answers) or worker (only runs sessions)")
	f.StringVar(&o.cert, "tls-cert", "", "certificate file, PEM")
	f.StringVar(&o.key, "tls-key", "", "key file of the certificate, PEM")
	f.BoolVar(&o.insecure, "insecure-listen", false, "listen beyond this machine without TLS: keys and content "+
		"travel in clear text")
	f.BoolVar(&o.clock, "trust-clock", false, "take the host's clock for right though the database has seen a later "+
		"time: what had expired may be valid again")
	f.StringSliceVar(&o.hosts, "host", nil, "name this server may be called by, besides its addresses")
	f.IntVar(&o.slots, "slots", 0, "sessions run at a time (default: the runner's)")
	spanVar(f, &o.idle, "idle", 0, "end after this long without requests and without work, such as 10m (default: stay)")
	f.BoolVar(&o.background, "background", false, "")
	f.MarkHidden("background")
	f.StringVar(&o.level, "log-level", "", "debug, info, warn or error (default info)")
	return cmd
}

type readyLine struct {
	Type      string `json:"type"`
	URL       string `json:"url,omitempty"`
	E2B       string `json:"e2b_url,omitempty"`
	SSH       string `json:"ssh_address,omitempty"`
	HostKey   string `json:"ssh_host_key,omitempty"` // its fingerprint
	PID       int    `json:"pid"`
	Data      string `json:"data"`
	Role      string `json:"role"`
	Isolation string `json:"isolation,omitempty"`
	Problem   string `json:"problem,omitempty"`   // why no sandbox can be made
	AdminKey  string `json:"admin_key,omitempty"` // where the key is that this start made
}

func runServe(ctx context.Context, a *app, o *serveOptions) error {
	cfg, err := o.server(a)
	if err != nil {
		return err
	}
	s, err := startPatiently(ctx, cfg, databaseWait)
	if err != nil {
		return err
	}
	defer s.Stop()
	if s.newKey {
		a.say("made an admin key: %s", keyPath(cfg.Data))
	}
	if s.SSH.NewKey {
		a.say("made an SSH host key: %s", server.HostKeyPath(cfg.Data))
	}
	if s.SSH.Address != "" {
		a.say("SSH on %s, host key %s", s.SSH.Address, s.SSH.Fingerprint)
	}
	if s.Problem != nil && cfg.Work {
		a.say("no sandbox can be made here, so every tool call will fail: %v", s.Problem)
	}
	if s.URL != "" {
		if err := publish(cfg.Data, s.address(o)); err != nil {
			return dataError(cfg.Data, err)
		}
		defer func() {
			if err := withdraw(cfg.Data); err != nil {
				s.log.Warn("removing server.json failed", "err", err)
			}
		}()
	}
	if err := o.ready(a, s); err != nil {
		return err
	}
	s.checkVault(ctx)
	return s.serveUntil(ctx, o.idle)
}

// serveUntil returns when the server is to stop: asked to, idle for so long (0 = never), or failed.
func (s *process) serveUntil(ctx context.Context, idle time.Duration) error {
	look, stop := context.WithCancel(ctx)
	defer stop()
	rests := make(chan bool, 1)
	go func() { rests <- s.AwaitIdle(look, idle) }()
	select {
	case <-ctx.Done():
		s.log.Info("stopping", "cause", context.Cause(ctx))
		return nil
	case <-rests:
		s.log.Info("stopping", "cause", "idle", "for", idle)
		return nil
	case err := <-s.Failed():
		return err
	}
}

// address is how commands of this machine find the server.
func (s *process) address(o *serveOptions) address {
	at := address{URL: localURL(s.URL), Since: time.Now().UTC().Truncate(time.Second)}
	if o.background {
		at.Idle = cmp.Or(o.idle, defaultIdle).String()
	}
	if s.Problem != nil {
		at.Problem = s.Problem.Error()
	}
	if s.cfg.TLS == nil {
		return at
	}
	der := s.cfg.TLS.Certificates[0].Certificate[0]
	at.Certificate = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	if leaf, err := x509.ParseCertificate(der); err == nil && len(leaf.DNSNames) > 0 {
		at.Name = leaf.DNSNames[0]
	}
	return at
}

const (
	// databaseWait is how long a server waits at its start for a database that is away: one that is started with
	// it, or anew.
	databaseWait = 30 * time.Second
	// databaseLook and databaseLooks are how far apart it looks meanwhile, at first and at most.
	databaseLook  = 250 * time.Millisecond
	databaseLooks = 4 * time.Second
)

// startPatiently is startServer, again and again while the database is away, for about as long as wait.
func startPatiently(ctx context.Context, cfg server.Config, wait time.Duration) (*process, error) {
	end := time.Now().Add(wait)
	for pause := databaseLook; ; pause = min(2*pause, databaseLooks) {
		s, err := startServer(ctx, cfg)
		if err == nil || !store.Away(err) || time.Now().Add(pause).After(end) {
			return s, err
		}
		if pause == databaseLook {
			cfg.Logger.Warn("waiting for the database", "for", wait, "err", err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// unlockWait bounds the look at the vault's keys at the start: a key service may be away, and is asked again
// when a secret is used.
const unlockWait = 5 * time.Second

// checkVault tells whoever starts a server that its secrets cannot be opened, before a session finds out. The
// server serves all the same.
func (s *process) checkVault(ctx context.Context) {
	look, cancel := context.WithTimeout(ctx, unlockWait)
	defer cancel()
	err := s.Vault.Check(look)
	if err == nil || ctx.Err() != nil {
		return
	}
	s.log.Error("secrets cannot be used", "err", err, "hint", outboard.HintOf(err))
}

// defaultListen is where a server answers when nothing else is said.
const defaultListen = "127.0.0.1:7070"

// configure lays the flags over the configuration: a flag wins over the environment, and that over the file.
func (o *serveOptions) configure(a *app) (*config.Config, string, error) {
	data, err := a.dataDir()
	if err != nil {
		return nil, "", err
	}
	cfg, err := loadConfig(data, o.config, a.env)
	if err != nil {
		return nil, "", err
	}
	if a.data == "" && cfg.Data != "" {
		if data, err = filepath.Abs(cfg.Data); err != nil {
			return nil, "", fmt.Errorf("resolving the data directory: %w", err)
		}
	}
	cfg.Listen = cmp.Or(o.listen, cfg.Listen, defaultListen)
	cfg.DB = cmp.Or(o.db, cfg.DB)
	cfg.LogLevel = cmp.Or(o.level, cfg.LogLevel, "info")
	cfg.Limits.Slots = cmp.Or(o.slots, cfg.Limits.Slots)
	cfg.Hosts = append(cfg.Hosts, o.hosts...)
	return cfg, data, config.CheckHosts(cfg.Hosts)
}

// server turns flags and configuration into what to start.
func (o *serveOptions) server(a *app) (server.Config, error) {
	var out server.Config
	if o.role != "all" && o.role != "api" && o.role != "worker" {
		return out, usagef("--role %q is not all, api or worker", o.role)
	}
	if o.slots < 0 {
		return out, usagef("--slots must not be negative")
	}
	cfg, data, err := o.configure(a)
	if err != nil {
		return out, err
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(cfg.LogLevel)); err != nil {
		return out, usagef("--log-level %q is not debug, info, warn or error", cfg.LogLevel)
	}
	listen, loopback, err := splitListen(cfg.Listen)
	if err != nil {
		return out, err
	}
	if o.idle < 0 {
		return out, usagef("--idle must not be negative")
	}
	out = server.Config{Data: data, Config: cfg, Env: a.env, Logger: a.logger(level), Serve: o.role != "worker",
		Work:  o.role != "api",
		Slots: cfg.Limits.Slots, Listen: listen, Hosts: cfg.Hosts, TrustClock: o.clock}
	if out.TLS, err = o.certificate(); err != nil {
		return out, err
	}
	if out.Serve && !loopback && out.TLS == nil && !o.insecure {
		return out, usagef("refusing to listen on %s without TLS: keys would travel in clear text", listen).
			WithHint("give --tls-cert and --tls-key, or --insecure-listen behind a proxy that has them")
	}
	out.E2BDomain, out.E2BPublicPorts = cmp.Or(o.domain, cfg.E2BDomain), cfg.E2BPublicPorts
	if out.SSH, err = sshAddress(cmp.Or(o.ssh, cfg.SSH)); err != nil {
		return out, err
	}
	out.E2B, err = o.e2bAddress(listen, cmp.Or(o.e2b, cfg.E2B), out.TLS != nil)
	return out, err
}

func (o *serveOptions) certificate() (*tls.Config, error) {
	if o.cert == "" && o.key == "" {
		return nil, nil
	}
	if o.cert == "" || o.key == "" {
		return nil, usagef("--tls-cert and --tls-key belong together")
	}
	pair, err := tls.LoadX509KeyPair(o.cert, o.key)
	if errors.Is(err, os.ErrNotExist) {
		return nil, outboard.Errorf(outboard.NotFound, "reading the certificate: %w", err)
	}
	if err != nil {
		return nil, outboard.Errorf(outboard.Invalid, "reading the certificate: %w", err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12,
		NextProtos: []string{"http/1.1"}}, nil
}

// ready prints the one line that says the server answers.
func (o *serveOptions) ready(a *app, s *process) error {
	if a.json {
		line := readyLine{Type: "ready", URL: s.URL, E2B: s.E2BURL, SSH: s.SSH.Address, HostKey: s.SSH.Fingerprint,
			PID: os.Getpid(), Data: s.cfg.Data, Role: o.role, Isolation: s.Capabilities.Isolation}
		if s.Problem != nil {
			line.Problem = s.Problem.Error()
		}
		if s.newKey {
			line.AdminKey = keyPath(s.cfg.Data)
		}
		return a.object(line)
	}
	where := s.URL
	if where == "" {
		where = "worker on " + s.cfg.Data
	}
	_, err := fmt.Fprintf(a.out, "outboard ready: %s\n", where)
	return err
}
