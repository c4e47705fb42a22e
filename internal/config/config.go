// Package config reads the server's configuration: one YAML file, and environment variables that
// override it. docs/reference/config.md describes the keys.
//
// Invariants:
//   - An unknown key, a value of the wrong type or a repeated key is an error that names the line.
//   - Where a setting has several sources, a command's flag wins, then the environment, then the
//     file, then the default.
//
// It never starts anything and never writes. Start reading at Config and Load.
package config

import (
	"bytes"
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/llm"
	"github.com/outboard-dev/outboard/internal/netrule"
	"github.com/outboard-dev/outboard/internal/policy"
	"go.yaml.in/yaml/v3"
)

// maxFile bounds the configuration file, inline scripts included.
const maxFile = 4 << 20

// maxSlots bounds limits.slots: each running session holds connections and memory of its own.
const maxSlots = 10_000

const (
	// maxPatience bounds limits.model_patience: a model that is away for a week is not coming back.
	maxPatience = 7 * 24 * time.Hour
	// maxModelCalls bounds limits.model_calls: a turn of so many calls fills any log.
	maxModelCalls = 100_000
)

// Config is the configuration of one server process. Zero values mean the command's default.
type Config struct {
	Listen    string `yaml:"listen,omitempty"`     // address of the API; OUTBOARD_LISTEN
	E2B       string `yaml:"e2b,omitempty"`        // address of the E2B API, or off; OUTBOARD_E2B
	E2BDomain string `yaml:"e2b_domain,omitempty"` // what host names of its sandboxes end in; OUTBOARD_E2B_DOMAIN
	// E2BPublicPorts lets everybody visit the ports of sandboxes whose makers said nothing about it, as E2B does.
	E2BPublicPorts bool   `yaml:"e2b_public_ports,omitempty"`
	SSH            string `yaml:"ssh,omitempty"`  // address of the SSH server, "" or off = none; OUTBOARD_SSH
	Data           string `yaml:"data,omitempty"` // data directory; OUTBOARD_DATA
	DB             string `yaml:"db,omitempty"`   // postgres://..., "" = SQLite in the data directory; OUTBOARD_DB
	// s3://BUCKET/PREFIX, "" = a directory in the data directory; OUTBOARD_BLOB
	Blob  string   `yaml:"blob,omitempty"`
	Hosts []string `yaml:"hosts,omitempty"` // names the server may be called by, besides its addresses
	// Idle is how long a background server waits for work before it ends; 0 = the command's default. OUTBOARD_IDLE.
	Idle     time.Duration `yaml:"idle,omitempty"`
	LogLevel string        `yaml:"log_level,omitempty"` // debug, info, warn, error; OUTBOARD_LOG
	Limits   Limits        `yaml:"limits,omitempty"`
	Vault    Vault         `yaml:"vault,omitempty"`
	Login    Login         `yaml:"login,omitempty"`
	Sandbox  Sandbox       `yaml:"sandbox,omitempty"`
	Egress   Egress        `yaml:"egress,omitempty"`
	Images   Images        `yaml:"images,omitempty"`
	LLM      llm.Config    `yaml:"llm,omitempty"`
	Policy   Policy        `yaml:"policy,omitempty"`
	Exports  Exports       `yaml:"exports,omitempty"`
}

// Exports says whose exported sessions are imported, besides this server's own.
type Exports struct {
	Trusted []string `yaml:"trusted,omitempty"` // public keys, as outboard audit checkpoint --key shows them
}

// IsZero reports whether nothing is set.
func (e Exports) IsZero() bool { return len(e.Trusted) == 0 }

// Egress says what the gateway of the sandboxes may reach at all, before any environment's rules.
type Egress struct {
	// CIDRs that count as reachable though they are not public
	PrivateNetworks []string `yaml:"private_networks,omitempty"`
	CAFiles         []string `yaml:"ca_files,omitempty"` // PEM; trusted as servers' besides the system's
	// a request that carries no byte for so long is ended; 0 = the gateway's own
	IdleTimeout time.Duration `yaml:"idle_timeout,omitempty"`
	// a connection of a sandbox is closed then; 0 = the gateway's own
	MaxLifetime time.Duration `yaml:"max_lifetime,omitempty"`
	Boxes       Boxes         `yaml:"boxes,omitempty"`
}

