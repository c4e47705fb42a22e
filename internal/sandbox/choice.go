package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/outboard-dev/outboard"
)

// Option is a technology that sandboxes can be asked for by name.
type Option struct {
	Isolation string // what Spec.Isolation calls it
	Name      string // of its provider
	// Holds reports whether a sandbox may exist here, whatever its state, or with "" any: only then is the
	// technology asked for it. nil = always.
	Holds func(id outboard.SandboxID) bool
	// Used reports whether the technology was ever opened here, so that List asks it even when there seems to be
	// nothing; nil = Holds.
	Used func() bool
	// Present lists the sandboxes that exist here as far as can be said without the technology, when it cannot
	// be opened. nil = that nothing can be said is an error.
	Present func() ([]outboard.SandboxID, error)
	// Open makes the provider when it is first needed. Its error says what the host lacks, with the fix as a hint.
	Open func() (Provider, error)
}

// Choice is a Provider of several technologies: the first makes what asks for no other. A sandbox is of one
// technology for life, and is found in whichever has it.
type Choice struct {
	first   Provider
	options []*option
}

// option opens its technology once; what the host lacks may be installed later, so a failure is not kept.
type option struct {
	Option
	mu     sync.Mutex
	opened Provider
}

func (o *option) open() (Provider, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.opened == nil {
		p, err := o.Open()
		if err != nil {
			return nil, err
		}
		o.opened = p
	}
	return o.opened, nil
}

var (
	_ Provider  = (*Choice)(nil)
	_ Networked = (*Choice)(nil)
	_ Layers    = (*Choice)(nil)
	_ Stacked   = (*Choice)(nil)
	_ Builder   = (*Choice)(nil)
	_ Pooler    = (*Choice)(nil)
	_ Several   = (*Choice)(nil)
)

// Straying is a Provider that may have sandboxes where Option.Holds does not look: those that its last List
// found there.
type Straying interface {
	Stray(id outboard.SandboxID) bool
}

