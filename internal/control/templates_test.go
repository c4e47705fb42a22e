package control_test

import (
	"testing"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/control"
	"github.com/outboard-dev/outboard/internal/fleet"
	"github.com/outboard-dev/outboard/internal/image"
	"github.com/outboard-dev/outboard/internal/sandbox"
	"github.com/outboard-dev/outboard/internal/store"
)

// stackable is a provider that is never asked for a sandbox.
type stackable struct {
	sandbox.Provider
	sandbox.Stacked
}

func (stackable) Name() string { return "none" }

// If this fails, nobody can tell a build that a server was about to begin when it was killed from one that a
// client has yet to say more about, and the first waits for ever.
func TestTemplateBuildHasItsHost(t *testing.T) {
	st, err := store.Open(t.Context(), store.Config{Path: t.TempDir() + "/outboard.db"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	asked := 0
	c := control.New(control.Config{Store: st,
		Fleet: fleet.New(fleet.Config{Store: st, Provider: stackable{}, Images: new(image.Store), Host: "here"}),
		Isolation: func(outboard.EnvConfig) error {
			if asked++; asked == 2 { // the row is there, and the build is about to begin
				return outboard.Errorf(outboard.Canceled, "who asks has gone")
			}
			return nil
		}})
	if _, _, err := c.BuildTemplate(t.Context(), admin, "web", nil,
		control.TemplateBuildSpec{}); outboard.KindOf(err) != outboard.Canceled {
		t.Fatalf("built: %v", err)
	}
	if _, _, err := c.RequestTemplateBuild(t.Context(), admin, "web", nil, outboard.SandboxLimits{}); err != nil {
		t.Fatal(err)
	}
	_, builds, err := c.TemplateBuilds(t.Context(), admin, "web")
	if err != nil || len(builds) != 2 {
		t.Fatalf("%+v, %v", builds, err)
	}
	for i, host := range []string{"", "here"} { // newest first
		if builds[i].Host != host || builds[i].State != outboard.TemplateWaiting {
			t.Errorf("build %d is of %q and %s, not of %q", i, builds[i].Host, builds[i].State, host)
		}
	}
}