// Boxes is the most that a box may reach, whatever it asks for. The zero value lets boxes reach nothing.
type Boxes struct {
	Networking           string    `yaml:"networking,omitempty"` // none, limited or unrestricted; "" = limited
	AllowedHosts         []string  `yaml:"allowed_hosts,omitempty"`
	AllowPackageManagers bool      `yaml:"allow_package_managers,omitempty"`
	Rules                []BoxRule `yaml:"rules,omitempty"`
	Budget               NetUse    `yaml:"budget,omitempty"`  // of each box; 0 = the gateway's own
	Proxies              []string  `yaml:"proxies,omitempty"` // host:port; that boxes may go through, wherever they are
}

// BoxRule is a rule of an environment, for boxes.
type BoxRule struct {
	Host      string   `yaml:"host"`
	Port      int      `yaml:"port,omitempty"`
	Methods   []string `yaml:"methods,omitempty"`
	Path      string   `yaml:"path,omitempty"`
	Deny      bool     `yaml:"deny,omitempty"`
	WebSocket bool     `yaml:"websocket,omitempty"`
}

// NetUse is how much may be sent.
type NetUse struct {
	Requests int64 `yaml:"requests,omitempty"`
	Bytes    int64 `yaml:"bytes,omitempty"`
	Hosts    int   `yaml:"hosts,omitempty"`
}

// IsZero reports whether nothing is set.
func (b Boxes) IsZero() bool { return reflect.ValueOf(b).IsZero() }

// Bound is the networking that holds for every box.
func (b Boxes) Bound() outboard.Networking {
	var rules []outboard.NetRule
	for _, r := range b.Rules {
		rules = append(rules, outboard.NetRule{Host: r.Host, Port: r.Port, Methods: r.Methods, Path: r.Path,
			Deny: r.Deny, WebSocket: r.WebSocket})
	}
	return outboard.Networking{Mode: cmp.Or(b.Networking, "limited"), AllowedHosts: b.AllowedHosts,
		AllowPackageManagers: b.AllowPackageManagers, Rules: rules,
		Budget: outboard.NetBudget{Requests: b.Budget.Requests, Bytes: b.Budget.Bytes, Hosts: b.Budget.Hosts}}
}

func (b Boxes) check() error {
	if b.Networking != "" && !slices.Contains([]string{"none", "limited", "unrestricted"}, b.Networking) {
		return outboard.Errorf(outboard.Invalid, "configuring egress.boxes: networking must be none, limited or "+
			"unrestricted, not %q", b.Networking)
	}
	if b.Bound().Mode != "limited" && (len(b.AllowedHosts) > 0 || b.AllowPackageManagers) {
		return outboard.Errorf(outboard.Invalid, "configuring egress.boxes: allowed_hosts and "+
			"allow_package_managers belong to networking limited")
	}
	for _, h := range b.AllowedHosts {
		if err := netrule.Check(outboard.NetRule{Host: h}); err != nil || h == "*" {
			return outboard.Errorf(outboard.Invalid, "configuring egress.boxes: allowed_hosts: %q must be a "+
				"lower-case name, *.name, an IP address or a network; for every host there is networking unrestricted", h)
		}
	}
	for i, r := range b.Bound().Rules {
		if err := netrule.Check(r); err != nil {
			return outboard.Errorf(outboard.Invalid, "configuring egress.boxes: rules[%d]: %w", i, err)
		}
	}
	for _, p := range b.Proxies {
		if _, _, err := netrule.Proxy(p); err != nil {
			return outboard.Errorf(outboard.Invalid, "configuring egress.boxes: proxies: %q must be host:port: %w", p,
				err)
		}
	}
	if u := b.Budget; u.Requests < 0 || u.Bytes < 0 || u.Hosts < 0 {
		return outboard.Errorf(outboard.Invalid, "configuring egress.boxes: the budget must not be negative")
	}
	return nil
}

