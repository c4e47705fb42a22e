package sandbox_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// named is a provider that is only asked who it is.
type named struct {
	sandbox.Provider
	name string
}

func (n named) Name() string { return n.name }
func (n named) Capabilities() sandbox.Capabilities {
	return sandbox.Capabilities{Isolation: "namespaces"}
}

// If this fails, an environment is given another isolation than it asks for, or is not told what to install for it.
func TestChoice(t *testing.T) {
	missing := outboard.Errorf(outboard.Unavailable, "runsc is not installed").WithHint("make runsc")
	opened := 0
	c := sandbox.NewChoice(named{name: "first"}, []string{"namespace"},
		sandbox.Option{Isolation: "container", Open: func() (sandbox.Provider,
			error) {
			opened++
			return named{name: "second"}, nil
		}},
		sandbox.Option{Isolation: "gvisor", Open: func() (sandbox.Provider, error) { return nil, missing }})
	for _, ok := range []string{"", "namespace", "namespaces", "container", "container"} {
		if err := c.Check(sandbox.Spec{Isolation: ok}); err != nil {
			t.Errorf("%q: %v", ok, err)
		}
	}
	if opened != 1 {
		t.Errorf("opened %d times", opened)
	}
	err := c.Check(sandbox.Spec{Isolation: "gvisor"})
	if e, ok := errors.AsType[*outboard.Error](err); !ok || outboard.KindOf(err) != outboard.Unavailable ||
		e.Hint != "make runsc" {
		t.Errorf("gvisor: %v", err)
	}
	if err := c.Check(sandbox.Spec{Isolation: "vmware"}); outboard.KindOf(err) != outboard.Invalid {
		t.Errorf("a name that is none: %v", err)
	}
}

// listed is a provider that has sandboxes, some of which only its technology knows.
type listed struct {
	named
	ids, strays, destroyed []outboard.SandboxID
}

func (l *listed) List(context.Context) ([]outboard.SandboxID, error) { return l.ids, nil }
func (l *listed) Stray(id outboard.SandboxID) bool                   { return slices.Contains(l.strays, id) }
func (l *listed) Destroy(_ context.Context, id outboard.SandboxID) error {
	l.destroyed = append(l.destroyed, id)
	return nil
}

// If this fails, a server does not start because a technology is missing, or gives up its sandboxes; or what
// only a technology knows of is never found; or each technology is bothered with every sandbox.
func TestChoiceLists(t *testing.T) {
	first, engine := &listed{ids: []outboard.SandboxID{"n"}}, &listed{ids: []outboard.SandboxID{"d", "stray"},
		strays: []outboard.SandboxID{"stray"}}
	missing, used := outboard.Errorf(outboard.Unavailable, "gone"), false
	c := sandbox.NewChoice(first, nil,
		sandbox.Option{Isolation: "gvisor", Open: func() (sandbox.Provider, error) { return nil, missing },
			Holds:   func(id outboard.SandboxID) bool { return id == "" || id == "g" },
			Present: func() ([]outboard.SandboxID, error) { return []outboard.SandboxID{"g"}, nil }},
		sandbox.Option{Isolation: "docker", Open: func() (sandbox.Provider, error) { return engine, nil },
			Holds: func(id outboard.SandboxID) bool { return id == "d" },
			Used:  func() bool { return used }})
	if ids, err := c.List(t.Context()); err != nil || !slices.Equal(ids, []outboard.SandboxID{"n", "g"}) {
		t.Errorf("before the engine was used: %v, %v", ids, err)
	}
	used = true
	if ids, err := c.List(t.Context()); err != nil || !slices.Equal(ids, []outboard.SandboxID{"n", "g", "d", "stray"}) {
		t.Errorf("afterwards: %v, %v", ids, err)
	}
	for _, id := range []outboard.SandboxID{"n", "d", "stray"} {
		if err := c.Destroy(t.Context(), id); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	if !slices.Equal(engine.destroyed, []outboard.SandboxID{"d", "stray"}) {
		t.Errorf("the engine was asked to destroy %v", engine.destroyed)
	}
	if err := c.Destroy(t.Context(), "g"); outboard.KindOf(err) != outboard.Unavailable {
		t.Errorf("destroying what cannot be reached: %v", err)
	}
}