// may reports whether the technology is to be asked for a sandbox.
func (o *option) may(id outboard.SandboxID) bool {
	if o.Holds == nil || o.Holds(id) {
		return true
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	s, ok := o.opened.(Straying)
	return ok && s.Stray(id)
}

// NewChoice returns a choice. first answers to the isolations of names, and to "".
func NewChoice(first Provider, names []string, options ...Option) *Choice {
	c := &Choice{first: first}
	for _, n := range names {
		c.options = append(c.options, &option{Option: Option{Isolation: n, Name: first.Name()}, opened: first})
	}
	for _, o := range options {
		c.options = append(c.options, &option{Option: o})
	}
	return c
}

// Check reports whether sandboxes like spec can be made here, as far as that can be said beforehand: Invalid for
// an isolation that is none, Unavailable, with the fix, where the host or the technology lacks something.
func (c *Choice) Check(spec Spec) error {
	p, err := c.pick(spec.Isolation)
	if err != nil || p == c.first {
		return err
	}
	return Refuse(p, spec)
}

// Refuse says what of a spec the capabilities of a provider cannot do.
func Refuse(p Provider, spec Spec) error {
	caps := p.Capabilities()
	for _, l := range []struct {
		limit, what string
		asked       bool
	}{{"disk", "disk use", spec.Limits.DiskBytes > 0}, {"pids", "the number of processes", spec.Limits.Pids > 0}} {
		if l.asked && !slices.Contains(caps.Limits, l.limit) && !slices.Contains(caps.Whole, l.limit) {
			return outboard.Errorf(outboard.Unavailable, "a limit on %s does not hold with %s", l.what, caps.Isolation).
				WithHint("leave the limit out, or use the isolation namespace")
		}
	}
	if spec.Build && !caps.Builds {
		return outboard.Errorf(outboard.Unavailable, "packages cannot be installed with %s", caps.Isolation).
			WithHint("name an image that has them, or use the isolation namespace or container")
	}
	return nil
}

func (c *Choice) pick(isolation string) (Provider, error) {
	if isolation == "" {
		return c.first, nil
	}
	var names []string
	for _, o := range c.options {
		if o.Isolation == isolation {
			p, err := o.open()
			if err != nil {
				return nil, fmt.Errorf("isolation %s: %w", isolation, err)
			}
			return p, nil
		}
		names = append(names, o.Isolation)
	}
	// as earlier versions named it
	if isolation == c.first.Capabilities().Isolation || strings.HasPrefix(isolation, "namespaces") {
		return c.first, nil
	}
	return nil, outboard.Errorf(outboard.Invalid, "isolation %q is none of %s", isolation, strings.Join(names, ", ")).
		WithHint("outboard doctor says what this host has")
}

// holding returns the providers that may have a sandbox, or with "" any, the first first.
func (c *Choice) holding(id outboard.SandboxID) ([]Provider, error) {
	all := []Provider{c.first}
	var failed error
	for _, o := range c.options {
		if !o.may(id) {
			continue
		}
		p, err := o.open()
		switch {
		case err != nil && o.Holds != nil:
			failed = errors.Join(failed, fmt.Errorf("sandboxes of isolation %s exist, and cannot be looked at: %w",
				o.Isolation, err))
		case err == nil && !slices.Contains(all, p):
			all = append(all, p)
		}
	}
	return all, failed
}

// Name is the first's.
func (c *Choice) Name() string { return c.first.Name() }

// Maker names the provider that makes sandboxes of an isolation.
func (c *Choice) Maker(isolation string) string {
	for _, o := range c.options {
		if o.Isolation == isolation {
			return o.Name
		}
	}
	return c.Name()
}

// Has reports whether a provider of that name is among them.
func (c *Choice) Has(name string) bool {
	return name == c.Name() || slices.ContainsFunc(c.options, func(o *option) bool { return o.Name == name })
}

// Capabilities are the first's. What a sandbox of another technology cannot do it says itself.
func (c *Choice) Capabilities() Capabilities { return c.first.Capabilities() }

// Create makes a sandbox with the technology that its spec names.
func (c *Choice) Create(ctx context.Context, spec Spec) (Sandbox, error) {
	p, err := c.pick(spec.Isolation)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(c.options, func(o *option) bool { return o.Isolation == spec.Isolation }) {
		spec.Isolation = "" // it is what was picked
	}
	if spec.From == "" || p == c.first {
		return p.Create(ctx, spec)
	}
	from := spec.From
	spec.From = ""
	sb, err := p.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	if err := c.carry(ctx, sb, from); err != nil {
		sb.Close()
		return nil, errors.Join(fmt.Errorf("bringing checkpoint %s into another technology: %w", from, err),
			p.Destroy(context.WithoutCancel(ctx), spec.ID))
	}
	return sb, nil
}

// carry loads a checkpoint whose layers the first provider keeps into a fresh sandbox of one that has no layers.
func (c *Choice) carry(ctx context.Context, sb Sandbox, from outboard.CheckpointID) error {
	r, w := io.Pipe()
	var pack sync.WaitGroup
	pack.Go(func() { w.CloseWithError(c.Pack(ctx, from, "", w)) })
	err := sb.Load(ctx, string(from), r)
	r.CloseWithError(err)
	pack.Wait()
	return err
}

// find asks each technology until one knows the sandbox.
func find[T any](c *Choice, id outboard.SandboxID, ask func(Provider) (T, error)) (T, error) {
	all, failed := c.holding(id)
	none, gone := *new(T), error(outboard.Errorf(outboard.NotFound, "sandbox %s does not exist on this host", id))
	for _, p := range all {
		v, err := ask(p)
		if err == nil || !Gone(err) {
			return v, err
		}
		gone = err
	}
	if failed != nil {
		return none, failed
	}
	return none, gone
}

// Open connects to a living sandbox.
func (c *Choice) Open(ctx context.Context, id outboard.SandboxID) (Sandbox, error) {
	return find(c, id, func(p Provider) (Sandbox, error) { return p.Open(ctx, id) })
}

// Halt implements Halter.
func (c *Choice) Halt(ctx context.Context, id outboard.SandboxID) error {
	_, err := find(c, id, func(p Provider) (struct{}, error) { return struct{}{}, Halt(ctx, p, id) })
	return err
}

// Listen returns the listener of a living sandbox.
func (c *Choice) Listen(ctx context.Context, id outboard.SandboxID, ca []byte) (net.Listener, error) {
	return find(c, id, func(p Provider) (net.Listener, error) {
		n, ok := p.(Networked)
		if !ok {
			return nil, outboard.Errorf(outboard.NotFound, "sandboxes of %s have no network", p.Name())
		}
		return n.Listen(ctx, id, ca)
	})
}

// Destroy removes a sandbox of any technology.
func (c *Choice) Destroy(ctx context.Context, id outboard.SandboxID) error {
	all, err := c.holding(id)
	for _, p := range all {
		err = errors.Join(err, p.Destroy(ctx, id))
	}
	return err
}

// List returns the ids of all technologies.
func (c *Choice) List(ctx context.Context) ([]outboard.SandboxID, error) {
	ids, err := c.first.List(ctx)
	asked := []Provider{c.first}
	for _, o := range c.options {
		if !o.may("") && (o.Used == nil || !o.Used()) {
			continue
		}
		var some []outboard.SandboxID
		p, lerr := o.open()
		switch {
		case lerr == nil && !slices.Contains(asked, p):
			asked = append(asked, p)
			some, lerr = p.List(ctx)
		case lerr != nil && o.Present != nil: // what cannot be reached is not gone
			some, lerr = o.Present()
		case lerr != nil && o.Holds != nil:
			lerr = fmt.Errorf("sandboxes of isolation %s exist, and cannot be looked at: %w", o.Isolation, lerr)
		default:
			lerr = nil
		}
		ids, err = append(ids, some...), errors.Join(err, lerr)
	}
	return ids, err
}

// Keep is the first's.
func (c *Choice) Keep(pool []PoolSpec) error {
	s, ok := c.first.(Pooler)
	if !ok {
		return nil
	}
	return s.Keep(pool)
}

// InUse are the directories that sandboxes of any technology lie on. An error means that nobody knows.
func (c *Choice) InUse() (map[string]bool, error) {
	all, err := c.holding("")
	used := map[string]bool{}
	for _, p := range all {
		s, ok := p.(Stacked)
		if !ok {
			continue
		}
		some, uerr := s.InUse()
		err = errors.Join(err, uerr)
		maps.Copy(used, some)
	}
	return used, err
}

// Commit makes a layer of what was written in a sandbox.
func (c *Choice) Commit(ctx context.Context, id outboard.SandboxID, dir string) error {
	_, err := find(c, id, func(p Provider) (struct{}, error) {
		b, ok := p.(Builder)
		if !ok {
			return struct{}{}, outboard.Errorf(outboard.NotFound, "sandboxes of %s make no layers", p.Name())
		}
		return struct{}{}, b.Commit(ctx, id, dir)
	})
	return err
}

// layers are the first's: Capabilities says whether there are any.
func (c *Choice) layers() Layers {
	if l, ok := c.first.(Layers); ok {
		return l
	}
	return noLayers{}
}

// Keeps implements Layers.
func (c *Choice) Keeps(id outboard.CheckpointID) bool { return c.layers().Keeps(id) }

// Above implements Layers.
func (c *Choice) Above(id, base outboard.CheckpointID) bool {
	return c.layers().Above(id, base)
}

// Pack implements Layers.
func (c *Choice) Pack(ctx context.Context, id, base outboard.CheckpointID, w io.Writer) error {
	return c.layers().Pack(ctx, id, base, w)
}

// Forget implements Layers.
func (c *Choice) Forget(ctx context.Context, id outboard.CheckpointID) error {
	return c.layers().Forget(ctx, id)
}

// Sweep implements Layers.
func (c *Choice) Sweep(ctx context.Context) error { return c.layers().Sweep(ctx) }

// Kept implements Layers.
func (c *Choice) Kept(ctx context.Context) ([]outboard.CheckpointID, error) {
	return c.layers().Kept(ctx)
}

// Weigh implements Layers.
func (c *Choice) Weigh(ctx context.Context, id outboard.CheckpointID) (int64, error) {
	return c.layers().Weigh(ctx, id)
}

// noLayers keeps nothing.
type noLayers struct{}

func (noLayers) Keeps(outboard.CheckpointID) bool      { return false }
func (noLayers) Above(_, _ outboard.CheckpointID) bool { return false }
func (noLayers) Pack(_ context.Context, id, _ outboard.CheckpointID, _ io.Writer) error {
	return outboard.Errorf(outboard.NotFound, "no layers are kept on this host, nor those of checkpoint %s", id)
}
func (noLayers) Forget(context.Context, outboard.CheckpointID) error   { return nil }
func (noLayers) Sweep(context.Context) error                           { return nil }
func (noLayers) Kept(context.Context) ([]outboard.CheckpointID, error) { return nil, nil }
func (noLayers) Weigh(_ context.Context, id outboard.CheckpointID) (int64, error) {
	return 0, outboard.Errorf(outboard.NotFound, "no layers are kept on this host, nor those of checkpoint %s", id)
}