// IsZero reports whether nothing is set.
func (e Egress) IsZero() bool {
	return len(e.PrivateNetworks) == 0 && len(e.CAFiles) == 0 && e.IdleTimeout == 0 && e.MaxLifetime == 0 &&
		e.Boxes.IsZero()
}

// minIdle and maxIdle bound egress.idle_timeout: below the first, ordinary servers are cut off.
const minIdle, maxIdle = 10 * time.Second, 24 * time.Hour

// minLife and maxLife bound egress.max_lifetime: below the first, ordinary downloads are cut off.
const minLife, maxLife = 10 * time.Minute, 30 * 24 * time.Hour

// Images says how images are pulled. Which addresses registries may have, and whom to trust there, egress says.
type Images struct {
	Registries []Registry `yaml:"registries,omitempty"`
	// URLs that packages are installed from instead: debootstrap, go, npm, pip
	Mirrors map[string]string `yaml:"mirrors,omitempty"`
	// Directories are directories and archives of this machine that environments of every organization may begin
	// with, and what lies below them. Without it only who runs the server may name any.
	Directories []string `yaml:"directories,omitempty"`
}

// Registry is who this server is at one registry. The password comes from one of three places.
type Registry struct {
	Host         string `yaml:"host"` // with its port, as images name it
	Username     string `yaml:"username,omitempty"`
	PasswordEnv  string `yaml:"password_env,omitempty"`
	PasswordFile string `yaml:"password_file,omitempty"`
	Credential   string `yaml:"credential,omitempty"` // of the vault
}

// IsZero reports whether nothing is set.
func (i Images) IsZero() bool {
	return len(i.Registries) == 0 && len(i.Mirrors) == 0 && len(i.Directories) == 0
}

func (i Images) check() error {
	for n, d := range i.Directories {
		if !filepath.IsAbs(d) || filepath.Clean(d) != d || d == "/" {
			return outboard.Errorf(outboard.Invalid, "configuring images.directories[%d]: %q must be an absolute "+
				"path without dots, and not /", n, d)
		}
	}
	for name, address := range i.Mirrors {
		u, err := url.Parse(address)
		if !slices.Contains([]string{"debootstrap", "go", "npm", "pip"}, name) || err != nil || u.Host == "" {
			return outboard.Errorf(outboard.Invalid, "configuring images.mirrors: %q must be debootstrap, go, npm "+
				"or pip, and have a URL", name)
		}
	}
	for n, r := range i.Registries {
		set := 0
		for _, from := range []string{r.PasswordEnv, r.PasswordFile, r.Credential} {
			if from != "" {
				set++
			}
		}
		if r.Host == "" || set != 1 {
			return outboard.Errorf(outboard.Invalid, "configuring images.registries[%d]: it needs a host and one of "+
				"password_env, password_file and credential", n)
		}
	}
	return nil
}

// Vault says what the vault's data key is wrapped with. The zero value is a key in the data directory, made at
// first use. The previous ones only open: they are for rotating from one to another.
type Vault struct {
	KeyFile               string   `yaml:"key_file,omitempty"`
	PassphraseEnv         string   `yaml:"passphrase_env,omitempty"`
	Command               []string `yaml:"command,omitempty"` // a program and its arguments
	Transit               Transit  `yaml:"transit,omitempty"`
	AWSKMS                AWSKMS   `yaml:"aws_kms,omitempty"`
	PreviousKeyFile       string   `yaml:"previous_key_file,omitempty"`
	PreviousPassphraseEnv string   `yaml:"previous_passphrase_env,omitempty"`
	PreviousCommand       []string `yaml:"previous_command,omitempty"`
	PreviousTransit       Transit  `yaml:"previous_transit,omitempty"`
	PreviousAWSKMS        AWSKMS   `yaml:"previous_aws_kms,omitempty"`
}

