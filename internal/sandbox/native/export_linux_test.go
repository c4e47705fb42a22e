package native

import "github.com/outboard-dev/outboard/internal/sandbox"

// SquashAt sets how high a stack of layers may become before it is shortened.
func SquashAt(p *Provider, layers int) { p.squashAt = layers }

// Squashed waits until the layers of a sandbox are not being squashed any more.
func Squashed(s sandbox.Sandbox) { s.(*machine).squashing.wg.Wait() }

// ChooseRun is chooseRun.
var ChooseRun = chooseRun

// NurseryPid returns the process that clones sandboxes, 0 for none.
func (p *Provider) NurseryPid() int {
	p.nurse.mu.Lock()
	defer p.nurse.mu.Unlock()
	if p.nurse.cmd == nil {
		return 0
	}
	return p.nurse.cmd.Process.Pid
}

// WithoutFreezer makes a sandbox one of a host where processes cannot be stopped.
func WithoutFreezer(s sandbox.Sandbox) { s.(*machine).freezable = false }
