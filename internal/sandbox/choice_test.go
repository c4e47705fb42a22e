package sandbox_test

import (
	"errors"
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
		sandbox.Option{Isolation: "container", Open: func() (sandbox.Provider, error) { opened++; return named{name: "second"}, nil }},
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
	if e, ok := errors.AsType[*outboard.Error](err); !ok || outboard.KindOf(err) != outboard.Unavailable || e.Hint != "make runsc" {
		t.Errorf("gvisor: %v", err)
	}
	if err := c.Check(sandbox.Spec{Isolation: "vmware"}); outboard.KindOf(err) != outboard.Invalid {
		t.Errorf("a name that is none: %v", err)
	}
}