// Transit is a key of the transit engine of a HashiCorp Vault or OpenBao.
type Transit struct {
	URL       string `yaml:"url,omitempty"`
	Mount     string `yaml:"mount,omitempty"` // "" = transit
	Key       string `yaml:"key,omitempty"`
	Namespace string `yaml:"namespace,omitempty"`
	TokenFile string `yaml:"token_file,omitempty"`
	CAFile    string `yaml:"ca_file,omitempty"` // PEM; trusted besides the system's
}

// AWSKMS is a key of AWS KMS. Who the server is there comes from the environment.
type AWSKMS struct {
	Region string `yaml:"region,omitempty"`
	Key    string `yaml:"key,omitempty"` // id, ARN or alias
	URL    string `yaml:"url,omitempty"` // "" = the region's own
}

// IsZero reports whether nothing is set.
func (v Vault) IsZero() bool { return reflect.ValueOf(v).IsZero() }

// IsZero reports whether nothing is set.
func (t Transit) IsZero() bool { return t == Transit{} }

// IsZero reports whether nothing is set.
func (a AWSKMS) IsZero() bool { return a == AWSKMS{} }

func (v Vault) check() error {
	set := 0
	for _, on := range []bool{v.KeyFile != "", v.PassphraseEnv != "", len(v.Command) > 0, !v.Transit.IsZero(),
		!v.AWSKMS.IsZero()} {
		if on {
			set++
		}
	}
	if set > 1 {
		return outboard.Errorf(outboard.Invalid, "configuring the vault: key_file, passphrase_env, command, transit "+
			"and aws_kms exclude each other").
			WithHint("to move from one to another, name the old one as previous_key_file, previous_passphrase_env " +
				"and so on")
	}
	for _, c := range [][]string{v.Command, v.PreviousCommand} {
		if len(c) > 0 && !filepath.IsAbs(c[0]) {
			return outboard.Errorf(outboard.Invalid, "configuring vault.command: the program %q must be an absolute "+
				"path", c[0])
		}
	}
	for _, t := range []Transit{v.Transit, v.PreviousTransit} {
		if !t.IsZero() && (t.Key == "" || t.TokenFile == "" || !secureURL(t.URL)) {
			return outboard.Errorf(outboard.Invalid, "configuring vault.transit: it needs a key, a token_file, and "+
				"a url with https (or http on this machine)")
		}
	}
	for _, a := range []AWSKMS{v.AWSKMS, v.PreviousAWSKMS} {
		if !a.IsZero() && (a.Key == "" || a.Region == "" || a.URL != "" && !secureURL(a.URL)) {
			return outboard.Errorf(outboard.Invalid, "configuring vault.aws_kms: it needs a key and a region; a url "+
				"must have https (or http on this machine)")
		}
	}
	return nil
}

// secureURL reports whether what is sent to a URL can be read by its server only.
func secureURL(s string) bool {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.User != nil {
		return false
	}
	ip, err := netip.ParseAddr(u.Hostname())
	here := u.Hostname() == "localhost" || err == nil && ip.IsLoopback()
	return u.Scheme == "https" || u.Scheme == "http" && here
}

// Policy is the operator's say on what sessions may do.
type Policy struct {
	Rules           string         `yaml:"rules,omitempty"`            // Cedar text
	File            string         `yaml:"file,omitempty"`             // or a file of it
	Taint           string         `yaml:"taint,omitempty"`            // ask, deny or off
	ApprovalTimeout time.Duration  `yaml:"approval_timeout,omitempty"` // 0 = the engine's own
	Judge           string         `yaml:"judge,omitempty"`            // model of the permission auto; "" = it asks
	Limits          []policy.Limit `yaml:"limits,omitempty"`
	Webhook         Webhook        `yaml:"webhook,omitempty"`
}

// IsZero reports whether nothing is set.
func (p Policy) IsZero() bool { return reflect.ValueOf(p).IsZero() }

// Webhook is where pending approvals are announced.
type Webhook struct {
	URL          string `yaml:"url,omitempty"`
	SecretFile   string `yaml:"secret_file,omitempty"`   // holds whsec_ and base64
	AllowPrivate bool   `yaml:"allow_private,omitempty"` // the address may be on a private network
}

// IsZero reports whether nothing is set.
func (w Webhook) IsZero() bool { return w == Webhook{} }

