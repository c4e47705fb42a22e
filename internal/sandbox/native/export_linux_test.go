package native

import (
	"context"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// FlattenAt sets how high a stack of layers may become before it is shortened.
func FlattenAt(p *Provider, layers int) { p.flattenAt = layers }

// Flattened waits until the layers of a sandbox are not being flattened any more.
func Flattened(s sandbox.Sandbox) { s.(*machine).flattening.wg.Wait() }

// TakeInVain takes a place that was made ahead for a sandbox without anything special, waits until another is
// there instead, and gives it back. It reports whether there was one.
func (p *Provider) TakeInVain() bool {
	root, err := p.rootfs("", nil, "")
	if err != nil {
		return false
	}
	want := shape{root: root, limits: withDefaults(outboard.SandboxLimits{})}
	sl := p.pool.take(want)
	if sl == nil {
		return false
	}
	p.pool.want(want)
	p.PoolFilled()
	p.pool.put(sl)
	p.PoolFilled()
	return true
}

// ForgetPutOff makes the time come of all kinds that were put off.
func (p *Provider) ForgetPutOff() {
	p.pool.mu.Lock()
	defer p.pool.mu.Unlock()
	for _, k := range p.pool.kinds {
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
	b, err := p.placeOf(spec.ID)
	if err != nil {
		return nil, nil, err
	}
	root, err := p.rootfs(spec.Rootfs, spec.Layers, spec.User)
	if err != nil {
		return nil, nil, err
	}
	sl, unlock, err := p.slotFor(ctx, b, shape{root: root, limits: withDefaults(spec.Limits), from: spec.From})
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	m, err := p.create(ctx, sl, spec)
	if err != nil {
		sl.close()
		return nil, nil, err
	}
	return m, sl.close, nil
}

// Full is full.
func (p *Provider) Full(err error) error { return p.full(err) }
