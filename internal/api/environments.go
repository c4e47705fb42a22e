package api

import (
	"encoding/json"
	"maps"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
)

type environmentIn struct {
	Name        field[string]             `json:"name"`
	Description field[string]             `json:"description"`
	Scope       field[string]             `json:"scope"`
	Metadata    field[map[string]*string] `json:"metadata"`
	Config      json.RawMessage           `json:"config"`
}

type cloudIn struct {
	Type       string          `json:"type"`
	Networking json.RawMessage `json:"networking"`
	Packages   json.RawMessage `json:"packages"`
	Outboard   json.RawMessage `json:"outboard"`
}

type machineIn struct {
	Rootfs    *string         `json:"rootfs"`
	Image     *string         `json:"image"`
	Template  *string         `json:"template"`
	Isolation *string         `json:"isolation"`
	Limits    json.RawMessage `json:"limits"`
	Network   json.RawMessage `json:"networking"`
	Lifecycle json.RawMessage `json:"lifecycle"`
}

// patch reads the members that create and update share.
func (in *environmentIn) patch() (p control.EnvironmentPatch, err error) {
	if p.Name, err = in.Name.keeping("name"); err != nil {
		return p, err
	}
	p.Description, p.Scope, p.Metadata = in.Description.clearing(), in.Scope.clearing(), in.Metadata.v
	if isNull(in.Config) {
		return p, nil
	}
	kind, err := unionType("config", in.Config)
	if err != nil {
		return p, err
	}
	p.Kind = &kind
	switch kind {
	case "self_hosted":
		return p, object("config", in.Config, new(typeOut))
	case "cloud":
		p.Config, err = decodeCloud(in.Config)
		return p, err
	}
	return p, bad("config.type: must be cloud or self_hosted, not %q", clip(kind))
}

// decodeCloud reads a cloud config as a change of another: what it leaves out keeps its value.
func decodeCloud(raw json.RawMessage) (func(*outboard.EnvConfig), error) {
	var in cloudIn
	if err := object("config", raw, &in); err != nil {
		return nil, err
	}
	var steps []func(*outboard.EnvConfig)
	for _, part := range []struct {
		raw    json.RawMessage
		decode func(json.RawMessage) (func(*outboard.EnvConfig), error)
	}{{in.Networking, decodeNetworking}, {in.Packages, decodePackages}, {in.Outboard, decodeMachine}} {
		if isNull(part.raw) {
			continue
		}
		step, err := part.decode(part.raw)
		if err != nil {
			return nil, err
		}
		steps = append(steps, step)
	}
	return func(c *outboard.EnvConfig) {
		for _, step := range steps {
			step(c)
		}
	}, nil
}

func decodeNetworking(raw json.RawMessage) (func(*outboard.EnvConfig), error) {
	const path = "config.networking"
	kind, err := unionType(path, raw)
	if err != nil {
		return nil, err
	}
	switch kind {
	case "unrestricted", "none": // none is Outboard's own: an air gap
		return func(c *outboard.EnvConfig) { setMode(&c.Networking, kind) }, object(path, raw, new(typeOut))
	case "limited":
		var in struct {
			Type     string    `json:"type"`
			Hosts    *[]string `json:"allowed_hosts"`
			MCP      *bool     `json:"allow_mcp_servers"`
			Packages *bool     `json:"allow_package_managers"`
		}
		err := object(path, raw, &in)
		return func(c *outboard.EnvConfig) {
			n := &c.Networking
			if n.Mode != kind {
				setMode(n, kind)
			}
			keep(&n.AllowedHosts, in.Hosts)
			keep(&n.AllowMCPServers, in.MCP)
			keep(&n.AllowPackageManagers, in.Packages)
		}, err
	}
	return nil, bad("%s.type: must be unrestricted, limited or none, not %q", path, clip(kind))
}

// setMode changes the type, which drops what belongs to the old one. Outboard's own rules hold for every type.
func setMode(n *outboard.Networking, mode string) {
	*n = outboard.Networking{Mode: mode, Rules: n.Rules, Budget: n.Budget, Ask: n.Ask}
}

// keep replaces a field when a value was given.
func keep[T any](field, v *T) {
	if v != nil {
		*field = *v
	}
}