// Limits bounds what one process does, and what sessions keep.
type Limits struct {
	// Checkpoints is how many of its newest saved states a session keeps, all of them; of older ones it keeps
	// fewer. nil = 200, 0 = all stay.
	Checkpoints *int `yaml:"checkpoints,omitempty"`
	// CheckpointBytes is what the saved states of one session may take; beyond it fewer stay. 0 = no bound.
	CheckpointBytes int64 `yaml:"checkpoint_bytes,omitempty"`
	// OrganizationPercent is how much of a bound of the whole installation one organization may have; 0 = 25.
	OrganizationPercent int `yaml:"organization_percent,omitempty"`
	// Streams, Files and FileBytes are what organizations share besides; 0 = outboard.MaxStreams,
	// outboard.MaxFiles, and the size of the disk that files are kept on.
	Streams   int   `yaml:"streams,omitempty"`
	Files     int64 `yaml:"files,omitempty"`
	FileBytes int64 `yaml:"file_bytes,omitempty"`
	// sessions run at a time, 0 = the runner's default; OUTBOARD_SLOTS
	Slots int `yaml:"slots,omitempty"`
	// how long a model that is away is tried again; 0 = the harness's default
	ModelPatience time.Duration `yaml:"model_patience,omitempty"`
	ModelCalls    int           `yaml:"model_calls,omitempty"` // of one turn; 0 = outboard.MaxModelCalls
}

// Sandbox is how sandboxes are made.
type Sandbox struct {
	// Ahead is how many places for sandboxes are made before they are needed, for each kind; nil = 2.
	Ahead *int `yaml:"ahead,omitempty"`
	// Warm is how many sandboxes are started before they are needed, for each kind; nil = 1.
	Warm *int `yaml:"warm,omitempty"`
	// StopAfter, DropAfter and MaxAge are how long a session may rest before its sandbox is stopped, and
	// dropped, and how old one may get; nil = 30m, 24h and no limit, 0 = never. An environment may say
	// otherwise.
	StopAfter *time.Duration `yaml:"stop_after,omitempty"`
	DropAfter *time.Duration `yaml:"drop_after,omitempty"`
	MaxAge    *time.Duration `yaml:"max_age,omitempty"`
	// RestEvery is how often the server looks for sandboxes to stop, to drop and to clean up after; nil = 30s.
	RestEvery *time.Duration `yaml:"rest_every,omitempty"`
	// MaxPerEnvironment and MaxPerOwner bound the sandboxes that are alive; 0 = no bound.
	MaxPerEnvironment int `yaml:"max_sandboxes_per_environment,omitempty"`
	MaxPerOwner       int `yaml:"max_sandboxes_per_owner,omitempty"`
	// DiskReserveBytes is what sandboxes leave of the server's disk; nil = 1 GiB or a fiftieth of the disk, if
	// that is less, 0 = nothing.
	DiskReserveBytes *int64 `yaml:"disk_reserve_bytes,omitempty"`
	// What the isolations of these names use; what is not set is looked for.
	Container Runtime `yaml:"container,omitempty"`
	GVisor    Runtime `yaml:"gvisor,omitempty"`
	Docker    Engine  `yaml:"docker,omitempty"`
}

// minStates and maxStates bound limits.checkpoints: fewer are no way back, and each is a row that lists and forks read.
const (
	minStates = 10
	maxStates = 100_000
)

// States is Checkpoints with its default.
func (l Limits) States() int {
	if l.Checkpoints == nil {
		return 200
	}
	return *l.Checkpoints
}

// Lifecycle returns what holds for environments that do not say otherwise.
func (s Sandbox) Lifecycle() outboard.Lifecycle {
	seconds := func(d *time.Duration, otherwise time.Duration) int64 {
		if d != nil {
			otherwise = *d
		}
		return int64(otherwise.Seconds())
	}
	return outboard.Lifecycle{StopAfterSec: seconds(s.StopAfter, 30*time.Minute),
		DropAfterSec: seconds(s.DropAfter, 24*time.Hour),
		MaxAgeSec:    seconds(s.MaxAge, 0), MaxSandboxes: s.MaxPerEnvironment}
}

