package native

import (
	"context"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// SquashAt sets how high a stack of layers may become before it is shortened.
func SquashAt(p *Provider, layers int) { p.squashAt = layers }

// Squashed waits until the layers of a sandbox are not being squashed any more.
func Squashed(s sandbox.Sandbox) { s.(*machine).squashing.wg.Wait() }

// TakeInVain takes a place that was made ahead for a sandbox without anything special, waits until another is there instead, and gives
// it back. It reports whether there was one.
func (p *Provider) TakeInVain() bool {
	root, err := p.rootfs("", nil, "")
	if err != nil {
		return false
	}
	want := shape{root: root, limits: withDefaults(outboard.SandboxLimits{})}
	pl := p.shelf.take(want)
	if pl == nil {
		return false
	}
	p.shelf.want(want)
	p.Stocked()
	p.shelf.put(pl)
	p.Stocked()
	return true
}

// ForgetPutOff makes the time come of all kinds that were put off.
func (p *Provider) ForgetPutOff() {
	p.shelf.mu.Lock()
	defer p.shelf.mu.Unlock()
	for _, k := range p.shelf.kinds {
		k.after = time.Time{}
	}
}

// ChooseRun is chooseRun.
var ChooseRun = chooseRun

// SpawnerPid returns the process that clones sandboxes, 0 for none.
func (p *Provider) SpawnerPid() int {
	p.spawner.mu.Lock()
	defer p.spawner.mu.Unlock()
	if p.spawner.cmd == nil {
		return 0
	}
	return p.spawner.cmd.Process.Pid
}

// WithoutFreezer makes a sandbox one of a host where processes cannot be stopped.
func WithoutFreezer(s sandbox.Sandbox) { s.(*machine).freezable = false }

// CreateOnly is Create but for what it does last, in the background: to close what it opened. The caller does that.
func (p *Provider) CreateOnly(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, func(), error) {
	b, err := p.box(spec.ID)
	if err != nil {
		return nil, nil, err
	}
	root, err := p.rootfs(spec.Rootfs, spec.Layers, spec.User)
	if err != nil {
		return nil, nil, err
	}
	pl, unlock, err := p.place(ctx, b, shape{root: root, limits: withDefaults(spec.Limits), from: spec.From})
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	m, err := p.create(ctx, pl, spec)
	if err != nil {
		pl.close()
		return nil, nil, err
	}
	return m, pl.close, nil
}

// Full is full.
func (p *Provider) Full(err error) error { return p.full(err) }