func decodePackages(raw json.RawMessage) (func(*outboard.EnvConfig), error) {
	var in struct {
		Type  string    `json:"type"`
		Apt   *[]string `json:"apt"`
		Cargo *[]string `json:"cargo"`
		Gem   *[]string `json:"gem"`
		Go    *[]string `json:"go"`
		Npm   *[]string `json:"npm"`
		Pip   *[]string `json:"pip"`
	}
	if err := object("config.packages", raw, &in); err != nil {
		return nil, err
	}
	if in.Type != "" && in.Type != "packages" {
		return nil, bad("config.packages.type: must be packages, not %q", clip(in.Type))
	}
	return func(c *outboard.EnvConfig) {
		merged := map[string][]string{}
		maps.Copy(merged, c.Packages)
		for k, v := range map[string]*[]string{"apt": in.Apt, "cargo": in.Cargo, "gem": in.Gem, "go": in.Go,
			"npm": in.Npm, "pip": in.Pip} {
			if v != nil {
				merged[k] = *v
			}
		}
		c.Packages = merged
	}, nil
}

// decodeMachine reads Outboard's own part of a config.
func decodeMachine(raw json.RawMessage) (func(*outboard.EnvConfig), error) {
	const path = "config.outboard"
	var in machineIn
	if err := object(path, raw, &in); err != nil {
		return nil, err
	}
	var limits *outboard.SandboxLimits
	if !isNull(in.Limits) {
		limits = new(outboard.SandboxLimits)
		var l struct {
			Memory int64   `json:"memory_bytes"`
			CPUs   float64 `json:"cpus"`
			Pids   int     `json:"pids"`
			Disk   int64   `json:"disk_bytes"`
		}
		if err := object(path+".limits", in.Limits, &l); err != nil {
			return nil, err
		}
		*limits = outboard.SandboxLimits{MemoryBytes: l.Memory, CPUs: l.CPUs, Pids: l.Pids, DiskBytes: l.Disk}
	}
	var life *outboard.Lifecycle
	if !isNull(in.Lifecycle) {
		life = new(outboard.Lifecycle)
		if err := object(path+".lifecycle", in.Lifecycle, life); err != nil {
			return nil, err
		}
	}
	network := func(*outboard.EnvConfig) {}
	if !isNull(in.Network) {
		var err error
		if network, err = decodeOwnNetwork(in.Network); err != nil {
			return nil, err
		}
	}
	return func(c *outboard.EnvConfig) {
		network(c)
		keep(&c.Rootfs, in.Rootfs)
		keep(&c.Image, in.Image)
		keep(&c.Template, in.Template)
		keep(&c.Isolation, in.Isolation)
		keep(&c.Limits, limits)
		keep(&c.Lifecycle, life)
	}, nil
}

func (s *server) createEnvironment(r *request) (any, error) {
	var in environmentIn
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	p, err := in.patch()
	if err != nil {
		return nil, err
	}
	e, err := s.ctl.CreateEnvironment(r.Context(), r.by, p)
	if err != nil {
		return nil, err
	}
	return showEnvironment(e), nil
}

func (s *server) getEnvironment(r *request) (any, error) {
	e, err := s.ctl.Environment(r.Context(), r.by, outboard.EnvironmentID(r.PathValue("environment")))
	if err != nil {
		return nil, err
	}
	return showEnvironment(e), nil
}

func (s *server) updateEnvironment(r *request) (any, error) {
	var in environmentIn
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	if in.Name.null {
		in.Name.set, in.Name.null = false, false // the wire lets an update say null for "keep"
	}
	p, err := in.patch()
	if err != nil {
		return nil, err
	}
	e, err := s.ctl.UpdateEnvironment(r.Context(), r.by, outboard.EnvironmentID(r.PathValue("environment")), p)
	if err != nil {
		return nil, err
	}
	return showEnvironment(e), nil
}

func (s *server) archiveEnvironment(r *request) (any, error) {
	if err := r.empty(); err != nil {
		return nil, err
	}
	e, err := s.ctl.ArchiveEnvironment(r.Context(), r.by, outboard.EnvironmentID(r.PathValue("environment")))
	if err != nil {
		return nil, err
	}
	return showEnvironment(e), nil
}

func (s *server) deleteEnvironment(r *request) (any, error) {
	id := outboard.EnvironmentID(r.PathValue("environment"))
	if err := s.ctl.DeleteEnvironment(r.Context(), r.by, id); err != nil {
		return nil, err
	}
	return deletedOut{string(id), "environment_deleted"}, nil
}

func (s *server) listEnvironments(r *request) (any, error) {
	q, err := r.rows("environments", otherPage, maxOtherPage)
	if err != nil {
		return nil, err
	}
	list, more, err := s.ctl.Environments(r.Context(), r.by, q.page, q.at)
	if err != nil {
		return nil, err
	}
	q.more = more
	return pageOf(q, list, func(e outboard.Environment) (string, time.Time) { return string(e.ID), e.CreatedAt },
		showEnvironment), nil
}