// minRestEvery bounds sandbox.rest_every: each look lists all sandboxes of the host.
const minRestEvery = 100 * time.Millisecond

// Rests is RestEvery with its default.
func (s Sandbox) Rests() time.Duration {
	if s.RestEvery == nil {
		return 30 * time.Second
	}
	return *s.RestEvery
}

// Runtime is an OCI runtime.
type Runtime struct {
	Program string   `yaml:"program,omitempty"` // path or name
	Flags   []string `yaml:"flags,omitempty"`   // given before every command
}

// Engine is a Docker engine of this host.
type Engine struct {
	Socket string `yaml:"socket,omitempty"` // a path, or unix:// and a path
}

// IsZero reports whether nothing is set.
func (r Runtime) IsZero() bool { return r.Program == "" && len(r.Flags) == 0 }

// maxAhead bounds sandbox.ahead and sandbox.warm: each place costs about half a MiB of kernel memory, one with a
// guest some 3 MiB.
const maxAhead = 64

// Places is Ahead with its default.
func (s Sandbox) Places() int {
	if s.Ahead == nil {
		return 2
	}
	return *s.Ahead
}

// Reserve is DiskReserveBytes with its default, which is less than 0: a part of the disk.
func (s Sandbox) Reserve() int64 {
	if s.DiskReserveBytes == nil {
		return -1
	}
	return *s.DiskReserveBytes
}

// Guests is Warm with its default.
func (s Sandbox) Guests() int {
	if s.Warm == nil {
		return 1
	}
	return *s.Warm
}

// IsZero reports whether nothing is set.
func (s Sandbox) IsZero() bool {
	return reflect.DeepEqual(s, Sandbox{})
}

// IsZero reports whether no limit is set.
func (l Limits) IsZero() bool { return l == Limits{} }

//go:embed example.yaml
var example string

// Example returns a commented configuration to start from.
func Example() string { return example }

// Load reads the file at path, or none if path is "", and then the environment. A file that does not exist is
// NotFound; any other mistake is Invalid and names the file and the line. Relative paths in the file are
// relative to its directory.
func Load(path string, env func(string) string) (*Config, error) {
	var c Config
	if path != "" {
		text, err := readFile(path)
		if err != nil {
			return nil, err
		}
		if err := decode(text, &c); err != nil {
			return nil, outboard.Errorf(outboard.Invalid, "reading the configuration %s: %w", path, err).
				WithHint("outboard config init writes an example; docs/reference/config.md describes every key")
		}
		c.resolve(filepath.Dir(path))
	}
	if err := c.override(env); err != nil {
		return nil, err
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	if err := c.Policy.load(); err != nil {
		return nil, err
	}
	c.LLM = llm.FromEnv(c.LLM, env)
	return &c, nil
}

var levels = []string{"debug", "info", "warn", "error"}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, outboard.Errorf(outboard.NotFound, "reading the configuration: %w", err).
			WithHint("outboard config init writes one")
	}
	if err != nil {
		return nil, outboard.Errorf(outboard.Invalid, "reading the configuration: %w", err).
			WithHint("name a configuration this user can read with --config, or a data directory with --data or " +
				"OUTBOARD_DATA")
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, outboard.Errorf(outboard.Invalid, "reading the configuration: %w", err)
	}
	if len(text) > maxFile {
		return nil, outboard.Errorf(outboard.TooLarge, "reading the configuration %s: it is larger than %d bytes", path,
			maxFile)
	}
	return text, nil
}

// decode fills c from YAML text.
func decode(text []byte, c *Config) error {
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc, more yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil // an empty file configures nothing
	case err != nil:
		return llm.SyntaxError(text, err)
	}
	if !errors.Is(dec.Decode(&more), io.EOF) {
		return errors.New("it has more than one YAML document")
	}
	if err := check(&doc, c); err != nil {
		return err
	}
	return doc.Decode(c)
}

