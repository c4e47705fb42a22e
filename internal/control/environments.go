package control

import (
	"context"
	"errors"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/fleet"
	"github.com/outboard-dev/outboard/internal/netrule"
	"github.com/outboard-dev/outboard/internal/store"
)

// hostName is a DNS name as allow-lists hold it: no scheme, port, path, user or wildcard.
var hostName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)*$`)

// PackageManagers are the managers an environment may list packages for, in the order they install.
var PackageManagers = []string{"apt", "cargo", "gem", "go", "npm", "pip"}

// EnvironmentPatch changes an environment. Nil fields keep their value.
type EnvironmentPatch struct {
	Name        *string
	Description *string
	Scope       *string
	Metadata    map[string]*string // nil or "" deletes a key
	Kind        *string            // must be the environment's own
	// Config, when set, changes a copy of the current config; what it leaves alone keeps its value.
	Config func(*outboard.EnvConfig)
}

// CreateEnvironment stores a new environment: what p says, and for the rest a cloud environment that reaches
// nothing but the package managers of its packages.
func (c *Control) CreateEnvironment(ctx context.Context, by outboard.Caller,
	p EnvironmentPatch) (outboard.Environment, error) {
	now := c.clock()
	e := outboard.Environment{ID: outboard.NewID[outboard.EnvironmentID](outboard.PrefixEnvironment), CreatedAt: now,
		UpdatedAt: now, Org: by.In()}
	if err := requireDeveloper(by, scopeEnvironments); err != nil {
		return e, err
	}
	e.Config.Kind = "cloud"
	set(&e.Config.Kind, p.Kind)
	if err := p.apply(&e); err != nil {
		return e, err
	}
	if err := c.mayBegin(by, "", &e.Config); err != nil {
		return e, err
	}
	if err := c.checkIsolation(&e); err != nil {
		return e, err
	}
	if err := c.hasTemplate(ctx, by, e.Config); err != nil {
		return e, err
	}
	if err := c.record(ctx, by, "environment.create", string(e.ID), e.Config); err != nil {
		return e, err
	}
	if err := c.store.PutEnvironment(ctx, e); err != nil {
		return e, outboard.Errorf(outboard.KindOf(err), "storing the environment: %w", err)
	}
	return e, nil
}

// apply changes e and validates the result.
func (p *EnvironmentPatch) apply(e *outboard.Environment) error {
	set(&e.Name, p.Name)
	set(&e.Description, p.Description)
	set(&e.Scope, p.Scope)
	if p.Metadata != nil {
		m, err := mergeMetadata(e.Metadata, p.Metadata, true)
		if err != nil {
			return err
		}
		e.Metadata = m
	}
	if p.Config != nil {
		p.Config(&e.Config)
	}
	if n := &e.Config.Networking; e.Config.Kind == "cloud" && n.Mode == "" {
		// what it lists packages for it must reach
		n.Mode, n.AllowPackageManagers = "limited", len(e.Config.Packages) > 0
	}
	return checkEnvironment(e)
}

// Environment returns one environment.
func (c *Control) Environment(ctx context.Context, by outboard.Caller,
	id outboard.EnvironmentID) (outboard.Environment, error) {
	if err := requireReader(by); err != nil {
		return outboard.Environment{}, err
	}
	if !outboard.ValidID(outboard.PrefixEnvironment, string(id)) {
		return outboard.Environment{}, notFound("environment", string(id))
	}
	e, err := c.store.Environment(ctx, id)
	if err := ownedBy(by, e.Org, "environment", string(id), err); err != nil {
		return outboard.Environment{}, err
	}
	return e, nil
}

// Environments returns one page, newest first, as Agents does. at is when the cursor's row was made: it may be deleted
// by now.
func (c *Control) Environments(ctx context.Context, by outboard.Caller, p Page,
	at time.Time) (_ []outboard.Environment, more bool, err error) {
	if err := requireReader(by); err != nil {
		return nil, false, err
	}
	p.Org = by.In()
	list, more, err := gather(func(p Page) ([]outboard.Environment, error) {
		return listAfter(func(p Page) ([]outboard.Environment, error) { return c.store.Environments(ctx, p) }, p, at,
			func(e outboard.Environment) (time.Time, string) { return e.CreatedAt, string(e.ID) })
	}, p, func(e *outboard.Environment) int64 { at = e.CreatedAt; return e.Config.Size() }, func(e *outboard.Environment) string { return string(e.ID) })
	return list, more, wrapLookup("environments", "", err)
}

// UpdateEnvironment applies a patch. Running sessions keep what they started with.
func (c *Control) UpdateEnvironment(ctx context.Context, by outboard.Caller, id outboard.EnvironmentID,
	p EnvironmentPatch) (outboard.Environment, error) {
	if err := requireDeveloper(by, scopeEnvironments); err != nil {
		return outboard.Environment{}, err
	}
	e, err := c.Environment(ctx, by, id)
	if err != nil {
		return e, err
	}
	if !e.ArchivedAt.IsZero() {
		return e, invalid("environment %s is archived and cannot be changed", id).WithCode("environment_archived")
	}
	if p.Kind != nil && *p.Kind != e.Config.Kind {
		return e, invalid("config.type of environment %s is %s and cannot change to %s", id, e.Config.Kind,
			quote(*p.Kind)).
			WithCode("invalid_config_type_change")
	}
	before := e.Config
	if err := p.apply(&e); err != nil {
		return e, err
	}
	if err := c.mayBegin(by, before.Rootfs, &e.Config); err != nil {
		return e, err
	}
	if !reflect.DeepEqual(e.Config, before) {
		if err := c.checkIsolation(&e); err != nil {
			return e, err
		}
		if err := c.hasTemplate(ctx, by, e.Config); err != nil {
			return e, err
		}
	}
	e.UpdatedAt = c.clock()
	if err := c.record(ctx, by, "environment.update", string(id), e.Config); err != nil {
		return e, err
	}
	if err := c.store.PutEnvironment(ctx, e); err != nil {
		return e, outboard.Errorf(outboard.KindOf(err), "storing environment %s: %w", id, err)
	}
	return e, nil
}

// ArchiveEnvironment archives an environment: no new sessions. Archiving twice is the same as once.
func (c *Control) ArchiveEnvironment(ctx context.Context, by outboard.Caller,
	id outboard.EnvironmentID) (outboard.Environment, error) {
	if err := requireDeveloper(by, scopeEnvironments); err != nil {
		return outboard.Environment{}, err
	}
	e, err := c.Environment(ctx, by, id)
	if err != nil || !e.ArchivedAt.IsZero() {
		store.Unchanged(ctx)
		return e, err
	}
	e.ArchivedAt = c.clock()
	e.UpdatedAt = e.ArchivedAt
	if err := c.record(ctx, by, "environment.archive", string(id), nil); err != nil {
		return e, err
	}
	if err := c.store.PutEnvironment(ctx, e); err != nil {
		return e, outboard.Errorf(outboard.KindOf(err), "storing environment %s: %w", id, err)
	}
	return e, nil
}

// DeleteEnvironment removes an environment. Conflict: sessions name it.
func (c *Control) DeleteEnvironment(ctx context.Context, by outboard.Caller, id outboard.EnvironmentID) error {
	if err := requireDeveloper(by, scopeEnvironments); err != nil {
		return err
	}
	if _, err := c.Environment(ctx, by, id); err != nil {
		return err
	}
	if err := c.record(ctx, by, "environment.delete", string(id), nil); err != nil {
		return err
	}
	return wrapLookup("environment", string(id), c.store.DeleteEnvironment(ctx, id))
}

// checkIsolation refuses an environment whose sandboxes this server could not make, with what to do about it,
// instead of letting each of its sessions find out.
func (c *Control) checkIsolation(e *outboard.Environment) error {
	if e.Config.Isolation == "" || c.able == nil {
		return nil
	}
	err := c.able(e.Config)
	if err == nil {
		return nil
	}
	refusal := invalid("config.outboard.isolation: %w", err).WithCode("isolation_unavailable")
	if o, ok := errors.AsType[*outboard.Error](err); ok && o.Hint != "" {
		refusal = refusal.WithHint("%s", o.Hint)
	}
	return refusal
}

func checkEnvironment(e *outboard.Environment) error {
	if err := length("name", e.Name, 1, maxName); err != nil {
		return err
	}
	if err := length("description", e.Description, 0, maxEnvText); err != nil {
		return err
	}
	if !slices.Contains([]string{"", "organization", "account"}, e.Scope) {
		return invalid("scope must be organization or account, not %s", quote(e.Scope))
	}
	if err := checkMetadata(e.Metadata); err != nil {
		return err
	}
	switch e.Config.Kind {
	case "cloud":
		if err := checkCloud(&e.Config); err != nil {
			return err
		}
		return checkDefinition("config", e.Config)
	case "self_hosted":
		return nil
	}
	return invalid("config.type must be cloud or self_hosted, not %s", quote(e.Config.Kind))
}

func checkCloud(cfg *outboard.EnvConfig) error {
	n := &cfg.Networking
	switch n.Mode {
	case "unrestricted", "none":
		if len(n.AllowedHosts) > 0 {
			return invalid("config.networking.allowed_hosts needs type limited, not %s", n.Mode)
		}
	case "limited":
	default:
		return invalid("config.networking.type must be unrestricted, limited or none, not %s", quote(n.Mode))
	}
	if len(n.AllowedHosts) > maxHosts {
		return invalid("config.networking.allowed_hosts must have at most %d entries, not %d", maxHosts,
			len(n.AllowedHosts))
	}
	for _, h := range n.AllowedHosts {
		if !hostName.MatchString(strings.TrimPrefix(h, "*.")) {
			return invalid("config.networking.allowed_hosts: %s is neither a host name nor *.name", quote(h))
		}
		// it would be accepted, and reach nothing
		if err := netrule.Check(outboard.NetRule{Host: strings.ToLower(h)}); err != nil {
			return invalid("config.networking.allowed_hosts: %s: %w", quote(h), err)
		}
	}
	if err := checkNetworking(n); err != nil {
		return err
	}
	if err := checkPackages(cfg); err != nil {
		return err
	}
	return checkMachine(cfg)
}

func checkPackages(cfg *outboard.EnvConfig) error {
	total := 0
	for manager, list := range cfg.Packages {
		if !slices.Contains(PackageManagers, manager) {
			return invalid("config.packages: %s is not a package manager", quote(manager))
		}
		if len(list) > maxPackages {
			return invalid("config.packages.%s must have at most %d entries, not %d", manager, maxPackages, len(list))
		}
		for _, p := range list {
			if err := length("config.packages."+manager+" entry", p, 1, maxPackageName); err != nil {
				return err
			}
			if strings.HasPrefix(p, "-") {
				return invalid("config.packages.%s: %s looks like an option", manager, quote(p))
			}
		}
		total += len(list)
	}
	if total > 0 && cfg.Networking.Mode == "limited" && !cfg.Networking.AllowPackageManagers {
		return invalid("config.packages under limited networking needs allow_package_managers: true")
	}
	return nil
}

// mayBegin refuses a path of this machine that the caller may not name: what lies there is not the
// organization's. had is what the environment began with before.
func (c *Control) mayBegin(by outboard.Caller, had string, cfg *outboard.EnvConfig) error {
	path := cfg.Rootfs
	if path == had || !filepath.IsAbs(path) || by.Operator() {
		return nil
	}
	for _, dir := range c.dirs {
		if rest, err := filepath.Rel(dir, path); err == nil && filepath.IsLocal(rest) && filepath.Clean(path) == path {
			return nil
		}
	}
	return outboard.Errorf(outboard.Denied, "config.outboard.rootfs: only who runs the server may name %s of its "+
		"machine", quote(path)).
		WithHint("the server's configuration lists what everybody may name: images.directories")
}

// checkMachine validates Outboard's own part of a config.
func checkMachine(cfg *outboard.EnvConfig) error {
	switch {
	case fleet.IsBase(cfg.Rootfs):
		if err := fleet.CheckBase(cfg.Rootfs); err != nil {
			return invalid("config.outboard.rootfs: %w", err)
		}
	case cfg.Rootfs != "" && cfg.Rootfs != "host" && !filepath.IsAbs(cfg.Rootfs):
		return invalid("config.outboard.rootfs must be host, debootstrap:SUITE or an absolute path on the server, "+
			"not %s", quote(cfg.Rootfs))
	}
	if err := length("config.outboard.rootfs", cfg.Rootfs, 0, 4096); err != nil {
		return err
	}
	if cfg.Image != "" {
		if cfg.Rootfs != "" {
			return invalid("config.outboard: rootfs and image exclude each other")
		}
		if err := fleet.CheckImage(cfg.Image); err != nil {
			return invalid("config.outboard.image: %w", err)
		}
	}
	if cfg.Template != "" {
		if cfg.Rootfs != "" || cfg.Image != "" {
			return invalid("config.outboard: template excludes rootfs and image: it says what it begins with")
		}
		if err := length("config.outboard.template", cfg.Template, 1, 2*maxTemplateName+1); err != nil {
			return err
		}
	}
	if err := length("config.outboard.isolation", cfg.Isolation, 0, maxMetaKey); err != nil {
		return err
	}
	if err := cfg.Limits.Check(); err != nil {
		return invalid("config.outboard.limits.%w", err)
	}
	if l := cfg.Lifecycle; max(l.StopAfterSec, l.DropAfterSec, l.MaxAgeSec) > maxRest || l.StopAfterSec > 0 &&
		l.DropAfterSec > 0 && l.DropAfterSec < l.StopAfterSec {
		return invalid("config.outboard.lifecycle: drop_after_seconds must not be before stop_after_seconds, and "+
			"none over %d", int64(maxRest))
	}
	return nil
}