// resolve makes the file's relative paths absolute.
func (c *Config) resolve(dir string) {
	for _, p := range []*string{&c.Data, &c.LLM.Scripts.Dir, &c.Vault.KeyFile, &c.Vault.PreviousKeyFile,
		&c.Vault.Transit.TokenFile,
		&c.Vault.Transit.CAFile, &c.Vault.PreviousTransit.TokenFile, &c.Vault.PreviousTransit.CAFile, &c.Policy.File,
		&c.Login.ClientSecretFile, &c.Login.CAFile,
		&c.Policy.Webhook.SecretFile} {
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(dir, *p)
		}
	}
	for i, r := range c.Images.Registries {
		if r.PasswordFile != "" && !filepath.IsAbs(r.PasswordFile) {
			c.Images.Registries[i].PasswordFile = filepath.Join(dir, r.PasswordFile)
		}
	}
	for i, f := range c.Egress.CAFiles {
		if !filepath.IsAbs(f) {
			c.Egress.CAFiles[i] = filepath.Join(dir, f)
		}
	}
}

// override takes in the environment.
func (c *Config) override(env func(string) string) error {
	for name, value := range map[string]*string{"OUTBOARD_LISTEN": &c.Listen, "OUTBOARD_E2B": &c.E2B,
		"OUTBOARD_E2B_DOMAIN": &c.E2BDomain, "OUTBOARD_SSH": &c.SSH, "OUTBOARD_DATA": &c.Data, "OUTBOARD_DB": &c.DB, "OUTBOARD_BLOB": &c.Blob,
		"OUTBOARD_LOG": &c.LogLevel} {
		if v := env(name); v != "" {
			*value = v
		}
	}
	if v := env("OUTBOARD_SLOTS"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			return outboard.Errorf(outboard.Invalid, "reading OUTBOARD_SLOTS: %q is no number", v)
		}
		c.Limits.Slots = n
	}
	if v := env("OUTBOARD_IDLE"); v != "" {
		d, err := time.ParseDuration(v)
		if err != nil {
			return outboard.Errorf(outboard.Invalid, "reading OUTBOARD_IDLE: %q is not a duration such as 10m", v)
		}
		c.Idle = d
	}
	return nil
}

// Redacted returns a copy that can be shown: without the database's password. Keys are of a type that never shows them.
func (c Config) Redacted() Config {
	if c.DB == "" {
		return c
	}
	u, err := url.Parse(c.DB)
	if err != nil || u.Scheme == "" {
		c.DB = "[not shown: it is no URL]" // it may hold a password in some other form
		return c
	}
	q := u.Query()
	if q.Has("password") {
		q.Set("password", "xxxxx")
		u.RawQuery = q.Encode()
	}
	c.DB = u.Redacted()
	return c
}

// MarshalYAML shows the redacted form, so that no way of printing a Config shows a password.
func (c Config) MarshalYAML() (any, error) {
	type shown Config
	return shown(c.Redacted()), nil
}

// String shows the redacted form.
func (c Config) String() string {
	b, err := yaml.Marshal(c)
	if err != nil {
		return fmt.Sprintf("configuration that cannot be shown: %v", err)
	}
	return string(b)
}

// load reads the file of rules and checks them, so that a mistake is found before anything starts.
func (p *Policy) load() error {
	if p.File != "" {
		if p.Rules != "" {
			return outboard.Errorf(outboard.Invalid, "configuring policy: rules and file are both set")
		}
		text, err := readFile(p.File)
		if err != nil {
			return outboard.Errorf(outboard.Invalid, "configuring policy: %w", err)
		}
		p.Rules, p.File = string(text), ""
	}
	if p.Webhook.URL == "" != (p.Webhook.SecretFile == "") {
		return outboard.Errorf(outboard.Invalid, "configuring policy: a webhook needs both url and secret_file")
	}
	_, err := policy.New(p.Engine())
	return err
}

// Engine is the part that decides, without a source of stored policies.
func (p *Policy) Engine() policy.Config {
	return policy.Config{Operator: p.Rules, Taint: p.Taint, Limits: p.Limits, Timeout: p.ApprovalTimeout}
}
